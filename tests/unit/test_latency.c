/* test_latency.c - the histogram of call times against sorted times; what a stall is told to be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "base/rng.h"
#include "server/latency.h"
#include "server/stall.h"

enum { N = 20000 };

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Times from 1 to 2^20 us, each octave as likely as the others. */
static void draw(int64_t *times, struct latency *l)
{
    for (int i = 0; i < N; i++) {
        uint64_t bits = rng_at(7, 0, (uint32_t)i);
        times[i] = (int64_t)((bits >> 8) & ((1u << (1 + bits % 20)) - 1));
        latency_add(l, times[i]);
    }
    qsort(times, N, sizeof *times, compare);
}

static void test_percentiles_are_those_of_the_sorted_times_but_3_percent(void **state)
{
    static int64_t times[N];
    static struct latency l;
    draw(times, &l);
    assert_int_equal(l.n, N);
    for (double p = 0.5; p <= 100; p += 0.5) {
        int64_t exact = times[(int)(N * p / 100 + 0.9999) - 1], got = latency_percentile(&l, p);
        assert_true(got >= exact && (double)got <= (double)exact * 1.0313);
    }
}

static void test_counts_up_to_a_time_are_those_of_the_sorted_times_but_3_percent(void **state)
{
    static int64_t times[N];
    static struct latency l;
    draw(times, &l);
    for (int64_t us = 1; us < LATENCY_MAX_US; us *= 2) {
        uint64_t least = 0, most = 0, got = latency_count_up_to(&l, us);
        for (int i = 0; i < N; i++) {
            least += times[i] <= us;
            most += (double)times[i] <= (double)us * 1.0313;
        }
        assert_true(got >= least && got <= most);
    }
    assert_int_equal(latency_count_up_to(&l, INT64_MAX), N);
}

static void test_small_times_are_exact_and_large_ones_are_kept(void **state)
{
    static struct latency l;
    assert_int_equal(latency_percentile(&l, 50), 0);
    for (int64_t us = 0; us < 64; us++) {
        static struct latency one;
        one = (struct latency){0};
        latency_add(&one, us);
        assert_int_equal(latency_percentile(&one, 50), us);
    }
    latency_add(&l, -5);
    latency_add(&l, INT64_MAX);
    assert_int_equal(latency_percentile(&l, 50), 0);
    assert_int_equal(latency_percentile(&l, 100), LATENCY_MAX_US);
}

static void test_a_stall_names_what_took_it_since_the_last_look(void **state)
{
    (void)state;
    struct stall stall;
    struct str text = {0};
    stall_begin(&stall, 1000);
    stall_spent(&stall, STALL_CLIENTS, 99000);
    stall_begin(&stall, 100000);
    stall_spent(&stall, STALL_ENGINE, 100100);
    stall_spent(&stall, STALL_KEYS, 103549);
    stall_spent(&stall, STALL_EVICTION, 103598); /* too little to be told */
    stall_spent(&stall, STALL_ENGINE, 103698);
    stall_print(&stall, 3650, &text);
    assert_string_equal(text.data, "3.6 ms of CPU: engine 0.2 ms, keys 3.4 ms");
    str_free(&text);
}

static void test_what_the_thread_slept_is_no_part_of_a_stall(void **state)
{
    (void)state;
    struct stall stall;
    struct str text = {0};
    stall_begin(&stall, 1000);
    stall_wake(&stall, 91000);
    stall_spent(&stall, STALL_EVENTS, 94000);
    stall_wake(&stall, 0);
    stall_spent(&stall, STALL_KEYS, 95000);
    stall_print(&stall, 4000, &text);
    assert_string_equal(text.data, "4.0 ms of CPU: events 3.0 ms, keys 1.0 ms");
    str_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles_are_those_of_the_sorted_times_but_3_percent),
        cmocka_unit_test(test_counts_up_to_a_time_are_those_of_the_sorted_times_but_3_percent),
        cmocka_unit_test(test_small_times_are_exact_and_large_ones_are_kept),
        cmocka_unit_test(test_a_stall_names_what_took_it_since_the_last_look),
        cmocka_unit_test(test_what_the_thread_slept_is_no_part_of_a_stall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
