/* test_crowded.c - a pool that is too small: somebody moves in every step, whoever needs much holds
 * nobody up who needs little, and no block answers for another's tokens.
 *
 * What comparable servers did under pressure: one request that lacked blocks ended the whole
 * scheduling pass; loaded and parked requests waited behind a head that could not run, and nobody
 * looked further; a preempted request lost text; blocks of equal hash and other tokens were used
 * silently. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/rng.h"
#include "tests/unit/group_world.h"

enum { N_SINGLES = 5, WIDE = 20, WIDE_PROMPT = 32, SINGLE_PROMPT = 40, TOKENS = 60, LOAD = 12 };

/* Takes a step's results: it had rows. Where victims are copied to the host, the askers of their
 * blocks may sit out the one step that copies. still: steps without a row so far, in succession. */
static void turn_moves_somebody(struct world *w, int32_t *still)
{
    uint64_t before = stats_of(w).rows;
    bool is_first = w->n_turns == 0;

    turn(w);
    *still = stats_of(w).rows > before || is_first ? 0 : *still + 1;
    if (!engine_is_idle(w->engine))
        assert_true(*still <= (stats_of(w).n_slots > 0));
}

/* ---- one that needs many blocks ---------------------------------------------------------------- */

/* A group of twenty whose branches all cross a block border at once, behind five that need a block
 * now and then. Order: the group first, or last. */
static struct world *crowd_with_a_wide_group(bool group_first, int32_t slots,
                                             struct client **singles, struct group *wide)
{
    struct shape shape = small_shape;
    int32_t ids[SINGLE_PROMPT];

    shape.pool = 72; /* the group's longest life takes 62, the five take 7 each */
    shape.slots = slots;
    struct world *w = world_new(shape);
    fill_prompt(ids, WIDE_PROMPT, 100);
    if (group_first)
        group_submit(wide, w, ids, WIDE_PROMPT, WIDE, 9, SINGLE_PROMPT);
    for (int32_t i = 0; i < N_SINGLES; i++) {
        fill_prompt(ids, SINGLE_PROMPT, i);
        singles[i] = submit(w, ids, SINGLE_PROMPT, (uint64_t)i, TOKENS);
    }
    fill_prompt(ids, WIDE_PROMPT, 100);
    if (!group_first)
        group_submit(wide, w, ids, WIDE_PROMPT, WIDE, 9, SINGLE_PROMPT);
    return w;
}

static void check_crowd(struct world *w, struct client **singles, struct group *wide)
{
    struct gen_options o = options_of(9, SINGLE_PROMPT);
    int32_t ids[SINGLE_PROMPT];

    o.n_branches = WIDE;
    assert_true(stats_of(w).preemptions > 0);
    fill_prompt(ids, WIDE_PROMPT, 100);
    group_is_as_alone(wide, ids, WIDE_PROMPT, &o);
    group_free(wide);
    for (int32_t i = 0; i < N_SINGLES; i++) {
        fill_prompt(ids, SINGLE_PROMPT, i);
        assert_as_alone(singles[i], ids, SINGLE_PROMPT, (uint64_t)i, TOKENS);
    }
    world_free(w);
}

static void
test_others_take_their_token_in_the_step_in_which_a_wide_group_lacks_blocks(void **state)
{
    (void)state;
    for (int32_t slots = 0; slots <= 200; slots += 200) {
        struct client *singles[N_SINGLES];
        static struct group wide;
        struct world *w = crowd_with_a_wide_group(false, slots, singles, &wide);
        int32_t n_ids[N_SINGLES] = {0}, still = 0;
        turn(w); /* launches the prompts */
        while (!engine_is_idle(w->engine)) {
            turn_moves_somebody(w, &still);
            for (int32_t i = 0; i < N_SINGLES; i++) {
                struct gen_view view;
                if (!singles[i]->gen)
                    continue;
                gen_view(singles[i]->gen, &view);
                assert_true(view.running);
                assert_int_equal(view.n_ids, ++n_ids[i]);
            }
        }
        check_crowd(w, singles, &wide);
    }
}

static void test_a_wide_group_that_came_first_stops_others_and_never_everybody(void **state)
{
    (void)state;
    for (int32_t slots = 0; slots <= 200; slots += 200) {
        struct client *singles[N_SINGLES];
        static struct group wide;
        struct world *w = crowd_with_a_wide_group(true, slots, singles, &wide);
        int32_t still = 0;
        while (!engine_is_idle(w->engine))
            turn_moves_somebody(w, &still);
        check_crowd(w, singles, &wide);
    }
}

/* ---- a head that cannot run -------------------------------------------------------------------- */

/* Five were swapped out, and are ready to come back; then a larger one of higher rank stands before
 * them, for whom there is no room yet. */
static void test_swapped_ones_behind_a_larger_head_are_no_standstill(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.pool = 30;
    shape.slots = 100;
    struct world *w = world_new(shape);
    struct client *c[N_SINGLES + 1];
    struct gen_options o = options_of(N_SINGLES, 100);
    int32_t ids[350], still = 0;

    for (int32_t i = 0; i < N_SINGLES; i++) {
        fill_prompt(ids, 60, i);
        c[i] = submit(w, ids, 60, (uint64_t)i, 100);
    }
    while (stats_of(w).swapped_out_blocks < 10)
        turn_moves_somebody(w, &still);
    fill_prompt(ids, 350, N_SINGLES);
    o.priority = 1;
    c[N_SINGLES] = client_new(w);
    assert_int_equal(submit_full(c[N_SINGLES], ids, 350, &o, NULL), SUBMIT_OK);
    while (!engine_is_idle(w->engine))
        turn_moves_somebody(w, &still);
    assert_true(stats_of(w).swapped_in_blocks > 0);
    for (int32_t i = 0; i <= N_SINGLES; i++) {
        int32_t n = i < N_SINGLES ? 60 : 350;
        fill_prompt(ids, n, i);
        assert_as_alone(c[i], ids, n, (uint64_t)i, 100);
    }
    world_free(w);
}

/* Those whose next token needs no block: it must be there behind the next turn. Wanted [LOAD], -1: not
 * due. A client of no generation is none. */
static void note_due(struct client *const *clients, int32_t block, int32_t *wanted)
{
    for (int32_t i = 0; i < LOAD; i++) {
        struct gen_view v;
        wanted[i] = -1;
        if (!clients[i] || !clients[i]->gen)
            continue;
        gen_view(clients[i]->gen, &v);
        int32_t last = v.n_prompt + v.n_ids - 1;
        if (v.running && v.n_ids > 0 && v.n_computed == last && last % block != 0)
            wanted[i] = v.n_ids + 1;
    }
}

static void assert_due_came(struct client *const *clients, const int32_t *wanted)
{
    for (int32_t i = 0; i < LOAD; i++) {
        struct gen_view v;
        if (wanted[i] < 0 || !clients[i]->gen)
            continue;
        gen_view(clients[i]->gen, &v);
        assert_int_equal(v.n_ids, wanted[i]);
    }
}

static void test_every_step_moves_somebody_and_all_who_need_no_block(void **state)
{
    (void)state;
    struct engine_stats sum = {0};

    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct rng rng = rng_from(seed);
        struct shape shape = small_shape;
        shape.block = 1 << rng_below(&rng, 5);
        shape.pool = (320 + (int32_t)rng_below(&rng, 100)) / shape.block;
        shape.batch = 3 * shape.block + 32;
        shape.chunk = 2 * shape.block;
        shape.slots = rng_below(&rng, 2) ? (int32_t)rng_below(&rng, 400) / shape.block + 1 : 0;
        struct world *w = world_new(shape);
        struct client *clients[LOAD] = {NULL};
        int32_t still = 0, wanted[LOAD];
        print_message("# seed %d\n", (int)seed);
        for (int i = 0; i < LOAD || !engine_is_idle(w->engine); i++) {
            int32_t n = 1 + (int32_t)rng_below(&rng, 200), ids[200];
            struct gen_options o = options_of(seed, 1 + (int64_t)rng_below(&rng, 100));
            fill_prompt(ids, n, (int32_t)rng_below(&rng, 5));
            o.priority = (int32_t)rng_below(&rng, 3);
            if (i < LOAD)
                (void)submit_full(clients[i] = client_new(w), ids, n, &o, NULL);
            note_due(clients, shape.block, wanted);
            turn_moves_somebody(w, &still);
            assert_due_came(clients, wanted);
        }
        sum.preemptions += stats_of(w).preemptions;
        sum.swapped_in_blocks += stats_of(w).swapped_in_blocks;
        drain(w);
        world_free(w);
    }
    assert_true(sum.preemptions > 50);
    assert_true(sum.swapped_in_blocks > 50);
}

/* ---- equal hashes ------------------------------------------------------------------------------ */

/* A thousand prompts of few different tokens, so that many begin alike, under a digest of 8 bits:
 * each gives what it gives by itself. */
static void test_prompts_whose_hashes_collide_get_answers_of_their_own(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.block = 4;
    shape.hash_bits = 8;
    struct world *w = world_new(shape);
    struct rng rng = rng_from(21);
    struct gen_options o = options_of(3, 6);
    static int32_t want[GROUP_IDS];

    o.n_branches = 1;
    for (int k = 0; k < 1000; k++) {
        static struct group g;
        int32_t ids[24], n = 9 + (int32_t)rng_below(&rng, 16);
        for (int32_t i = 0; i < n; i++)
            ids[i] = (int32_t)rng_below(&rng, 3);
        group_submit_with(&g, w, ids, n, &o);
        drain(w);
        assert_int_equal(plain_run(w->runner, ids, n, &o, 0, want, 6), g.branches[0].n_ids);
        assert_memory_equal(g.branches[0].ids, want, 6 * sizeof *want);
        group_free(&g);
    }
    assert_true(stats_of(w).rejected_matches > 100);
    assert_true(stats_of(w).cached_tokens > 1000);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_others_take_their_token_in_the_step_in_which_a_wide_group_lacks_blocks),
        cmocka_unit_test(test_a_wide_group_that_came_first_stops_others_and_never_everybody),
        cmocka_unit_test(test_swapped_ones_behind_a_larger_head_are_no_standstill),
        cmocka_unit_test(test_every_step_moves_somebody_and_all_who_need_no_block),
        cmocka_unit_test(test_prompts_whose_hashes_collide_get_answers_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
