/* test_evict.c - which key goes when memory is short, and which never does. */
#include "keys_fixture.h"

#include "keyspace/evict.h"

static void text_keys(struct fixture *fx, const char *prefix, int n)
{
    char name[32];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s%d", prefix, i);
        fx_text(fx, name, "some text");
    }
}

static int count(struct fixture *fx, const char *prefix, int n)
{
    char name[32];
    int found = 0;
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s%d", prefix, i);
        found += fx_key(fx, name) != NULL;
    }
    return found;
}

static void test_without_a_policy_nothing_goes(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    text_keys(&fx, "k", 3);
    assert_int_equal(keys_evict(fx.ks, EVICT_NONE), EVICTED_NOTHING);
    assert_int_equal(count(&fx, "k", 3), 3);
    fx_close_all(&fx);
}

static void test_the_least_time_to_live_goes_first_whatever_its_clock(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    text_keys(&fx, "k", 6);
    for (int i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        int64_t ms = 1000 * (i + 1), at = i % 2 ? clock_now_ms() + ms : ms;
        assert_true(keys_expire(fx.ks, 0, bytes_from(name), at, i % 2, 0));
    }
    for (int i = 0; i < 5; i++) {
        assert_int_equal(keys_evict(fx.ks, EVICT_BY_TTL), EVICTED_KEY);
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        assert_null(fx_key(&fx, name));
        assert_int_equal(count(&fx, "k", 6), 5 - i);
    }
    assert_int_equal(keys_evict(fx.ks, EVICT_BY_TTL), EVICTED_NOTHING); /* k5 lives for ever */
    assert_non_null(fx_key(&fx, "k5"));
    fx_close_all(&fx);
}

/* The heap of timers holds waits, pieces and orphans, too. */
static void test_other_timers_hide_no_key(void **state)
{
    enum { READERS = 200 };
    struct fixture fx;
    struct watcher *w = xcalloc(READERS, sizeof *w);
    fx_open(&fx, "");
    for (int i = 0; i < READERS; i++)
        fx_block(&fx, &w[i], "nothing", STREAM_ID_MIN, 10 + i);
    text_keys(&fx, "k", 1);
    assert_true(keys_expire(fx.ks, 0, BYTES("k0"), 100000, false, 0));
    assert_int_equal(keys_evict(fx.ks, EVICT_BY_TTL), EVICTED_KEY);
    for (int i = 0; i < READERS; i++)
        reader_leave(&w[i].reader);
    xfree(w);
    fx_close_all(&fx);
}

static void test_what_nobody_used_goes_before_what_was_used(void **state)
{
    struct fixture fx;
    fx_open(&fx, "");
    text_keys(&fx, "old", 100);
    fx_advance(&fx, 1000);
    text_keys(&fx, "new", 100);
    for (int i = 0; i < 80; i++)
        assert_int_equal(keys_evict(fx.ks, EVICT_BY_USE), EVICTED_KEY);
    assert_int_equal(count(&fx, "old", 100) + count(&fx, "new", 100), 120);
    assert_true(count(&fx, "new", 100) >= 70); /* five are drawn each time: 95 in the mean */
    fx_close_all(&fx);
}

static void test_what_generates_or_tokenises_never_goes(void **state)
{
    static char large[3000];
    struct fixture fx;
    struct client a, b;
    memset(large, 'x', sizeof large - 1);
    fx_open(&fx, "abc");
    fx.never_ends = true;
    fx_gen(&fx, &a, (struct gen_args){.key = "running", .prompt = "p"});
    fx_turns(&fx, 2);
    fx_gen(&fx, &b, (struct gen_args){.key = "unborn", .prompt = large});
    assert_true(keys_expire(fx.ks, 0, BYTES("running"), 1000, false, 0));
    assert_int_equal(keys_evict(fx.ks, EVICT_BY_USE), EVICTED_NOTHING);
    assert_int_equal(keys_evict(fx.ks, EVICT_BY_TTL), EVICTED_NOTHING);
    assert_int_equal(keys_n_generating(fx.ks), 2);
    assert_true(keys_cancel(fx.ks, 0, BYTES("running")));
    assert_int_equal(keys_evict(fx.ks, EVICT_BY_USE), EVICTED_KEY);
    assert_null(fx_key(&fx, "running"));
    fx_turns(&fx, 2);
    assert_int_equal(a.n_answers, 1); /* its waiter has the end entry all the same */
    fx_close_all(&fx);
}

static void test_a_large_stream_comes_back_in_slices_before_another_key_goes(void **state)
{
    struct fixture fx;
    size_t before;
    fx_open(&fx, "");
    before = keys_memory_bytes();
    for (int i = 0; i < 5000; i++)
        fx_text(&fx, "large", "an entry of a large stream");
    fx_advance(&fx, 1000);
    size_t filled = keys_memory_bytes();
    assert_int_equal(keys_evict(fx.ks, EVICT_BY_USE), EVICTED_KEY);
    text_keys(&fx, "small", 10);
    size_t small = keys_memory_bytes();
    int slices = 0;
    while (keys_evict(fx.ks, EVICT_BY_USE) == EVICTED_SLICE && count(&fx, "small", 10) == 10)
        slices++;
    assert_true(slices >= 3);
    assert_int_equal(count(&fx, "small", 10), 9); /* the loop ended with the first of them */
    assert_true(filled - before > 5000 * sizeof(struct entry));
    assert_true(keys_memory_bytes() < small / 10);
    fx_close_all(&fx);
}

static void test_log_probabilities_count_before_the_end_entry_holds_them(void **state)
{
    enum { TURNS = 1000, TOKENS = TURNS / 2, LINE_BYTES = 5 }; /* a line is "120:0" at least */
    size_t used[2], at_first;
    for (int logprobs = 0; logprobs < 2; logprobs++) {
        struct fixture fx;
        struct client c;
        fx_open(&fx, "");
        fx.never_ends = true;
        at_first = keys_memory_bytes();
        struct gen_args args = {
            .key = "k", .prompt = "p", .max_tokens = 2 * TURNS, .logprobs = logprobs};
        fx_gen(&fx, &c, args);
        fx_turns(&fx, TURNS);
        assert_int_equal(keys_n_generating(fx.ks), 1);
        used[logprobs] = keys_memory_bytes();
        assert_true(keys_delete(fx.ks, 0, BYTES("k")));
        fx_turns(&fx, 2);
        assert_int_equal(keys_memory_bytes(), at_first);
        fx_close_all(&fx);
    }
    assert_in_range(used[1] - used[0], TOKENS * LINE_BYTES, 100 * TOKENS * LINE_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_policy_nothing_goes),
        cmocka_unit_test(test_the_least_time_to_live_goes_first_whatever_its_clock),
        cmocka_unit_test(test_other_timers_hide_no_key),
        cmocka_unit_test(test_what_nobody_used_goes_before_what_was_used),
        cmocka_unit_test(test_what_generates_or_tokenises_never_goes),
        cmocka_unit_test(test_a_large_stream_comes_back_in_slices_before_another_key_goes),
        cmocka_unit_test(test_log_probabilities_count_before_the_end_entry_holds_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
