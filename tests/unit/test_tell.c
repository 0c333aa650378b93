/* test_tell.c - telling in slices: a turn calls back for 0.15 ms and the next one goes on. Time stands
 * still but for callbacks, each of which takes a millisecond here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/unit/group_world.h"

enum { TOKENS = 12, WIDTH = 6, BEST = 3, ROWS_AT_ONCE = 64 };

static void be_slow(struct group *g, int32_t branch)
{
    (void)g;
    (void)branch;
    clock_pass_ms(1);
}

/* Turns until all branches have ended in one step and one of them is told; every end is slow. */
static void end_in_one_step(struct group *g, struct world *w)
{
    int32_t ids[40], n_turns = 0;

    fill_prompt(ids, 40, 3);
    group_submit(g, w, ids, 40, WIDTH, 7, TOKENS);
    g->on_end = be_slow;
    while (g->n_ends == 0 && n_turns++ < 100)
        turn(w);
    assert_int_equal(g->n_ends, 1);
    assert_true(engine_has_to_tell(w->engine));
}

static void test_ends_of_one_step_are_told_a_slice_a_turn(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    struct gen_options o = options_of(7, TOKENS);
    int32_t ids[40];

    end_in_one_step(&g, w);
    for (int32_t i = 2; i <= WIDTH; i++) {
        assert_false(engine_is_idle(w->engine));
        assert_true(turn(w));
        assert_int_equal(g.n_ends, i);
        assert_int_equal(g.branches[i - 1].n_ends, 1);
    }
    assert_true(engine_is_idle(w->engine));
    fill_prompt(ids, 40, 3);
    o.n_branches = WIDTH;
    group_is_as_alone(&g, ids, 40, &o);
    group_free(&g);
    world_free(w);
}

static void test_steps_and_the_output_of_others_go_on_while_ends_are_told(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    struct client *other = client_new(w);
    struct gen_options o = options_of(1, 500);
    struct err err;
    int32_t ids[20];

    fill_prompt(ids, 20, 9);
    end_in_one_step(&g, w);
    assert_int_equal(submit_full(other, ids, 20, &o, &err), SUBMIT_OK);
    turn(w); /* its prompt is launched */
    for (int32_t n = stats_of(w).steps; g.n_ends < WIDTH; n++) {
        assert_int_equal(stats_of(w).steps, n);
        assert_int_equal(other->n_portions > 0, g.n_ends > 3);
        turn(w);
    }
    engine_cancel(w->engine, other->gen, GEN_CANCELLED);
    drain(w);
    group_free(&g);
    world_free(w);
}

static void test_a_cancel_between_slices_tells_the_rest_at_once_as_it_had_ended(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;

    end_in_one_step(&g, w);
    engine_cancel(w->engine, g.gen, GEN_CANCELLED);
    assert_null(g.gen);
    assert_int_equal(g.n_ends, WIDTH);
    for (int32_t i = 0; i < WIDTH; i++) {
        assert_int_equal(g.branches[i].finish, GEN_LENGTH);
        assert_int_equal(g.branches[i].n_ends, 1);
        assert_int_equal(g.branches[i].n_ids, TOKENS);
    }
    assert_true(engine_is_idle(w->engine));
    drain(w);
    group_free(&g);
    world_free(w);
}

static void test_between_slices_a_branch_looks_as_if_it_went_on(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    struct gen_view view;

    end_in_one_step(&g, w);
    gen_view_branch(g.gen, WIDTH - 1, &view);
    assert_true(view.running);
    assert_int_equal(view.place, 0);
    assert_int_equal(view.n_generated, TOKENS);
    assert_int_equal(view.n_computed, 40 + TOKENS - 1);
    drain(w);
    group_free(&g);
    world_free(w);
}

/* Each turn has time for one branch and brings a token for all of them. */
static void test_branches_are_told_in_turn_and_none_is_forgotten(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct group g;
    static size_t seen[WIDTH];
    struct gen_options o = options_of(7, 60);
    int32_t ids[40], n_turns = 0;

    fill_prompt(ids, 40, 3);
    group_submit(&g, w, ids, 40, WIDTH, 7, 60);
    g.on_output = be_slow;
    for (; stats_of(w).generated_tokens == 0; n_turns++)
        turn(w);
    for (int32_t i = 1; i < 5 * WIDTH; i++, n_turns++) {
        int32_t at = i % WIDTH;
        memset(seen, 0, sizeof seen);
        seen[at] = g.branches[at].pieces.len;
        turn(w);
        assert_true(g.branches[at].pieces.len > seen[at]);
    }
    drain(w); /* they end while the slices are in the middle of them */
    o.n_branches = WIDTH;
    group_is_as_alone(&g, ids, 40, &o);
    group_free(&g);
    world_free(w);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Who waits for log-probabilities. */
struct asker {
    struct gen *gen;
    int32_t n_calls, n_ends;
    int32_t n_own[WIDTH], n_prompt; /* rows told */
};

static void no_output(void *owner, const struct gen_output *output)
{
    (void)owner;
    (void)output;
}

static void slow_rows(void *owner, const struct gen_rows *rows)
{
    struct asker *a = owner;

    assert_in_range(rows->n, 1, ROWS_AT_ONCE);
    assert_int_equal(rows->n_best, BEST);
    *(rows->of_prompt ? &a->n_prompt : &a->n_own[rows->branch]) += rows->n;
    a->n_calls++;
    clock_pass_ms(1);
}

static void asker_end(void *owner, const struct gen_end *end)
{
    struct asker *a = owner;

    assert_int_equal(a->n_own[end->branch], end->n_generated);
    assert_int_equal(a->n_prompt, end->branch == 0 ? end->n_prompt_known : a->n_prompt);
    a->n_ends++;
    if (end->is_last)
        a->gen = NULL;
}

static void ask(struct asker *a, struct world *w, int32_t n_prompt, struct gen_options o)
{
    static const struct gen_events events = {
        .output = no_output, .end = asker_end, .rows = slow_rows};
    struct err err = {0};
    int32_t ids[400];

    *a = (struct asker){0};
    fill_prompt(ids, n_prompt, 5);
    o.logprobs = o.prompt_logprobs = true;
    o.n_logprobs = o.n_prompt_logprobs = BEST;
    if (engine_submit(w->engine, &w->ns, ids, n_prompt, &o, &events, a, &a->gen, &err) != SUBMIT_OK)
        fail_msg("%s", err.text);
}

/* A portion a turn, whatever has come meanwhile. */
static void expect_a_portion_a_turn(struct asker *a, struct world *w, int32_t n_ends)
{
    for (int32_t n = 0; !engine_is_idle(w->engine); n++) {
        int32_t n_calls = a->n_calls;
        turn(w);
        assert_in_range(a->n_calls, n_calls, n_calls + 1);
        assert_true(n < 5000);
    }
    assert_int_equal(a->n_ends, n_ends);
    assert_null(a->gen);
}

static void test_rows_of_a_long_prompt_come_in_portions_before_the_end(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    struct asker a;
    struct gen_options o = options_of(7, 2);

    ask(&a, w, 400, o);
    expect_a_portion_a_turn(&a, w, 1);
    assert_int_equal(a.n_prompt, 400);
    world_free(w);
}

static void test_rows_of_beams_come_in_portions_before_their_ends(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    struct asker a;
    struct gen_options o = options_of(0, 150);

    o.beam = true;
    o.n_branches = 3;
    ask(&a, w, 20, o);
    expect_a_portion_a_turn(&a, w, 3);
    assert_in_range(a.n_own[2], ROWS_AT_ONCE + 1, 150);
    world_free(w);
}

static void test_a_cancel_between_portions_tells_all_rows_before_the_end(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    struct asker a;

    ask(&a, w, 400, options_of(7, 2));
    for (int n = 0; n < 200 && (a.n_prompt == 0 || !engine_has_to_tell(w->engine)); n++)
        turn(w);
    assert_true(engine_has_to_tell(w->engine));
    engine_cancel(w->engine, a.gen, GEN_CANCELLED);
    assert_int_equal(a.n_ends, 1);
    drain(w);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends_of_one_step_are_told_a_slice_a_turn),
        cmocka_unit_test(test_steps_and_the_output_of_others_go_on_while_ends_are_told),
        cmocka_unit_test(test_a_cancel_between_slices_tells_the_rest_at_once_as_it_had_ended),
        cmocka_unit_test(test_between_slices_a_branch_looks_as_if_it_went_on),
        cmocka_unit_test(test_branches_are_told_in_turn_and_none_is_forgotten),
        cmocka_unit_test(test_rows_of_a_long_prompt_come_in_portions_before_the_end),
        cmocka_unit_test(test_rows_of_beams_come_in_portions_before_their_ends),
        cmocka_unit_test(test_a_cancel_between_portions_tells_all_rows_before_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
