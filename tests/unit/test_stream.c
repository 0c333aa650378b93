/* test_stream.c - ids, entries and lists, without a keyspace. */
#include "keyspace/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "base/rng.h"
#include "keyspace/timer.h"

static struct stream_id id_of(const char *text)
{
    struct stream_id id;
    assert_true(stream_id_parse(bytes_from(text), 0, &id));
    return id;
}

static void expect_id(struct stream_id id, uint64_t ms, uint64_t seq)
{
    assert_int_equal(id.ms, ms);
    assert_int_equal(id.seq, seq);
}

static void append(struct stream *s, uint64_t ms, const char *text)
{
    struct bytes fields[2] = {BYTES("text"), bytes_from(text)};
    assert_true(stream_reserve(s, 1));
    stream_append(s, entry_new((struct stream_id){ms, 0}, fields, 1));
}

static struct stream *stream_of(int n)
{
    struct stream *s = stream_new();
    for (int i = 1; i <= n; i++)
        append(s, (uint64_t)i, "entry");
    return s;
}

static void test_an_id_without_a_sequence_takes_the_one_given(void **state)
{
    struct stream_id id;
    assert_true(stream_id_parse(BYTES("5"), 7, &id));
    expect_id(id, 5, 7);
    assert_true(stream_id_parse(BYTES("18446744073709551615-18446744073709551615"), 0, &id));
    expect_id(id, UINT64_MAX, UINT64_MAX);
}

static void test_what_is_no_id_is_refused(void **state)
{
    static const char *const wrong[] = {"",    "-",     "5-",   "-5",
                                        "a",   "5-a",   "+5",   " 5",
                                        "5 ",  "5-1-2", "5--1", "18446744073709551616",
                                        "0x5", "1.5",   "1-*x", "*"};
    struct stream_id id;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (stream_id_parse(bytes_from(wrong[i]), 0, &id))
            fail_msg("'%s' was taken for an id", wrong[i]);
    assert_false(stream_id_parse((struct bytes){"5\0", 2}, 0, &id));
}

static void test_ends_of_a_range_know_minus_plus_and_exclusive(void **state)
{
    struct stream_id id;
    struct err err;
    assert_int_equal(stream_id_parse_range(BYTES("-"), true, &id, &err), 0);
    expect_id(id, 0, 0);
    assert_int_equal(stream_id_parse_range(BYTES("+"), false, &id, &err), 0);
    expect_id(id, UINT64_MAX, UINT64_MAX);
    assert_int_equal(stream_id_parse_range(BYTES("5"), false, &id, &err), 0);
    expect_id(id, 5, UINT64_MAX);
    assert_int_equal(stream_id_parse_range(BYTES("(5"), true, &id, &err), 0);
    expect_id(id, 5, 1);
    assert_int_equal(stream_id_parse_range(BYTES("(5-0"), false, &id, &err), 0);
    expect_id(id, 4, UINT64_MAX);
}

static void test_an_exclusive_end_beyond_the_last_id_is_an_error(void **state)
{
    struct stream_id id;
    struct err err;
    struct bytes top = BYTES("(18446744073709551615-18446744073709551615");
    assert_int_equal(stream_id_parse_range(top, true, &id, &err), -1);
    assert_string_equal(err.text, "ERR invalid start ID for the interval");
    assert_int_equal(stream_id_parse_range(BYTES("(0-0"), false, &id, &err), -1);
    assert_string_equal(err.text, "ERR invalid end ID for the interval");
    assert_int_equal(stream_id_parse_range(BYTES("(-"), true, &id, &err), -1);
}

static void test_ids_count_across_the_sequence_and_stop_at_the_top(void **state)
{
    struct stream_id id = {5, UINT64_MAX}, top = STREAM_ID_MAX, zero = STREAM_ID_MIN;
    assert_true(stream_id_next(&id));
    expect_id(id, 6, 0);
    assert_true(stream_id_previous(&id));
    expect_id(id, 5, UINT64_MAX);
    assert_false(stream_id_next(&top));
    assert_false(stream_id_previous(&zero));
}

static void test_an_entry_keeps_bytes_of_any_value(void **state)
{
    struct bytes fields[4] = {{"a\0b", 3}, {"\r\n\0", 3}, {"", 0}, {"v", 1}};
    struct entry *entry = entry_new((struct stream_id){1, 2}, fields, 2);
    assert_int_equal(entry->fields[1].len, 3);
    assert_memory_equal(entry->fields[1].data, "\r\n\0", 3);
    assert_int_equal(entry->fields[2].len, 0);
    entry_put(entry);
}

static void test_an_entry_without_memory_is_null(void **state)
{
    struct bytes fields[2] = {BYTES("text"), BYTES("hello")};
    mem_fail_at(1, false);
    assert_null(entry_new((struct stream_id){1, 0}, fields, 1));
    mem_fail_at(0, false);
}

static void test_a_deleted_entry_leaves_order_and_counters(void **state)
{
    struct stream *s = stream_of(5);
    assert_true(stream_delete(s, id_of("3-0")));
    assert_false(stream_delete(s, id_of("3-0")));
    assert_int_equal(s->n, 4);
    assert_int_equal(stream_index(s, id_of("4-0")), 2);
    assert_int_equal(stream_index(s, id_of("3-0")), -1);
    expect_id(s->max_deleted, 3, 0);
    expect_id(s->last_id, 5, 0);
    assert_int_equal(s->entries_added, 5);
    stream_free(s);
}

static void test_many_are_deleted_in_one_pass_each_counted_once(void **state)
{
    struct stream *s = stream_of(6);
    struct stream_id ids[] = {{5, 0}, {2, 0}, {9, 0}, {5, 0}, {1, 0}};
    assert_int_equal(stream_delete_all(s, ids, 5), 3);
    assert_int_equal(s->n, 3);
    expect_id(stream_entry(s, 0)->id, 3, 0);
    expect_id(stream_entry(s, 1)->id, 4, 0);
    expect_id(stream_entry(s, 2)->id, 6, 0);
    expect_id(s->max_deleted, 5, 0);
    stream_free(s);
}

static void test_deleting_the_last_does_not_lower_the_last_id(void **state)
{
    struct stream *s = stream_of(2);
    assert_true(stream_delete(s, id_of("2-0")));
    assert_true(stream_delete(s, id_of("1-0")));
    expect_id(s->last_id, 2, 0);
    expect_id(s->max_deleted, 2, 0);
    stream_free(s);
}

/* Small enough to be freed at once. */
static uint64_t trim(struct stream *s, struct stream_trim how)
{
    struct stream *trimmed;
    uint64_t n = stream_trim(s, &how, &trimmed);
    assert_null(trimmed);
    return n;
}

static void test_trim_by_length_takes_the_oldest(void **state)
{
    struct stream *s = stream_of(10);
    struct stream_trim how = {.kind = TRIM_MAXLEN, .max_len = 3};
    assert_int_equal(trim(s, how), 7);
    expect_id(stream_entry(s, 0)->id, 8, 0);
    expect_id(s->max_deleted, 0, 0); /* as in Redis only XDEL counts */
    assert_int_equal(trim(s, how), 0);
    stream_free(s);
}

static void test_trim_by_id_keeps_that_id(void **state)
{
    struct stream *s = stream_of(10);
    struct stream_trim how = {.kind = TRIM_MINID, .min_id = {4, 0}};
    assert_int_equal(trim(s, how), 3);
    expect_id(stream_entry(s, 0)->id, 4, 0);
    stream_free(s);
}

static void test_about_trims_whole_hundreds_and_limit_bounds_it(void **state)
{
    struct stream *s = stream_of(1000);
    struct stream_trim how = {.kind = TRIM_MAXLEN, .max_len = 555, .about = true};
    assert_int_equal(trim(s, how), 400);
    how = (struct stream_trim){.kind = TRIM_MAXLEN, .max_len = 0, .limit = 30};
    assert_int_equal(trim(s, how), 30);
    how = (struct stream_trim){.kind = TRIM_MAXLEN, .max_len = 0, .about = true, .limit = 569};
    assert_int_equal(trim(s, how), 500); /* 570 stand */
    how.limit = 0;
    assert_int_equal(trim(s, how), 70); /* the last node, too, when all of it is to go */
    stream_free(s);
}

static void test_a_long_trimmed_stream_does_not_grow(void **state)
{
    struct stream *s = stream_new();
    struct stream_trim how = {.kind = TRIM_MAXLEN, .max_len = 100};
    for (int i = 1; i <= 100000; i++) {
        append(s, (uint64_t)i, "x");
        (void)trim(s, how);
    }
    assert_int_equal(s->n, 100);
    assert_in_range(s->cap, 100, 512);
    expect_id(stream_entry(s, 0)->id, 99901, 0);
    stream_free(s);
}

static void test_a_large_trim_hands_its_entries_over(void **state)
{
    struct stream *s = stream_of(3000), *trimmed;
    struct stream_trim how = {.kind = TRIM_MAXLEN, .max_len = 10};
    assert_int_equal(stream_trim(s, &how, &trimmed), 2990);
    assert_int_equal(trimmed->n, 2990);
    assert_int_equal(s->n, 10);
    expect_id(stream_entry(s, 0)->id, 2991, 0);
    expect_id(s->max_deleted, 0, 0);
    append(s, 3001, "goes on");
    stream_free(trimmed);
    stream_free(s);
    assert_int_equal(mem_bytes(MEM_KEY), 0);
}

static void test_of_a_large_trim_that_leaves_more_those_that_go_are_handed_over(void **state)
{
    struct stream *s = stream_of(3000), *trimmed;
    struct stream_trim how = {.kind = TRIM_MAXLEN, .max_len = 1800};
    assert_int_equal(stream_trim(s, &how, &trimmed), 1200);
    assert_int_equal(trimmed->n, 1200);
    expect_id(stream_entry(trimmed, 1199)->id, 1200, 0);
    assert_int_equal(s->n, 1800);
    expect_id(stream_entry(s, 0)->id, 1201, 0);
    append(s, 3001, "goes on");
    stream_free(trimmed);
    stream_free(s);
    assert_int_equal(mem_bytes(MEM_KEY), 0);
}

static void test_a_copy_shares_entries_and_goes_its_own_way(void **state)
{
    struct stream *s = stream_of(3);
    struct stream *copy = stream_copy(s, 2);
    assert_ptr_equal(stream_entry(copy, 0), stream_entry(s, 0));
    assert_int_equal(stream_entry(s, 0)->refs, 2);
    assert_int_equal(stream_entry(s, 2)->refs, 1);
    expect_id(copy->last_id, 3, 0);
    append(copy, 9, "more");
    stream_free(s);
    assert_int_equal(copy->n, 3);
    assert_int_equal(stream_entry(copy, 0)->refs, 1);
    stream_free(copy);
}

static void test_a_copy_without_memory_takes_no_reference(void **state)
{
    struct stream *s = stream_of(3);
    for (int i = 1; i <= 2; i++) {
        mem_fail_at((uint64_t)i, false);
        assert_null(stream_copy(s, 3));
        mem_fail_at(0, false);
        assert_int_equal(stream_entry(s, 0)->refs, 1);
    }
    stream_free(s);
    assert_int_equal(mem_bytes(MEM_KEY), 0);
}

static void test_room_that_is_half_there_is_none(void **state)
{
    struct stream *s = stream_of(8);
    for (int i = 1; i <= 2; i++) {
        mem_fail_at((uint64_t)i, false);
        assert_false(stream_reserve(s, 1));
        mem_fail_at(0, false);
    }
    append(s, 9, "with memory again");
    assert_int_equal(s->n, 9);
    stream_free(s);
    assert_int_equal(mem_bytes(MEM_KEY), 0);
}

static void test_a_stream_is_freed_in_slices(void **state)
{
    struct stream *s = stream_of(25);
    size_t before = mem_bytes(MEM_KEY);
    assert_false(stream_free_slice(s, 10));
    assert_true(mem_bytes(MEM_KEY) < before);
    assert_false(stream_free_slice(s, 10));
    assert_true(stream_free_slice(s, 10));
    assert_int_equal(mem_bytes(MEM_KEY), 0);
}

/* ---- what the model knows ------------------------------------------------------------------- */

static bool is_turn(const struct entry *entry)
{
    return entry->kind == ENTRY_MESSAGE || (entry->kind == ENTRY_END && entry->is_chat);
}

/* Against a look at every entry. */
static void check_known(const struct stream *s)
{
    size_t n_known = 0, next = s->n;
    int64_t previous = -1;
    bool has_turns = false;
    for (size_t i = s->n; i > 0; i--) {
        next = stream_entry(s, i - 1)->kind != ENTRY_OTHER ? i - 1 : next;
        assert_int_equal(stream_next_known(s, i - 1), next);
    }
    assert_int_equal(stream_next_known(s, s->n), s->n);
    for (size_t i = 0; i <= s->n; i++) {
        assert_int_equal(stream_previous_known(s, i), previous);
        assert_int_equal(stream_count_known(s, i), n_known);
        if (i == s->n)
            break;
        bool is_known = stream_entry(s, i)->kind != ENTRY_OTHER;
        previous = is_known ? (int64_t)i : previous;
        n_known += is_known;
        has_turns |= is_turn(stream_entry(s, i));
    }
    assert_int_equal(stream_has_turns(s), has_turns);
}

/* Kinds of runs of entries, most of them long enough to fill words of marks with one kind. */
static void append_run(struct stream *s, struct rng *random, bool may_be_turns)
{
    uint64_t draw = rng_next(random);
    static const size_t lengths[] = {1, 2, 40, 64, 200};
    size_t n = lengths[draw % 5];
    enum entry_kind kind = (enum entry_kind)(draw / 8 % (ENTRY_END + 1));
    if (!may_be_turns && kind == ENTRY_MESSAGE)
        kind = ENTRY_OTHER;
    for (size_t i = 0; i < n; i++) {
        struct entry *entry = entry_new((struct stream_id){s->last_id.ms + 1, 0}, NULL, 0);
        entry->kind = kind;
        entry->is_chat = may_be_turns && draw & 4;
        assert_true(stream_reserve(s, 1));
        stream_append(s, entry);
    }
}

static void drop_some(struct stream *s, struct rng *random)
{
    bool *is_gone = xcalloc(s->n + 1, sizeof *is_gone);
    uint64_t one_of = 1 + rng_next(random) % 20;
    for (size_t i = 0; i < s->n; i++)
        is_gone[i] = rng_next(random) % one_of == 0;
    (void)stream_drop(s, is_gone);
    xfree(is_gone);
}

static struct stream *change(struct stream *s, struct rng *random)
{
    struct stream *other;
    struct stream_trim how = {.kind = TRIM_MAXLEN};
    switch (rng_next(random) % 8) {
    case 0:
        if (s->n > 0)
            assert_true(stream_delete(s, stream_entry(s, rng_next(random) % s->n)->id));
        return s;
    case 1:
        drop_some(s, random);
        return s;
    case 2:
        how.max_len = rng_next(random) % (s->n + 1);
        (void)stream_trim(s, &how, &other);
        if (other != NULL)
            check_known(other);
        stream_free(other);
        return s;
    case 3:
        other = stream_copy(s, rng_next(random) % (s->n + 1));
        stream_free(s);
        return other;
    default:
        append_run(s, random, rng_next(random) % 2);
        return s;
    }
}

static void test_what_the_model_knows_is_found_after_every_change(void **state)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct rng random = rng_from(seed);
        struct stream *s = stream_new();
        check_known(s);
        for (int i = 0; i < 60; i++) {
            s = change(s, &random);
            check_known(s);
        }
        stream_free(s);
        assert_int_equal(mem_bytes(MEM_KEY), 0);
    }
}

/* ---- timers --------------------------------------------------------------------------------- */

static int64_t fired[64];
static int n_fired;

static void note_fired(struct timer *timer)
{
    fired[n_fired++] = timer->at;
}

static void test_timers_fire_in_order_of_time(void **state)
{
    struct timers timers = {0};
    struct timer t[32];
    n_fired = 0;
    for (int i = 0; i < 32; i++) {
        t[i] = (struct timer){.fire = note_fired};
        timer_start(&timers, &t[i], (i * 7) % 32);
    }
    for (int i = 0; i < 32; i += 4)
        timer_stop(&timers, &t[i]);
    assert_int_equal(timers_run(&timers, 100, 100), 24);
    for (int i = 1; i < n_fired; i++)
        assert_true(fired[i - 1] < fired[i]);
    assert_int_equal(timers_next(&timers), INT64_MAX);
    timers_free(&timers);
}

static void test_a_timer_that_is_started_again_moves(void **state)
{
    struct timers timers = {0};
    struct timer a = {.fire = note_fired}, b = {.fire = note_fired};
    n_fired = 0;
    timer_start(&timers, &a, 10);
    timer_start(&timers, &b, 20);
    timer_start(&timers, &a, 30);
    assert_int_equal(timers_next(&timers), 20);
    assert_int_equal(timers_run(&timers, 25, 100), 1);
    assert_true(timer_is_running(&a));
    timer_stop(&timers, &a);
    timer_stop(&timers, &a);
    timers_free(&timers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_id_without_a_sequence_takes_the_one_given),
        cmocka_unit_test(test_what_is_no_id_is_refused),
        cmocka_unit_test(test_ends_of_a_range_know_minus_plus_and_exclusive),
        cmocka_unit_test(test_an_exclusive_end_beyond_the_last_id_is_an_error),
        cmocka_unit_test(test_ids_count_across_the_sequence_and_stop_at_the_top),
        cmocka_unit_test(test_an_entry_keeps_bytes_of_any_value),
        cmocka_unit_test(test_an_entry_without_memory_is_null),
        cmocka_unit_test(test_a_deleted_entry_leaves_order_and_counters),
        cmocka_unit_test(test_many_are_deleted_in_one_pass_each_counted_once),
        cmocka_unit_test(test_deleting_the_last_does_not_lower_the_last_id),
        cmocka_unit_test(test_trim_by_length_takes_the_oldest),
        cmocka_unit_test(test_trim_by_id_keeps_that_id),
        cmocka_unit_test(test_about_trims_whole_hundreds_and_limit_bounds_it),
        cmocka_unit_test(test_a_long_trimmed_stream_does_not_grow),
        cmocka_unit_test(test_a_large_trim_hands_its_entries_over),
        cmocka_unit_test(test_of_a_large_trim_that_leaves_more_those_that_go_are_handed_over),
        cmocka_unit_test(test_a_copy_shares_entries_and_goes_its_own_way),
        cmocka_unit_test(test_room_that_is_half_there_is_none),
        cmocka_unit_test(test_what_the_model_knows_is_found_after_every_change),
        cmocka_unit_test(test_a_copy_without_memory_takes_no_reference),
        cmocka_unit_test(test_a_stream_is_freed_in_slices),
        cmocka_unit_test(test_timers_fire_in_order_of_time),
        cmocka_unit_test(test_a_timer_that_is_started_again_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
