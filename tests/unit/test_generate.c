/* test_generate.c - a GEN from its arrival to its end: stages, refusals, GENINFO, PROBE. */
#include "keys_fixture.h"
#include <poll.h>

static void test_a_refusal_writes_nothing(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "x");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = fx_long(4999)});
    assert_int_equal(c.n_answers, 0); /* long: a job tokenises it */
    expect_state(&fx, "k", "queued", "");
    fx_turn(&fx);
    expect_error(&c, "ERR ");
    assert_null(fx_key(&fx, "k"));
    assert_int_equal(keys_count(fx.ks, 0), 0);
    expect_state(&fx, "k", "none", "");
    fx_close_all(&fx);
}

static void test_a_key_is_busy_while_its_prompt_is_tokenised(void **state)
{
    struct fixture fx;
    struct client a, b;
    struct err err;
    struct stream_id id;
    fx_open(&fx, "");
    fx_gen(&fx, &a, (struct gen_args){.key = "k", .prompt = fx_long(2999)});
    fx_gen(&fx, &b, (struct gen_args){.key = "k", .prompt = "other"});
    expect_error(&b, "BUSYKEY ");
    assert_int_equal(fx_add(&fx, "k", (const char *const[]){"text", "x"}, 1, &id, &err), -1);
    assert_memory_equal(err.text, "BUSYKEY ", 8);
    assert_int_equal(keys_count(fx.ks, 0), 0);
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    expect_error(&a, "CANCELLED ");
    assert_false(keys_cancel(fx.ks, 0, BYTES("k")));
    fx_turn(&fx);
    assert_int_equal(keys_count(fx.ks, 0), 0);
    assert_int_equal(a.n_answers, 1);
    fx_close_all(&fx);
}

static void test_del_of_a_key_that_tokenises_answers_and_counts_nothing(void **state)
{
    struct fixture fx;
    struct client a;
    fx_open(&fx, "");
    fx_gen(&fx, &a, (struct gen_args){.key = "k", .prompt = fx_long(2999)});
    assert_false(keys_delete(fx.ks, 0, BYTES("k")));
    expect_error(&a, "the key is gone");
    fx_turn(&fx);
    fx_close_all(&fx);
}

static void test_inside_multi_the_id_comes_at_once_and_a_refusal_is_an_end_entry(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "x");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = fx_long(4999), .in_multi = true});
    assert_int_equal(c.kind, GEN_ANSWER_ID);
    assert_int_equal(stream_id_compare(c.id, key_last_id(fx_key(&fx, "k"))), 0);
    fx_turn(&fx);
    assert_int_equal(keys_n_generating(fx.ks), 0);
    expect_bytes(last_field(&fx, "k", "finish"), "error");
    assert_memory_equal(last_field(&fx, "k", "error").data, "ERR ", 4);
    expect_state(&fx, "k", "idle", "error");
    fx_close_all(&fx);
}

static void test_a_long_prompt_is_tokenised_by_a_job_and_its_ids_stay(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "yes");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = fx_long(2999), .with_info = true});
    assert_null(fx_key(&fx, "k"));
    assert_int_equal(jobs_pending(fx.jobs), 1);
    fx_finish(&fx);
    assert_string_equal(c.text, "yes");
    assert_string_equal(c.finish, "stop");
    expect_bytes(last_field(&fx, "k", "prompt"), "2999");
    fx.says = "again";
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "b"});
    assert_int_equal(jobs_pending(fx.jobs), 0); /* only the new text is tokenised */
    fx_finish(&fx);
    expect_bytes(last_field(&fx, "k", "prompt"), "3003");
    fx_close_all(&fx);
}

/* Two children that share entries whose ids are not made yet, each with a job on a real thread: what
 * one installs, the other's job must not be reading. */
static void test_jobs_on_threads_share_entries(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct err err;
    struct bytes target = BYTES("x");
    struct fork_request fork = {.source = BYTES("k"), .targets = &target, .n_targets = 1};
    fx_open(&fx, "");
    jobs_free(fx.jobs);
    fx.jobs = keyspace_options(fx.ks)->jobs = jobs_new(2);
    fx_text(&fx, "k", fx_long(2999));
    assert_int_equal(keys_fork(fx.ks, &fork, &err), 1);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    fx_gen(&fx, &d, (struct gen_args){.key = "x", .prompt = "p"});
    while (jobs_pending(fx.jobs) > 0) {
        struct pollfd fd = {.fd = jobs_fd(fx.jobs), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, 10000), 1);
        fx_turn(&fx);
    }
    fx_finish(&fx);
    assert_int_equal(c.kind, GEN_ANSWER_TEXT);
    assert_int_equal(d.kind, GEN_ANSWER_TEXT);
    expect_bytes(last_field(&fx, "x", "prompt"), "3000");
    fx_close_all(&fx);
}

static void test_a_prompt_that_can_never_fit_is_refused_before_it_is_copied(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    size_t len = 1 << 20;
    char *text = xcalloc(len + 1, 1);
    memset(text, 'a', len);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = text});
    expect_error(&c, "ERR a prompt of 1048576 bytes can never fit the context of 4096 tokens");
    assert_int_equal(jobs_pending(fx.jobs), 0);
    xfree(text);
    fx_close_all(&fx);
}

static void test_a_gen_without_memory_is_refused_and_leaves_no_key(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    for (uint64_t n = 1; n <= 3; n++) { /* prompt, room in the stream, the walk */
        mem_fail_at(n, false);
        fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
        mem_fail_at(0, false);
        expect_error(&c, "OOM ");
        assert_null(fx_key(&fx, "k"));
        assert_int_equal(keys_n_generating(fx.ks), 0);
    }
    fx_close_all(&fx);
}

static void test_an_end_entry_without_memory_says_so(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abc");
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    fx_turns(&fx, 4);
    mem_fail_at(1, false);
    (void)keys_cancel(fx.ks, 0, BYTES("k"));
    mem_fail_at(0, false);
    fx_turn(&fx);
    expect_error(&c, "GENFAILED ");
    expect_bytes(last_field(&fx, "k", "finish"), "error");
    fx_close_all(&fx);
}

static void test_a_failed_answer_may_be_started_again(void **state)
{
    static const char *const templates[] = {"chatml", "llama-2", "gemma"};
    for (size_t i = 0; i < 3; i++) {
        struct fixture fx;
        struct client c;
        struct err err;
        fx_open(&fx, "abc");
        keyspace_options(fx.ks)->chat = chat_find(templates[i], &err);
        fx.never_ends = true;
        fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "q", .role = "user"});
        fx_turns(&fx, 4);
        fx.fails = true;
        fx_finish(&fx);
        expect_error(&c, "GENFAILED ");
        assert_non_null(strstr(c.text, "the device is gone"));
        fx.fails = fx.never_ends = false;
        fx.says = "better";
        fx_gen(&fx, &c, (struct gen_args){.key = "k"});
        fx_finish(&fx);
        assert_string_equal(c.text, "better");
        fx.says = "and on";
        fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "r"});
        fx_finish(&fx);
        assert_string_equal(c.text, "and on");
        fx_close_all(&fx);
    }
}

static void test_a_gen_is_refused_where_entry_ids_run_out(void **state)
{
    struct fixture fx;
    struct client c;
    struct stream_id id;
    struct err err;
    struct bytes fields[2] = {BYTES("text"), BYTES("x")};
    struct xadd add = {.id_kind = XADD_EXPLICIT,
                       .id = {UINT64_MAX, UINT64_MAX - 100},
                       .fields = fields,
                       .n_fields = 1};
    fx_open(&fx, "x");
    assert_int_equal(keys_xadd(fx.ks, 0, BYTES("k"), &add, &id, &err), 1);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    expect_error(&c, "2^32");
    fx_close_all(&fx);
}

static void test_geninfo_follows_a_key_from_none_to_idle_and_beyond_its_removal(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abc");
    expect_state(&fx, "k", "none", "");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    expect_state(&fx, "k", "queued", "");
    fx_turns(&fx, 2);
    expect_state(&fx, "k", "running", "");
    fx_finish(&fx);
    expect_state(&fx, "k", "idle", "stop");
    assert_true(keys_delete(fx.ks, 0, BYTES("k")));
    expect_state(&fx, "k", "none", "stop");
    fx_advance(&fx, 60000);
    expect_state(&fx, "k", "none", "");
    fx_close_all(&fx);
}

static void test_cancel_keeps_the_partial_text(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abc");
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    fx_turns(&fx, 4);
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    assert_false(keys_cancel(fx.ks, 0, BYTES("k")));
    fx_turn(&fx);
    expect_error(&c, "CANCELLED the generation on 'k' was cancelled; entry ");
    expect_range(&fx, "k", "text=p;text=abc;");
    expect_bytes(last_field(&fx, "k", "finish"), "cancelled");
    fx_close_all(&fx);
}

static void test_a_deadline_ends_it_and_withinfo_shows_the_entry(void **state)
{
    struct fixture fx;
    struct client plain, info;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &plain, (struct gen_args){.key = "a", .prompt = "p", .deadline_ms = 100});
    fx_gen(&fx, &info,
           (struct gen_args){.key = "b", .prompt = "p", .deadline_ms = 100, .with_info = true});
    fx_turns(&fx, 3);
    fx_advance(&fx, 100);
    fx_turn(&fx);
    expect_error(&plain, "TIMEDOUT ");
    assert_int_equal(info.kind, GEN_ANSWER_ENTRY);
    assert_string_equal(info.finish, "deadline");
    fx_close_all(&fx);
}

static void test_block_returns_null_and_the_generation_runs_on(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .block_ms = 50});
    fx_advance(&fx, 50);
    assert_int_equal(c.n_answers, 1);
    assert_int_equal(c.kind, GEN_ANSWER_TIMEOUT);
    assert_int_equal(keys_n_generating(fx.ks), 1);
    fx_close_all(&fx);
}

static void test_a_default_is_lowered_to_what_fits_and_a_wish_is_refused(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open_with(&fx, "ok", 100); /* blocks of 16: 1,600 tokens */
    keyspace_options(fx.ks)->default_max_tokens = 2000;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = fx_long(1000)});
    fx_finish(&fx);
    assert_string_equal(c.text, "ok");
    fx_gen(&fx, &c, (struct gen_args){.key = "j", .prompt = fx_long(1000), .max_tokens = 2000});
    expect_error(&c, "OOM ");
    assert_null(fx_key(&fx, "j"));
    fx_close_all(&fx);
}

static void test_a_full_queue_is_refused_with_its_own_prefix(void **state)
{
    struct fixture fx;
    struct client c[64];
    char name[16];
    int n = 0;
    fx_open(&fx, "");
    do {
        snprintf(name, sizeof name, "k%d", n);
        fx_gen(&fx, &c[n], (struct gen_args){.key = name, .prompt = "p"});
    } while (c[n].n_answers == 0 && ++n < 64);
    assert_in_range(n, 8, 63);
    expect_error(&c[n], "QUEUEFULL ");
    assert_null(fx_key(&fx, name));
    fx_close_all(&fx);
}

static void test_probe_tells_tokens_and_cached_and_writes_nothing(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    int32_t n, cached;
    static const char prompt[] = "0123456789abcdef0123456789abcdef!";
    fx_open(&fx, "ok");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = prompt});
    fx_finish(&fx);
    assert_int_equal(fx_probe(&fx, 0, prompt, NULL, &n, &cached, &err), 0);
    assert_int_equal(n, 33);
    assert_int_equal(cached, 32);
    assert_int_equal(fx_probe(&fx, 7, prompt, NULL, &n, &cached, &err), 0);
    assert_int_equal(cached, 0); /* another user */
    keyspace_options(fx.ks)->share_prefixes = true;
    assert_int_equal(fx_probe(&fx, 7, prompt, NULL, &n, &cached, &err), 0);
    assert_int_equal(cached, 0); /* what was computed for one user is not everybody's */
    keyspace_options(fx.ks)->share_prefixes = false;
    assert_int_equal(fx_probe(&fx, 0, "?", "k", &n, &cached, &err), 0);
    assert_int_equal(n, 36);
    assert_int_equal(fx_probe(&fx, 0, "", NULL, &n, &cached, &err), -1);
    assert_int_equal(keys_count(fx.ks, 0), 1);
    fx_close_all(&fx);
}

static void
test_of_texts_that_can_never_fit_no_more_are_looked_at_than_the_context_holds(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    for (int i = 0; i < FX_CONTEXT + 500; i++) {
        fx_text(&fx, "k", i % 2 ? "" : "xy");
        fx_text(&fx, "k", "z");
    }
    struct stream *s = key_stream(fx_key(&fx, "k"));
    struct build *build = build_new(keyspace_options(fx.ks), s, s->n, NULL);
    assert_int_equal(build->n, FX_CONTEXT / 3 * 4 + 1); /* of four texts one is empty */
    build_free(build);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    expect_error(&c, "ERR the conversation has at least 4096 tokens, the context holds 4096 with");
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refusal_writes_nothing),
        cmocka_unit_test(test_a_key_is_busy_while_its_prompt_is_tokenised),
        cmocka_unit_test(test_del_of_a_key_that_tokenises_answers_and_counts_nothing),
        cmocka_unit_test(test_inside_multi_the_id_comes_at_once_and_a_refusal_is_an_end_entry),
        cmocka_unit_test(test_a_long_prompt_is_tokenised_by_a_job_and_its_ids_stay),
        cmocka_unit_test(test_jobs_on_threads_share_entries),
        cmocka_unit_test(test_a_prompt_that_can_never_fit_is_refused_before_it_is_copied),
        cmocka_unit_test(test_a_gen_without_memory_is_refused_and_leaves_no_key),
        cmocka_unit_test(test_an_end_entry_without_memory_says_so),
        cmocka_unit_test(test_a_failed_answer_may_be_started_again),
        cmocka_unit_test(test_a_gen_is_refused_where_entry_ids_run_out),
        cmocka_unit_test(test_geninfo_follows_a_key_from_none_to_idle_and_beyond_its_removal),
        cmocka_unit_test(test_cancel_keeps_the_partial_text),
        cmocka_unit_test(test_a_deadline_ends_it_and_withinfo_shows_the_entry),
        cmocka_unit_test(test_block_returns_null_and_the_generation_runs_on),
        cmocka_unit_test(test_a_default_is_lowered_to_what_fits_and_a_wish_is_refused),
        cmocka_unit_test(test_a_full_queue_is_refused_with_its_own_prefix),
        cmocka_unit_test(test_probe_tells_tokens_and_cached_and_writes_nothing),
        cmocka_unit_test(
            test_of_texts_that_can_never_fit_no_more_are_looked_at_than_the_context_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
