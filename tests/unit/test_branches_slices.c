/* test_branches_slices.c - a key whose branches have ended in one step, between the slices in which
 * their end entries are written: what is seen, what is refused, and what must be finished at once. */
#include "branches_fixture.h"

static const struct gen_args equal = {.key = "k", .prompt = "p", .n = 3};

/* Every end entry takes a millisecond: a turn has time for one. */
static void be_slow(void *owner, int32_t db, struct bytes name, enum key_event event)
{
    if (event == KEY_EVENT_XADD)
        clock_pass_ms(1);
}

/* Three branches end in one step; the end of the first stands. */
static void open_between(struct fixture *fx, struct client *c)
{
    fx_open(fx, "");
    fx->branch_says[0] = "ab";
    fx->branch_says[1] = "cd";
    fx->branch_says[2] = "ef";
    fx_gen(fx, c, equal);
    keyspace_options(fx->ks)->key_event = be_slow;
    for (int i = 0; i < 20 && key_stream(fx_key(fx, "k"))->n < 2; i++)
        fx_turn(fx);
    assert_true(engine_has_to_tell(fx->engine));
    expect_held(fx, "k", "p e0:ab/stop ");
}

static void expect_all_held(struct fixture *fx)
{
    expect_held(fx, "k", "p e0:ab/stop e1:cd/stop e2:ef/stop ");
}

static void test_an_end_entry_a_slice_and_the_answer_behind_the_last(void **state)
{
    struct fixture fx;
    struct client c;
    open_between(&fx, &c);
    assert_int_equal(c.n_answers, 0);
    fx_turn(&fx);
    expect_held(&fx, "k", "p e0:ab/stop e1:cd/stop ");
    assert_int_equal(c.n_answers, 0);
    fx_turn(&fx);
    expect_all_held(&fx);
    fx_turn(&fx);
    expect_texts(&c, "ab|cd|ef", 3);
    fx_close_all(&fx);
}

static void test_between_slices_the_key_generates_and_has_all_its_tokens(void **state)
{
    struct fixture fx;
    struct client c;
    struct gen_info info;
    struct err err;
    struct stream_id id;
    open_between(&fx, &c);
    keys_gen_info(fx.ks, 0, BYTES("k"), &info);
    assert_string_equal(info.state, "running");
    assert_int_equal(info.generated, 6);
    assert_int_equal(fx_add(&fx, "k", (const char *const[]){"text", "x"}, 1, &id, &err), -1);
    assert_non_null(strstr(err.text, "BUSYKEY"));
    fx_finish(&fx);
    expect_state(&fx, "k", "idle", "stop");
    fx_close_all(&fx);
}

static void test_the_same_gen_attaches_between_slices(void **state)
{
    struct fixture fx;
    struct client c, again;
    open_between(&fx, &c);
    fx_gen(&fx, &again, equal);
    assert_int_equal(again.n_answers, 0);
    fx_finish(&fx);
    expect_texts(&c, "ab|cd|ef", 3);
    expect_texts(&again, "ab|cd|ef", 3);
    expect_all_held(&fx);
    fx_close_all(&fx);
}

static void test_cancel_between_slices_cancels_nothing_and_writes_the_rest_at_once(void **state)
{
    struct fixture fx;
    struct client c;
    open_between(&fx, &c);
    assert_false(keys_cancel(fx.ks, 0, BYTES("k")));
    expect_all_held(&fx);
    expect_state(&fx, "k", "idle", "stop");
    fx_turn(&fx);
    expect_texts(&c, "ab|cd|ef", 3);
    fx_close_all(&fx);
}

static struct stream_id last_of(struct fixture *fx)
{
    return key_last_id(fx_key(fx, "k"));
}

static void test_a_key_that_goes_between_slices_shows_all_ends_first(void **state)
{
    enum { DEL, EXPIRE, FLUSH, OVERWRITE, N_WAYS };
    for (int way = DEL; way < N_WAYS; way++) {
        struct fixture fx;
        struct client c;
        struct watcher w;
        struct err err;
        open_between(&fx, &c);
        fx_block(&fx, &w, "k", last_of(&fx), 0);
        if (way == DEL)
            assert_true(keys_delete(fx.ks, 0, BYTES("k")));
        if (way == EXPIRE)
            assert_true(keys_expire(fx.ks, 0, BYTES("k"), 0, false, 0));
        if (way == FLUSH)
            keys_flush(fx.ks, 0);
        if (way == OVERWRITE) {
            fx_text(&fx, "other", "x");
            assert_int_equal(keys_rename(fx.ks, 0, BYTES("other"), BYTES("k"), false, &err), 1);
        }
        assert_int_equal(w.n_wakes, 1);
        assert_string_equal(w.got.data, "text=cd;text=ef;");
        expect_texts(&c, "ab|cd|ef", 3);
        str_free(&w.got);
        fx_close_all(&fx);
    }
}

static void test_a_fork_between_slices_holds_the_branch_that_it_names(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    open_between(&fx, &c);
    assert_int_equal(fork_branch(&fx, "f", -1, &err), 1);
    assert_int_equal(fork_branch(&fx, "f2", 2, &err), 1);
    expect_held(&fx, "f", "p e0:ab/stop ");
    expect_held(&fx, "f2", "p e2:ef/forked ");
    fx_finish(&fx);
    expect_all_held(&fx);
    fx_close_all(&fx);
}

static void test_shutting_down_between_slices_answers_everybody(void **state)
{
    struct fixture fx;
    struct client c;
    open_between(&fx, &c);
    keyspace_shut_down(fx.ks);
    expect_texts(&c, "ab|cd|ef", 3);
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_end_entry_a_slice_and_the_answer_behind_the_last),
        cmocka_unit_test(test_between_slices_the_key_generates_and_has_all_its_tokens),
        cmocka_unit_test(test_the_same_gen_attaches_between_slices),
        cmocka_unit_test(test_cancel_between_slices_cancels_nothing_and_writes_the_rest_at_once),
        cmocka_unit_test(test_a_key_that_goes_between_slices_shows_all_ends_first),
        cmocka_unit_test(test_a_fork_between_slices_holds_the_branch_that_it_names),
        cmocka_unit_test(test_shutting_down_between_slices_answers_everybody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
