/* test_engine_ends.c - what ends a generation from outside, at every stage: cancel, deadlines, failed
 * steps; and callbacks that call back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/unit/engine_world.h"

/* ---- cancel --------------------------------------------------------------------------------- */

/* Two neighbours with a common prefix; the first is cancelled after n turns, in the middle of a
 * step when hold is set. The other must not notice. */
static void cancel_after(int32_t n, bool hold)
{
    struct world *w = world_new(small_shape);
    int32_t prompt[150];

    fill_prompt(prompt, 150, 1);
    struct client *a = submit(w, prompt, 140, 1, 6);
    struct client *b = submit(w, prompt, 150, 2, 6);
    for (int32_t i = 0; i < n; i++)
        turn(w);
    w->runner->hold = hold;
    turn(w);
    if (a->gen)
        engine_cancel(w->engine, a->gen, GEN_CANCELLED);
    assert_int_equal(a->n_ends, 1);
    assert_true(a->end.finish == GEN_CANCELLED || a->end.finish == GEN_LENGTH);
    world_audit(w);
    turn(w);
    w->runner->hold = false;
    drain(w);
    assert_int_equal(a->n_ends, 1);
    assert_int_equal(a->pieces.len, a->text.len);
    assert_as_alone(b, prompt, 150, 2, 6);
    /* what the cancelled one left behind is no poison */
    struct client *again = submit(w, prompt, 140, 1, 6);
    drain(w);
    assert_as_alone(again, prompt, 140, 1, 6);
    world_free(w);
}

static void test_cancel_at_every_stage_ends_once_and_harms_nobody(void **state)
{
    (void)state;
    for (int32_t n = 0; n < 16; n++) {
        cancel_after(n, false);
        cancel_after(n, true);
    }
}

static void test_cancelled_before_its_first_turn_it_is_never_computed(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    struct client *c = submit(w, prompt, 20, 1, 5);
    engine_cancel(w->engine, c->gen, GEN_ORPHANED);
    assert_int_equal(c->n_ends, 1);
    assert_int_equal(c->end.finish, GEN_ORPHANED);
    assert_int_equal(c->end.n_ids, 0);
    assert_false(turn(w));
    assert_int_equal(w->runner->n_launched, 0);
    world_free(w);
}

/* ---- callbacks that call back --------------------------------------------------------------- */

static void cancel_other(struct client *c)
{
    if (c->other->gen)
        engine_cancel(c->world->engine, c->other->gen, GEN_CANCELLED);
}

static void test_cancel_in_a_callback_of_one_that_ended_in_the_same_step(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    struct client *a = submit(w, prompt, 20, 1, 1);
    fill_prompt(prompt, 20, 2); /* another one: with the same, b would wait for a's promise */
    struct client *b = submit(w, prompt, 20, 2, 1);
    a->other = b;
    b->other = a;
    a->on_end = b->on_end = cancel_other;
    drain(w);
    assert_int_equal(a->n_ends, 1);
    assert_int_equal(b->n_ends, 1);
    assert_int_equal(a->end.finish, GEN_LENGTH); /* it had ended before it was cancelled */
    assert_int_equal(b->end.finish, GEN_LENGTH);
    assert_int_equal(b->pieces.len, 1);
    world_free(w);
}

static void cancel_self(struct client *c)
{
    engine_cancel(c->world->engine, c->gen, GEN_CANCELLED);
}

static void test_cancel_in_its_own_callbacks(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    struct client *a = submit(w, prompt, 20, 1, 30);
    struct client *b = submit(w, prompt, 20, 2, 3);
    a->on_output = cancel_self;
    b->on_end = cancel_self;
    drain(w);
    assert_int_equal(a->n_ends, 1);
    assert_int_equal(a->end.finish, GEN_CANCELLED);
    assert_int_equal(a->end.n_ids, 1);
    assert_int_equal(b->n_ends, 1);
    assert_int_equal(b->end.finish, GEN_LENGTH);
    world_free(w);
}

static void submit_next(struct client *c)
{
    int32_t prompt[40];

    fill_prompt(prompt, 40, 5);
    if (c->world->n_turns < 60)
        submit(c->world, prompt, 40, 9, 2)->on_end = submit_next;
}

static void test_submit_in_an_end_callback(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);

    struct client seed = {.world = w};
    submit_next(&seed);
    drain(w);
    assert_true(stats_of(w).ends[GEN_LENGTH] > 10);
    world_free(w);
}

static void publish_self(struct client *c)
{
    engine_publish(c->world->engine, c->gen);
    assert_non_null(c->world->runner->plan); /* the next step runs while we are told */
}

static void test_callbacks_come_while_the_next_step_runs(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    struct client *c = submit(w, prompt, 20, 1, 40);
    submit(w, prompt, 20, 1, 60);
    c->on_output = publish_self;
    drain(w);
    assert_int_equal(c->n_portions, 40);
    world_free(w);
}

/* ---- deadlines ------------------------------------------------------------------------------ */

static struct client *submit_until(struct world *w, const int32_t *prompt, int32_t n, int64_t at_ms)
{
    struct client *c = client_new(w);
    struct gen_options o = options_of(1, 500);

    o.deadline_us = clock_now_us() + at_ms * 1000;
    submit_full(c, prompt, n, &o, NULL);
    return c;
}

static void test_deadlines_end_queued_and_running_ones(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.running = 1;
    struct world *w = world_new(shape);
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    assert_int_equal(engine_next_deadline_us(w->engine), 0);
    struct client *running = submit_until(w, prompt, 20, 100);
    struct client *queued = submit_until(w, prompt, 20, 50);
    struct client *later = submit(w, prompt, 20, 1, 5);
    assert_int_equal(engine_next_deadline_us(w->engine), clock_now_us() + 50000);
    for (int i = 0; i < 5; i++)
        turn(w);
    clock_advance_ms(50);
    clock_tick();
    w->runner->hold = true;
    turn(w);
    assert_int_equal(queued->n_ends, 1);
    assert_int_equal(queued->end.finish, GEN_DEADLINE);
    assert_int_equal(queued->end.n_ids, 0);
    assert_int_equal(queued->end.queued_ms, 50);
    assert_int_equal(running->n_ends, 0);
    clock_advance_ms(50);
    clock_tick();
    turn(w); /* also while a step runs */
    assert_int_equal(running->n_ends, 1);
    assert_int_equal(running->end.finish, GEN_DEADLINE);
    assert_true(running->end.n_ids > 0);
    assert_int_equal(running->end.n_ids, running->pieces.len);
    w->runner->hold = false;
    drain(w);
    assert_int_equal(later->end.finish, GEN_LENGTH);
    assert_int_equal(engine_next_deadline_us(w->engine), 0);
    world_free(w);
}

static void test_times_are_told(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    struct client *c = submit(w, prompt, 20, 1, 3);
    for (int i = 0; i < 4; i++) {
        clock_advance_ms(10);
        clock_tick();
        turn(w); /* launch; first token; second; third */
    }
    assert_int_equal(c->n_ends, 1);
    assert_int_equal(c->end.queued_ms, 10);
    assert_int_equal(c->end.prefill_ms, 10);
    assert_int_equal(c->end.decode_ms, 20);
    world_free(w);
}

/* ---- failures ------------------------------------------------------------------------------- */

static void test_a_failed_step_ends_what_runs_and_the_queue_goes_on(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.running = 2;
    for (int32_t at = 1; at < 12; at++) {
        struct world *w = world_new(shape);
        int32_t prompt[100];
        struct client *c[4];
        fill_prompt(prompt, 100, 1);
        for (int i = 0; i < 4; i++)
            c[i] = submit(w, prompt, 90 + i, (uint64_t)i, 12);
        for (int32_t i = 0; i < at; i++)
            turn(w);
        bool runs[4];
        for (int i = 0; i < 4; i++) {
            struct gen_view view;
            gen_view(c[i]->gen, &view);
            runs[i] = view.running;
        }
        assert_true(runs[0]);
        w->runner->fail = "out of order";
        drain(w);
        for (int i = 0; i < 4; i++) {
            if (!runs[i]) {
                assert_as_alone(c[i], prompt, 90 + i, (uint64_t)i, 12);
                continue;
            }
            assert_int_equal(c[i]->n_ends, 1);
            assert_int_equal(c[i]->end.finish, GEN_ERROR);
            assert_str(&c[i]->error, "out of order");
        }
        struct client *again = submit(w, prompt, 100, 9, 12);
        drain(w);
        assert_as_alone(again, prompt, 100, 9, 12);
        world_free(w);
    }
}

static void test_after_a_failed_step_no_half_filled_block_is_found(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    int32_t prompt[40];

    fill_prompt(prompt, 40, 1);
    submit(w, prompt, 40, 1, 20);
    for (int i = 0; i < 4; i++)
        turn(w);
    w->runner->fail = "";
    drain(w);
    assert_str(&w->clients->error, "the device gave no reason");
    assert_int_equal(engine_probe(w->engine, &w->ns, prompt, 40), 32);
    world_free(w);
}

static void test_ids_that_no_vocabulary_has_fail_the_step(void **state)
{
    (void)state;
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    for (int what = 0; what < 3; what++) {
        struct world *w = world_new(small_shape);
        struct client *c = submit(w, prompt, 20, 1, 5);
        w->runner->bad_sample = what == 0 ? w->vocab.n : what == 1 ? -1 : 0;
        w->runner->lose_sample = what == 2;
        drain(w);
        assert_int_equal(c->end.finish, GEN_ERROR);
        assert_true(c->error.len > 0);
        c = submit(w, prompt, 20, 1, 5);
        drain(w);
        assert_as_alone(c, prompt, 20, 1, 5);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_at_every_stage_ends_once_and_harms_nobody),
        cmocka_unit_test(test_cancelled_before_its_first_turn_it_is_never_computed),
        cmocka_unit_test(test_cancel_in_a_callback_of_one_that_ended_in_the_same_step),
        cmocka_unit_test(test_cancel_in_its_own_callbacks),
        cmocka_unit_test(test_submit_in_an_end_callback),
        cmocka_unit_test(test_callbacks_come_while_the_next_step_runs),
        cmocka_unit_test(test_deadlines_end_queued_and_running_ones),
        cmocka_unit_test(test_times_are_told),
        cmocka_unit_test(test_a_failed_step_ends_what_runs_and_the_queue_goes_on),
        cmocka_unit_test(test_after_a_failed_step_no_half_filled_block_is_found),
        cmocka_unit_test(test_ids_that_no_vocabulary_has_fail_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
