/* test_branches_fork.c - FORK and COPY of keys whose generations have several branches. */
#include "branches_fixture.h"

static int32_t fork_at(struct fixture *fx, const char *to, struct stream_id at)
{
    struct err err;
    struct bytes target = bytes_from(to);
    struct fork_request r = {
        .source = BYTES("k"), .targets = &target, .n_targets = 1, .has_at = true, .at = at};
    int32_t n = keys_fork(fx->ks, &r, &err);
    if (n < 0)
        fail_msg("%s", err.text);
    return n;
}

static void test_a_child_leaves_out_the_other_branches(void **state)
{
    struct fixture fx;
    struct err err;
    run_three(&fx);
    assert_int_equal(fork_branch(&fx, "a", -1, &err), 1);
    expect_held(&fx, "a", "p e0:abc/stop ");
    assert_int_equal(fork_branch(&fx, "b", 1, &err), 1);
    expect_held(&fx, "b", "p e1:de/stop ");
    expect_sequence(&fx, "b", false, "pde");
    assert_int_equal(fork_at(&fx, "c", end_of(&fx, "k", 2)->id), 1);
    expect_held(&fx, "c", "p e2:/stop ");
    delete_end(&fx, 0);
    assert_int_equal(fork_branch(&fx, "d", -1, &err), 1);
    expect_held(&fx, "d", "p e1:de/stop ");
    assert_int_equal(fork_branch(&fx, "e", 0, &err), -1);
    assert_string_equal(err.text, "ERR BRANCH 0: of the source's last generation 2 branches stand, "
                                  "the last is number 2");
    fx_close_all(&fx);
}

static void test_all_children_of_one_fork_hold_the_same(void **state)
{
    struct fixture fx;
    struct err err;
    struct bytes targets[3] = {BYTES("a"), BYTES("b"), BYTES("c")};
    struct fork_request r = {
        .source = BYTES("k"), .targets = targets, .n_targets = 3, .has_branch = true, .branch = 1};
    run_three(&fx);
    assert_int_equal(keys_fork(fx.ks, &r, &err), 3);
    expect_held(&fx, "a", "p e1:de/stop ");
    expect_held(&fx, "c", "p e1:de/stop ");
    fx_close_all(&fx);
}

static void test_branch_is_of_the_last_generation_and_the_child_ends_there(void **state)
{
    struct fixture fx;
    struct err err;
    run_three(&fx);
    fx_text(&fx, "k", "q");
    assert_int_equal(fork_branch(&fx, "a", 1, &err), 1);
    expect_held(&fx, "a", "p e1:de/stop ");
    assert_int_equal(fork_branch(&fx, "b", -1, &err), 1);
    expect_held(&fx, "b", "p e0:abc/stop q ");
    assert_int_equal(fork_branch(&fx, "c", 3, &err), -1);
    assert_non_null(strstr(err.text, "ERR BRANCH 3: "));
    assert_null(fx_key(&fx, "c"));
    fx_close_all(&fx);
}

static void test_branch_of_a_source_that_generated_nothing_is_an_error(void **state)
{
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    fx_text(&fx, "k", "q");
    assert_int_equal(fork_branch(&fx, "a", 0, &err), -1);
    assert_string_equal(err.text, "ERR BRANCH 0: the source holds no generation");
    fx_close_all(&fx);
}

/* What is only being tokenised has written nothing: the last generation is the one before. */
static void test_branch_while_the_next_prompt_is_tokenised(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    run_three(&fx);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = fx_long(3000), .n = 3});
    assert_int_equal(keys_n_generating(fx.ks), 1);
    assert_int_equal(fork_branch(&fx, "a", 1, &err), 1);
    expect_held(&fx, "a", "p e1:de/stop ");
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    fx_turns(&fx, 2);
    fx_close_all(&fx);
}

static void test_branches_of_a_running_group(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct err err;
    open_endless(&fx, "b", "c");
    fx_gen(&fx, &c, endless);
    assert_int_equal(fork_branch(&fx, "early", 1, &err), 1); /* queued: nothing was generated */
    expect_held(&fx, "early", "p ");
    fx_turns(&fx, 5);
    assert_int_equal(fork_branch(&fx, "a", -1, &err), 1); /* branch 0 has ended */
    expect_held(&fx, "a", "p e0:a/stop ");
    assert_int_equal(fork_branch(&fx, "b", 1, &err), 1);
    struct stream *s = key_stream(fx_key(&fx, "b"));
    assert_int_equal(s->n, 2);
    assert_int_equal(stream_entry(s, 1)->finish, GEN_FORKED);
    assert_int_equal(stream_entry(s, 1)->text.data[0], 'b');
    assert_true(stream_id_compare(stream_entry(s, 1)->id, end_of(&fx, "k", 0)->id) > 0);
    expect_bytes(entry_field(stream_entry(s, 1), "branch"), "1");
    assert_int_equal(fork_branch(&fx, "d", 3, &err), -1);
    assert_string_equal(err.text, "ERR BRANCH 3: the generation that runs has 3, from 0 on");
    fx_gen(&fx, &d, (struct gen_args){.key = "b", .prompt = NULL, .max_tokens = 2});
    fx_turns(&fx, 8);
    assert_string_equal(d.text, "xx");
    fx_close_all(&fx);
}

/* What branch 1 has is found: but for the block's rest that the child shares with nobody. */
static void test_a_child_finds_the_blocks_of_the_running_branch(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct err err;
    struct engine_stats before, after;
    static char one[60], two[60];
    memset(one, '1', sizeof one - 1);
    memset(two, '2', sizeof two - 1);
    open_endless(&fx, one, two);
    fx_gen(&fx, &c, endless);
    fx_turns(&fx, 45);
    assert_int_equal(fork_branch(&fx, "x", 2, &err), 1);
    engine_stats(fx.engine, &before);
    fx_gen(&fx, &d, (struct gen_args){.key = "x", .prompt = NULL, .max_tokens = 1});
    fx_turns(&fx, 8);
    engine_stats(fx.engine, &after);
    assert_true(after.cached_tokens - before.cached_tokens >= 38);
    assert_true(after.computed_prompt_tokens - before.computed_prompt_tokens <= 3);
    fx_close_all(&fx);
}

static void at_piece(bool has_ended)
{
    struct fixture fx;
    struct client c;
    struct seen seen = {0};
    open_endless(&fx, "bcd\x01", "efg\x01");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .n = 3, .stop = "\x01"});
    fx_turns(&fx, 5);
    if (has_ended)
        fx_finish(&fx);
    keys_read(fx_key(&fx, "k"), STREAM_ID_MIN, 7, seen_entry, &seen);
    assert_string_equal(seen.text.data, "text=p;piece=a;piece=b;piece=e;text=a;piece=c;piece=f;");
    assert_int_equal(fork_at(&fx, "x", seen.last), 1);
    expect_held(&fx, "x", "p e2:ef/forked ");
    expect_sequence(&fx, "x", false, "pef");
    str_free(&seen.text);
    fx_finish(&fx);
    fx_close_all(&fx);
}

static void test_at_a_piece_implies_its_branch(void **state)
{
    at_piece(false);
    at_piece(true);
}

static void test_at_an_end_of_an_earlier_group_implies_its_branch(void **state)
{
    struct fixture fx;
    struct client c;
    run_three(&fx);
    struct stream_id at = end_of(&fx, "k", 1)->id;
    fx.never_ends = true;
    fx.says = "";
    memset(fx.branch_says, 0, sizeof fx.branch_says);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "q"}); /* has one branch, and runs */
    fx_turns(&fx, 4);
    assert_int_equal(fork_at(&fx, "x", at), 1);
    expect_held(&fx, "x", "p e1:de/stop ");
    at = stream_entry(key_stream(fx_key(&fx, "k")), 4)->id;
    assert_int_equal(fork_at(&fx, "y", at), 1);
    expect_held(&fx, "y", "p e0:abc/stop q ");
    fx_close_all(&fx);
}

static void test_a_copy_does_the_same_into_another_database(void **state)
{
    struct fixture fx;
    struct err err;
    struct bytes target = BYTES("k");
    struct fork_request r = {
        .source = BYTES("k"), .targets = &target, .n_targets = 1, .target_db = 1};
    run_three(&fx);
    assert_int_equal(keys_fork(fx.ks, &r, &err), 1);
    assert_int_equal(key_stream(keys_find(fx.ks, 1, BYTES("k")))->n, 2);
    assert_int_equal(key_stream(fx_key(&fx, "k"))->n, 4);
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_leaves_out_the_other_branches),
        cmocka_unit_test(test_all_children_of_one_fork_hold_the_same),
        cmocka_unit_test(test_branch_is_of_the_last_generation_and_the_child_ends_there),
        cmocka_unit_test(test_branch_of_a_source_that_generated_nothing_is_an_error),
        cmocka_unit_test(test_branch_while_the_next_prompt_is_tokenised),
        cmocka_unit_test(test_branches_of_a_running_group),
        cmocka_unit_test(test_a_child_finds_the_blocks_of_the_running_branch),
        cmocka_unit_test(test_at_a_piece_implies_its_branch),
        cmocka_unit_test(test_at_an_end_of_an_earlier_group_implies_its_branch),
        cmocka_unit_test(test_a_copy_does_the_same_into_another_database),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
