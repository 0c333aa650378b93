/* test_retry.c - resent GENs, orphans, removal under a generation. */
#include "keys_fixture.h"

static const struct gen_args same = {.key = "k", .prompt = "p"};

/* ---- attaching ------------------------------------------------------------------------------ */

static void test_the_same_gen_attaches_to_the_running_one(void **state)
{
    struct fixture fx;
    struct client a, b;
    fx_open(&fx, "abc");
    fx_gen(&fx, &a, same);
    fx_turns(&fx, 2);
    fx_gen(&fx, &b, same);
    assert_int_equal(b.n_answers, 0);
    assert_int_equal(keys_n_generating(fx.ks), 1);
    fx_finish(&fx);
    expect_text(&a, "abc");
    expect_text(&b, "abc");
    expect_range(&fx, "k", "text=p;text=abc;");
    fx_close_all(&fx);
}

static void test_another_bound_of_the_wait_is_the_same_gen(void **state)
{
    struct fixture fx;
    struct client a, b;
    struct gen_args blocking = same;
    blocking.block_ms = 4000;
    fx_open(&fx, "abc");
    fx_gen(&fx, &a, same);
    fx_gen(&fx, &b, blocking);
    fx_finish(&fx);
    expect_text(&b, "abc");
    fx_close_all(&fx);
}

static void test_other_arguments_or_another_user_are_busykey(void **state)
{
    struct fixture fx;
    struct client a, b;
    struct gen_args other = same;
    other.extra = "IGNOREEOS";
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &a, same);
    fx_gen(&fx, &b, other);
    expect_error(&b, "BUSYKEY a generation is running on 'k'");
    other.extra = NULL;
    other.prompt = "q";
    fx_gen(&fx, &b, other);
    expect_error(&b, "BUSYKEY ");
    other = same;
    other.user = 1;
    fx_gen(&fx, &b, other);
    expect_error(&b, "BUSYKEY ");
    fx_close_all(&fx);
}

static void test_arguments_are_counted_and_not_joined(void **state)
{
    struct fixture fx;
    struct client a, b;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &a, (struct gen_args){.key = "k", .prompt = "ab", .extra = "c"});
    fx_gen(&fx, &b, (struct gen_args){.key = "k", .prompt = "a", .extra = "bc"});
    expect_error(&b, "BUSYKEY ");
    fx_close_all(&fx);
}

static void test_async_gets_the_same_id_again_also_after_the_end(void **state)
{
    struct fixture fx;
    struct client a, b;
    struct gen_args async = same;
    async.async = true;
    fx_open(&fx, "abc");
    fx_gen(&fx, &a, async);
    assert_int_equal(a.kind, GEN_ANSWER_ID);
    fx_gen(&fx, &b, async);
    assert_int_equal(b.kind, GEN_ANSWER_ID);
    assert_int_equal(stream_id_compare(a.id, b.id), 0);
    fx_finish(&fx);
    fx_gen(&fx, &b, async);
    assert_int_equal(b.kind, GEN_ANSWER_ID);
    assert_int_equal(stream_id_compare(a.id, b.id), 0);
    assert_int_equal(keys_n_generating(fx.ks), 0);
    fx_close_all(&fx);
}

static void test_writers_are_refused_while_a_key_generates(void **state)
{
    struct fixture fx;
    struct client a;
    struct err err;
    struct stream_id id;
    struct stream_trim trim = {.kind = TRIM_MAXLEN};
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &a, same);
    fx_turns(&fx, 2);
    assert_int_equal(fx_add(&fx, "k", (const char *const[]){"text", "x"}, 1, &id, &err), -1);
    assert_memory_equal(err.text, "BUSYKEY ", 8);
    assert_int_equal(keys_xdel(fx.ks, 0, BYTES("k"), &id, 1, &err), -1);
    assert_int_equal(keys_xtrim(fx.ks, 0, BYTES("k"), &trim, &err), -1);
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("k"), BYTES("j"), false, &err), -1);
    assert_memory_equal(err.text, "BUSYKEY ", 8);
    fx_close_all(&fx);
}

/* ---- undelivered ends ----------------------------------------------------------------------- */

static void test_an_undelivered_end_is_delivered_once(void **state)
{
    struct fixture fx;
    struct client b;
    fx_open(&fx, "abc");
    fx_gen_alone(&fx, same);
    fx_gen(&fx, &b, same);
    expect_text(&b, "abc");
    assert_int_equal(keys_n_generating(fx.ks), 0);
    fx.says = "new";
    fx_gen(&fx, &b, same);
    fx_finish(&fx);
    expect_text(&b, "new");
    fx_close_all(&fx);
}

static void test_the_arguments_are_kept_only_until_the_end_was_told(void **state)
{
    struct fixture fx;
    struct client b;
    struct gen_args args = {.key = "k", .prompt = fx_long(3000)};
    fx_open(&fx, "abc");
    fx_gen(&fx, &b, args);
    fx_turns(&fx, 2);
    gen_waiter_leave(&b.waiter);
    fx_finish(&fx);
    size_t before = key_memory_bytes(fx_key(&fx, "k"));
    fx_gen(&fx, &b, args);
    expect_text(&b, "abc");
    assert_true(key_memory_bytes(fx_key(&fx, "k")) + 3000 <= before);
    fx_close_all(&fx);
}

static void test_an_answer_that_was_told_is_not_told_again(void **state)
{
    struct fixture fx;
    struct client a;
    fx_open(&fx, "abc");
    fx_gen(&fx, &a, same);
    fx_finish(&fx);
    fx.says = "new";
    fx_gen(&fx, &a, same);
    fx_finish(&fx);
    expect_text(&a, "new");
    fx_close_all(&fx);
}

static void test_an_end_that_a_reader_got_counts_as_delivered(void **state)
{
    struct fixture fx;
    struct client b;
    fx_open(&fx, "abc");
    fx_gen_alone(&fx, same);
    expect_range(&fx, "k", "text=p;text=abc;");
    fx.says = "new";
    fx_gen(&fx, &b, same);
    assert_int_equal(b.n_answers, 0);
    fx_finish(&fx);
    expect_text(&b, "new");
    fx_close_all(&fx);
}

static void test_an_entry_behind_the_end_makes_the_same_gen_new(void **state)
{
    struct fixture fx;
    struct client b;
    struct stream_id id;
    struct err err;
    fx_open(&fx, "abc");
    fx_gen_alone(&fx, same);
    fx_add(&fx, "k", (const char *const[]){"note", "the model ignores it"}, 1, &id, &err);
    fx_gen(&fx, &b, same);
    expect_text(&b, "abc");
    fx.says = "def";
    fx_gen_alone(&fx, same);
    fx_text(&fx, "k", "more");
    fx_gen(&fx, &b, same);
    assert_int_equal(b.n_answers, 0);
    fx_close_all(&fx);
}

static void test_who_leaves_the_ready_list_leaves_the_end_undelivered(void **state)
{
    struct fixture fx;
    struct client a, b;
    fx_open(&fx, "");
    fx_gen(&fx, &a, same);
    for (int i = 0; i < 100 && keys_n_generating(fx.ks) > 0; i++)
        (void)engine_turn(fx.engine);
    gen_waiter_leave(&a.waiter); /* ended, not served yet */
    fx_turn(&fx);
    assert_int_equal(a.n_answers, 0);
    fx_gen(&fx, &b, same);
    expect_text(&b, "");
    fx_close_all(&fx);
}

static void test_a_renamed_key_does_not_answer_for_the_old_name(void **state)
{
    struct fixture fx;
    struct client b;
    struct err err;
    fx_open(&fx, "abc");
    fx_gen_alone(&fx, same);
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("k"), BYTES("j"), false, &err), 1);
    fx_gen(&fx, &b, (struct gen_args){.key = "j", .prompt = "p"});
    assert_int_equal(b.n_answers, 0);
    fx_close_all(&fx);
}

/* ---- orphans -------------------------------------------------------------------------------- */

static void orphan(struct fixture *fx)
{
    struct client gone;
    fx_gen(fx, &gone, same);
    fx_turns(fx, 4);
    gen_waiter_leave(&gone.waiter);
    fx_advance(fx, 10000);
    fx_turn(fx);
    assert_int_equal(keys_n_generating(fx->ks), 0);
    expect_bytes(last_field(fx, "k", "finish"), "orphaned");
}

static void test_a_generation_without_a_client_runs_on_until_the_orphan_timeout(void **state)
{
    struct fixture fx;
    struct client a;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &a, same);
    fx_advance(&fx, 60000);
    assert_int_equal(keys_n_generating(fx.ks), 1); /* it waits */
    gen_waiter_leave(&a.waiter);
    fx_advance(&fx, 9999);
    assert_int_equal(keys_n_generating(fx.ks), 1);
    fx_advance(&fx, 1);
    assert_int_equal(keys_n_generating(fx.ks), 0);
    fx_close_all(&fx);
}

static void test_an_orphan_resumes_with_one_entry_that_has_the_whole_text(void **state)
{
    struct fixture fx;
    struct client b;
    fx_open(&fx, "abcdef");
    struct gen_args args = same;
    struct client gone;
    fx_gen(&fx, &gone, args);
    fx_turns(&fx, 4);
    struct stream_id prompt = stream_entry(key_stream(fx_key(&fx, "k")), 0)->id;
    gen_waiter_leave(&gone.waiter);
    clock_advance_ms(10000);
    (void)keyspace_turn(fx.ks);
    expect_bytes(last_field(&fx, "k", "finish"), "orphaned");
    struct str partial = {0}, seed = {0};
    str_append(&partial, last_field(&fx, "k", "text").data, last_field(&fx, "k", "text").len);
    str_append(&seed, last_field(&fx, "k", "seed").data, last_field(&fx, "k", "seed").len);
    assert_in_range(partial.len, 1, 5);
    fx_turn(&fx); /* a step that was launched for it is thrown away */
    fx.says = &"abcdef"[partial.len];
    fx_gen(&fx, &b, args);
    fx_finish(&fx);
    expect_text(&b, "abcdef");
    expect_range(&fx, "k", "text=p;text=abcdef;");
    expect_bytes(last_field(&fx, "k", "finish"), "stop");
    expect_bytes(last_field(&fx, "k", "seed"), seed.data);
    expect_bytes(last_field(&fx, "k", "generated"), "6");
    expect_read(&fx, "k", prompt, "piece=a;piece=b;piece=c;piece=d;piece=e;piece=f;text=abcdef;");
    str_free(&partial);
    str_free(&seed);
    fx_close_all(&fx);
}

static void test_another_gen_after_an_orphan_is_new(void **state)
{
    struct fixture fx;
    struct client b;
    fx_open(&fx, "");
    fx.never_ends = true;
    orphan(&fx);
    fx_gen(&fx, &b, (struct gen_args){.key = "k", .prompt = "other"});
    assert_int_equal(key_stream(fx_key(&fx, "k"))->n, 3); /* the orphaned entry stands */
    fx_close_all(&fx);
}

static void test_a_resume_that_is_refused_leaves_the_orphaned_entry(void **state)
{
    struct fixture fx;
    struct client b;
    fx_open(&fx, "");
    fx.never_ends = true;
    orphan(&fx);
    keyspace_options(fx.ks)->n_context = 2; /* as if the limit had been lowered */
    fx_gen(&fx, &b, same);
    expect_error(&b, "ERR ");
    expect_bytes(last_field(&fx, "k", "finish"), "orphaned");
    keyspace_options(fx.ks)->n_context = FX_CONTEXT;
    fx_gen(&fx, &b, same);
    assert_int_equal(b.n_answers, 0);
    assert_int_equal(keys_n_generating(fx.ks), 1);
    fx_close_all(&fx);
}

static void test_async_generations_belong_to_nobody_and_run_on(void **state)
{
    struct fixture fx;
    struct client a;
    struct gen_args async = same;
    async.async = true;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &a, async);
    fx_advance(&fx, 3600000);
    assert_int_equal(keys_n_generating(fx.ks), 1);
    fx_close_all(&fx);
}

static void test_an_xread_restarts_the_orphan_clock(void **state)
{
    struct fixture fx;
    struct client a;
    struct watcher w;
    struct seen seen = {0};
    fx_open(&fx, "abc");
    fx.never_ends = true;
    fx_gen(&fx, &a, same);
    fx_turns(&fx, 3);
    gen_waiter_leave(&a.waiter);
    fx_advance(&fx, 9000);
    keys_read(fx_key(&fx, "k"), STREAM_ID_MIN, 0, seen_entry, &seen); /* returns pieces */
    fx_advance(&fx, 9000);
    fx_block(&fx, &w, "k", STREAM_ID_MAX, 0); /* blocks */
    fx_advance(&fx, 9000);
    assert_int_equal(keys_n_generating(fx.ks), 1);
    fx_advance(&fx, 1000);
    assert_int_equal(keys_n_generating(fx.ks), 0);
    reader_leave(&w.reader);
    str_free(&seen.text);
    fx_close_all(&fx);
}

static void test_an_orphan_while_it_tokenises_leaves_nothing(void **state)
{
    struct fixture fx;
    struct client a;
    fx_open(&fx, "");
    fx_gen(&fx, &a, (struct gen_args){.key = "k", .prompt = fx_long(2999)});
    gen_waiter_leave(&a.waiter);
    clock_advance_ms(10000);
    (void)keyspace_turn(fx.ks);
    assert_int_equal(keys_n_generating(fx.ks), 0);
    fx_turn(&fx);
    assert_int_equal(keys_count(fx.ks, 0), 0);
    fx_close_all(&fx);
}

/* ---- removal under a generation ------------------------------------------------------------- */

/* Comparable servers left blocked readers asleep when their key went: each way in which one goes. */
static void remove_by_del(struct fixture *fx)
{
    assert_true(keys_delete(fx->ks, 0, BYTES("k")));
}
static void remove_by_flush(struct fixture *fx)
{
    keys_flush(fx->ks, -1);
}
static void remove_by_expiry(struct fixture *fx)
{
    assert_true(keys_expire(fx->ks, 0, BYTES("k"), 1, false, 0));
    clock_advance_ms(1);
    (void)keyspace_turn(fx->ks);
}
static void remove_by_past_expiry(struct fixture *fx)
{
    assert_true(keys_expire(fx->ks, 0, BYTES("k"), 0, false, 0));
}
static void remove_by_lookup(struct fixture *fx)
{
    assert_true(keys_expire(fx->ks, 0, BYTES("k"), 1, false, 0));
    clock_advance_ms(1);
    assert_null(fx_key(fx, "k"));
}
static void remove_by_rename(struct fixture *fx)
{
    struct err err;
    assert_int_equal(keys_rename(fx->ks, 0, BYTES("other"), BYTES("k"), false, &err), 1);
}
static void remove_by_fork(struct fixture *fx)
{
    struct err err;
    struct bytes target = BYTES("k");
    struct fork_request fork = {
        .source = BYTES("other"), .targets = &target, .n_targets = 1, .replace = true};
    assert_int_equal(keys_fork(fx->ks, &fork, &err), 1);
}

static void test_readers_get_the_end_before_a_generating_key_goes(void **state)
{
    static void (*const ways[])(struct fixture *) = {
        remove_by_del,    remove_by_flush,  remove_by_expiry, remove_by_past_expiry,
        remove_by_lookup, remove_by_rename, remove_by_fork};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct fixture fx;
        struct client c;
        struct watcher w;
        fx_open(&fx, "abc");
        fx.never_ends = true;
        fx_text(&fx, "other", "instead");
        fx_gen(&fx, &c, same);
        fx_turns(&fx, 4);
        fx_block(&fx, &w, "k", key_last_id(fx_key(&fx, "k")), 0);
        ways[i](&fx);
        assert_int_equal(w.n_wakes, 1); /* at once: inside the command */
        assert_non_null(w.got.data);
        assert_non_null(strstr(w.got.data, "text=abc"));
        assert_false(reader_is_waiting(&w.reader));
        expect_error(&c, "CANCELLED ");
        assert_non_null(strstr(c.text, "the key is gone"));
        assert_int_equal(keys_n_generating(fx.ks), 0);
        str_free(&w.got);
        fx_turns(&fx, 3);
        fx_close_all(&fx);
    }
}

static void test_expire_and_persist_let_a_generation_go_on(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abc");
    fx_gen(&fx, &c, same);
    assert_true(keys_expire(fx.ks, 0, BYTES("k"), 1000, false, 0));
    assert_true(keys_persist(fx.ks, 0, BYTES("k")));
    fx_finish(&fx);
    expect_text(&c, "abc");
    fx_close_all(&fx);
}

static void test_shutting_down_answers_everybody_and_refuses_new_work(void **state)
{
    struct fixture fx;
    struct client a, b;
    struct watcher w;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &a, same);
    fx_turns(&fx, 2);
    fx_block(&fx, &w, "k", key_last_id(fx_key(&fx, "k")), 0);
    keyspace_shut_down(fx.ks);
    expect_error(&a, "CANCELLED ");
    assert_int_equal(w.n_wakes, 1);
    fx_gen(&fx, &b, (struct gen_args){.key = "j", .prompt = "p"});
    expect_error(&b, "ERR the server is shutting down");
    str_free(&w.got);
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_gen_attaches_to_the_running_one),
        cmocka_unit_test(test_another_bound_of_the_wait_is_the_same_gen),
        cmocka_unit_test(test_other_arguments_or_another_user_are_busykey),
        cmocka_unit_test(test_arguments_are_counted_and_not_joined),
        cmocka_unit_test(test_async_gets_the_same_id_again_also_after_the_end),
        cmocka_unit_test(test_writers_are_refused_while_a_key_generates),
        cmocka_unit_test(test_an_undelivered_end_is_delivered_once),
        cmocka_unit_test(test_the_arguments_are_kept_only_until_the_end_was_told),
        cmocka_unit_test(test_an_answer_that_was_told_is_not_told_again),
        cmocka_unit_test(test_an_end_that_a_reader_got_counts_as_delivered),
        cmocka_unit_test(test_an_entry_behind_the_end_makes_the_same_gen_new),
        cmocka_unit_test(test_who_leaves_the_ready_list_leaves_the_end_undelivered),
        cmocka_unit_test(test_a_renamed_key_does_not_answer_for_the_old_name),
        cmocka_unit_test(test_a_generation_without_a_client_runs_on_until_the_orphan_timeout),
        cmocka_unit_test(test_an_orphan_resumes_with_one_entry_that_has_the_whole_text),
        cmocka_unit_test(test_another_gen_after_an_orphan_is_new),
        cmocka_unit_test(test_a_resume_that_is_refused_leaves_the_orphaned_entry),
        cmocka_unit_test(test_async_generations_belong_to_nobody_and_run_on),
        cmocka_unit_test(test_an_xread_restarts_the_orphan_clock),
        cmocka_unit_test(test_an_orphan_while_it_tokenises_leaves_nothing),
        cmocka_unit_test(test_readers_get_the_end_before_a_generating_key_goes),
        cmocka_unit_test(test_expire_and_persist_let_a_generation_go_on),
        cmocka_unit_test(test_shutting_down_answers_everybody_and_refuses_new_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
