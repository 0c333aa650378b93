/* test_replay.c - GEN ... ID token: the same again is answered from the end entry as long as it
 * stands; the rows of retry.c's table that speak of an ID, and every corner beside them. */
#include "keys_fixture.h"

#include "keyspace/keyspace.h"

static const struct gen_args same = {.key = "k", .prompt = "p", .id = "action-1"};
static const struct gen_args other = {.key = "k", .prompt = "q", .id = "action-1"};
static const struct gen_args next = {.key = "k", .prompt = "q"};

/* Runs one to its end and takes its answer: it counts as delivered. */
static void gen_to_end(struct fixture *fx, const char *says, struct gen_args args)
{
    struct client c;
    fx->says = says;
    fx_gen(fx, &c, args);
    fx_finish(fx);
    expect_text(&c, says);
}

/* The same once more, answered inside the call; nothing runs. */
static void expect_replay(struct fixture *fx, struct gen_args args, const char *text)
{
    struct client c;
    fx_gen(fx, &c, args);
    assert_int_equal(keys_n_generating(fx->ks), 0);
    expect_text(&c, text);
}

static void expect_new(struct fixture *fx, struct gen_args args)
{
    struct client c;
    fx->says = "new";
    fx_gen(fx, &c, args);
    assert_int_equal(keys_n_generating(fx->ks), 1);
    fx_finish(fx);
    expect_text(&c, "new");
}

static struct stream_id nth_id(struct fixture *fx, const char *name, size_t i)
{
    return stream_entry(key_stream(fx_key(fx, name)), i)->id;
}

static void expect_field(struct fixture *fx, const char *name, size_t i, const char *id)
{
    struct bytes field = entry_field(stream_entry(key_stream(fx_key(fx, name)), i), "id");
    if (id == NULL)
        assert_null(field.data);
    else
        assert_true(bytes_equal(field, bytes_from(id)));
}

/* ---- the rows ------------------------------------------------------------------------------- */

static void test_an_answer_that_was_told_is_told_again(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    expect_field(&fx, "k", 1, "action-1");
    expect_replay(&fx, same, "abc");
    expect_replay(&fx, same, "abc");
    expect_range(&fx, "k", "text=p;text=abc;");
    fx_close_all(&fx);
}

static void test_it_is_told_also_when_the_conversation_has_gone_on(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    gen_to_end(&fx, "def", next);
    expect_replay(&fx, same, "abc");
    expect_field(&fx, "k", 3, NULL);
    fx_close_all(&fx);
}

static void test_two_ids_are_two_actions_and_each_is_answered(void **state)
{
    struct fixture fx;
    struct gen_args second = same;
    second.id = "action-2"; /* the same prompt: said twice on purpose */
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    gen_to_end(&fx, "def", second);
    expect_replay(&fx, same, "abc");
    expect_replay(&fx, second, "def");
    fx_close_all(&fx);
}

static void test_other_arguments_with_the_same_id_name_the_entry(void **state)
{
    struct fixture fx;
    struct client c;
    char id[STREAM_ID_TEXT];
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    fx_gen(&fx, &c, other);
    expect_error(&c, "ERR ID 'action-1' stands in entry ");
    stream_id_format(id, nth_id(&fx, "k", 1));
    expect_error(&c, id);
    assert_int_equal(keys_n_generating(fx.ks), 0);
    expect_range(&fx, "k", "text=p;text=abc;");
    fx_close_all(&fx);
}

static void test_while_it_runs_the_same_attaches_and_other_arguments_are_busy(void **state)
{
    struct fixture fx;
    struct client a, b, c;
    fx_open(&fx, "abc");
    fx_gen(&fx, &a, same);
    fx_turns(&fx, 2);
    fx_gen(&fx, &b, same);
    fx_gen(&fx, &c, other);
    expect_error(&c, "BUSYKEY ");
    fx_finish(&fx);
    expect_text(&a, "abc");
    expect_text(&b, "abc");
    fx_close_all(&fx);
}

static void test_another_user_or_a_gen_without_id_is_new(void **state)
{
    struct fixture fx;
    struct gen_args user = same, bare = same;
    user.user = 7;
    bare.id = NULL;
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    expect_new(&fx, user);
    expect_new(&fx, bare);
    expect_replay(&fx, same, "abc");
    fx_close_all(&fx);
}

/* ---- corners -------------------------------------------------------------------------------- */

static void test_async_gets_the_same_id_to_read_after(void **state)
{
    struct fixture fx;
    struct client a, b;
    struct gen_args async = same;
    async.async = true;
    fx_open(&fx, "abc");
    fx_gen(&fx, &a, async);
    fx_finish(&fx);
    expect_range(&fx, "k", "text=p;text=abc;"); /* a reader was told */
    gen_to_end(&fx, "def", next);
    fx_gen(&fx, &b, async);
    assert_int_equal(b.kind, GEN_ANSWER_ID);
    assert_int_equal(stream_id_compare(a.id, b.id), 0);
    assert_int_equal(keys_n_generating(fx.ks), 0);
    fx_gen(&fx, &b, same); /* ASYNC is an argument: without it these are others */
    expect_error(&b, "ERR ID 'action-1' stands in entry ");
    fx_close_all(&fx);
}

static void test_block_is_no_argument_and_does_not_wait(void **state)
{
    struct fixture fx;
    struct gen_args block = same;
    block.block_ms = 4000;
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    expect_replay(&fx, block, "abc");
    fx_close_all(&fx);
}

static void test_withinfo_gets_the_entry_again(void **state)
{
    struct fixture fx;
    struct client c;
    struct gen_args info = same;
    info.with_info = true;
    fx_open(&fx, "abc");
    fx_gen(&fx, &c, info);
    fx_finish(&fx);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c.n_answers, 1);
        assert_int_equal(c.kind, GEN_ANSWER_ENTRY);
        assert_string_equal(c.text, "abc");
        assert_string_equal(c.finish, "stop");
        fx_gen(&fx, &c, info);
    }
    fx_close_all(&fx);
}

static void test_inside_multi_the_id_to_read_after_is_the_reply(void **state)
{
    struct fixture fx;
    struct client a, b;
    struct gen_args multi = same;
    multi.in_multi = true;
    fx_open(&fx, "abc");
    fx_gen(&fx, &a, multi);
    assert_int_equal(a.kind, GEN_ANSWER_ID);
    fx_finish(&fx);
    expect_field(&fx, "k", 1, "action-1");
    fx_gen(&fx, &b, multi);
    assert_int_equal(b.kind, GEN_ANSWER_ID);
    assert_int_equal(stream_id_compare(a.id, b.id), 0);
    expect_replay(&fx, same, "abc"); /* EXEC and a GEN outside ask for the same */
    fx_close_all(&fx);
}

static void test_what_multi_could_not_start_is_an_entry_with_the_id(void **state)
{
    struct fixture fx;
    struct client a, b;
    struct gen_args multi = same;
    static char large[3000];
    memset(large, 'x', sizeof large);
    multi.prompt = large;
    multi.prompt_len = sizeof large;
    multi.max_tokens = 100;
    multi.in_multi = true;
    fx_open_with(&fx, "abc", 16); /* 256 tokens */
    fx_gen(&fx, &a, multi);
    assert_int_equal(a.kind, GEN_ANSWER_ID);
    fx_finish(&fx);
    expect_field(&fx, "k", 1, "action-1");
    multi.in_multi = false;
    fx_gen(&fx, &b, multi);
    expect_error(&b, "GENFAILED ");
    assert_int_equal(keys_n_generating(fx.ks), 0);
    fx_close_all(&fx);
}

static void test_a_refusal_leaves_no_id(void **state)
{
    struct fixture fx;
    struct client c;
    struct gen_args large = same;
    large.max_tokens = 2000;
    fx_open_with(&fx, "", 16);
    fx_gen(&fx, &c, large);
    expect_error(&c, "OOM ");
    assert_null(fx_key(&fx, "k"));
    expect_new(&fx, same);
    fx_close_all(&fx);
}

static void test_cancelled_is_told_again_as_such(void **state)
{
    struct fixture fx;
    struct client a, b;
    fx_open(&fx, "abc");
    fx.never_ends = true;
    fx_gen(&fx, &a, same);
    fx_turns(&fx, 3);
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    fx_turns(&fx, 2);
    expect_error(&a, "CANCELLED ");
    fx_gen(&fx, &b, same);
    expect_error(&b, "CANCELLED ");
    assert_int_equal(keys_n_generating(fx.ks), 0);
    fx_close_all(&fx);
}

static void test_an_undelivered_end_with_id_is_delivered_then_replayed(void **state)
{
    struct fixture fx;
    struct client a;
    fx_open(&fx, "abc");
    fx_gen(&fx, &a, same);
    fx_turns(&fx, 2);
    gen_waiter_leave(&a.waiter);
    fx_finish(&fx);
    expect_replay(&fx, same, "abc");
    expect_replay(&fx, same, "abc");
    fx_close_all(&fx);
}

/* ---- deletion in between -------------------------------------------------------------------- */

static void test_without_its_entry_an_id_is_new(void **state)
{
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    struct stream_id id = nth_id(&fx, "k", 1);
    assert_int_equal(keys_xdel(fx.ks, 0, BYTES("k"), &id, 1, &err), 1);
    expect_new(&fx, same);
    struct stream_trim trim = {.kind = TRIM_MAXLEN, .max_len = 0};
    assert_true(keys_xtrim(fx.ks, 0, BYTES("k"), &trim, &err) > 0);
    expect_new(&fx, other); /* nor is it taken */
    assert_true(keys_delete(fx.ks, 0, BYTES("k")));
    expect_new(&fx, same);
    fx_close_all(&fx);
}

static void test_stale_ids_do_not_pile_up(void **state)
{
    struct fixture fx;
    struct err err;
    struct gen_args args = same;
    struct stream_trim trim = {.kind = TRIM_MAXLEN, .max_len = 4};
    char id[16];
    fx_open(&fx, "");
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "%d", i);
        args.id = id;
        gen_to_end(&fx, "abc", args);
        assert_true(keys_xtrim(fx.ks, 0, BYTES("k"), &trim, &err) >= 0);
    }
    assert_true(fx_key(&fx, "k")->replays_cap <= 8);
    expect_replay(&fx, args, "abc");
    fx_close_all(&fx);
}

/* ---- orphans -------------------------------------------------------------------------------- */

/* Leaves an orphaned entry "ab" behind. */
static void orphan(struct fixture *fx)
{
    struct client a;
    fx->says = "ab";
    fx->never_ends = true;
    fx_gen(fx, &a, same);
    fx_turns(fx, 2);
    gen_waiter_leave(&a.waiter);
    fx_advance(fx, 10001);
    fx_finish(fx);
    fx->never_ends = false;
}

static void test_an_orphan_with_id_is_resumed_and_then_replayed(void **state)
{
    struct fixture fx;
    struct client c;
    struct str whole = {0};
    fx_open(&fx, "");
    orphan(&fx);
    expect_field(&fx, "k", 1, "action-1");
    struct bytes kept = stream_entry(key_stream(fx_key(&fx, "k")), 1)->text;
    str_append(&whole, kept.data, kept.len);
    str_append_str(&whole, "cd");
    fx.says = "cd";
    fx_gen(&fx, &c, same);
    assert_int_equal(keys_n_generating(fx.ks), 1);
    fx_finish(&fx);
    expect_text(&c, whole.data);
    assert_int_equal(key_stream(fx_key(&fx, "k"))->n, 2);
    expect_field(&fx, "k", 1, "action-1");
    expect_replay(&fx, same, whole.data);
    str_free(&whole);
    fx_close_all(&fx);
}

static void test_an_orphan_that_is_not_the_last_is_answered_as_given_up(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    orphan(&fx);
    gen_to_end(&fx, "def", next);
    fx_gen(&fx, &c, same);
    expect_error(&c, "CANCELLED ");
    assert_int_equal(keys_n_generating(fx.ks), 0);
    fx_close_all(&fx);
}

/* ---- children and other names --------------------------------------------------------------- */

static void fork_k_to(struct fixture *fx, const char *name)
{
    struct err err;
    struct bytes target = bytes_from(name);
    struct fork_request fork = {
        .source = BYTES("k"), .targets = &target, .n_targets = 1, .replace = true};
    assert_int_equal(keys_fork(fx->ks, &fork, &err), 1);
}

static void test_a_child_shows_the_id_and_does_not_answer_to_it(void **state)
{
    struct fixture fx;
    struct gen_args child = same;
    child.key = "child";
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    fork_k_to(&fx, "child");
    expect_field(&fx, "child", 1, "action-1");
    expect_new(&fx, child);
    expect_replay(&fx, same, "abc");
    fx_close_all(&fx);
}

static void test_a_child_that_takes_the_name_does_not_answer_either(void **state)
{
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    fork_k_to(&fx, "child");
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("child"), BYTES("k"), false, &err), 1);
    expect_field(&fx, "k", 1, "action-1");
    expect_new(&fx, same);
    fx_close_all(&fx);
}

static void test_a_child_of_a_running_source_shows_the_id(void **state)
{
    struct fixture fx;
    struct client a;
    fx_open(&fx, "abcdef");
    fx_gen(&fx, &a, same);
    fx_turns(&fx, 3);
    fork_k_to(&fx, "child");
    expect_field(&fx, "child", 1, "action-1");
    fx_finish(&fx);
    fx_close_all(&fx);
}

static void test_under_another_name_an_id_is_no_retry(void **state)
{
    struct fixture fx;
    struct err err;
    struct gen_args renamed = same;
    renamed.key = "j";
    fx_open(&fx, "");
    gen_to_end(&fx, "abc", same);
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("k"), BYTES("j"), false, &err), 1);
    expect_new(&fx, renamed);
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("j"), BYTES("k"), false, &err), 1);
    expect_replay(&fx, same, "abc"); /* its key again */
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_that_was_told_is_told_again),
        cmocka_unit_test(test_it_is_told_also_when_the_conversation_has_gone_on),
        cmocka_unit_test(test_two_ids_are_two_actions_and_each_is_answered),
        cmocka_unit_test(test_other_arguments_with_the_same_id_name_the_entry),
        cmocka_unit_test(test_while_it_runs_the_same_attaches_and_other_arguments_are_busy),
        cmocka_unit_test(test_another_user_or_a_gen_without_id_is_new),
        cmocka_unit_test(test_async_gets_the_same_id_to_read_after),
        cmocka_unit_test(test_block_is_no_argument_and_does_not_wait),
        cmocka_unit_test(test_withinfo_gets_the_entry_again),
        cmocka_unit_test(test_inside_multi_the_id_to_read_after_is_the_reply),
        cmocka_unit_test(test_what_multi_could_not_start_is_an_entry_with_the_id),
        cmocka_unit_test(test_a_refusal_leaves_no_id),
        cmocka_unit_test(test_cancelled_is_told_again_as_such),
        cmocka_unit_test(test_an_undelivered_end_with_id_is_delivered_then_replayed),
        cmocka_unit_test(test_without_its_entry_an_id_is_new),
        cmocka_unit_test(test_stale_ids_do_not_pile_up),
        cmocka_unit_test(test_an_orphan_with_id_is_resumed_and_then_replayed),
        cmocka_unit_test(test_an_orphan_that_is_not_the_last_is_answered_as_given_up),
        cmocka_unit_test(test_a_child_shows_the_id_and_does_not_answer_to_it),
        cmocka_unit_test(test_a_child_that_takes_the_name_does_not_answer_either),
        cmocka_unit_test(test_a_child_of_a_running_source_shows_the_id),
        cmocka_unit_test(test_under_another_name_an_id_is_no_retry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
