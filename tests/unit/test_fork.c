/* test_fork.c - FORK of idle and running sources: what children hold, AT, all or none, time to live. */
#include "keys_fixture.h"

static const struct gen_args same = {.key = "k", .prompt = "p"};

static int32_t fork_to(struct fixture *fx, const char *a, const char *b, const struct stream_id *at,
                       bool replace, struct err *err)
{
    struct bytes targets[2] = {bytes_from(a), bytes_from(b ? b : "")};
    struct fork_request fork = {.source = BYTES("k"),
                                .targets = targets,
                                .n_targets = b ? 2 : 1,
                                .has_at = at != NULL,
                                .replace = replace};
    if (at != NULL)
        fork.at = *at;
    return keys_fork(fx->ks, &fork, err);
}

static void test_children_of_a_running_source_hold_what_it_made(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct err err;
    fx_open(&fx, "abcdef");
    fx_gen(&fx, &c, same);
    fx_turns(&fx, 4);
    assert_int_equal(fork_to(&fx, "x", "y", NULL, false, &err), 2);
    fx_audit(&fx);
    expect_range(&fx, "x", "text=p;text=abc;");
    expect_bytes(last_field(&fx, "y", "finish"), "forked");
    struct stream_id child = key_last_id(fx_key(&fx, "x"));
    assert_true(stream_id_compare(child, key_last_id(fx_key(&fx, "k"))) > 0);
    fx_finish(&fx);
    expect_text(&c, "abcdef"); /* the source does not notice */
    fx.says = "XYZ";
    fx_gen(&fx, &d, (struct gen_args){.key = "x"});
    fx_finish(&fx);
    expect_text(&d, "XYZ");
    expect_range(&fx, "x", "text=p;text=abc;text=XYZ;");
    fx_close_all(&fx);
}

static void test_children_share_entries_and_not_the_attempt(void **state)
{
    struct fixture fx;
    struct client b;
    struct err err;
    fx_open(&fx, "abc");
    fx_gen_alone(&fx, same);
    assert_int_equal(fork_to(&fx, "x", NULL, NULL, false, &err), 1);
    assert_ptr_equal(stream_entry(key_stream(fx_key(&fx, "x")), 1),
                     stream_entry(key_stream(fx_key(&fx, "k")), 1));
    fx_gen(&fx, &b, (struct gen_args){.key = "x", .prompt = "p"});
    assert_int_equal(b.n_answers, 0); /* nothing to deliver there */
    fx_close_all(&fx);
}

static void test_fork_writes_all_or_none(void **state)
{
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    assert_int_equal(fork_to(&fx, "x", NULL, NULL, false, &err), 0); /* no source */
    fx_text(&fx, "k", "a");
    fx_text(&fx, "y", "old");
    assert_int_equal(fork_to(&fx, "x", "y", NULL, false, &err), 0);
    assert_null(fx_key(&fx, "x"));
    expect_range(&fx, "y", "text=old;");
    assert_int_equal(fork_to(&fx, "x", "x", NULL, false, &err), -1);
    assert_int_equal(fork_to(&fx, "x", "k", NULL, true, &err), -1);
    assert_null(fx_key(&fx, "x"));
    for (uint64_t n = 1; n <= 2; n++) {
        mem_fail_at(n, false);
        assert_int_equal(fork_to(&fx, "x", "y", NULL, true, &err), -1);
        mem_fail_at(0, false);
        assert_memory_equal(err.text, "OOM ", 4);
        assert_null(fx_key(&fx, "x"));
        expect_range(&fx, "y", "text=old;");
    }
    assert_int_equal(fork_to(&fx, "x", "y", NULL, true, &err), 2);
    expect_range(&fx, "y", "text=a;");
    fx_close_all(&fx);
}

static void test_at_is_inclusive_and_must_name_something(void **state)
{
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    fx_text(&fx, "k", "a");
    struct stream_id at = fx_text(&fx, "k", "b");
    fx_text(&fx, "k", "c");
    assert_int_equal(fork_to(&fx, "x", NULL, &at, false, &err), 1);
    expect_range(&fx, "x", "text=a;text=b;");
    at.seq += 1000;
    assert_int_equal(fork_to(&fx, "y", NULL, &at, false, &err), -1);
    assert_non_null(strstr(err.text, "names neither an entry nor a live piece"));
    fx_close_all(&fx);
}

static void at_piece(struct fixture *fx, int ended)
{
    struct client c;
    struct err err;
    fx_open(fx, "abcdef");
    fx_gen(fx, &c, (struct gen_args){.key = "k", .prompt = "p", .async = true});
    fx_turns(fx, 5);
    if (ended)
        fx_finish(fx);
    struct seen seen = {0};
    keys_read(fx_key(fx, "k"), c.id, 2, seen_entry, &seen);
    assert_string_equal(seen.text.data, "piece=a;piece=b;");
    assert_int_equal(fork_to(fx, "x", NULL, &seen.last, false, &err), 1);
    expect_range(fx, "x", "text=p;text=ab;");
    expect_bytes(last_field(fx, "x", "finish"), "forked");
    struct entry *end = stream_entry(key_stream(fx_key(fx, "x")), 1);
    assert_int_equal(end->ids.n, 2);
    assert_int_equal(end->ids.data[1], 'b');
    assert_true(stream_id_compare(end->id, seen.last) > 0);
    str_free(&seen.text);
    fx_finish(fx);
    fx_close_all(fx);
}

static void test_at_may_name_a_piece_of_a_running_answer(void **state)
{
    struct fixture fx;
    at_piece(&fx, 0);
}

static void test_at_may_name_a_piece_of_an_answer_that_has_ended(void **state)
{
    struct fixture fx;
    at_piece(&fx, 1);
}

static void test_with_nothing_generated_yet_a_child_has_no_end_entry(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    fx_open(&fx, "abc");
    fx_gen(&fx, &c, same); /* queued */
    assert_int_equal(fork_to(&fx, "x", NULL, NULL, false, &err), 1);
    expect_range(&fx, "x", "text=p;");
    fx_finish(&fx);
    fx_close_all(&fx);
}

static void test_the_time_to_live_goes_along(void **state)
{
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    fx_text(&fx, "k", "a");
    assert_true(keys_expire(fx.ks, 0, BYTES("k"), 5000, false, 0));
    assert_int_equal(fork_to(&fx, "x", NULL, NULL, false, &err), 1);
    assert_int_equal(key_ttl_ms(fx_key(&fx, "x")), 5000);
    fx_advance(&fx, 5000);
    assert_null(fx_key(&fx, "x"));
    fx_close_all(&fx);
}

static void test_a_destination_that_tokenises_is_busy_and_replace_ends_it(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    fx_open(&fx, "");
    fx_text(&fx, "k", "a");
    fx_gen(&fx, &c, (struct gen_args){.key = "x", .prompt = fx_long(2999)});
    assert_int_equal(fork_to(&fx, "x", NULL, NULL, false, &err), -1);
    assert_memory_equal(err.text, "BUSYKEY ", 8);
    assert_int_equal(fork_to(&fx, "x", NULL, NULL, true, &err), 1);
    expect_error(&c, "CANCELLED ");
    fx_turn(&fx);
    expect_range(&fx, "x", "text=a;");
    fx_close_all(&fx);
}

static void test_children_find_all_blocks_of_a_running_source(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct err err;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "0123456789abcdef0123456789abcdef"});
    fx_turns(&fx, 8);
    assert_int_equal(fork_to(&fx, "x", NULL, NULL, false, &err), 1);
    fx_gen(&fx, &d, (struct gen_args){.key = "x", .max_tokens = 2});
    fx_turns(&fx, 5);
    assert_int_equal(d.n_answers, 1);
    assert_int_equal(keys_n_generating(fx.ks),
                     1); /* the source runs: its last block is half-filled */
    struct bytes cached = last_field(&fx, "x", "cached"), prompt = last_field(&fx, "x", "prompt");
    int64_t n_cached, n_prompt;
    assert_true(parse_i64(cached, &n_cached));
    assert_true(parse_i64(prompt, &n_prompt));
    assert_int_equal(n_cached, n_prompt - 1); /* one is always left to compute */
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_children_of_a_running_source_hold_what_it_made),
        cmocka_unit_test(test_children_share_entries_and_not_the_attempt),
        cmocka_unit_test(test_fork_writes_all_or_none),
        cmocka_unit_test(test_at_is_inclusive_and_must_name_something),
        cmocka_unit_test(test_at_may_name_a_piece_of_a_running_answer),
        cmocka_unit_test(test_at_may_name_a_piece_of_an_answer_that_has_ended),
        cmocka_unit_test(test_with_nothing_generated_yet_a_child_has_no_end_entry),
        cmocka_unit_test(test_the_time_to_live_goes_along),
        cmocka_unit_test(test_a_destination_that_tokenises_is_busy_and_replace_ends_it),
        cmocka_unit_test(test_children_find_all_blocks_of_a_running_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
