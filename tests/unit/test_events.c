/* test_events.c - what happens to keys is told, in Redis' order; and WATCH: what spoils a guard.
 *
 * The names, the order and what is silent (overwriting, FLUSHDB, XDEL of nothing) were taken from a
 * redis-server 7.0.15 that ran the same commands. */
#include "keys_fixture.h"

#include "keyspace/guard.h"

static struct str
    told; /* "event:name " of all events so far; of other databases with their number */

static void on_event(void *owner, int32_t db, struct bytes name, enum key_event event)
{
    (void)owner;
    str_append_str(&told, key_event_name(event));
    str_append_char(&told, ':');
    str_append(&told, name.data, name.len);
    if (db != 0)
        str_printf(&told, "@%d", db);
    str_append_char(&told, ' ');
}

static void open_world(struct fixture *fx, const char *says)
{
    fx_open(fx, says);
    str_clear(&told);
    keyspace_options(fx->ks)->key_event = on_event;
}

static void close_world(struct fixture *fx)
{
    fx_close_all(fx);
    str_free(&told);
}

static void expect_told(const char *expected)
{
    assert_string_equal(told.data ? told.data : "", expected);
    str_clear(&told);
}

static struct stream_id add(struct fixture *fx, const char *name, uint64_t max_len)
{
    struct bytes fields[2] = {BYTES("text"), BYTES("x")};
    struct xadd add = {.fields = fields, .n_fields = 1};
    struct stream_id id;
    struct err err;
    if (max_len > 0)
        add.trim = (struct stream_trim){.kind = TRIM_MAXLEN, .max_len = max_len};
    assert_int_equal(keys_xadd(fx->ks, 0, bytes_from(name), &add, &id, &err), 1);
    return id;
}

static int32_t copy(struct fixture *fx, const char *from, const char *to, int32_t db, bool replace)
{
    struct bytes target = bytes_from(to);
    struct fork_request r = {.source = bytes_from(from),
                             .targets = &target,
                             .n_targets = 1,
                             .target_db = db,
                             .replace = replace};
    struct err err;
    return keys_fork(fx->ks, &r, &err);
}

static void rename_key(struct fixture *fx, const char *from, const char *to)
{
    struct err err;
    assert_int_equal(keys_rename(fx->ks, 0, bytes_from(from), bytes_from(to), false, &err), 1);
}

static bool expire(struct fixture *fx, const char *name, int64_t ms)
{
    return keys_expire(fx->ks, 0, bytes_from(name), ms, false, 0);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void test_xadd_xdel_xtrim_tell_what_they_did(void **state)
{
    struct fixture fx;
    struct err err;
    open_world(&fx, "");
    add(&fx, "s", 1);
    expect_told("new:s xadd:s ");
    struct stream_id id = add(&fx, "s", 1);
    expect_told("xadd:s xtrim:s ");
    struct stream_id none = {1, 1};
    assert_int_equal(keys_xdel(fx.ks, 0, BYTES("s"), &none, 1, &err), 0);
    expect_told("");
    assert_int_equal(keys_xdel(fx.ks, 0, BYTES("s"), &id, 1, &err), 1);
    expect_told("xdel:s ");
    struct stream_trim trim = {.kind = TRIM_MAXLEN, .max_len = 0};
    assert_int_equal(keys_xtrim(fx.ks, 0, BYTES("s"), &trim, &err), 0);
    expect_told("");
    close_world(&fx);
}

static void test_rename_and_copy_tell_both_names_and_no_del(void **state)
{
    struct fixture fx;
    open_world(&fx, "");
    add(&fx, "a", 0);
    add(&fx, "b", 0);
    str_clear(&told);
    rename_key(&fx, "a", "c");
    expect_told("new:c rename_from:a rename_to:c ");
    rename_key(&fx, "c", "b");
    expect_told("new:b rename_from:c rename_to:b ");
    assert_int_equal(copy(&fx, "b", "d", 0, false), 1);
    expect_told("new:d copy_to:d ");
    assert_int_equal(copy(&fx, "b", "d", 0, true), 1);
    expect_told("new:d copy_to:d ");
    assert_int_equal(copy(&fx, "b", "d", 0, false), 0);
    expect_told("");
    assert_int_equal(copy(&fx, "b", "d", 3, false), 1);
    expect_told("new:d@3 copy_to:d@3 ");
    close_world(&fx);
}

static void test_expiry_tells_expire_persist_expired_and_del(void **state)
{
    struct fixture fx;
    open_world(&fx, "");
    add(&fx, "s", 0);
    str_clear(&told);
    assert_true(expire(&fx, "s", 1000));
    assert_true(keys_persist(fx.ks, 0, BYTES("s")));
    assert_false(keys_persist(fx.ks, 0, BYTES("s")));
    assert_false(expire(&fx, "none", 1000));
    expect_told("expire:s persist:s ");
    assert_true(expire(&fx, "s", 5));
    str_clear(&told);
    clock_advance_ms(10);
    clock_tick();
    assert_null(fx_key(&fx, "s")); /* found expired by a look-up */
    expect_told("expired:s ");
    add(&fx, "s", 0);
    assert_true(expire(&fx, "s", 5));
    str_clear(&told);
    fx_advance(&fx, 10); /* by its timer */
    expect_told("expired:s ");
    add(&fx, "s", 0);
    str_clear(&told);
    assert_true(expire(&fx, "s", -1)); /* in the past: a removal */
    expect_told("del:s ");
    close_world(&fx);
}

static void test_removal_tells_del_and_a_flush_tells_nothing(void **state)
{
    struct fixture fx;
    open_world(&fx, "");
    add(&fx, "s", 0);
    add(&fx, "t", 0);
    str_clear(&told);
    assert_true(keys_delete(fx.ks, 0, BYTES("s")));
    assert_false(keys_delete(fx.ks, 0, BYTES("s")));
    expect_told("del:s ");
    keys_flush(fx.ks, -1);
    expect_told("");
    assert_null(keys_find_read(fx.ks, 0, BYTES("t")));
    assert_null(keys_find(fx.ks, 0, BYTES("t")));
    expect_told("keymiss:t ");
    close_world(&fx);
}

static void test_a_generation_tells_its_prompt_and_its_end_and_no_piece(void **state)
{
    struct fixture fx;
    struct client c;
    open_world(&fx, "hello");
    fx_gen(&fx, &c, (struct gen_args){.key = "s", .prompt = "say"});
    expect_told("new:s xadd:s ");
    fx_turns(&fx, 4);
    assert_true(key_last_id(fx_key(&fx, "s")).seq > 1); /* pieces came */
    expect_told("");
    fx_finish(&fx);
    expect_told("xadd:s gen-end:s ");
    close_world(&fx);
}

static void test_a_refused_generation_tells_nothing(void **state)
{
    struct fixture fx;
    struct client c;
    open_world(&fx, "");
    fx_gen(&fx, &c, (struct gen_args){.key = "s"}); /* nothing to go on with */
    assert_int_equal(c.kind, GEN_ANSWER_ERROR);
    expect_told("");
    close_world(&fx);
}

static void test_removing_a_generating_key_tells_the_end_first(void **state)
{
    struct fixture fx;
    struct client c;
    open_world(&fx, "hello");
    fx_gen(&fx, &c, (struct gen_args){.key = "s", .prompt = "say"});
    fx_turns(&fx, 2);
    str_clear(&told);
    assert_true(keys_delete(fx.ks, 0, BYTES("s")));
    expect_told("xadd:s gen-end:s del:s ");
    close_world(&fx);
}

static void test_a_resumed_answer_tells_that_its_orphaned_entry_goes(void **state)
{
    struct fixture fx;
    struct client c, again;
    open_world(&fx, "hello world");
    fx_gen(&fx, &c, (struct gen_args){.key = "s", .prompt = "say"});
    fx_turns(&fx, 3);
    gen_waiter_leave(&c.waiter);
    fx_advance(&fx, 10001);
    fx_finish(&fx);
    expect_state(&fx, "s", "idle", "orphaned");
    str_clear(&told);
    fx_gen(&fx, &again, (struct gen_args){.key = "s", .prompt = "say"});
    fx_finish(&fx);
    expect_told("xdel:s xadd:s gen-end:s ");
    close_world(&fx);
}

/* ---- guards ---------------------------------------------------------------------------------- */

static void watch(struct fixture *fx, struct guard *g, const char *name)
{
    guard_add(fx->ks, g, 0, bytes_from(name));
}

/* Spoiled, and afterwards as new. */
static bool was_spoiled(struct guard *g)
{
    bool is = guard_is_spoiled(g);
    guard_clear(g);
    assert_int_equal(guard_count(g), 0);
    return is;
}

static void test_every_change_spoils_a_guard(void **state)
{
    struct fixture fx;
    struct guard g = {0};
    struct err err;
    open_world(&fx, "");
    watch(&fx, &g, "s");
    struct stream_id id = add(&fx, "s", 0); /* a key that was missing is made */
    assert_true(was_spoiled(&g));
    watch(&fx, &g, "s");
    assert_false(was_spoiled(&g));
    watch(&fx, &g, "s");
    assert_int_equal(keys_xdel(fx.ks, 0, BYTES("s"), &id, 1, &err), 1);
    assert_true(was_spoiled(&g));
    watch(&fx, &g, "s");
    assert_int_equal(keys_xdel(fx.ks, 0, BYTES("s"), &id, 1, &err), 0);
    assert_false(was_spoiled(&g)); /* nothing was deleted */
    watch(&fx, &g, "s");
    expire(&fx, "s", 100000);
    assert_true(was_spoiled(&g));
    watch(&fx, &g, "s");
    keys_persist(fx.ks, 0, BYTES("s"));
    assert_true(was_spoiled(&g));
    watch(&fx, &g, "s");
    rename_key(&fx, "s", "t");
    assert_true(was_spoiled(&g));
    watch(&fx, &g, "s");
    assert_int_equal(copy(&fx, "t", "s", 0, false), 1);
    assert_true(was_spoiled(&g));
    watch(&fx, &g, "t");
    assert_int_equal(copy(&fx, "t", "u", 0, false), 1);
    assert_false(was_spoiled(&g)); /* a source is not changed */
    watch(&fx, &g, "s");
    keys_delete(fx.ks, 0, BYTES("s"));
    assert_true(was_spoiled(&g));
    watch(&fx, &g, "s");
    assert_int_equal(copy(&fx, "t", "s", 5, false), 1);
    assert_false(was_spoiled(&g)); /* the name in another database */
    close_world(&fx);
}

static void test_prompt_and_end_spoil_and_pieces_do_not(void **state)
{
    struct fixture fx;
    struct client c;
    struct guard g = {0};
    open_world(&fx, "hello world");
    watch(&fx, &g, "s");
    fx_gen(&fx, &c, (struct gen_args){.key = "s", .prompt = "say"});
    assert_true(was_spoiled(&g));
    watch(&fx, &g, "s");
    fx_turns(&fx, 5);
    assert_true(keys_n_generating(fx.ks) == 1 && key_last_id(fx_key(&fx, "s")).seq > 2);
    assert_false(guard_is_spoiled(&g));
    fx_finish(&fx);
    assert_true(was_spoiled(&g));
    close_world(&fx);
}

static void test_expiry_spoils_only_what_had_not_expired_before(void **state)
{
    struct fixture fx;
    struct guard g = {0}, h = {0};
    open_world(&fx, "");
    add(&fx, "s", 0);
    expire(&fx, "s", 10);
    watch(&fx, &g, "s");
    clock_advance_ms(20); /* no turn: nobody has removed it yet */
    clock_tick();
    watch(&fx, &h, "s"); /* had expired already: that is no change */
    assert_true(was_spoiled(&g));
    assert_false(was_spoiled(&h));
    add(&fx, "s", 0);
    expire(&fx, "s", 10);
    watch(&fx, &g, "s");
    clock_advance_ms(20);
    clock_tick();
    assert_true(was_spoiled(&g)); /* EXEC itself finds it expired */
    add(&fx, "s", 0);
    expire(&fx, "s", 10);
    watch(&fx, &g, "s");
    clock_advance_ms(20);
    clock_tick();
    watch(&fx, &g, "s"); /* the second WATCH of one client finds it */
    assert_true(was_spoiled(&g));
    close_world(&fx);
}

static void test_a_flush_spoils_names_that_exist(void **state)
{
    struct fixture fx;
    struct guard g = {0}, h = {0};
    open_world(&fx, "");
    add(&fx, "s", 0);
    watch(&fx, &g, "s");
    watch(&fx, &h, "none");
    keys_flush(fx.ks, 0);
    assert_true(was_spoiled(&g));
    assert_false(was_spoiled(&h));
    watch(&fx, &g, "s");
    keys_flush(fx.ks, -1);
    assert_false(was_spoiled(&g));
    close_world(&fx);
}

static void test_swapping_databases_spoils_names_that_exist_in_one(void **state)
{
    struct fixture fx;
    struct guard here = {0}, there = {0}, none = {0}, apart = {0};
    open_world(&fx, "");
    add(&fx, "s", 0);
    guard_add(fx.ks, &here, 0, BYTES("s"));
    guard_add(fx.ks, &there, 1, BYTES("s"));
    guard_add(fx.ks, &none, 1, BYTES("t"));
    guard_add(fx.ks, &apart, 2, BYTES("s"));
    guard_spoil_all(fx.ks, 1, 0);
    assert_true(was_spoiled(&here));
    assert_true(was_spoiled(&there));
    assert_false(was_spoiled(&none));
    assert_false(was_spoiled(&apart));
    close_world(&fx);
}

static void test_a_spoiled_guard_lets_go_of_all_its_names(void **state)
{
    struct fixture fx;
    struct guard g[50] = {{0}};
    char name[8];
    open_world(&fx, "");
    for (int i = 0; i < 50; i++) {
        watch(&fx, &g[i], "s");
        watch(&fx, &g[i], "s"); /* twice is once */
        snprintf(name, sizeof name, "k%d", i % 5);
        watch(&fx, &g[i], name);
        assert_int_equal(guard_count(&g[i]), 2);
    }
    add(&fx, "k0", 0);
    for (int i = 0; i < 50; i++)
        assert_int_equal(guard_count(&g[i]), i % 5 ? 2 : 0);
    add(&fx, "s", 0);
    for (int i = 0; i < 50; i++)
        assert_true(was_spoiled(&g[i]));
    close_world(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xadd_xdel_xtrim_tell_what_they_did),
        cmocka_unit_test(test_rename_and_copy_tell_both_names_and_no_del),
        cmocka_unit_test(test_expiry_tells_expire_persist_expired_and_del),
        cmocka_unit_test(test_removal_tells_del_and_a_flush_tells_nothing),
        cmocka_unit_test(test_a_generation_tells_its_prompt_and_its_end_and_no_piece),
        cmocka_unit_test(test_a_refused_generation_tells_nothing),
        cmocka_unit_test(test_removing_a_generating_key_tells_the_end_first),
        cmocka_unit_test(test_a_resumed_answer_tells_that_its_orphaned_entry_goes),
        cmocka_unit_test(test_every_change_spoils_a_guard),
        cmocka_unit_test(test_prompt_and_end_spoil_and_pieces_do_not),
        cmocka_unit_test(test_expiry_spoils_only_what_had_not_expired_before),
        cmocka_unit_test(test_a_flush_spoils_names_that_exist),
        cmocka_unit_test(test_swapping_databases_spoils_names_that_exist_in_one),
        cmocka_unit_test(test_a_spoiled_guard_lets_go_of_all_its_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
