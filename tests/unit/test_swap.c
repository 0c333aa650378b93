/* test_swap.c - preemption by copying to host memory: the ids of a lone run come back through it, as
 * through recomputation; slots are held behind their copies, and a full host costs no answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "cache/swap.h"
#include "tests/unit/group_world.h"

enum { N = 32, PROMPT = 200, TOKENS = 100 };

static void test_slots_come_back_behind_their_last_user(void **state)
{
    (void)state;
    struct swap s;

    swap_init(&s, 2);
    int32_t a = swap_take(&s), b = swap_take(&s);
    assert_int_equal(a, 0);
    assert_int_equal(b, 1);
    assert_int_equal(swap_take(&s), -1);
    swap_hold(&s, a);
    swap_drop(&s, a);
    assert_int_equal(swap_take(&s), -1);
    swap_drop(&s, a);
    assert_int_equal(swap_take(&s), a);
    swap_done(&s);
}

/* The load of the design: 64 blocks for 32 clients of 200 tokens and 100 to come. */
static struct engine_stats run_load(int32_t n_slots, int32_t n_branches)
{
    struct shape shape = small_shape;
    static struct group groups[N];
    static int32_t ids[N][PROMPT];
    struct gen_options o[N];

    shape.slots = n_slots;
    struct world *w = world_new(shape);
    for (int32_t i = 0; i < N; i++) {
        fill_prompt(ids[i], PROMPT, i);
        o[i] = options_of((uint64_t)i + 1, TOKENS);
        o[i].n_branches = n_branches;
        group_submit_with(&groups[i], w, ids[i], PROMPT, &o[i]);
    }
    drain(w);
    for (int32_t i = 0; i < N; i++) {
        group_is_as_alone(&groups[i], ids[i], PROMPT, &o[i]);
        group_free(&groups[i]);
    }
    struct engine_stats stats = stats_of(w);
    world_free(w);
    return stats;
}

static void test_both_modes_give_the_ids_of_a_lone_run(void **state)
{
    (void)state;
    struct engine_stats recomputed = run_load(0, 1), swapped = run_load(400, 1);

    assert_true(recomputed.preemptions > 0);
    assert_true(recomputed.dropped_tokens > 0);
    assert_int_equal(recomputed.swapped_out_blocks, 0);
    assert_true(swapped.preemptions > 0);
    assert_true(swapped.swapped_out_blocks > 0);
    assert_true(swapped.swapped_in_blocks > 0);
    assert_true(swapped.swapped_in_blocks <= swapped.swapped_out_blocks);
    assert_int_equal(swapped.dropped_tokens, 0);
    assert_true(swapped.computed_prompt_tokens <= N * PROMPT); /* nothing twice */
    print_message("# recompute: %d preemptions, %d rows; swap: %d preemptions, %d rows, %d blocks "
                  "out, %d in\n",
                  (int)recomputed.preemptions, (int)recomputed.rows, (int)swapped.preemptions,
                  (int)swapped.rows, (int)swapped.swapped_out_blocks,
                  (int)swapped.swapped_in_blocks);
}

static void test_groups_come_back_with_their_ids(void **state)
{
    (void)state;
    struct engine_stats swapped = run_load(400, 3);

    assert_true(swapped.preemptions > 0);
    assert_int_equal(swapped.dropped_tokens, 0);
    assert_true(swapped.computed_prompt_tokens <= N * PROMPT);
}

static void test_full_host_falls_back_to_recomputation(void **state)
{
    (void)state;
    for (int32_t slots = 1; slots <= 10; slots += 9) {
        struct engine_stats stats = run_load(slots, 1);
        assert_true(stats.preemptions > 0);
        assert_true(stats.swap_full > 0);
        assert_true(stats.dropped_tokens > 0);
    }
}

/* Two generations that cannot both finish in the pool: the second is swapped out. */
struct pair {
    struct world *w;
    struct group a, b;
    int32_t ids_a[60], ids_b[60];
    struct gen_options o_a, o_b;
};

static void start_pair(struct pair *p, int32_t n_branches)
{
    struct shape shape = small_shape;

    shape.pool = 18;
    shape.slots = 30;
    p->w = world_new(shape);
    fill_prompt(p->ids_a, 60, 1);
    fill_prompt(p->ids_b, 60, 2);
    p->o_a = options_of(1, 160);
    p->o_a.n_branches = 1;
    p->o_b = options_of(2, 60);
    p->o_b.n_branches = n_branches;
    group_submit_with(&p->a, p->w, p->ids_a, 60, &p->o_a);
    group_submit_with(&p->b, p->w, p->ids_b, 60, &p->o_b);
    while (stats_of(p->w).preemptions == 0) {
        assert_false(engine_is_idle(p->w->engine));
        turn(p->w);
    }
}

static void end_pair(struct pair *p)
{
    group_free(&p->a);
    group_free(&p->b);
    world_free(p->w);
}

/* The turn that preempts has launched the copies: blocks and slots are held until they are done. */
static void test_blocks_and_slots_are_held_until_the_copies_are_done(void **state)
{
    (void)state;
    static struct pair p;
    struct gen_view view;

    start_pair(&p, 3);
    gen_view_branch(p.b.gen, 0, &view);
    assert_false(view.running);
    assert_true(view.n_swapped_blocks > 3);
    assert_int_equal(view.n_blocks, 0);
    assert_true(stats_of(p.w).used_blocks > 10);
    int32_t n_free = stats_of(p.w).free_slots;
    engine_cancel(p.w->engine, p.b.gen, GEN_CANCELLED); /* while its copies are under way */
    world_audit(p.w);
    assert_int_equal(stats_of(p.w).free_slots, n_free);
    turn(p.w);
    assert_int_equal(stats_of(p.w).free_slots, 30);
    drain(p.w);
    group_is_as_alone(&p.a, p.ids_a, 60, &p.o_a);
    end_pair(&p);
}

/* However many branches name a block or a slot, it is one. */
static void test_blocks_of_a_group_are_counted_once(void **state)
{
    (void)state;
    static struct pair p;
    struct gen_blocks a, b;

    start_pair(&p, 3);
    turn(p.w);
    gen_count_blocks(p.b.gen, &b);
    gen_count_blocks(p.a.gen, &a);
    assert_int_equal(b.n, 0);
    assert_int_equal(b.n_swapped, 30 - stats_of(p.w).free_slots);
    assert_int_equal(a.n, stats_of(p.w).used_blocks);
    assert_int_equal(a.n_shared, stats_of(p.w).shared_blocks);
    assert_int_equal(a.n_swapped, 0);
    drain(p.w);
    end_pair(&p);
}

static void test_cancel_of_a_swapped_group_frees_its_slots(void **state)
{
    (void)state;
    static struct pair p;

    start_pair(&p, 3);
    turn(p.w);
    assert_true(stats_of(p.w).free_slots < 30);
    engine_cancel(p.w->engine, p.b.gen, GEN_CANCELLED);
    assert_int_equal(stats_of(p.w).free_slots, 30);
    drain(p.w);
    end_pair(&p);
}

static void test_deadline_of_a_swapped_group_tells_what_it_made(void **state)
{
    (void)state;
    static struct pair p;

    start_pair(&p, 2);
    turn(p.w);
    struct gen_view view;
    gen_view_branch(p.b.gen, 1, &view);
    int32_t made = view.n_ids;
    assert_true(made > 0);
    engine_cancel(p.w->engine, p.b.gen, GEN_DEADLINE);
    assert_int_equal(p.b.branches[1].n_ids, made);
    drain(p.w);
    end_pair(&p);
}

/* The step that copies out fails: who runs ends with the error, who waits is computed again. */
static void test_failed_copy_out_is_computed_again(void **state)
{
    (void)state;
    static struct pair p;

    static struct group urgent; /* evicts what could still be found in the pool */
    struct gen_options o = options_of(3, 20);
    int32_t ids[250];

    start_pair(&p, 3);
    o.n_branches = 1;
    o.priority = 5;
    fill_prompt(ids, 250, 3);
    group_submit_with(&urgent, p.w, ids, 250, &o);
    p.w->runner->fail = "the device is gone";
    drain(p.w);
    assert_int_equal(p.a.branches[0].finish, GEN_ERROR);
    assert_int_equal(stats_of(p.w).swapped_in_blocks, 0);
    group_is_as_alone(&urgent, ids, 250, &o);
    group_free(&urgent);
    group_is_as_alone(&p.b, p.ids_b, 60, &p.o_b);
    end_pair(&p);
}

static void test_failed_copy_in_ends_with_the_error(void **state)
{
    (void)state;
    static struct pair p;

    start_pair(&p, 3);
    while (stats_of(p.w).swapped_in_blocks == 0) {
        assert_false(engine_is_idle(p.w->engine));
        turn(p.w);
    }
    p.w->runner->fail = "the device is gone";
    drain(p.w);
    assert_int_equal(p.b.branches[2].finish, GEN_ERROR);
    end_pair(&p);
}

/* A fork of a swapped source uses what can be found, and takes nothing from the host. */
static void test_fork_of_a_swapped_source_gives_the_ids_it_has_alone(void **state)
{
    (void)state;
    static struct pair p;
    struct gen_view view;
    int32_t ids[200], n = 60;

    start_pair(&p, 2);
    engine_publish_branch(p.w->engine, p.b.gen, 1);
    gen_view_branch(p.b.gen, 1, &view);
    memcpy(ids, p.ids_b, sizeof p.ids_b);
    memcpy(ids + n, view.ids, (size_t)view.n_ids * sizeof *ids);
    n += view.n_ids;
    ids[n++] = 7;
    struct client *child = submit(p.w, ids, n, 77, 10);
    drain(p.w);
    assert_as_alone(child, ids, n, 77, 10);
    group_is_as_alone(&p.b, p.ids_b, 60, &p.o_b);
    end_pair(&p);
}

/* What others left in the pool is preferred to the copy: those slots are not read. */
static void test_equal_blocks_in_the_pool_are_preferred(void **state)
{
    (void)state;
    static struct pair p;

    start_pair(&p, 2);
    turn(p.w);
    uint64_t out = stats_of(p.w).swapped_out_blocks;
    engine_cancel(p.w->engine, p.a.gen, GEN_CANCELLED);
    drain(p.w);
    assert_true(stats_of(p.w).swapped_in_blocks < out);
    group_is_as_alone(&p.b, p.ids_b, 60, &p.o_b);
    end_pair(&p);
}

/* Random groups, pools, hosts, publishes and cancels; audited after each turn. */
static void run_random(uint64_t seed, struct engine_stats *sum)
{
    enum { MANY = 20 };
    struct rng rng = rng_from(seed);
    int32_t block = 1 << rng_below(&rng, 4);
    struct shape shape = {.block = block,
                          .context = 300,
                          .pool = (120 + (int32_t)rng_below(&rng, 200)) / block + 40,
                          .batch = 16 + block * (1 + (int32_t)rng_below(&rng, 4)),
                          .chunk = block * (1 + (int32_t)rng_below(&rng, 4)),
                          .running = 16,
                          .queue = 64,
                          .slots = 1 + (int32_t)rng_below(&rng, 400) / block};
    struct world *w = world_new(shape);
    static struct group groups[MANY];
    static int32_t ids[MANY][128], n_ids[MANY];
    struct gen_options o[MANY];
    bool cancelled[MANY] = {0};

    w->runner->end_id = w->vocab.end_of_text;
    for (int32_t i = 0; i < MANY; i++) {
        struct err err = {0};
        n_ids[i] = 1 + (int32_t)rng_below(&rng, 100);
        fill_prompt(ids[i], n_ids[i], (int32_t)rng_below(&rng, 3));
        o[i] = options_of(rng_below(&rng, 1000), 1 + (int64_t)rng_below(&rng, 80));
        o[i].n_branches = 1 + (int32_t)rng_below(&rng, 6);
        o[i].ignore_eos = rng_below(&rng, 2);
        o[i].priority = (int32_t)rng_below(&rng, 3);
        if (rng_below(&rng, 4) == 0)
            o[i].temperature = 0;
        if (group_try(&groups[i], w, ids[i], n_ids[i], &o[i], &err) != SUBMIT_OK) {
            cancelled[i] = true;
            continue;
        }
        for (uint64_t k = rng_below(&rng, 20); k > 0; k--) {
            w->runner->hold = rng_below(&rng, 3) == 0;
            turn(w);
        }
        w->runner->hold = false;
        int32_t other = (int32_t)rng_below(&rng, (uint64_t)i + 1);
        if (groups[other].gen && rng_below(&rng, 3) == 0)
            engine_publish_branch(w->engine, groups[other].gen,
                                  (int32_t)rng_below(&rng, (uint64_t)o[other].n_branches));
        if (groups[other].gen && rng_below(&rng, 8) == 0) {
            engine_cancel(w->engine, groups[other].gen, GEN_CANCELLED);
            cancelled[other] = true;
        }
        world_audit(w);
    }
    drain(w);
    for (int32_t i = 0; i < MANY; i++) {
        if (!cancelled[i])
            group_is_as_alone(&groups[i], ids[i], n_ids[i], &o[i]);
        group_free(&groups[i]);
    }
    struct engine_stats stats = stats_of(w);
    sum->preemptions += stats.preemptions;
    sum->swapped_in_blocks += stats.swapped_in_blocks;
    sum->swap_full += stats.swap_full;
    world_free(w);
}

static void test_random_groups_give_the_ids_they_have_alone(void **state)
{
    (void)state;
    struct engine_stats sum = {0};

    for (uint64_t seed = 1; seed <= 80; seed++) {
        print_message("# seed %d\n", (int)seed);
        run_random(seed, &sum);
    }
    assert_true(sum.preemptions > 30);
    assert_true(sum.swapped_in_blocks > 100);
    assert_true(sum.swap_full > 5);
}

/* What is thrown away stood in blocks: branches share those of the prompt. */
static void test_tokens_thrown_away_count_once_for_all_branches(void **state)
{
    (void)state;
    enum { N_GROUPS = 2, BRANCHES = 4, BLOCK = 16 };
    struct shape shape = small_shape;
    static struct group groups[N_GROUPS];
    static int32_t ids[N_GROUPS][PROMPT];
    uint64_t n_seen = 0;

    shape.pool = PROMPT / BLOCK + BRANCHES * ((PROMPT % BLOCK + TOKENS + BLOCK - 1) / BLOCK) + 6;
    struct world *w = world_new(shape);
    for (int32_t i = 0; i < N_GROUPS; i++) {
        struct gen_options o = options_of((uint64_t)i + 1, TOKENS);
        fill_prompt(ids[i], PROMPT, i);
        o.n_branches = BRANCHES;
        o.ignore_eos = true;
        group_submit_with(&groups[i], w, ids[i], PROMPT, &o);
    }
    while (groups[0].gen) { /* the other is the victim */
        struct engine_stats before = stats_of(w), after;
        struct gen_blocks blocks;
        gen_count_blocks(groups[1].gen, &blocks);
        turn(w);
        after = stats_of(w);
        uint64_t n_dropped = after.dropped_tokens - before.dropped_tokens;
        assert_true(n_dropped <= (uint64_t)blocks.n * BLOCK);
        if (after.preemptions > before.preemptions)
            assert_true(n_dropped > (uint64_t)(blocks.n - BRANCHES) * BLOCK); /* all but the last */
        n_seen += after.preemptions - before.preemptions;
    }
    assert_true(n_seen > 0);
    drain(w);
    for (int32_t i = 0; i < N_GROUPS; i++)
        group_free(&groups[i]);
    world_free(w);
}

/* The lists of slots are made when a group is swapped for the first time. */
static void test_memory_that_is_gone_later_costs_no_answer(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 4; n++) {
        mem_fail_at(n, n % 2 == 0);
        struct engine_stats stats = run_load(400, 2);
        mem_fail_at(0, false);
        assert_true(stats.swap_full > 0);
        assert_true(stats.dropped_tokens > 0);
        assert_true(n > 1 || stats.swapped_in_blocks > 0); /* once is no more than once */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_come_back_behind_their_last_user),
        cmocka_unit_test(test_both_modes_give_the_ids_of_a_lone_run),
        cmocka_unit_test(test_memory_that_is_gone_later_costs_no_answer),
        cmocka_unit_test(test_tokens_thrown_away_count_once_for_all_branches),
        cmocka_unit_test(test_groups_come_back_with_their_ids),
        cmocka_unit_test(test_full_host_falls_back_to_recomputation),
        cmocka_unit_test(test_blocks_and_slots_are_held_until_the_copies_are_done),
        cmocka_unit_test(test_blocks_of_a_group_are_counted_once),
        cmocka_unit_test(test_cancel_of_a_swapped_group_frees_its_slots),
        cmocka_unit_test(test_deadline_of_a_swapped_group_tells_what_it_made),
        cmocka_unit_test(test_failed_copy_out_is_computed_again),
        cmocka_unit_test(test_failed_copy_in_ends_with_the_error),
        cmocka_unit_test(test_fork_of_a_swapped_source_gives_the_ids_it_has_alone),
        cmocka_unit_test(test_equal_blocks_in_the_pool_are_preferred),
        cmocka_unit_test(test_random_groups_give_the_ids_they_have_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
