/* test_keys.c - keys, expiry, ids of new entries, XADD, blocked readers. */
#include "keys_fixture.h"

static void expect_id(struct stream_id id, uint64_t ms, uint64_t seq)
{
    assert_int_equal(id.ms, ms);
    assert_int_equal(id.seq, seq);
}

static int add_with_id(struct fixture *fx, const char *name, const char *id_text,
                       struct stream_id *id, struct err *err)
{
    struct bytes fields[2] = {BYTES("text"), BYTES("x")};
    struct xadd add = {.fields = fields, .n_fields = 1};
    if (xadd_id_parse(bytes_from(id_text), &add, err) < 0)
        return -1;
    return keys_xadd(fx->ks, 0, bytes_from(name), &add, id, err);
}

/* ---- ids of entries ------------------------------------------------------------------------- */

static void test_the_mark_never_falls_when_the_wall_clock_does(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    struct stream_id a = fx_text(&fx, "k", "one");
    expect_id(a, FX_WALL_MS, 0);
    assert_true(keys_delete(fx.ks, 0, BYTES("k")));
    clock_step_wall_ms(-3600000);
    clock_tick();
    struct stream_id b = fx_text(&fx, "k", "two");
    assert_true(stream_id_compare(b, a) > 0);
    fx_close_all(&fx);
}

static void test_an_explicit_id_does_not_drag_other_keys_along(void **state)
{
    struct fixture fx;
    struct stream_id id;
    struct err err;
    fx_open(&fx, "");
    assert_int_equal(add_with_id(&fx, "a", "99999999999999-5", &id, &err), 1);
    expect_id(fx_text(&fx, "a", "follows"), 99999999999999, 6);
    expect_id(fx_text(&fx, "b", "other"), FX_WALL_MS, 0);
    fx_close_all(&fx);
}

static void test_ids_of_all_keys_share_the_mark(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    expect_id(fx_text(&fx, "a", "x"), FX_WALL_MS, 0);
    expect_id(fx_text(&fx, "b", "x"), FX_WALL_MS, 1);
    fx_close_all(&fx);
}

static void test_xadd_refuses_what_is_not_above_the_last(void **state)
{
    struct fixture fx;
    struct stream_id id;
    struct err err;
    fx_open(&fx, "");
    assert_int_equal(add_with_id(&fx, "k", "5-5", &id, &err), 1);
    assert_int_equal(add_with_id(&fx, "k", "5-5", &id, &err), -1);
    assert_string_equal(err.text,
                        "ERR The ID specified in XADD is equal or smaller than the target "
                        "stream top item");
    assert_int_equal(add_with_id(&fx, "k", "4-*", &id, &err), -1);
    assert_int_equal(add_with_id(&fx, "k", "5-*", &id, &err), 1);
    expect_id(id, 5, 6);
    assert_int_equal(add_with_id(&fx, "k", "6-*", &id, &err), 1);
    expect_id(id, 6, 0);
    assert_int_equal(add_with_id(&fx, "new", "0-0", &id, &err), -1);
    assert_string_equal(err.text, "ERR The ID specified in XADD must be greater than 0-0");
    assert_int_equal(add_with_id(&fx, "new", "0-*", &id, &err), 1);
    expect_id(id, 0, 1);
    fx_close_all(&fx);
}

static void test_xadd_at_the_last_possible_id_is_an_error(void **state)
{
    struct fixture fx;
    struct stream_id id;
    struct err err;
    fx_open(&fx, "");
    assert_int_equal(add_with_id(&fx, "k", "18446744073709551615-18446744073709551615", &id, &err),
                     1);
    assert_int_equal(add_with_id(&fx, "k", "*", &id, &err), -1);
    assert_non_null(strstr(err.text, "exhausted the last possible ID"));
    assert_int_equal(add_with_id(&fx, "k", "18446744073709551615-*", &id, &err), -1);
    fx_close_all(&fx);
}

/* ---- XADD: kinds ---------------------------------------------------------------------------- */

static void test_xadd_sets_the_kind_by_its_fields(void **state)
{
    static const struct {
        const char *fields[6];
        int32_t n;
        enum entry_kind kind;
    } cases[] = {
        {{"text", "a"}, 1, ENTRY_TEXT},
        {{"role", "user", "content", "a"}, 2, ENTRY_MESSAGE},
        {{"content", "a", "x", "y", "role", "user"}, 3, ENTRY_MESSAGE},
        {{"role", "user"}, 1, ENTRY_OTHER},
        {{"content", "a"}, 1, ENTRY_OTHER},
        {{"piece", "a", "finish", "stop"}, 2, ENTRY_OTHER},
        {{"text", "a", "role", "user"}, 2, ENTRY_TEXT},
    };
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stream_id id;
        assert_int_equal(fx_add(&fx, "k", cases[i].fields, cases[i].n, &id, &err), 1);
        assert_int_equal(stream_entry(key_stream(fx_key(&fx, "k")), i)->kind, cases[i].kind);
    }
    fx_close_all(&fx);
}

static void test_xadd_refuses_both_kinds_at_once_and_a_field_twice(void **state)
{
    struct fixture fx;
    struct stream_id id;
    struct err err;
    fx_open(&fx, "");
    assert_int_equal(fx_add(&fx, "k",
                            (const char *const[]){"text", "a", "role", "user", "content", "b"}, 3,
                            &id, &err),
                     -1);
    assert_int_equal(
        fx_add(&fx, "k", (const char *const[]){"text", "a", "text", "b"}, 2, &id, &err), -1);
    assert_string_equal(err.text, "ERR field 'text' stands twice in one entry");
    assert_null(fx_key(&fx, "k"));
    fx_close_all(&fx);
}

static void test_nomkstream_makes_no_key(void **state)
{
    struct fixture fx;
    struct stream_id id;
    struct err err;
    struct bytes fields[2] = {BYTES("text"), BYTES("x")};
    struct xadd add = {.fields = fields, .n_fields = 1, .no_create = true};
    fx_open(&fx, "");
    assert_int_equal(keys_xadd(fx.ks, 0, BYTES("k"), &add, &id, &err), 0);
    assert_int_equal(keys_count(fx.ks, 0), 0);
    fx_close_all(&fx);
}

static void test_xadd_without_memory_leaves_no_key(void **state)
{
    struct fixture fx;
    struct stream_id id;
    struct err err;
    fx_open(&fx, "");
    for (uint64_t n = 1; n <= 2; n++) {
        mem_fail_at(n, false);
        assert_int_equal(fx_add(&fx, "k", (const char *const[]){"text", "a"}, 1, &id, &err), -1);
        mem_fail_at(0, false);
        assert_memory_equal(err.text, "OOM ", 4);
        assert_int_equal(keys_count(fx.ks, 0), 0);
        assert_null(fx_key(&fx, "k"));
    }
    fx_close_all(&fx);
}

/* ---- keys ----------------------------------------------------------------------------------- */

static void count_key(void *arg, struct key *key)
{
    ++*(int *)arg;
}

static void test_scan_meets_every_key(void **state)
{
    struct fixture fx;
    int n = 0;
    uint64_t cursor = 0;
    fx_open(&fx, "");
    for (int i = 0; i < 500; i++) {
        char name[16];
        snprintf(name, sizeof name, "key:%d", i);
        fx_text(&fx, name, "x");
    }
    do {
        cursor = keys_scan(fx.ks, 0, cursor, count_key, &n);
    } while (cursor != 0);
    assert_true(n >= 500);
    assert_int_equal(keys_count(fx.ks, 0), 500);
    assert_non_null(keys_random(fx.ks, 0));
    fx_close_all(&fx);
}

static void test_databases_are_apart(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    fx_text(&fx, "k", "x");
    assert_null(keys_find(fx.ks, 1, BYTES("k")));
    assert_int_equal(keys_count(fx.ks, 1), 0);
    fx_close_all(&fx);
}

static void test_flush_of_one_database_leaves_the_others(void **state)
{
    struct fixture fx;
    struct stream_id id;
    struct err err;
    struct bytes fields[2] = {BYTES("text"), BYTES("x")};
    struct xadd add = {.fields = fields, .n_fields = 1};
    fx_open(&fx, "");
    fx_text(&fx, "k", "x");
    assert_int_equal(keys_xadd(fx.ks, 3, BYTES("k"), &add, &id, &err), 1);
    keys_flush(fx.ks, 0);
    assert_null(fx_key(&fx, "k"));
    assert_non_null(keys_find(fx.ks, 3, BYTES("k")));
    keys_flush(fx.ks, -1);
    assert_null(keys_find(fx.ks, 3, BYTES("k")));
    fx_close_all(&fx);
}

static void test_a_large_flush_is_freed_in_slices(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    for (int i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof name, "key:%d", i);
        fx_text(&fx, name, "x");
    }
    keys_flush(fx.ks, 0);
    fx_text(&fx, "key:1", "new");
    size_t before = mem_bytes(MEM_KEY);
    assert_true(keyspace_turn(fx.ks));
    assert_true(mem_bytes(MEM_KEY) < before);
    fx_turns(&fx, 10);
    assert_false(keyspace_turn(fx.ks));
    expect_range(&fx, "key:1", "text=new;");
    fx_close_all(&fx);
}

static void test_rename_moves_entries_and_time_to_live(void **state)
{
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    fx_text(&fx, "a", "x");
    assert_true(keys_expire(fx.ks, 0, BYTES("a"), 5000, false, 0));
    fx_text(&fx, "b", "old");
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("a"), BYTES("b"), true, &err), 0);
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("a"), BYTES("b"), false, &err), 1);
    assert_null(fx_key(&fx, "a"));
    expect_range(&fx, "b", "text=x;");
    assert_int_equal(key_ttl_ms(fx_key(&fx, "b")), 5000);
    fx_close_all(&fx);
}

static void test_rename_of_a_missing_key_is_an_error_and_onto_itself_is_none(void **state)
{
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("a"), BYTES("b"), false, &err), -1);
    assert_string_equal(err.text, "ERR no such key");
    fx_text(&fx, "a", "x");
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("a"), BYTES("a"), false, &err), 1);
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("a"), BYTES("a"), true, &err), 0);
    expect_range(&fx, "a", "text=x;");
    fx_close_all(&fx);
}

/* ---- expiry --------------------------------------------------------------------------------- */

static void test_a_key_expires_by_itself_and_when_asked_for(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    fx_text(&fx, "a", "x");
    fx_text(&fx, "b", "x");
    assert_true(keys_expire(fx.ks, 0, BYTES("a"), 100, false, 0));
    assert_true(keys_expire(fx.ks, 0, BYTES("b"), 100, false, 0));
    clock_advance_ms(100);
    clock_tick();
    assert_null(fx_key(&fx, "a"));
    assert_int_equal(keys_count(fx.ks, 0), 1);
    fx_turn(&fx);
    assert_int_equal(keys_count(fx.ks, 0), 0);
    assert_int_equal(keys_count_expiring(fx.ks, 0), 0);
    fx_close_all(&fx);
}

static void test_a_step_of_the_wall_clock_moves_expireat_and_not_expire(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    fx_text(&fx, "relative", "x");
    fx_text(&fx, "absolute", "x");
    assert_true(keys_expire(fx.ks, 0, BYTES("relative"), 60000, false, 0));
    assert_true(keys_expire(fx.ks, 0, BYTES("absolute"), FX_WALL_MS + 60000, true, 0));
    clock_step_wall_ms(3600000);
    fx_turn(&fx);
    assert_null(fx_key(&fx, "absolute"));
    assert_int_equal(key_ttl_ms(fx_key(&fx, "relative")), 60000);
    fx_close_all(&fx);
}

/* Comparable servers used freed memory when a key expired between two lookups of one command: here
 * time is fixed for its length. */
static void test_a_key_does_not_expire_in_the_middle_of_a_command(void **state)
{
    struct fixture fx;
    struct err err;
    struct client c;
    struct bytes target = BYTES("k2");
    struct fork_request fork = {.source = BYTES("k"), .targets = &target, .n_targets = 1};
    fx_open(&fx, "");
    fx_text(&fx, "k", "x");
    assert_true(keys_expire(fx.ks, 0, BYTES("k"), 100, false, 0));
    struct key *key = fx_key(&fx, "k");
    clock_pass_ms(1000); /* the clock goes on, the command's time does not */
    assert_ptr_equal(fx_key(&fx, "k"), key);
    assert_int_equal(keys_fork(fx.ks, &fork, &err), 1);
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("k"), BYTES("k"), false, &err), 1);
    fx_gen(&fx, &c, (struct gen_args){.key = "k2", .prompt = " y"});
    assert_int_equal(keys_n_generating(fx.ks), 1); /* on the key that is overdue, not on a new one */
    assert_int_equal(key_stream(fx_key(&fx, "k2"))->n, 2);
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("k"), BYTES("k3"), false, &err), 1);
    clock_tick();
    assert_null(fx_key(&fx, "k2"));
    assert_int_equal(keys_n_generating(fx.ks), 0); /* it went with its key */
    assert_non_null(strstr(c.text, "the key is gone"));
    assert_null(fx_key(&fx, "k3"));
    fx_close_all(&fx);
}

static void test_expire_flags_compare_remaining_time(void **state)
{
    struct fixture fx;
    struct bytes k = BYTES("k");
    fx_open(&fx, "");
    fx_text(&fx, "k", "x");
    assert_false(keys_expire(fx.ks, 0, k, 1000, false, EXPIRE_XX));
    assert_false(keys_expire(fx.ks, 0, k, 1000, false, EXPIRE_GT));
    assert_true(keys_expire(fx.ks, 0, k, 1000, false, EXPIRE_NX));
    assert_false(keys_expire(fx.ks, 0, k, 2000, false, EXPIRE_NX));
    assert_false(keys_expire(fx.ks, 0, k, 500, false, EXPIRE_GT));
    assert_true(keys_expire(fx.ks, 0, k, FX_WALL_MS + 2000, true, EXPIRE_GT));
    assert_int_equal(key_expire_time_ms(fx_key(&fx, "k")), FX_WALL_MS + 2000);
    assert_true(keys_expire(fx.ks, 0, k, 500, false, EXPIRE_LT));
    assert_true(keys_persist(fx.ks, 0, k));
    assert_false(keys_persist(fx.ks, 0, k));
    assert_int_equal(key_ttl_ms(fx_key(&fx, "k")), -1);
    fx_close_all(&fx);
}

static void test_a_time_in_the_past_removes_the_key(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    fx_text(&fx, "k", "x");
    assert_true(keys_expire(fx.ks, 0, BYTES("k"), -1, false, 0));
    assert_null(fx_key(&fx, "k"));
    assert_false(keys_expire(fx.ks, 0, BYTES("k"), 10, false, 0));
    fx_close_all(&fx);
}

static void test_a_huge_time_to_live_does_not_wrap(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    fx_text(&fx, "k", "x");
    assert_true(keys_expire(fx.ks, 0, BYTES("k"), INT64_MAX / 10, false, 0));
    assert_true(key_ttl_ms(fx_key(&fx, "k")) > INT64_C(1000000000000));
    fx_close_all(&fx);
}

/* ---- blocked readers ------------------------------------------------------------------------ */

static void test_a_reader_of_a_missing_key_is_woken_by_its_first_entry(void **state)
{
    struct fixture fx;
    struct watcher w;
    fx_open(&fx, "");
    fx_block(&fx, &w, "k", STREAM_ID_MIN, 0);
    fx_text(&fx, "other", "x");
    fx_turn(&fx);
    assert_int_equal(w.n_wakes, 0);
    fx_text(&fx, "k", "hello");
    assert_int_equal(w.n_wakes, 0); /* served in the turn, not in the writer's command */
    fx_turn(&fx);
    assert_string_equal(w.got.data, "text=hello;");
    assert_false(reader_is_waiting(&w.reader));
    str_free(&w.got);
    fx_close_all(&fx);
}

static void test_many_entries_before_the_turn_wake_a_reader_once(void **state)
{
    struct fixture fx;
    struct watcher w;
    fx_open(&fx, "");
    fx_block(&fx, &w, "k", STREAM_ID_MIN, 0);
    fx_text(&fx, "k", "a");
    fx_text(&fx, "k", "b");
    fx_turn(&fx);
    assert_int_equal(w.n_wakes, 1);
    assert_string_equal(w.got.data, "text=a;text=b;");
    str_free(&w.got);
    fx_close_all(&fx);
}

static void test_a_reader_with_a_cursor_above_the_entry_sleeps_on(void **state)
{
    struct fixture fx;
    struct watcher w;
    fx_open(&fx, "");
    fx_block(&fx, &w, "k", (struct stream_id){FX_WALL_MS + 10, 0}, 0);
    fx_text(&fx, "k", "a");
    fx_turn(&fx);
    assert_int_equal(w.n_wakes, 0);
    reader_leave(&w.reader);
    fx_close_all(&fx);
}

static void test_block_ends_in_a_timeout_once(void **state)
{
    struct fixture fx;
    struct watcher w;
    fx_open(&fx, "");
    fx_block(&fx, &w, "k", STREAM_ID_MIN, 500);
    fx_advance(&fx, 499);
    assert_int_equal(w.n_timeouts, 0);
    fx_advance(&fx, 1);
    assert_int_equal(w.n_timeouts, 1);
    assert_false(reader_is_waiting(&w.reader));
    fx_text(&fx, "k", "late");
    fx_turn(&fx);
    assert_int_equal(w.n_wakes, 0);
    fx_close_all(&fx);
}

static void test_a_reader_that_left_while_ready_is_not_called(void **state)
{
    struct fixture fx;
    struct watcher w;
    fx_open(&fx, "");
    fx_block(&fx, &w, "k", STREAM_ID_MIN, 0);
    fx_text(&fx, "k", "a");
    reader_leave(&w.reader);
    reader_leave(&w.reader);
    fx_turn(&fx);
    assert_int_equal(w.n_wakes, 0);
    fx_close_all(&fx);
}

static void test_one_reader_waits_for_several_keys_and_databases_do_not_mix(void **state)
{
    struct fixture fx;
    struct watcher w;
    struct bytes names[3] = {BYTES("a"), BYTES("k"), BYTES("a")};
    struct stream_id afters[3] = {{0, 0}, {0, 0}, {0, 0}};
    fx_open(&fx, "");
    w = (struct watcher){.fx = &fx, .name = "k"};
    w.reader = (struct reader){.ready = watcher_ready, .timeout = watcher_timeout, .owner = &w};
    reader_wait(fx.ks, &w.reader, 1, names, afters, 3, 0);
    fx_text(&fx, "k", "in database 0");
    fx_turn(&fx);
    assert_int_equal(w.n_wakes, 0);
    reader_leave(&w.reader);
    reader_wait(fx.ks, &w.reader, 0, names, afters, 3, 0);
    fx_text(&fx, "a", "wakes, though k is what it reads");
    fx_turn(&fx);
    assert_int_equal(w.n_wakes, 1);
    assert_string_equal(w.got.data, "text=in database 0;");
    str_free(&w.got);
    fx_close_all(&fx);
}

static void test_memory_of_a_key_grows_with_what_it_holds(void **state)
{
    struct fixture fx;
    char text[1001];
    fx_open(&fx, "");
    memset(text, 'a', 1000);
    text[1000] = '\0';
    fx_text(&fx, "k", "x");
    size_t before = key_memory_bytes(fx_key(&fx, "k"));
    fx_text(&fx, "k", text);
    assert_true(key_memory_bytes(fx_key(&fx, "k")) >= before + 1000);
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_mark_never_falls_when_the_wall_clock_does),
        cmocka_unit_test(test_an_explicit_id_does_not_drag_other_keys_along),
        cmocka_unit_test(test_ids_of_all_keys_share_the_mark),
        cmocka_unit_test(test_xadd_refuses_what_is_not_above_the_last),
        cmocka_unit_test(test_xadd_at_the_last_possible_id_is_an_error),
        cmocka_unit_test(test_xadd_sets_the_kind_by_its_fields),
        cmocka_unit_test(test_xadd_refuses_both_kinds_at_once_and_a_field_twice),
        cmocka_unit_test(test_nomkstream_makes_no_key),
        cmocka_unit_test(test_xadd_without_memory_leaves_no_key),
        cmocka_unit_test(test_scan_meets_every_key),
        cmocka_unit_test(test_databases_are_apart),
        cmocka_unit_test(test_flush_of_one_database_leaves_the_others),
        cmocka_unit_test(test_a_large_flush_is_freed_in_slices),
        cmocka_unit_test(test_rename_moves_entries_and_time_to_live),
        cmocka_unit_test(test_rename_of_a_missing_key_is_an_error_and_onto_itself_is_none),
        cmocka_unit_test(test_a_key_expires_by_itself_and_when_asked_for),
        cmocka_unit_test(test_a_step_of_the_wall_clock_moves_expireat_and_not_expire),
        cmocka_unit_test(test_a_key_does_not_expire_in_the_middle_of_a_command),
        cmocka_unit_test(test_expire_flags_compare_remaining_time),
        cmocka_unit_test(test_a_time_in_the_past_removes_the_key),
        cmocka_unit_test(test_a_huge_time_to_live_does_not_wrap),
        cmocka_unit_test(test_a_reader_of_a_missing_key_is_woken_by_its_first_entry),
        cmocka_unit_test(test_many_entries_before_the_turn_wake_a_reader_once),
        cmocka_unit_test(test_a_reader_with_a_cursor_above_the_entry_sleeps_on),
        cmocka_unit_test(test_block_ends_in_a_timeout_once),
        cmocka_unit_test(test_a_reader_that_left_while_ready_is_not_called),
        cmocka_unit_test(test_one_reader_waits_for_several_keys_and_databases_do_not_mix),
        cmocka_unit_test(test_memory_of_a_key_grows_with_what_it_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
