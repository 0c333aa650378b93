/* test_groups.c - generations of several branches: one prompt, streams and ends of their own, and
 * the same ids as alone through sharing, forks, preemption and tight pools. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/generation.h"
#include "tests/unit/group_world.h"

static struct gen_options group_options(int32_t n_branches, uint64_t seed, int64_t max_tokens)
{
    struct gen_options o = options_of(seed, max_tokens);
    o.n_branches = n_branches;
    return o;
}

static void test_branches_compute_the_prompt_once_and_draw_apart(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    int32_t ids[100];
    struct gen_options o = group_options(4, 7, 20);

    fill_prompt(ids, 100, 1);
    group_submit_with(&g, w, ids, 100, &o);
    drain(w);
    group_is_as_alone(&g, ids, 100, &o);
    assert_int_equal(stats_of(w).computed_prompt_tokens, 100);
    assert_int_equal(stats_of(w).generated_tokens, 80);
    assert_memory_not_equal(g.branches[0].ids, g.branches[1].ids, 20 * sizeof(int32_t));
    assert_memory_not_equal(g.branches[1].ids, g.branches[2].ids, 20 * sizeof(int32_t));
    group_free(&g);
    world_free(w);
}

static void test_first_branch_of_a_group_is_what_one_gives_by_itself(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    struct client *lone;
    int32_t ids[50];

    fill_prompt(ids, 50, 2);
    group_submit(&g, w, ids, 50, 3, 11, 16);
    lone = submit(w, ids, 50, 11, 16);
    drain(w);
    assert_memory_equal(g.branches[0].ids, lone->ids, 16 * sizeof(int32_t));
    group_free(&g);
    world_free(w);
}

static void test_greedy_branches_are_all_equal_and_share_what_is_full(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    int32_t ids[40];
    struct gen_options o = group_options(5, 3, 40);

    o.temperature = 0;
    fill_prompt(ids, 40, 3);
    group_submit_with(&g, w, ids, 40, &o);
    drain(w);
    group_is_as_alone(&g, ids, 40, &o);
    for (int i = 1; i < 5; i++)
        assert_memory_equal(g.branches[0].ids, g.branches[i].ids, 40 * sizeof(int32_t));
    assert_true(stats_of(w).merged >= 4 * 2); /* positions 40 .. 79 fill two blocks and a half */
    group_free(&g);
    world_free(w);
}

/* 100 tokens are 6 full blocks and 4 slots: four branches write into the seventh. The last to write
 * needs no copy. */
static void test_half_filled_block_is_copied_by_all_but_the_last_writer(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    struct gen_view view;
    int32_t ids[100];

    fill_prompt(ids, 100, 1);
    group_submit(&g, w, ids, 100, 4, 1, 8);
    while (stats_of(w).generated_tokens < 4)
        turn(w);
    turn(w);
    assert_int_equal(stats_of(w).copies, 3);
    assert_int_equal(stats_of(w).used_blocks, 6 + 4);
    for (int i = 0; i < 4; i++) {
        gen_view_branch(g.gen, i, &view);
        assert_int_equal(view.n_blocks, 7);
        assert_int_equal(cache_shared(g.gen->cache, &g.gen->seqs[i].table), 6);
        assert_int_equal(view.n_branches, 4);
    }
    drain(w);
    group_free(&g);
    world_free(w);
}

/* Ends at the end-of-text id come at different times; a branch that has ended frees its own blocks
 * while the others go on. */
static void test_each_branch_ends_by_itself_and_tells_it_once(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    int32_t ids[33], n_early = 0;
    struct gen_options o = group_options(16, 5, 40);

    w->runner->end_id = w->vocab.end_of_text;
    o.ignore_eos = false;
    fill_prompt(ids, 33, 4);
    group_submit_with(&g, w, ids, 33, &o);
    while (g.n_ends < 5)
        turn(w);
    assert_non_null(g.gen);
    assert_true(g.n_ends < 16);
    drain(w);
    for (int i = 0; i < 16; i++)
        n_early += g.branches[i].finish == GEN_STOP;
    assert_true(n_early > 5);
    group_is_as_alone(&g, ids, 33, &o);
    assert_int_equal(stats_of(w).ends[GEN_STOP], n_early);
    group_free(&g);
    world_free(w);
}

static void cancel_all(struct group *g, int32_t branch)
{
    (void)branch;
    if (g->gen)
        engine_cancel(g->world->engine, g->gen, GEN_CANCELLED);
}

static void test_cancel_ends_every_live_branch_once(void **state)
{
    (void)state;
    for (int32_t n_turns = 0; n_turns < 8; n_turns++) {
        struct world *w = world_new(small_shape);
        static struct group g;
        int32_t ids[150];

        fill_prompt(ids, 150, 1);
        group_submit(&g, w, ids, 150, 6, 1, 50);
        w->runner->hold = false;
        for (int32_t i = 0; i < n_turns; i++)
            turn(w);
        engine_cancel(w->engine, g.gen, GEN_CANCELLED);
        assert_null(g.gen);
        assert_int_equal(g.n_ends, 6);
        for (int i = 0; i < 6; i++)
            assert_int_equal(g.branches[i].finish, GEN_CANCELLED);
        world_audit(w);
        drain(w);
        group_free(&g);
        world_free(w);
    }
}

static void test_cancel_from_an_output_or_an_end_of_one_branch_ends_all(void **state)
{
    (void)state;
    for (int from_end = 0; from_end < 2; from_end++) {
        struct world *w = world_new(small_shape);
        static struct group g;
        int32_t ids[20];
        struct gen_options o = group_options(8, 5, 60);

        w->runner->end_id = w->vocab.end_of_text;
        o.ignore_eos = false;
        fill_prompt(ids, 20, 4);
        group_submit_with(&g, w, ids, 20, &o);
        if (from_end)
            g.on_end = cancel_all;
        else
            g.on_output = cancel_all;
        drain(w);
        assert_null(g.gen);
        assert_int_equal(g.n_ends, 8);
        for (int i = 0; i < 8; i++)
            assert_int_equal(g.branches[i].n_ends, 1);
        group_free(&g);
        world_free(w);
    }
}

static void test_deadline_ends_all_branches_queued_or_running(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    int32_t ids[20];
    struct gen_options o = group_options(3, 5, 300);

    o.deadline_us = clock_now_us() + 5000;
    fill_prompt(ids, 20, 4);
    group_submit_with(&g, w, ids, 20, &o);
    for (int i = 0; i < 5; i++)
        turn(w);
    clock_advance_ms(10);
    clock_tick();
    turn(w);
    assert_int_equal(g.n_ends, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(g.branches[i].finish, GEN_DEADLINE);
        assert_true(g.branches[i].n_ids > 0);
    }
    drain(w);
    group_free(&g);
    world_free(w);
}

static void test_failed_step_ends_all_branches_with_the_error(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    int32_t ids[20];

    fill_prompt(ids, 20, 4);
    group_submit(&g, w, ids, 20, 4, 1, 60);
    for (int i = 0; i < 4; i++)
        turn(w);
    w->runner->fail = "gone";
    drain(w);
    assert_int_equal(g.n_ends, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(g.branches[i].finish, GEN_ERROR);
    group_free(&g);
    world_free(w);
}

/* A child of a running branch finds all its full blocks and copies the half-filled one. */
static void test_fork_of_a_branch_finds_what_it_computed(void **state)
{
    (void)state;
    for (int32_t branch = 0; branch < 3; branch++) {
        struct world *w = world_new(small_shape);
        static struct group g;
        struct gen_view view;
        int32_t ids[400], n = 70;

        fill_prompt(ids, n, 1);
        group_submit(&g, w, ids, n, 3, 9, 60);
        while (stats_of(w).generated_tokens < 3 * 30)
            turn(w);
        engine_publish_branch(w->engine, g.gen, branch);
        world_audit(w);
        gen_view_branch(g.gen, branch, &view);
        memcpy(ids + n, view.ids, (size_t)view.n_ids * sizeof *ids);
        n += view.n_ids;
        int32_t found = engine_probe(w->engine, &w->ns, ids, n);
        assert_in_range(found, n - 2, n - 1); /* a step runs: its token is not confirmed */
        ids[n++] = 5;
        struct client *child = submit(w, ids, n, 77, 20);
        drain(w);
        assert_in_range(child->end.n_cached, n - 3, n - 1);
        assert_as_alone(child, ids, n, 77, 20);
        group_free(&g);
        world_free(w);
    }
}

static void test_what_can_never_fit_is_refused_with_the_numbers(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.pool = 20;
    shape.running = 8;
    struct world *w = world_new(shape);
    static struct group g;
    struct err err = {0};
    int32_t ids[40];

    fill_prompt(ids, 40, 1);
    /* 2 whole blocks, then 4 x ceil((8 + 57) / 16) = 20 */
    struct gen_options o = group_options(4, 1, 57);
    assert_int_equal(group_try(&g, w, ids, 40, &o, &err), SUBMIT_TOO_LARGE);
    assert_non_null(strstr(err.text, "need 22 blocks of 16, the cache has 20"));
    o.max_tokens = engine_fit_group(w->engine, 40, 4);
    assert_int_equal(o.max_tokens, 4 * 16 - 8);
    group_submit_with(&g, w, ids, 40, &o);
    drain(w);
    group_is_as_alone(&g, ids, 40, &o);
    group_free(&g);
    o = group_options(65, 1, 1);
    assert_int_equal(group_try(&g, w, ids, 40, &o, &err), SUBMIT_TOO_LARGE);
    assert_non_null(strstr(err.text, "65 branches, from 1 to 64 are possible"));
    o.beam = true;
    o.n_branches = 17;
    assert_int_equal(group_try(&g, w, ids, 40, &o, &err), SUBMIT_TOO_LARGE);
    assert_non_null(strstr(err.text, "17 beams, from 1 to 16 are possible"));
    o = group_options(9, 1, 1);
    assert_int_equal(group_try(&g, w, ids, 40, &o, &err), SUBMIT_TOO_LARGE);
    assert_non_null(strstr(err.text, "9 branches"));
    assert_non_null(strstr(err.text, "max-running is 8"));
    assert_int_equal(engine_fit_group(w->engine, 40, 9), 0);
    world_free(w);
}

/* A group waits for places of all its branches, and nobody passes it. */
static void test_group_is_admitted_as_a_whole_and_in_order(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.running = 8;
    shape.pool = 200;
    struct world *w = world_new(shape);
    static struct group a, b;
    int32_t ids[30];

    fill_prompt(ids, 30, 1);
    group_submit(&a, w, ids, 30, 5, 1, 30);
    fill_prompt(ids, 30, 2);
    group_submit(&b, w, ids, 30, 4, 2, 30);
    fill_prompt(ids, 30, 3);
    struct client *c = submit(w, ids, 30, 3, 5);
    turn(w);
    assert_int_equal(stats_of(w).running, 1);
    while (a.n_ends < 5) {
        assert_int_equal(b.n_ends, 0);
        assert_int_equal(c->n_ends, 0);
        turn(w);
    }
    drain(w);
    assert_int_equal(b.n_ends, 4);
    group_free(&a);
    group_free(&b);
    world_free(w);
}

/* N x length near the pool, several at once, block sizes of 1 to 16: groups are preempted as a whole
 * and come back with the ids they would have had alone. */
static void run_tight(struct shape shape, int32_t n_groups, int32_t n_branches, int32_t n_prompt,
                      int32_t n_tokens, bool alike, uint64_t *preemptions)
{
    struct world *w = world_new(shape);
    struct group *groups = xcalloc((size_t)n_groups, sizeof *groups);
    int32_t ids[512];
    struct gen_options o;

    for (int32_t i = 0; i < n_groups; i++) {
        fill_prompt(ids, n_prompt, alike ? 1 : i);
        o = group_options(n_branches, (uint64_t)i * 7919 + 1, n_tokens);
        group_submit_with(&groups[i], w, ids, n_prompt, &o);
        if (i % 3 == 0)
            turn(w);
    }
    drain(w);
    for (int32_t i = 0; i < n_groups; i++) {
        fill_prompt(ids, n_prompt, alike ? 1 : i);
        o = group_options(n_branches, (uint64_t)i * 7919 + 1, n_tokens);
        group_is_as_alone(&groups[i], ids, n_prompt, &o);
        group_free(&groups[i]);
    }
    *preemptions += stats_of(w).preemptions;
    xfree(groups);
    world_free(w);
}

static void test_groups_in_a_tight_pool_all_finish_with_the_ids_they_have_alone(void **state)
{
    (void)state;
    uint64_t preemptions = 0;

    for (int32_t block = 1; block <= 16; block *= 4)
        for (int32_t alike = 0; alike < 2; alike++)
            for (int32_t n = 2; n <= 6; n += 2) {
                struct shape shape = {.block = block,
                                      .context = 400,
                                      .batch = 16 + 4 * block,
                                      .chunk = 2 * block,
                                      .running = 16,
                                      .queue = 64};
                int32_t prompt = 37, tokens = 41;
                shape.pool = prompt / block + n * ((prompt % block + tokens + block - 1) / block);
                run_tight(shape, 6, n, prompt, tokens, alike, &preemptions);
                shape.pool += shape.pool / 2;
                run_tight(shape, 6, n, prompt, tokens, alike, &preemptions);
            }
    assert_true(preemptions > 20);
}

/* Mixed sizes and lengths, arrivals and cancels drawn from a seed. */
static void run_random(uint64_t seed, uint64_t *preemptions)
{
    enum { N = 24 };
    struct rng rng = rng_from(seed);
    int32_t block = 1 << rng_below(&rng, 4);
    struct shape shape = {.block = block,
                          .context = 300,
                          .pool = (120 + (int32_t)rng_below(&rng, 200)) / block + 40,
                          .batch = 16 + block * (1 + (int32_t)rng_below(&rng, 4)),
                          .chunk = block * (1 + (int32_t)rng_below(&rng, 4)),
                          .running = 16,
                          .queue = 64};
    struct world *w = world_new(shape);
    static struct group groups[N];
    static int32_t ids[N][128], n_ids[N];
    struct gen_options o[N];
    bool cancelled[N] = {0};

    w->runner->end_id = w->vocab.end_of_text;
    for (int32_t i = 0; i < N; i++) {
        struct err err = {0};
        n_ids[i] = 1 + (int32_t)rng_below(&rng, 100);
        fill_prompt(ids[i], n_ids[i], (int32_t)rng_below(&rng, 3));
        o[i] = group_options(1 + (int32_t)rng_below(&rng, 6), rng_below(&rng, 1000),
                             1 + (int32_t)rng_below(&rng, 60));
        o[i].ignore_eos = rng_below(&rng, 2);
        o[i].priority = (int32_t)rng_below(&rng, 3);
        if (rng_below(&rng, 4) == 0)
            o[i].temperature = 0;
        if (group_try(&groups[i], w, ids[i], n_ids[i], &o[i], &err) != SUBMIT_OK) {
            cancelled[i] = true;
            continue;
        }
        for (uint64_t k = rng_below(&rng, 8); k > 0; k--)
            turn(w);
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
    for (int32_t i = 0; i < N; i++) {
        if (!cancelled[i])
            group_is_as_alone(&groups[i], ids[i], n_ids[i], &o[i]);
        group_free(&groups[i]);
    }
    *preemptions += stats_of(w).preemptions;
    world_free(w);
}

static void test_random_groups_give_the_ids_they_have_alone(void **state)
{
    (void)state;
    uint64_t preemptions = 0;

    for (uint64_t seed = 1; seed <= 60; seed++) {
        print_message("# seed %d\n", (int)seed);
        run_random(seed, &preemptions);
    }
    assert_true(preemptions > 20);
}

/* Resuming: each branch goes on from its own ids; those that were over stay so. */
static void test_resumed_group_goes_on_where_it_was(void **state)
{
    (void)state;
    for (int32_t cut = 0; cut <= 20; cut += 5) {
        struct world *w = world_new(small_shape);
        static struct group g;
        static int32_t whole[4][40];
        struct gen_start starts[4] = {0};
        int32_t ids[50];
        struct gen_options o = group_options(4, 21, 40);
        struct err err = {0};

        fill_prompt(ids, 50, 6);
        for (int32_t i = 0; i < 4; i++) {
            plain_run(w->runner, ids, 50, &o, i, whole[i], 40);
            starts[i] = (struct gen_start){.ids = whole[i], .n = cut + (cut > 0) * i};
        }
        starts[2].is_over = true;
        o.starts = starts;
        g = (struct group){.world = w, .n_branches = 4};
        assert_int_equal(
            engine_submit(w->engine, &w->ns, ids, 50, &o, &group_events, &g, &g.gen, &err),
            SUBMIT_OK);
        drain(w);
        assert_null(g.gen);
        for (int32_t i = 0; i < 4; i++) {
            assert_int_equal(g.branches[i].n_ends, i != 2);
            if (i == 2)
                continue;
            assert_int_equal(g.branches[i].n_ids, 40);
            assert_memory_equal(g.branches[i].ids, whole[i], sizeof whole[i]);
            assert_int_equal(g.branches[i].pieces.len, 40 - starts[i].n);
        }
        group_free(&g);
        world_free(w);
    }
}

/* Admission leaves a block for the next token of each branch, a copy of the half-filled one included:
 * or the group would ask for them in its first decode and be its own victim. */
static void test_admission_leaves_room_for_the_first_token_of_each_branch(void **state)
{
    (void)state;
    for (int32_t n_prompt = 32; n_prompt <= 40; n_prompt += 8) {
        struct shape shape = small_shape;
        shape.pool = 14;
        struct world *w = world_new(shape);
        static struct group g;
        int32_t ids[128];

        fill_prompt(ids, 128, 1);
        struct client *c = submit(w, ids, 128, 1, 60);
        fill_prompt(ids, n_prompt, 2);
        group_submit(&g, w, ids, n_prompt, 8, 2, 8);
        while (c->n_ends == 0) {
            turn(w);
            assert_int_equal(stats_of(w).running, 1);
        }
        drain(w);
        assert_int_equal(stats_of(w).preemptions, 0);
        group_free(&g);
        world_free(w);
    }
}

/* One place to run in: who waits is taken by priority, then by arrival. */
static void test_priority_decides_who_is_next(void **state)
{
    (void)state;
    static const int32_t priorities[] = {0, -5, 7, 0, 100, 7}, order[] = {4, 2, 5, 3, 1};
    struct shape shape = small_shape;
    shape.running = 2;
    struct world *w = world_new(shape);
    static struct group g[6];
    int32_t ids[20];

    for (int32_t i = 0; i < 6; i++) {
        struct gen_options o = group_options(2, (uint64_t)i, 5);
        o.priority = priorities[i];
        fill_prompt(ids, 20, i);
        group_submit_with(&g[i], w, ids, 20, &o);
        if (i == 0)
            turn(w); /* it runs already: priority does not preempt at admission */
    }
    for (int32_t i = 0; i < 5; i++) {
        while (g[order[i]].gen)
            turn(w);
        for (int32_t k = i + 1; k < 5; k++)
            assert_non_null(g[order[k]].gen);
    }
    assert_null(g[0].gen);
    drain(w);
    for (int32_t i = 0; i < 6; i++)
        group_free(&g[i]);
    world_free(w);
}

/* A follower with the same prompt waits for the group's promise and finds its blocks. */
static void test_two_groups_of_one_prompt_compute_it_once(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group a, b;
    int32_t ids[200];
    struct gen_options o = group_options(3, 1, 20);

    fill_prompt(ids, 200, 1);
    group_submit_with(&a, w, ids, 200, &o);
    group_submit_with(&b, w, ids, 200, &o);
    drain(w);
    group_is_as_alone(&a, ids, 200, &o);
    group_is_as_alone(&b, ids, 200, &o);
    assert_true(b.branches[0].n_cached >= 192);
    group_free(&a);
    group_free(&b);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_branches_compute_the_prompt_once_and_draw_apart),
        cmocka_unit_test(test_first_branch_of_a_group_is_what_one_gives_by_itself),
        cmocka_unit_test(test_greedy_branches_are_all_equal_and_share_what_is_full),
        cmocka_unit_test(test_half_filled_block_is_copied_by_all_but_the_last_writer),
        cmocka_unit_test(test_each_branch_ends_by_itself_and_tells_it_once),
        cmocka_unit_test(test_cancel_ends_every_live_branch_once),
        cmocka_unit_test(test_cancel_from_an_output_or_an_end_of_one_branch_ends_all),
        cmocka_unit_test(test_deadline_ends_all_branches_queued_or_running),
        cmocka_unit_test(test_failed_step_ends_all_branches_with_the_error),
        cmocka_unit_test(test_fork_of_a_branch_finds_what_it_computed),
        cmocka_unit_test(test_what_can_never_fit_is_refused_with_the_numbers),
        cmocka_unit_test(test_group_is_admitted_as_a_whole_and_in_order),
        cmocka_unit_test(test_groups_in_a_tight_pool_all_finish_with_the_ids_they_have_alone),
        cmocka_unit_test(test_random_groups_give_the_ids_they_have_alone),
        cmocka_unit_test(test_resumed_group_goes_on_where_it_was),
        cmocka_unit_test(test_admission_leaves_room_for_the_first_token_of_each_branch),
        cmocka_unit_test(test_priority_decides_who_is_next),
        cmocka_unit_test(test_two_groups_of_one_prompt_compute_it_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
