/* test_branches.c - GEN ... N n on keys: an end entry a branch, arrays of answers, what goes on. */
#include "branches_fixture.h"

static void expect_entries(struct fixture *fx, const char *name, const char *expected)
{
    struct str noted = {0};
    struct key *key = fx_key(fx, name);
    assert_non_null(key);
    keys_range(key, STREAM_ID_MIN, STREAM_ID_MAX, false, -1, note_entry, &noted);
    expect_noted(&noted, expected);
}

/* ---- ends and answers ----------------------------------------------------------------------- */

static void test_every_branch_has_an_end_entry_and_the_answer_is_in_branch_order(void **state)
{
    struct fixture fx;
    run_three(&fx);
    expect_entries(&fx, "k", "p e2:/stop e1:de/stop e0:abc/stop ");
    expect_bytes(entry_field(end_of(&fx, "k", 1), "generated"), "2");
    fx_close_all(&fx);
}

static void test_with_info_the_answer_is_the_end_entries(void **state)
{
    struct fixture fx;
    struct client c;
    struct gen_args args = three;
    args.with_info = true;
    open_three(&fx);
    fx_gen(&fx, &c, args);
    fx_finish(&fx);
    assert_int_equal(c.kind, GEN_ANSWER_ENTRY);
    assert_string_equal(c.text, "abc|de|");
    assert_string_equal(c.finish, "stop|stop|stop");
    fx_close_all(&fx);
}

static void test_a_group_of_one_answers_with_an_array_and_its_pieces_name_no_branch(void **state)
{
    struct fixture fx;
    struct client c;
    struct str noted = {0};
    fx_open(&fx, "ab");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .n = 1});
    fx_finish(&fx);
    expect_texts(&c, "ab", 1);
    keys_read(fx_key(&fx, "k"), STREAM_ID_MIN, 0, note_entry, &noted);
    expect_noted(&noted, "p p-:a p-:b e0:ab/stop ");
    fx_close_all(&fx);
}

static void test_without_n_neither_answer_nor_end_entry_speaks_of_branches(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "ab");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    fx_finish(&fx);
    assert_false(c.is_list);
    expect_entries(&fx, "k", "p e-:ab/stop ");
    fx_close_all(&fx);
}

static void test_pieces_name_their_branch_and_stand_before_its_end(void **state)
{
    struct fixture fx;
    struct str noted = {0};
    run_three(&fx);
    keys_read(fx_key(&fx, "k"), STREAM_ID_MIN, 0, note_entry, &noted);
    expect_noted(&noted, "p p0:a p1:d e2:/stop p0:b p1:e p0:c e1:de/stop e0:abc/stop ");
    fx_close_all(&fx);
}

static void test_each_branch_keeps_the_interval_of_its_pieces(void **state)
{
    struct fixture fx;
    struct client c;
    struct str noted = {0};
    open_three(&fx);
    keyspace_options(fx.ks)->piece_interval_ms = 20;
    fx_gen(&fx, &c, three);
    fx_finish(&fx);
    keys_read(fx_key(&fx, "k"), STREAM_ID_MIN, 0, note_entry, &noted);
    expect_noted(&noted, "p p0:a p1:d e2:/stop p1:e e1:de/stop p0:bc e0:abc/stop ");
    fx_close_all(&fx);
}

static int n_gen_ends;

static void count_gen_end(void *owner, int32_t db, struct bytes name, enum key_event event)
{
    n_gen_ends += event == KEY_EVENT_GEN_END;
}

static void test_the_event_of_the_end_comes_once_behind_the_last_branch(void **state)
{
    struct fixture fx;
    struct client c;
    open_endless(&fx, "b", "c");
    n_gen_ends = 0;
    keyspace_options(fx.ks)->key_event = count_gen_end;
    fx_gen(&fx, &c, endless);
    fx_turns(&fx, 6);
    expect_held(&fx, "k", "p e0:a/stop ");
    assert_int_equal(n_gen_ends, 0);
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    assert_int_equal(n_gen_ends, 1);
    fx_close_all(&fx);
}

static void test_one_branch_that_was_cancelled_makes_the_answer_an_error(void **state)
{
    struct fixture fx;
    struct client c;
    char id[STREAM_ID_TEXT];
    open_endless(&fx, "b", "c");
    fx_gen(&fx, &c, endless);
    fx_turns(&fx, 6);
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    fx_turn(&fx);
    expect_error(&c, "CANCELLED the generation on 'k' was cancelled in branch 1 of 3; entry ");
    stream_id_format(id, end_of(&fx, "k", 1)->id);
    expect_error(&c, id);
    assert_int_equal(end_of(&fx, "k", 0)->finish, GEN_STOP);
    assert_int_equal(end_of(&fx, "k", 2)->finish, GEN_CANCELLED);
    expect_state(&fx, "k", "idle", "cancelled");
    fx_close_all(&fx);
}

static void test_a_deadline_ends_the_branches_that_go_on(void **state)
{
    struct fixture fx;
    struct client c;
    struct gen_args args = endless;
    args.deadline_ms = 100;
    open_endless(&fx, "b", "c");
    fx_gen(&fx, &c, args);
    fx_turns(&fx, 6);
    fx_advance(&fx, 100);
    fx_turn(&fx);
    expect_error(&c, "TIMEDOUT ");
    assert_int_equal(end_of(&fx, "k", 0)->finish, GEN_STOP);
    assert_int_equal(end_of(&fx, "k", 1)->finish, GEN_DEADLINE);
    fx_close_all(&fx);
}

static void test_a_failed_step_ends_all_branches_with_its_reason(void **state)
{
    struct fixture fx;
    struct client c;
    open_endless(&fx, "b", "c");
    fx_gen(&fx, &c, endless);
    fx_turns(&fx, 6);
    fx.fails = true;
    fx_finish(&fx);
    expect_error(&c, "GENFAILED ");
    expect_error(&c, ": the device is gone");
    assert_int_equal(end_of(&fx, "k", 0)->finish, GEN_STOP);
    assert_int_equal(end_of(&fx, "k", 2)->finish, GEN_ERROR);
    fx_close_all(&fx);
}

static void test_more_branches_than_can_run_are_refused_and_nothing_is_written(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .n = 9});
    expect_error(&c, "OOM 9 branches can not run at once, max-running is 8");
    assert_null(fx_key(&fx, "k"));
    fx_close_all(&fx);
}

/* 8 blocks of 16: a prompt of one token, four branches of two blocks each. */
static void test_the_default_of_maxtokens_is_lowered_to_what_all_branches_fit(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open_with(&fx, "", 8);
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .n = 4});
    fx_finish(&fx);
    assert_int_equal(c.kind, GEN_ANSWER_TEXT);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(end_of(&fx, "k", i)->finish, GEN_LENGTH);
        expect_bytes(entry_field(end_of(&fx, "k", i), "generated"), "31");
    }
    fx_gen(&fx, &c, (struct gen_args){.key = "j", .prompt = "p", .n = 4, .max_tokens = 32});
    expect_error(&c,
                 "OOM 1 tokens and 4 times 32 to generate need 12 blocks of 16, the cache has 8");
    fx_close_all(&fx);
}

static void test_when_block_is_over_the_same_gen_attaches(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct gen_args args = endless;
    args.block_ms = 50;
    open_endless(&fx, "b\x01", "cd\x01");
    fx_gen(&fx, &c, args);
    clock_advance_ms(50);
    clock_tick();
    (void)keyspace_turn(fx.ks);
    assert_int_equal(c.kind, GEN_ANSWER_TIMEOUT);
    assert_true(c.is_list);
    fx_gen(&fx, &d, args);
    fx_finish(&fx);
    expect_texts(&d, "a|b|cd", 3);
    fx_close_all(&fx);
}

static void test_async_and_multi_answer_with_the_id_before_all_pieces(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct str noted = {0};
    struct gen_args args = three;
    open_three(&fx);
    args.async = true;
    fx_gen(&fx, &c, args);
    assert_int_equal(c.kind, GEN_ANSWER_ID);
    fx_finish(&fx);
    keys_read(fx_key(&fx, "k"), c.id, 0, note_entry, &noted);
    expect_noted(&noted, "p0:a p1:d e2:/stop p0:b p1:e p0:c e1:de/stop e0:abc/stop ");
    fx_gen(&fx, &d, (struct gen_args){.key = "m", .prompt = "p", .n = 3, .in_multi = true});
    assert_int_equal(d.kind, GEN_ANSWER_ID);
    fx_finish(&fx);
    expect_entries(&fx, "m", "p e0:/stop e1:/stop e2:/stop ");
    fx_close_all(&fx);
}

static void test_what_multi_learns_late_is_an_error_entry_for_every_branch(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = fx_long(FX_CONTEXT), .n = 2, .in_multi = true});
    assert_int_equal(c.kind, GEN_ANSWER_ID);
    fx_finish(&fx);
    struct stream *s = key_stream(fx_key(&fx, "k"));
    assert_int_equal(s->n, 3);
    assert_int_equal(end_of(&fx, "k", 0)->finish, GEN_ERROR);
    assert_int_equal(end_of(&fx, "k", 1)->finish, GEN_ERROR);
    fx_close_all(&fx);
}

static void test_writers_are_refused_until_the_last_branch_has_ended(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    struct stream_trim trim = {.kind = TRIM_MAXLEN, .max_len = 1};
    open_endless(&fx, "b", "c");
    fx_gen(&fx, &c, endless);
    fx_turns(&fx, 6);
    struct stream_id id = end_of(&fx, "k", 0)->id;
    assert_int_equal(keys_xtrim(fx.ks, 0, BYTES("k"), &trim, &err), -1);
    assert_memory_equal(err.text, "BUSYKEY ", 8);
    assert_int_equal(keys_xdel(fx.ks, 0, BYTES("k"), &id, 1, &err), -1);
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    assert_int_equal(keys_xtrim(fx.ks, 0, BYTES("k"), &trim, &err), 3);
    fx_close_all(&fx);
}

/* ---- what goes on --------------------------------------------------------------------------- */

static void test_the_conversation_goes_on_with_branch_0(void **state)
{
    struct fixture fx;
    struct client c;
    run_three(&fx);
    fx_text(&fx, "k", "q");
    expect_sequence(&fx, "k", false, "pabcq");
    memset(fx.branch_says, 0, sizeof fx.branch_says);
    fx.says = "xyz"; /* a letter for each branch */
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "r", .n = 3});
    fx_finish(&fx);
    expect_texts(&c, "x|y|z", 3);
    expect_sequence(&fx, "k", false, "pabcqrx");
    fx_close_all(&fx);
}

static void test_where_branch_0_is_deleted_the_lowest_that_stands_goes_on(void **state)
{
    struct fixture fx;
    run_three(&fx);
    delete_end(&fx, 0);
    expect_sequence(&fx, "k", false, "pde");
    delete_end(&fx, 1);
    expect_sequence(&fx, "k", false, "p");
    delete_end(&fx, 2);
    expect_sequence(&fx, "k", false, "p");
    fx_close_all(&fx);
}

static void test_trimming_may_leave_a_part_of_a_group(void **state)
{
    struct fixture fx;
    struct client c;
    struct stream_id id;
    struct err err;
    struct bytes fields[2] = {BYTES("text"), BYTES("q")};
    struct xadd add = {.fields = fields, .n_fields = 1};
    add.trim = (struct stream_trim){.kind = TRIM_MAXLEN, .max_len = 3};
    fx_open(&fx, "");
    fx.branch_says[0] = "";
    fx.branch_says[1] = "de";
    fx.branch_says[2] = "abc";
    fx_gen(&fx, &c, three);
    fx_finish(&fx);
    assert_int_equal(keys_xadd(fx.ks, 0, BYTES("k"), &add, &id, &err), 1);
    expect_entries(&fx, "k", "e1:de/stop e2:abc/stop q ");
    expect_sequence(&fx, "k", false, "deq");
    fx_close_all(&fx);
}

/* Branch 1 ends before: the entry of branch 0 is behind it. */
static void test_an_unfinished_branch_0_is_gone_on_inside(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    fx.branch_says[0] = "abcdef";
    fx.branch_says[1] = "x";
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .n = 2, .max_tokens = 3});
    fx_finish(&fx);
    expect_texts(&c, "abc|x", 2);
    expect_entries(&fx, "k", "p e1:x/stop e0:abc/length ");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = NULL, .max_tokens = 3});
    fx_finish(&fx);
    assert_string_equal(c.text, "def");
    expect_sequence(&fx, "k", false, "pabcdef");
    fx_close_all(&fx);
}

static void test_a_finished_branch_0_is_not_gone_on_without_a_prompt(void **state)
{
    struct fixture fx;
    struct client c;
    char id[STREAM_ID_TEXT];
    run_three(&fx);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = NULL});
    stream_id_format(id, end_of(&fx, "k", 0)->id);
    expect_error(&c, "is a finished answer");
    expect_error(&c, id);
    fx_close_all(&fx);
}

static void test_two_groups_one_behind_the_other_are_two(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .n = 2, .max_tokens = 2});
    fx_finish(&fx);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = NULL, .n = 2, .max_tokens = 3});
    fx_finish(&fx);
    expect_texts(&c, "xxx|xxx", 2);
    expect_sequence(&fx, "k", false, "pxxxxx");
    fx_close_all(&fx);
}

/* ---- the key goes --------------------------------------------------------------------------- */

static void test_removing_the_key_ends_all_branches_and_serves_everybody(void **state)
{
    for (int how = 0; how < 3; how++) {
        struct fixture fx;
        struct client c;
        struct watcher w;
        open_endless(&fx, "b", "c");
        fx_gen(&fx, &c, endless);
        fx_turns(&fx, 6);
        fx_block(&fx, &w, "k", key_last_id(fx_key(&fx, "k")), 0);
        if (how == 0)
            assert_true(keys_delete(fx.ks, 0, BYTES("k")));
        else if (how == 1)
            keys_flush(fx.ks, -1);
        else
            assert_true(keys_expire(fx.ks, 0, BYTES("k"), -1, false, 0));
        expect_error(&c, "CANCELLED ");
        expect_error(&c, "and the key is gone");
        assert_non_null(strstr(w.got.data, "text="));
        assert_int_equal(w.n_wakes, 1);
        assert_null(fx_key(&fx, "k"));
        expect_state(&fx, "k", "none", "cancelled");
        fx_turns(&fx, 3);
        str_free(&w.got);
        fx_close_all(&fx);
    }
}

static void test_shutting_down_in_the_middle_of_a_group_answers(void **state)
{
    struct fixture fx;
    struct client c;
    open_endless(&fx, "b", "c");
    fx_gen(&fx, &c, endless);
    fx_turns(&fx, 6);
    keyspace_shut_down(fx.ks);
    expect_error(&c, "CANCELLED ");
    fx_close_all(&fx);
}

/* ---- chats, and characters that are cut ------------------------------------------------------ */

static void test_a_group_of_answers_to_a_chat(void **state)
{
    struct fixture fx;
    struct client c, gone;
    struct gen_args args = {.key = "k", .prompt = "hi", .role = "user", .n = 2, .stop = "\x01"};
    fx_open(&fx, "");
    fx.never_ends = true;
    fx.branch_says[0] = "abc";
    fx.branch_says[1] = "d\x01";
    fx_gen(&fx, &gone, args);
    fx_turns(&fx, 6);
    gen_waiter_leave(&gone.waiter);
    clock_advance_ms(10000);
    clock_tick();
    (void)keyspace_turn(fx.ks);
    assert_int_equal(end_of(&fx, "k", 0)->finish, GEN_ORPHANED);
    fx_turn(&fx);
    struct bytes text = end_of(&fx, "k", 0)->text;
    assert_in_range(text.len, 2, 6);
    fx.branch_says[0] = "c\x01";
    struct str expected = {0};
    str_printf(&expected, "%.*sc|d", (int)text.len, text.data);
    fx_gen(&fx, &c, args);
    fx_finish(&fx);
    expect_texts(&c, expected.data, 2);
    expect_bytes(entry_field(end_of(&fx, "k", 1), "role"), "assistant");
    str_clear(&expected);
    text = end_of(&fx, "k", 0)->text;
    str_printf(&expected,
               "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n%.*s<|im_end|>\n"
               "<|im_start|>user\nmore<|im_end|>\n",
               (int)text.len, text.data);
    struct stream_id id;
    struct err err;
    fx_add(&fx, "k", (const char *const[]){"role", "user", "content", "more"}, 2, &id, &err);
    expect_sequence(&fx, "k", false, expected.data);
    str_free(&expected);
    fx_close_all(&fx);
}

/* Each branch goes on inside the character that the entry before has begun. */
static void test_every_branch_delivers_the_character_that_was_cut(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "a\xc3");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .max_tokens = 2});
    fx_finish(&fx);
    assert_string_equal(c.text, "a");
    fx.branch_says[0] = "\xa9x";
    fx.branch_says[1] = "\xb6y";
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = NULL, .n = 2});
    fx_finish(&fx);
    expect_texts(&c, "\xc3\xa9x|\xc3\xb6y", 2);
    fx_close_all(&fx);
}

/* ---- GENINFO and memory --------------------------------------------------------------------- */

static void test_geninfo_adds_up_what_the_branches_generated(void **state)
{
    struct fixture fx;
    struct client c;
    struct gen_info info;
    open_endless(&fx, "bcdef\x01", "ghijkl\x01");
    fx_gen(&fx, &c, endless);
    fx_turns(&fx, 5);
    keys_gen_info(fx.ks, 0, BYTES("k"), &info);
    assert_string_equal(info.state, "running");
    assert_int_equal(info.prompt, 1);
    assert_int_equal(info.generated, 2 + 4 + 4);
    assert_true(info.computed > 1);
    assert_int_equal(info.blocks, 2); /* of the two branches that go on */
    fx_finish(&fx);
    keys_gen_info(fx.ks, 0, BYTES("k"), &info);
    assert_int_equal(info.generated, 2 + 6 + 7);
    assert_int_equal(info.prompt, 1);
    assert_int_equal(info.computed, 1);
    fx_close_all(&fx);
}

static void test_all_memory_of_a_group_is_given_back(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    size_t before = mem_bytes(MEM_KEY);
    memcpy(fx.branch_says, (const char *[]){"abc", "de", ""}, 3 * sizeof *fx.branch_says);
    fx_gen(&fx, &c, three);
    fx_finish(&fx);
    assert_true(mem_bytes(MEM_KEY) > before);
    assert_true(keys_delete(fx.ks, 0, BYTES("k")));
    assert_int_equal(mem_bytes(MEM_KEY), before);
    fx_close_all(&fx);
}

/* Every allocation that a client's sizes ask for fails once: an end entry a branch all the same. */
static void test_missing_memory_costs_text_and_no_end(void **state)
{
    for (uint64_t n = 1; n < 12; n++) {
        struct fixture fx;
        struct client c;
        open_three(&fx);
        fx_gen(&fx, &c, three);
        mem_fail_at(n, false);
        fx_finish(&fx);
        mem_fail_at(0, false);
        assert_int_equal(c.n_answers, 1);
        assert_int_equal(key_stream(fx_key(&fx, "k"))->n, 4);
        fx_close_all(&fx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_branch_has_an_end_entry_and_the_answer_is_in_branch_order),
        cmocka_unit_test(test_with_info_the_answer_is_the_end_entries),
        cmocka_unit_test(test_a_group_of_one_answers_with_an_array_and_its_pieces_name_no_branch),
        cmocka_unit_test(test_without_n_neither_answer_nor_end_entry_speaks_of_branches),
        cmocka_unit_test(test_pieces_name_their_branch_and_stand_before_its_end),
        cmocka_unit_test(test_each_branch_keeps_the_interval_of_its_pieces),
        cmocka_unit_test(test_the_event_of_the_end_comes_once_behind_the_last_branch),
        cmocka_unit_test(test_one_branch_that_was_cancelled_makes_the_answer_an_error),
        cmocka_unit_test(test_a_deadline_ends_the_branches_that_go_on),
        cmocka_unit_test(test_a_failed_step_ends_all_branches_with_its_reason),
        cmocka_unit_test(test_more_branches_than_can_run_are_refused_and_nothing_is_written),
        cmocka_unit_test(test_the_default_of_maxtokens_is_lowered_to_what_all_branches_fit),
        cmocka_unit_test(test_when_block_is_over_the_same_gen_attaches),
        cmocka_unit_test(test_async_and_multi_answer_with_the_id_before_all_pieces),
        cmocka_unit_test(test_what_multi_learns_late_is_an_error_entry_for_every_branch),
        cmocka_unit_test(test_writers_are_refused_until_the_last_branch_has_ended),
        cmocka_unit_test(test_the_conversation_goes_on_with_branch_0),
        cmocka_unit_test(test_where_branch_0_is_deleted_the_lowest_that_stands_goes_on),
        cmocka_unit_test(test_trimming_may_leave_a_part_of_a_group),
        cmocka_unit_test(test_an_unfinished_branch_0_is_gone_on_inside),
        cmocka_unit_test(test_a_finished_branch_0_is_not_gone_on_without_a_prompt),
        cmocka_unit_test(test_two_groups_one_behind_the_other_are_two),
        cmocka_unit_test(test_removing_the_key_ends_all_branches_and_serves_everybody),
        cmocka_unit_test(test_shutting_down_in_the_middle_of_a_group_answers),
        cmocka_unit_test(test_a_group_of_answers_to_a_chat),
        cmocka_unit_test(test_every_branch_delivers_the_character_that_was_cut),
        cmocka_unit_test(test_geninfo_adds_up_what_the_branches_generated),
        cmocka_unit_test(test_all_memory_of_a_group_is_given_back),
        cmocka_unit_test(test_missing_memory_costs_text_and_no_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
