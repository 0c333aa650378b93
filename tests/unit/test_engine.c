/* test_engine.c - what a generation says: submission and its refusals, text and ends, resuming,
 * sameness, views. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/unit/engine_world.h"

/* ---- text ----------------------------------------------------------------------------------- */

/* Forces the bytes of text behind a prompt of 20, then the end of the text. */
static struct client *submit_forced(struct world *w, const char *text, const char *stop,
                                    int64_t max_tokens)
{
    static int32_t ids[100], prompt[20];
    struct bytes stops[1] = {bytes_from(stop ? stop : "")};
    struct gen_options o = options_of(7, max_tokens);
    struct client *c = client_new(w);
    int32_t n = 0;

    for (; text[n]; n++)
        ids[n] = (unsigned char)text[n];
    ids[n] = w->vocab.end_of_text;
    o.ignore_eos = false;
    o.stops = stops;
    o.n_stops = stop != NULL;
    fill_prompt(prompt, 20, 1);
    fake_force(w->runner, 7, 20, ids, n + 1);
    assert_int_equal(submit_full(c, prompt, 20, &o, NULL), SUBMIT_OK);
    drain(w);
    assert_int_equal(c->n_ends, 1);
    return c;
}

static void test_split_characters_and_malformed_bytes_arrive(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    const char *text = "x\xf0\x9f\xa6\x99\xe2\x9c\x85\x85 more";
    struct client *c = submit_forced(w, text, NULL, 50);

    assert_str(&c->pieces, text);
    assert_str(&c->text, text);
    assert_int_equal(c->end.finish, GEN_STOP);
    assert_int_equal(c->end.n_generated, strlen(text));
    assert_int_equal(c->matched.len, 0);
    world_free(w);
}

static void test_a_stop_string_ends_the_text_before_it(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    struct client *c = submit_forced(w, "alpha beta gamma delta", "beta gamma", 50);

    assert_str(&c->pieces, "alpha ");
    assert_str(&c->text, "alpha ");
    assert_str(&c->matched, "beta gamma");
    assert_int_equal(c->end.finish, GEN_STOP);
    assert_int_equal(c->end.n_ids, 6);
    assert_int_equal(c->end.n_generated, 16); /* counted as they were made */
    world_free(w);
}

static void test_held_text_is_delivered_before_the_end(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    struct client *c = submit_forced(w, "pleas", "ase", 50);

    assert_str(&c->pieces, "pleas");
    world_free(w);

    w = world_new(small_shape);
    c = submit_forced(w, "please", "sex", 5); /* by length, in the middle of a possible stop */
    assert_str(&c->pieces, "pleas");
    assert_int_equal(c->end.finish, GEN_LENGTH);
    world_free(w);
}

static void test_limits_are_exact_and_every_id_is_delivered(void **state)
{
    (void)state;
    static const int limits[] = {1, 5, 20};
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    for (int i = 0; i < 3; i++) {
        struct world *w = world_new(small_shape);
        w->runner->end_id = w->vocab.end_of_text;
        struct client *c = submit(w, prompt, 20, 3, limits[i]);
        drain(w);
        assert_int_equal(c->end.finish, GEN_LENGTH);
        assert_int_equal(c->end.n_ids, limits[i]);
        assert_int_equal(c->end.n_generated, limits[i]);
        assert_int_equal(c->pieces.len, limits[i]);
        assert_int_equal(c->end.n_prompt, 20);
        world_free(w);
    }
}

static void test_carried_bytes_come_with_the_first_output(void **state)
{
    (void)state;
    static const int32_t forced[] = {0x85, '!'};
    struct world *w = world_new(small_shape);
    struct client *c = client_new(w);
    struct gen_options o = options_of(7, 2);
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    fake_force(w->runner, 7, 20, forced, 2);
    o.carry = BYTES("\xe2\x9c");
    submit_full(c, prompt, 20, &o, NULL);
    drain(w);
    assert_str(&c->pieces, "\xe2\x9c\x85!");
    assert_str(&c->text, "\xe2\x9c\x85!");
    assert_int_equal(c->end.n_ids, 2);
    world_free(w);
}

static void test_an_unfinished_character_is_told_apart(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    struct client *c = submit_forced(w, "a\xe2\x9c\x85", NULL, 3);

    assert_str(&c->text, "a");
    assert_str(&c->pieces, "a");
    assert_str(&c->unfinished, "\xe2\x9c");
    assert_int_equal(c->end.n_ids, 3);
    world_free(w);
}

/* ---- refusals ------------------------------------------------------------------------------- */

static enum submit_error try_submit(struct world *w, int32_t n, int64_t max_tokens, struct err *err)
{
    static int32_t prompt[5000];
    struct gen_options o = options_of(1, max_tokens);

    fill_prompt(prompt, n, 1);
    return submit_full(client_new(w), prompt, n, &o, err);
}

static void test_what_can_never_fit_is_refused_with_need_and_limit(void **state)
{
    (void)state;
    struct shape shape = small_shape; /* 64 blocks of 16: 1024 tokens */
    struct world *w = world_new(shape);
    struct err err;

    assert_int_equal(try_submit(w, 65 * 16, 1, &err), SUBMIT_TOO_LARGE);
    assert_non_null(strstr(err.text, "66 blocks of 16"));
    assert_non_null(strstr(err.text, "has 64"));
    assert_int_equal(try_submit(w, 1000, 25, &err), SUBMIT_TOO_LARGE);
    assert_int_equal(try_submit(w, 1000, 24, &err), SUBMIT_OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(try_submit(w, 20, 4, &err), SUBMIT_OK);
    drain(w);
    assert_int_equal(stats_of(w).ends[GEN_LENGTH], 11);
    world_free(w);
}

static void test_the_largest_growth_is_the_one_that_is_accepted(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.context = 900;
    struct world *w = world_new(small_shape), *short_context = world_new(shape);
    struct err err;

    for (int32_t n = 1; n < 1100; n += 37) {
        int64_t most = engine_fit_group(w->engine, n, 1);
        assert_int_equal(most, n < 1024 ? 1024 - n : 0);
        if (most > 0)
            assert_int_equal(try_submit(w, n, most, &err), SUBMIT_OK);
        assert_int_equal(try_submit(w, n, most + 1, &err), SUBMIT_TOO_LARGE);
    }
    assert_int_equal(engine_fit_group(short_context->engine, 890, 1), 10);
    assert_int_equal(engine_fit_group(short_context->engine, 900, 1), 0);
    world_free(w);
    world_free(short_context);
}

static void test_a_prompt_that_fills_the_context_is_refused(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.context = 100;
    struct world *w = world_new(shape);
    struct err err;

    assert_int_equal(try_submit(w, 101, 5, &err), SUBMIT_CONTEXT);
    assert_int_equal(try_submit(w, 100, 5, &err), SUBMIT_CONTEXT);
    assert_non_null(strstr(err.text, "100"));
    assert_int_equal(try_submit(w, 0, 5, &err), SUBMIT_CONTEXT);
    assert_int_equal(try_submit(w, 99, 5, &err), SUBMIT_OK);
    drain(w);
    assert_int_equal(w->clients->end.finish, GEN_LENGTH);
    assert_int_equal(w->clients->end.n_ids, 1);
    world_free(w);
}

static void test_the_queue_is_bounded_and_a_free_place_is_no_queue(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.running = 1;
    shape.queue = 1;
    struct world *w = world_new(shape);
    struct err err;

    assert_int_equal(try_submit(w, 20, 50, &err), SUBMIT_OK);
    assert_int_equal(try_submit(w, 20, 50, &err), SUBMIT_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(try_submit(w, 20, 50, &err), SUBMIT_QUEUE_FULL);
    assert_non_null(strstr(err.text, "max-queue is 1"));
    turn(w);
    assert_int_equal(stats_of(w).running, 1);
    assert_int_equal(stats_of(w).queued, 1);
    assert_int_equal(try_submit(w, 20, 50, &err), SUBMIT_QUEUE_FULL);
    drain(w);
    assert_int_equal(try_submit(w, 20, 50, &err), SUBMIT_OK);
    world_free(w);
}

static void test_a_queue_that_waits_for_blocks_is_bounded_too(void **state)
{
    (void)state;
    struct shape shape = small_shape; /* places for 32, blocks for one of 900 tokens */
    shape.queue = 2;
    struct world *w = world_new(shape);
    struct err err;

    assert_int_equal(try_submit(w, 900, 50, &err), SUBMIT_OK);
    turn(w);
    int n_accepted = 0;
    for (int i = 0; i < 10; i++) {
        int32_t prompt[800];
        struct gen_options o = options_of(1, 10);
        fill_prompt(prompt, 800, 10 + i);
        n_accepted += submit_full(client_new(w), prompt, 800, &o, &err) == SUBMIT_OK;
        turn(w);
    }
    assert_int_equal(n_accepted, 2);
    world_free(w);
}

static void test_settings_that_cannot_work_are_refused_at_start(void **state)
{
    (void)state;
    struct vocab v = vocab_new(NULL, 0);
    struct fake_runner *r = fake_runner_new(64, 16, 2048, v.n, 256, 32);
    struct engine_config good = {.runner = &r->base,
                                 .tokenizer = v.tokenizer,
                                 .max_batch_tokens = 256,
                                 .max_chunk = 128,
                                 .max_running = 32,
                                 .max_queue = 8};
    struct engine_config bad[5] = {good, good, good, good, good};
    static const char *const says[5] = {"max-batch-tokens is 47", "max-chunk is 15",
                                        "max-running is 0", "max-queue is 0", "sequences"};
    struct err err;

    bad[0].max_batch_tokens = 47;
    bad[1].max_chunk = 15;
    bad[2].max_running = 0;
    bad[3].max_queue = 0;
    bad[4].max_running = 33;
    for (int i = 0; i < 5; i++) {
        assert_null(engine_new(&bad[i], &err));
        assert_non_null(strstr(err.text, says[i]));
    }
    engine_free(engine_new(&good, &err));
    r->base.close(&r->base);
    tokenizer_free(v.tokenizer);
}

/* ---- resuming ------------------------------------------------------------------------------- */

/* Cancels after k ids, submits again with them: the answer must be the one that would have been. */
static void resume_after(int32_t k, const char *stop)
{
    static const char text[] = "one two three, four \xf0\x9f\xa6\x99 five six";
    static int32_t forced[sizeof text], ids[200];
    struct bytes stops[1] = {bytes_from(stop)};
    struct world *w = world_new(small_shape);
    struct gen_options o = options_of(7, (int64_t)sizeof text - 1);
    struct client *whole = client_new(w), *first = client_new(w), *rest = client_new(w);

    for (size_t i = 0; i < sizeof text; i++)
        forced[i] = (unsigned char)text[i];
    o.stops = stops;
    o.n_stops = 1;
    o.frequency = 0.5f;
    fill_prompt(ids, 50, 1);
    fake_force(w->runner, 7, 50, forced, (int32_t)sizeof text - 1);
    submit_full(whole, ids, 50, &o, NULL);
    drain(w);
    submit_full(first, ids, 50, &o, NULL);
    struct gen_view view = {0};
    while (view.n_ids < k) {
        turn(w);
        gen_view(first->gen, &view);
    }
    engine_cancel(w->engine, first->gen, GEN_ORPHANED);
    assert_int_equal(first->end.n_ids, k);
    memcpy(ids + 50, first->ids, (size_t)k * sizeof *ids);
    assert_int_equal(submit_resumed(rest, ids, 50, k, &o), SUBMIT_OK);
    drain(w);
    assert_int_equal(rest->end.finish, whole->end.finish);
    assert_int_equal(rest->end.n_prompt, 50);
    assert_int_equal(rest->end.n_generated, whole->end.n_generated);
    assert_str(&rest->text, whole->text.data);
    assert_str(&rest->matched, whole->matched.len ? whole->matched.data : "");
    assert_int_equal(rest->end.n_ids, whole->end.n_ids);
    assert_memory_equal(rest->ids, whole->ids, (size_t)whole->end.n_ids * sizeof *ids);
    if (first->text.len <= rest->text.len) { /* told once: what the first told is not told again */
        assert_int_equal(first->pieces.len + rest->pieces.len, rest->text.len);
        assert_memory_equal(rest->text.data + first->pieces.len, rest->pieces.data,
                            rest->pieces.len);
    }
    world_free(w);
}

static void test_a_resumed_generation_ends_as_the_whole_one(void **state)
{
    (void)state;
    for (int32_t k = 1; k < 18; k++)
        resume_after(k, "four");
    for (int32_t k = 18; k < 31; k++)
        resume_after(k, "never");
}

static void test_resumed_with_nothing_left_it_ends_in_the_next_turn(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    struct client *c = client_new(w);
    struct gen_options o = options_of(7, 5);
    int32_t ids[30];

    fill_prompt(ids, 30, 1);
    memcpy(ids + 20, "\0", 1);
    for (int i = 20; i < 30; i++)
        ids[i] = 'a' + i - 20;
    submit_resumed(c, ids, 20, 5, &o);
    assert_int_equal(c->n_ends, 0); /* nothing is called back from submit */
    drain(w);
    assert_int_equal(c->end.finish, GEN_LENGTH);
    assert_str(&c->text, "abcde");
    assert_int_equal(c->pieces.len, 0);
    assert_int_equal(w->runner->n_launched, 0);
    world_free(w);
}

/* ---- sameness, views, probes ---------------------------------------------------------------- */

static void test_a_seed_gives_the_same_ids_whoever_is_beside(void **state)
{
    (void)state;
    int32_t prompt[40], other[40];

    fill_prompt(prompt, 40, 1);
    fill_prompt(other, 40, 2);
    for (int run = 0; run < 4; run++) {
        struct world *w = world_new(small_shape);
        struct client *a = submit(w, prompt, 40, 42, 20);
        if (run > 0)
            submit(w, other, 40, (uint64_t)run * 77, 20);
        drain(w);
        assert_as_alone(a, prompt, 40, 42, 20);
        world_free(w);
    }
    struct world *w = world_new(small_shape);
    struct client *greedy[2];
    for (int i = 0; i < 2; i++) {
        struct gen_options o = options_of(5 + (uint64_t)i, 20);
        o.temperature = 0;
        greedy[i] = client_new(w);
        submit_full(greedy[i], prompt, 40, &o, NULL);
    }
    drain(w);
    assert_memory_equal(greedy[0]->ids, greedy[1]->ids, 20 * sizeof(int32_t));
    world_free(w);
}

static void test_every_generated_id_is_counted_also_after_resuming(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    struct client *c = client_new(w);
    struct gen_options o = options_of(7, 40);
    int32_t ids[40];

    fill_prompt(ids, 40, 1);
    o.presence = 0.5f;
    submit_resumed(c, ids, 25, 15, &o);
    for (int32_t made = 15; !engine_is_idle(w->engine); made++) {
        turn(w);
        const struct plan *p = w->runner->plan;
        int32_t n = 0;
        for (int32_t i = 0; p && i < p->samples[0].n_counts; i++)
            n += p->counts[p->samples[0].counts_at + i].count;
        assert_int_equal(n, p ? made : 0);
    }
    assert_int_equal(c->end.n_generated, 40);
    world_free(w);
}

static void test_a_view_shows_place_state_and_text(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.running = 1;
    struct world *w = world_new(shape);
    struct gen_view view;
    int32_t prompt[20];

    fill_prompt(prompt, 20, 1);
    struct client *a = submit(w, prompt, 20, 1, 40);
    struct client *b = submit(w, prompt, 20, 2, 5);
    struct client *c = submit(w, prompt, 20, 3, 5);
    for (int i = 0; i < 4; i++)
        turn(w);
    gen_view(a->gen, &view);
    assert_true(view.running);
    assert_int_equal(view.place, 0);
    assert_int_equal(view.n_ids, 3);
    assert_int_equal(view.text.len, 3);
    assert_int_equal(view.n_computed, 22);
    assert_int_equal(view.n_blocks, 2);
    gen_view(b->gen, &view);
    assert_false(view.running);
    assert_int_equal(view.place, 1);
    gen_view(c->gen, &view);
    assert_int_equal(view.place, 2);
    engine_cancel(w->engine, b->gen, GEN_CANCELLED);
    gen_view(c->gen, &view);
    assert_int_equal(view.place, 1);
    drain(w);
    world_free(w);
}

static void test_probe_and_clear(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    int32_t prompt[64];
    struct cache_namespace other = {.user = 9};

    fill_prompt(prompt, 64, 1);
    assert_int_equal(engine_probe(w->engine, &w->ns, prompt, 64), 0);
    submit(w, prompt, 40, 1, 3);
    drain(w);
    assert_int_equal(engine_probe(w->engine, &w->ns, prompt, 64), 40); /* 2 blocks and a tail */
    assert_int_equal(engine_probe(w->engine, &w->ns, prompt, 40), 39);
    assert_int_equal(engine_probe(w->engine, &w->ns, prompt, 0), 0);
    assert_int_equal(engine_probe(w->engine, &other, prompt, 64), 0);
    assert_true(engine_cache_clear(w->engine) >= 3);
    assert_int_equal(engine_probe(w->engine, &w->ns, prompt, 64), 0);
    world_audit(w);
    world_free(w);
}

static void test_an_engine_is_freed_with_work_in_it(void **state)
{
    (void)state;
    struct shape shape = small_shape;
    shape.running = 2;
    struct world *w = world_new(shape);
    int32_t prompt[100];

    fill_prompt(prompt, 100, 1);
    for (int i = 0; i < 4; i++)
        submit(w, prompt, 90 + i, 1, 50);
    for (int i = 0; i < 5; i++)
        turn(w);
    world_free(w); /* without callbacks; the sanitizer looks for what is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_characters_and_malformed_bytes_arrive),
        cmocka_unit_test(test_a_stop_string_ends_the_text_before_it),
        cmocka_unit_test(test_held_text_is_delivered_before_the_end),
        cmocka_unit_test(test_limits_are_exact_and_every_id_is_delivered),
        cmocka_unit_test(test_carried_bytes_come_with_the_first_output),
        cmocka_unit_test(test_an_unfinished_character_is_told_apart),
        cmocka_unit_test(test_what_can_never_fit_is_refused_with_need_and_limit),
        cmocka_unit_test(test_the_largest_growth_is_the_one_that_is_accepted),
        cmocka_unit_test(test_a_prompt_that_fills_the_context_is_refused),
        cmocka_unit_test(test_the_queue_is_bounded_and_a_free_place_is_no_queue),
        cmocka_unit_test(test_a_queue_that_waits_for_blocks_is_bounded_too),
        cmocka_unit_test(test_settings_that_cannot_work_are_refused_at_start),
        cmocka_unit_test(test_a_resumed_generation_ends_as_the_whole_one),
        cmocka_unit_test(test_resumed_with_nothing_left_it_ends_in_the_next_turn),
        cmocka_unit_test(test_a_seed_gives_the_same_ids_whoever_is_beside),
        cmocka_unit_test(test_every_generated_id_is_counted_also_after_resuming),
        cmocka_unit_test(test_a_view_shows_place_state_and_text),
        cmocka_unit_test(test_probe_and_clear),
        cmocka_unit_test(test_an_engine_is_freed_with_work_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
