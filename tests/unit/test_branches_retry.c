/* test_branches_retry.c - GEN ... N n that is asked for again: attached, delivered, resumed. */
#include "branches_fixture.h"

static void expect_new(struct fixture *fx, struct gen_args args)
{
    struct client c;
    fx_gen(fx, &c, args);
    assert_int_equal(c.n_answers, 0);
    assert_int_equal(keys_n_generating(fx->ks), 1);
    fx_finish(fx);
    assert_int_equal(c.n_answers, 1);
}

static void test_the_same_gen_attaches_and_other_numbers_are_busy(void **state)
{
    struct fixture fx;
    struct client a, b, c;
    struct gen_args other = three;
    other.n = 2;
    open_three(&fx);
    fx_gen(&fx, &a, three);
    fx_turns(&fx, 3);
    fx_gen(&fx, &b, three);
    fx_gen(&fx, &c, other);
    expect_error(&c, "BUSYKEY ");
    fx_finish(&fx);
    expect_texts(&a, "abc|de|", 3);
    expect_texts(&b, "abc|de|", 3);
    fx_close_all(&fx);
}

static void test_an_undelivered_group_is_delivered_once_as_a_whole(void **state)
{
    struct fixture fx;
    struct client c;
    open_three(&fx);
    fx_gen_alone(&fx, three);
    fx_gen(&fx, &c, three);
    expect_texts(&c, "abc|de|", 3);
    assert_int_equal(keys_n_generating(fx.ks), 0);
    expect_new(&fx, three);
    fx_close_all(&fx);
}

static void test_reading_any_of_the_ends_counts_as_delivered(void **state)
{
    struct fixture fx;
    struct str noted = {0};
    open_three(&fx);
    fx_gen_alone(&fx, three);
    struct stream_id id = end_of(&fx, "k", 1)->id;
    keys_range(fx_key(&fx, "k"), id, id, false, -1, note_entry, &noted);
    expect_noted(&noted, "e1:de/stop ");
    expect_new(&fx, three);
    fx_close_all(&fx);
}

static void test_an_end_that_was_read_while_others_ran_counts_too(void **state)
{
    struct fixture fx;
    struct client gone;
    struct str noted = {0};
    open_three(&fx);
    fx_gen(&fx, &gone, three);
    fx_turns(&fx, 3);
    keys_read(fx_key(&fx, "k"), STREAM_ID_MIN, 0, note_entry, &noted);
    assert_non_null(strstr(noted.data, "e2:/stop"));
    assert_int_equal(keys_n_generating(fx.ks), 1);
    str_free(&noted);
    gen_waiter_leave(&gone.waiter);
    fx_finish(&fx);
    expect_new(&fx, three);
    fx_close_all(&fx);
}

static void test_a_group_with_a_deleted_end_is_not_delivered(void **state)
{
    struct fixture fx;
    for (int32_t branch = 0; branch < 3; branch++) {
        open_three(&fx);
        fx_gen_alone(&fx, three);
        delete_end(&fx, branch);
        expect_new(&fx, three);
        fx_close_all(&fx);
    }
}

static void test_with_an_id_the_whole_group_is_answered_again_while_all_of_it_stands(void **state)
{
    struct fixture fx;
    struct client c;
    char id[STREAM_ID_TEXT];
    struct gen_args args = three, other = three;
    args.id = other.id = "one";
    other.n = 2;
    open_three(&fx);
    fx_gen(&fx, &c, args);
    fx_finish(&fx);
    fx_text(&fx, "k", "more");
    for (int i = 0; i < 2; i++) {
        fx_gen(&fx, &c, args);
        expect_texts(&c, "abc|de|", 3);
    }
    fx_gen(&fx, &c, other);
    stream_id_format(id, end_of(&fx, "k", 0)->id);
    expect_error(&c, "ERR ID 'one' stands in entry ");
    expect_error(&c, id);
    delete_end(&fx, 1);
    expect_new(&fx, args);
    fx_close_all(&fx);
}

/* Branch 0 has ended, 1 and 2 have said some; then nobody comes. */
static void orphan(struct fixture *fx)
{
    struct client gone;
    open_endless(fx, "bcdef\x01", "ghijkl\x01");
    fx_gen(fx, &gone, endless);
    fx_turns(fx, 6);
    gen_waiter_leave(&gone.waiter);
    clock_advance_ms(10000);
    clock_tick();
    (void)keyspace_turn(fx->ks);
    assert_int_equal(keys_n_generating(fx->ks), 0);
    expect_state(fx, "k", "idle", "orphaned");
    assert_int_equal(end_of(fx, "k", 0)->finish, GEN_STOP);
    assert_int_equal(end_of(fx, "k", 1)->finish, GEN_ORPHANED);
    assert_int_equal(end_of(fx, "k", 2)->finish, GEN_ORPHANED);
    assert_in_range(end_of(fx, "k", 2)->text.len, 1, 5);
    fx_turn(fx); /* a step that was launched for it is thrown away */
    fx->branch_says[1] = &"bcdef\x01"[end_of(fx, "k", 1)->text.len];
    fx->branch_says[2] = &"ghijkl\x01"[end_of(fx, "k", 2)->text.len];
}

static void expect_resumed(struct fixture *fx)
{
    struct client c;
    struct stream_id id = end_of(fx, "k", 0)->id;
    struct str seed = {0};
    struct bytes value = entry_field(end_of(fx, "k", 0), "seed");
    str_append(&seed, value.data, value.len);
    fx_gen(fx, &c, endless);
    assert_int_equal(c.n_answers, 0);
    fx_finish(fx);
    expect_texts(&c, "a|bcdef|ghijkl", 3);
    assert_int_equal(stream_id_compare(end_of(fx, "k", 0)->id, id), 0);
    expect_bytes(entry_field(end_of(fx, "k", 2), "seed"), seed.data);
    expect_bytes(entry_field(end_of(fx, "k", 1), "generated"), "6");
    struct gen_info info;
    keys_gen_info(fx->ks, 0, BYTES("k"), &info);
    assert_int_equal(info.generated, 2 + 6 + 7);
    assert_string_equal(info.finish, "stop");
    str_free(&seed);
}

static void test_an_orphaned_group_resumes_the_branches_that_had_not_finished(void **state)
{
    struct fixture fx;
    struct str noted = {0}, all = {0};
    orphan(&fx);
    struct stream_id prompt = stream_entry(key_stream(fx_key(&fx, "k")), 0)->id;
    expect_resumed(&fx);
    expect_held(&fx, "k", "p e0:a/stop e1:bcdef/stop e2:ghijkl/stop ");
    expect_sequence(&fx, "k", false, "pa");
    keys_read(fx_key(&fx, "k"), prompt, 0, note_entry, &noted);
    for (const char *at = noted.data; (at = strstr(at, "p2:")) != NULL; at++)
        str_append(&all, at + 3, strcspn(at + 3, " "));
    assert_string_equal(all.data, "ghijkl"); /* each letter once */
    str_free(&noted);
    str_free(&all);
    fx_close_all(&fx);
}

static void test_it_resumes_also_when_its_pieces_have_gone(void **state)
{
    struct fixture fx;
    struct err err;
    orphan(&fx);
    fx_advance(&fx, 61000);
    expect_resumed(&fx);
    struct seen seen = {0};
    keys_read(fx_key(&fx, "k"), STREAM_ID_MIN, 3, seen_entry, &seen); /* p, the old end, a piece */
    struct bytes target = BYTES("x");
    struct fork_request r = {.source = BYTES("k"), .targets = &target, .n_targets = 1};
    r.has_at = true;
    r.at = seen.last;
    assert_int_equal(keys_fork(fx.ks, &r, &err), 1);
    struct stream *s = key_stream(fx_key(&fx, "x"));
    assert_int_equal(s->n, 2); /* the prompt, and the answer up to the piece */
    assert_true(stream_entry(s, 1)->branch > 0);
    assert_in_range(stream_entry(s, 1)->text.len, 2, 6);
    str_free(&seen.text);
    fx_close_all(&fx);
}

static void test_it_resumes_behind_an_entry_that_the_model_ignores(void **state)
{
    struct fixture fx;
    struct stream_id id;
    struct err err;
    orphan(&fx);
    fx_add(&fx, "k", (const char *const[]){"note", "n"}, 1, &id, &err);
    expect_resumed(&fx);
    expect_held(&fx, "k", "p e0:a/stop n e1:bcdef/stop e2:ghijkl/stop ");
    expect_sequence(&fx, "k", false, "pa");
    struct client c;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "q", .max_tokens = 1});
    fx_finish(&fx);
    expect_sequence(&fx, "k", false, "paqx");
    fx_close_all(&fx);
}

static void test_an_orphan_resumes_more_than_once(void **state)
{
    struct fixture fx;
    struct client gone;
    orphan(&fx);
    fx_gen(&fx, &gone, endless);
    fx_turns(&fx, 2);
    gen_waiter_leave(&gone.waiter);
    clock_advance_ms(10000);
    clock_tick();
    (void)keyspace_turn(fx.ks);
    expect_state(&fx, "k", "idle", "orphaned");
    fx_turn(&fx);
    fx.branch_says[1] = &"bcdef\x01"[end_of(&fx, "k", 1)->text.len];
    fx.branch_says[2] = &"ghijkl\x01"[end_of(&fx, "k", 2)->text.len];
    expect_resumed(&fx);
    fx_close_all(&fx);
}

static void test_what_is_said_of_a_group_while_it_resumes(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct err err;
    struct gen_info info;
    orphan(&fx);
    size_t n_before = end_of(&fx, "k", 1)->text.len;
    fx_gen(&fx, &c, endless);
    fx_turns(&fx, 2);
    keys_gen_info(fx.ks, 0, BYTES("k"), &info);
    assert_string_equal(info.state, "running");
    assert_int_equal(info.prompt, 1);
    assert_in_range(info.generated, 2 + 2 * n_before, 2 + 2 * n_before + 4);
    assert_true(info.queued_ms >= 0 && info.decode_ms >= 0);
    fx_gen(&fx, &d, endless);                             /* attaches */
    assert_int_equal(fork_branch(&fx, "a", -1, &err), 1); /* what had finished */
    expect_held(&fx, "a", "p e0:a/stop ");
    assert_int_equal(fork_branch(&fx, "b", 1, &err), 1);
    struct stream *s = key_stream(fx_key(&fx, "b"));
    assert_int_equal(s->n, 2);
    assert_memory_equal(stream_entry(s, 1)->text.data, "bcdef", n_before);
    assert_true(stream_entry(s, 1)->text.len >= n_before);
    fx_finish(&fx);
    expect_texts(&c, "a|bcdef|ghijkl", 3);
    expect_texts(&d, "a|bcdef|ghijkl", 3);
    fx_close_all(&fx);
}

static void test_an_orphaned_group_with_a_deleted_end_is_new(void **state)
{
    struct fixture fx;
    struct client c;
    orphan(&fx);
    delete_end(&fx, 0);
    fx_gen(&fx, &c, endless);
    assert_int_equal(key_stream(fx_key(&fx, "k"))->n, 4); /* a prompt more */
    fx_close_all(&fx);
}

static void test_a_resume_that_is_refused_leaves_all_entries(void **state)
{
    struct fixture fx;
    struct client c;
    orphan(&fx);
    keyspace_options(fx.ks)->n_context = 3; /* as if the limit had been lowered */
    fx_gen(&fx, &c, endless);
    expect_error(&c, "ERR the conversation has at least ");
    assert_int_equal(key_stream(fx_key(&fx, "k"))->n, 4);
    keyspace_options(fx.ks)->n_context = FX_CONTEXT;
    expect_resumed(&fx);
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_gen_attaches_and_other_numbers_are_busy),
        cmocka_unit_test(test_an_undelivered_group_is_delivered_once_as_a_whole),
        cmocka_unit_test(test_reading_any_of_the_ends_counts_as_delivered),
        cmocka_unit_test(test_an_end_that_was_read_while_others_ran_counts_too),
        cmocka_unit_test(test_a_group_with_a_deleted_end_is_not_delivered),
        cmocka_unit_test(test_with_an_id_the_whole_group_is_answered_again_while_all_of_it_stands),
        cmocka_unit_test(test_an_orphaned_group_resumes_the_branches_that_had_not_finished),
        cmocka_unit_test(test_it_resumes_also_when_its_pieces_have_gone),
        cmocka_unit_test(test_it_resumes_behind_an_entry_that_the_model_ignores),
        cmocka_unit_test(test_an_orphan_resumes_more_than_once),
        cmocka_unit_test(test_what_is_said_of_a_group_while_it_resumes),
        cmocka_unit_test(test_an_orphaned_group_with_a_deleted_end_is_new),
        cmocka_unit_test(test_a_resume_that_is_refused_leaves_all_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
