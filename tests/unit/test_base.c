/* test_base.c - strings, numbers, tables, options, random numbers, jobs, files, memory, clock. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <linux/sched/types.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/jobs.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/option.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/table.h"
#include "base/thread.h"

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

static void test_utf8_decodes_each_length_and_refuses_ill_formed(void **state)
{
    static const struct {
        const char *data;
        size_t len;
        int n, bad;
        uint32_t cp;
    } rows[] = {
        {"A", 1, 1, 0, 'A'},
        {"\0", 1, 1, 0, 0},
        {"\xc3\xa9", 2, 2, 0, 0xe9},
        {"\xe2\x82\xac", 3, 3, 0, 0x20ac},
        {"\xf0\x9f\xa6\x99", 4, 4, 0, 0x1f999},
        {"\xf4\x8f\xbf\xbf", 4, 4, 0, 0x10ffff},
        {"\xc0\xaf", 2, 0, 1, 0},         /* overlong slash */
        {"\xed\xa0\x80", 3, 0, 1, 0},     /* surrogate: each byte is ill-formed alone */
        {"\xf4\x90\x80\x80", 4, 0, 1, 0}, /* above U+10FFFF */
        {"\xf0\x9f\xa6", 3, 0, 3, 0},     /* cut: one maximal part */
        {"\xe2\x82z", 3, 0, 2, 0},
        {"\x80", 1, 0, 1, 0},
        {"\xff", 1, 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t cp = 0;
        int bad, n = utf8_decode(rows[i].data, rows[i].len, &cp, &bad);
        assert_int_equal(n, rows[i].n);
        assert_int_equal(bad, rows[i].bad);
        assert_int_equal(cp, rows[i].cp);
    }
}

static void test_utf8_round_trips_every_code_point(void **state)
{
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        char out[4];
        uint32_t back = 0;
        int bad, n = utf8_encode(cp, out), m = utf8_decode(out, (size_t)n, &back, &bad);
        if (cp >= 0xd800 && cp <= 0xdfff)
            assert_int_equal(m, 0);
        else
            assert_true(m == n && back == cp);
    }
}

static void test_utf8_unfinished_counts_only_a_possible_beginning(void **state)
{
    assert_int_equal(utf8_unfinished("a\xf0\x9f\xa6", 4), 3);
    assert_int_equal(utf8_unfinished("a\xf0\x9f\xa6\x99", 5), 0);
    assert_int_equal(utf8_unfinished("\xe2", 1), 1);
    assert_int_equal(utf8_unfinished("\xe2\x9c\x85\x85", 4), 0); /* a lone continuation byte */
    assert_int_equal(utf8_unfinished("\xed\xa0", 2), 0);         /* a surrogate can not come */
    assert_int_equal(utf8_unfinished("", 0), 0);
}

/* ---- numbers and globs ----------------------------------------------------------------------- */

static void test_integers_are_strict_as_in_redis(void **state)
{
    int64_t i;
    uint64_t u;
    static const char *const bad[] = {"",
                                      "-",
                                      "-0",
                                      "01",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1.0",
                                      "0x1",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "99999999999999999999999"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        assert_false(parse_i64(bytes_from(bad[k]), &i));
    assert_true(parse_i64(BYTES("-9223372036854775808"), &i) && i == INT64_MIN);
    assert_true(parse_i64(BYTES("9223372036854775807"), &i) && i == INT64_MAX);
    assert_true(parse_i64(BYTES("0"), &i) && i == 0);
    assert_true(parse_u64(BYTES("18446744073709551615"), &u) && u == UINT64_MAX);
    assert_false(parse_u64(BYTES("18446744073709551616"), &u));
    assert_false(parse_u64(BYTES("-1"), &u));
}

static void test_reals_take_exponents_and_refuse_nan_inf_hex_and_blanks(void **state)
{
    double d;
    static const char *const bad[] = {"",   ".",  "nan", "inf", "-inf", "0x1p3", " 1",
                                      "1 ", "1e", "1e+", "1,5", "--1",  "1e999", "+1"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        assert_false(parse_real(bytes_from(bad[k]), &d));
    assert_true(parse_real(BYTES("0.8"), &d) && d == 0.8);
    assert_true(parse_real(BYTES("-1.5e-3"), &d) && d == -0.0015);
    assert_true(parse_real(BYTES(".5"), &d) && d == 0.5);
    assert_true(parse_real(BYTES("1."), &d) && d == 1);
}

static void test_sizes_and_times_carry_units(void **state)
{
    uint64_t size;
    int64_t ms;
    assert_true(parse_size(BYTES("4kb"), &size) && size == 4096);
    assert_true(parse_size(BYTES("4K"), &size) && size == 4000);
    assert_true(parse_size(BYTES("2gb"), &size) && size == 2147483648u);
    assert_false(parse_size(BYTES("2tb"), &size));
    assert_false(parse_size(BYTES("-1"), &size));
    assert_true(parse_duration(BYTES("10s"), &ms) && ms == 10000);
    assert_true(parse_duration(BYTES("250"), &ms) && ms == 250);
    assert_false(parse_duration(BYTES("18446744073709551615h"), &ms));
    assert_false(parse_duration(BYTES("1.5s"), &ms));
}

static void test_globs_match_as_in_redis(void **state)
{
    static const struct {
        const char *pattern, *text;
        bool nocase, match;
    } rows[] = {
        {"*", "", false, true},
        {"h?llo", "hello", false, true},
        {"h[ae]llo", "hallo", false, true},
        {"h[^e]llo", "hello", false, false},
        {"h[a-c]llo", "hbllo", false, true},
        {"h[c-a]llo", "hbllo", false, true},
        {"a\\*b", "a*b", false, true},
        {"a\\*b", "axb", false, false},
        {"HELLO", "hello", true, true},
        {"a*b*c", "a--b--c", false, true},
        {"a*b*c", "a--b--d", false, false},
        {"[", "x", false, false},
        {"\\", "\\", false, true},
        {"a**", "a", false, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(
            glob_match(bytes_from(rows[i].pattern), bytes_from(rows[i].text), rows[i].nocase),
            rows[i].match);
}

static void test_escaped_bytes_are_read_back(void **state)
{
    static const struct {
        const char *pairs, *want; /* of what every byte from '\a' to '\r', '"' and '\\' become */
    } rows[] = {
        {"", "\\x07\\x08\\x09\\x0a\\x0b\\x0c\\x0d\"\\"},
        {ESCAPES_OF_CONF, "\\x07\\x08\\x09\\x0a\\x0b\\x0c\\x0d\\\"\\\\"},
        {ESCAPES_OF_REPLIES, "\\a\\b\\t\\n\\x0b\\x0c\\r\\\"\\\\"},
    };
    char all[256];
    for (int c = 0; c < 256; c++)
        all[c] = (char)c;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct str out = {0}, line = {0}, word;
        str_append_escaped(&out, BYTES("\a\b\t\n\v\f\r\"\\"), rows[i].pairs);
        assert_string_equal(out.data, rows[i].want);
        str_append_char(&line, '"');
        str_append_escaped(&line, (struct bytes){all, sizeof all}, rows[i].pairs);
        str_append_char(&line, '"');
        if (*rows[i].pairs != '\0') {
            assert_int_equal(option_split(bytes_of(&line), &word, 1), 1);
            assert_true(bytes_equal(bytes_of(&word), (struct bytes){all, sizeof all}));
            str_free(&word);
        }
        str_free(&out);
        str_free(&line);
    }
}

static void test_a_glob_of_many_stars_takes_no_exponential_time(void **state)
{
    struct str pattern = {0}, text = {0};
    for (int i = 0; i < 200; i++)
        str_append_str(&pattern, "a*");
    str_append_char(&pattern, 'b');
    for (int i = 0; i < 20000; i++)
        str_append_char(&text, 'a');
    assert_false(glob_match(bytes_of(&pattern), bytes_of(&text), false));
    str_free(&pattern);
    str_free(&text);
}

/* ---- table ----------------------------------------------------------------------------------- */

static void key_of(char out[16], int i)
{
    snprintf(out, 16, "key:%d", i);
}

static int n_values_freed;

static void note_freed(void *value)
{
    (*(int *)value)++;
    n_values_freed++;
}

static void test_table_is_freed_in_slices_while_it_grows_too(void **state)
{
    (void)state;
    enum { MOST = 300, MAX = 7 };
    for (int n = 0; n <= MOST; n += 13) {
        static int values[MOST];
        struct table *t = table_new();
        char name[16];
        n_values_freed = 0;
        memset(values, 0, sizeof values);
        for (int i = 0; i < n; i++) {
            snprintf(name, sizeof name, "key%d", i);
            table_put(t, bytes_from(name), &values[i]);
        }
        for (int before = 0, is_gone = 0; !is_gone; before = n_values_freed) {
            is_gone = table_free_slice(t, MAX, note_freed);
            assert_true(n_values_freed - before <= MAX);
        }
        for (int i = 0; i < n; i++)
            assert_int_equal(values[i], 1);
    }
}

static void test_table_finds_what_was_put_and_not_what_was_removed(void **state)
{
    struct table *t = table_new();
    static int values[5000];
    char key[16];
    for (int i = 0; i < 5000; i++) {
        key_of(key, i);
        assert_null(table_put(t, bytes_from(key), &values[i]));
    }
    for (int i = 0; i < 5000; i += 2) {
        key_of(key, i);
        assert_ptr_equal(table_remove(t, bytes_from(key)), &values[i]);
    }
    assert_int_equal(table_count(t), 2500);
    for (int i = 0; i < 5000; i++) {
        key_of(key, i);
        assert_ptr_equal(table_get(t, bytes_from(key)), i % 2 ? &values[i] : NULL);
    }
    size_t n = 0;
    struct bytes k;
    int *v;
    TABLE_FOREACH(t, k, v) {
        assert_true((v - values) % 2 == 1);
        n++;
    }
    assert_int_equal(n, 2500);
    table_free(t, NULL);
}

static void mark(void *arg, struct bytes key, void *value)
{
    (void)key;
    (*(int *)value)++;
    (void)arg;
}

static void test_a_scan_across_growth_misses_no_key(void **state)
{
    struct table *t = table_new();
    static int seen[4000];
    char key[16];
    int n = 0;
    memset(seen, 0, sizeof seen);
    for (; n < 1000; n++) {
        key_of(key, n);
        table_put(t, bytes_from(key), &seen[n]);
    }
    uint64_t cursor = 0;
    do {
        cursor = table_scan(t, cursor, mark, NULL);
        for (int i = 0; i < 5 && n < 4000; i++, n++) {
            key_of(key, n);
            table_put(t, bytes_from(key), &seen[n]);
        }
    } while (cursor);
    for (int i = 0; i < 1000; i++)
        assert_true(seen[i] >= 1);
    table_free(t, NULL);
}

/* ---- options --------------------------------------------------------------------------------- */

struct values {
    bool flag;
    int64_t number, time_ms;
    uint64_t size;
    int choice;
    char *name;
};
static const char *const colours[] = {"red", "green", NULL};
static const struct option options[] = {
    {.name = "flag",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, flag),
     .default_text = "yes"},
    {.name = "number",
     .type = OPTION_INT,
     .offset = offsetof(struct values, number),
     .default_text = "7",
     .min = 1,
     .max = 10},
    {.name = "time",
     .type = OPTION_TIME,
     .offset = offsetof(struct values, time_ms),
     .default_text = "10s"},
    {.name = "size",
     .type = OPTION_SIZE,
     .offset = offsetof(struct values, size),
     .default_text = "1mb"},
    {.name = "colour",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct values, choice),
     .default_text = "green",
     .choices = colours},
    {.name = "name",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, name),
     .default_text = ""},
    {.name = NULL},
};

static void test_options_set_print_and_name_the_limit_and_the_value(void **state)
{
    struct values v = {0};
    struct err err;
    struct str out = {0};
    option_defaults(options, &v);
    assert_true(v.flag && v.number == 7 && v.time_ms == 10000 && v.size == 1048576 &&
                v.choice == 1);
    const struct option *number = option_find(options, BYTES("NUMBER"));
    assert_int_equal(option_set(number, &v, BYTES("11"), &err), -1);
    assert_string_equal(err.text, "number must be between 1 and 10, not 11");
    assert_int_equal(v.number, 7);
    assert_int_equal(option_set(option_find(options, BYTES("colour")), &v, BYTES("blue"), &err),
                     -1);
    assert_string_equal(err.text, "colour must be one of red, green, not 'blue'");
    assert_int_equal(option_set(option_find(options, BYTES("name")), &v, BYTES("x y"), &err), 0);
    option_print(option_find(options, BYTES("name")), &v, &out);
    option_print(option_find(options, BYTES("size")), &v, &out);
    assert_string_equal(out.data, "x y1048576");
    assert_null(option_find(options, BYTES("nothing")));
    str_free(&out);
    option_free(options, &v);
}

static void test_a_line_is_split_by_the_quoting_rules(void **state)
{
    struct str words[8];
    int n = option_split(BYTES("  set \"a\\x41\\n\" 'it\\'s' plain\r\n"), words, 8);
    assert_int_equal(n, 4);
    assert_string_equal(words[1].data, "aA\n");
    assert_string_equal(words[2].data, "it's");
    assert_string_equal(words[3].data, "plain");
    while (n > 0)
        str_free(&words[--n]);
    assert_int_equal(option_split(BYTES("set \"a"), words, 8), -1);
    assert_int_equal(option_split(BYTES("set \"a\"b"), words, 8), -1);
    assert_int_equal(option_split(BYTES("1 2 3"), words, 2), -1);
    assert_int_equal(option_split(BYTES("   "), words, 8), 0);
}

/* ---- random, jobs, files, memory, clock ------------------------------------------------------ */

static void test_random_is_a_function_of_its_key(void **state)
{
    assert_true(rng_at(1, 2, 3) == rng_at(1, 2, 3));
    assert_true(rng_at(1, 2, 3) != rng_at(1, 2, 4));
    assert_true(rng_at(1, 2, 3) != rng_at(1, 3, 3));
    assert_true(rng_at(1, 2, 3) != rng_at(2, 2, 3));
    /* Known answer of Philox4x32-10 for an all-zero counter and key: 6627e8d5 e169c58d ... */
    assert_true(rng_at(0, 0, 0) == 0xe169c58d6627e8d5u);
    struct rng r = rng_from(42);
    int histogram[10] = {0};
    for (int i = 0; i < 10000; i++)
        histogram[rng_below(&r, 10)]++;
    for (int i = 0; i < 10; i++) /* 1000 expected, standard deviation 30 */
        assert_true(histogram[i] > 820 && histogram[i] < 1180);
}

static void test_fixed_entropy_repeats_until_it_is_let_go(void **state)
{
    rng_fix_entropy(5);
    uint64_t first = rng_entropy(), second = rng_entropy();
    assert_true(first != second);
    rng_fix_entropy(5);
    assert_true(rng_entropy() == first && rng_entropy() == second);
    rng_fix_entropy(0);
    assert_true(rng_entropy() != first); /* wrong once in 2^64 */
}

struct add_job {
    struct job job;
    int input, output;
    int *sum;
};
static void add_run(struct job *job)
{
    struct add_job *j = (struct add_job *)job;
    j->output = j->input * 2;
}
static void add_done(struct job *job)
{
    struct add_job *j = (struct add_job *)job;
    *j->sum += j->output;
    free(j);
}

static void test_every_job_is_run_once_and_collected_by_the_main_thread(void **state)
{
    for (int threads = 0; threads < 3; threads++) {
        struct jobs *jobs = jobs_new(threads);
        int sum = 0;
        for (int i = 1; i <= 100; i++) {
            struct add_job *j = malloc(sizeof *j);
            *j = (struct add_job){
                .job = {.run = add_run, .done = add_done}, .input = i, .sum = &sum};
            jobs_submit(jobs, &j->job);
        }
        jobs_collect(jobs);
        jobs_free(jobs);
        assert_int_equal(sum, 10100);
    }
}

static void log_run(struct job *job)
{
    for (int i = 0; i < 1000; i++)
        log_debug(LOG_SERVER, "heard by nobody");
}
static void log_done(struct job *job)
{
    free(job);
}

/* CONFIG SET loglevel while job and rank threads log. Looks at nothing itself: a race is what the
 * build under ThreadSanitizer reports. */
static void test_the_log_level_moves_while_other_threads_log(void **state)
{
    enum log_level before = log_threshold;
    struct jobs *jobs = jobs_new(2);
    for (int i = 0; i < 10; i++) {
        struct job *job = malloc(sizeof *job);
        *job = (struct job){.run = log_run, .done = log_done};
        jobs_submit(jobs, job);
        log_threshold = i % 2 ? LOG_NOTICE : LOG_WARNING;
    }
    jobs_free(jobs);
    log_threshold = before;
}

static void test_a_failed_replacement_leaves_the_old_file(void **state)
{
    char directory[] = "/tmp/kvasir-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/file", directory);
    struct err err;
    assert_int_equal(file_replace(path, "old", 3, &err), 0);
    int n = 1;
    for (;; n++) { /* make each call fail in turn, until a run has no failure */
        struct str content = {0};
        file_fail_at((uint64_t)n, ENOSPC);
        int rc = file_replace(path, "new text", 8, &err);
        bool reached = file_calls() >= (uint64_t)n;
        file_fail_at(0, 0);
        assert_int_equal(file_read(path, 100, &content, &err), 0);
        if (!reached) {
            assert_int_equal(rc, 0);
            assert_string_equal(content.data, "new text");
            str_free(&content);
            break;
        }
        assert_int_equal(rc, -1);
        assert_true(strcmp(content.data, "old") == 0 || strcmp(content.data, "new text") == 0);
        str_free(&content);
    }
    assert_true(n > 5);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0); /* fails when a temporary file was left behind */
}

static void test_the_nth_allocation_fails_and_bytes_are_counted(void **state)
{
    size_t before = mem_bytes(MEM_KEY);
    mem_fail_at(2, false);
    void *a = try_malloc(MEM_KEY, 100), *b = try_malloc(MEM_KEY, 100),
         *c = try_malloc(MEM_KEY, 100);
    mem_fail_at(0, false);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_true(mem_bytes(MEM_KEY) >= before + 200);
    try_free(MEM_KEY, a);
    try_free(MEM_KEY, c);
    assert_int_equal(mem_bytes(MEM_KEY), before);
    size_t product;
    assert_false(mul_ok(SIZE_MAX / 2, 3, &product));
}

static void test_the_wall_clock_steps_without_the_monotonic_one(void **state)
{
    clock_freeze(1000000, 5000000);
    clock_step_wall_ms(-86400000);
    assert_int_equal(clock_now_us(), 5000000);
    assert_int_equal(clock_now_ms(), 1000000 - 86400000);
    clock_advance_ms(10);
    assert_int_equal(clock_now_us(), 5010000);
}

static void test_a_list_removes_twice_and_keeps_order(void **state)
{
    struct node {
        int value;
        struct list link;
    } nodes[3] = {{.value = 1}, {.value = 2}, {.value = 3}};
    struct list head;
    list_init(&head);
    for (int i = 0; i < 3; i++)
        list_push_back(&head, &nodes[i].link);
    list_remove(&nodes[1].link);
    list_remove(&nodes[1].link);
    int sum = 0;
    LIST_FOREACH(&head, at, next) {
        sum = sum * 10 + LIST_ITEM(at, struct node, link)->value;
    }
    assert_int_equal(sum, 13);
}

static void test_a_spliced_list_keeps_both_orders_and_empties_the_other(void **state)
{
    struct node {
        int value;
        struct list link;
    } nodes[4] = {{.value = 1}, {.value = 2}, {.value = 3}, {.value = 4}};
    struct list head, other;
    list_init(&head);
    list_init(&other);
    list_push_back(&head, &nodes[0].link);
    list_push_back(&head, &nodes[3].link);
    list_splice(&nodes[0].link, &other); /* nothing */
    list_push_back(&other, &nodes[1].link);
    list_push_back(&other, &nodes[2].link);
    list_splice(&nodes[0].link, &other);
    assert_true(list_is_empty(&other));
    int forth = 0, back = 0;
    LIST_FOREACH(&head, at, next) {
        forth = forth * 10 + LIST_ITEM(at, struct node, link)->value;
    }
    for (struct list *at = head.prev; at != &head; at = at->prev)
        back = back * 10 + LIST_ITEM(at, struct node, link)->value;
    assert_int_equal(forth, 1234);
    assert_int_equal(back, 4321);
}

static struct sched_attr own_attributes(void)
{
    struct sched_attr a = {.size = sizeof a};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0), 0);
    return a;
}

/* A thread that asks to go first. */
struct asking {
    struct job job;
    int extra; /* niceness that it is started with beside its parent's */
    struct sched_attr before, after;
    int high; /* niceness that it should get */
    bool may; /* have that */
};
enum { RISE = 10, LEAST_NICE = -20 };

static void be_nice(int nice)
{
    assert_int_equal(setpriority(PRIO_PROCESS, (id_t)gettid(), nice), 0);
}

static void ask_to_go_first(struct job *job)
{
    struct asking *a = (struct asking *)job;
    be_nice(own_attributes().sched_nice + a->extra);
    a->before = own_attributes();
    a->high = a->before.sched_nice - RISE > LEAST_NICE ? a->before.sched_nice - RISE : LEAST_NICE;
    a->may = setpriority(PRIO_PROCESS, (id_t)gettid(), a->high) == 0;
    if (a->may)
        be_nice(a->before.sched_nice);
    thread_ask_to_go_first();
    a->after = own_attributes();
}

static void asked(struct job *job)
{
}

/* Kernels without slices of a thread's own show 0. */
static void test_who_asks_to_go_first_gets_it_alone_and_keeps_its_policy(void **state)
{
    struct sched_attr own = own_attributes();
    for (int extra = 0; extra <= 5; extra += 5) { /* what it was started with counts */
        struct jobs *jobs = jobs_new(1);
        struct asking a = {.job = {.run = ask_to_go_first, .done = asked}, .extra = extra};
        jobs_submit(jobs, &a.job);
        jobs_free(jobs); /* when it is done */
        assert_int_equal(a.after.size, sizeof a.after);
        assert_int_equal(a.after.sched_policy, a.before.sched_policy);
        assert_int_equal(a.after.sched_nice, a.may ? a.high : a.before.sched_nice);
        assert_true(a.after.sched_runtime == 0 || a.after.sched_runtime == 100000);
        assert_int_equal(own_attributes().sched_nice, own.sched_nice);
        if (!a.may)
            print_message("# no priority is to be had here that is higher\n");
    }
}

static void test_a_thread_knows_how_long_it_waited(void **state)
{
    int64_t waited_us = thread_waited_us();
    assert_true(waited_us >= 0 && thread_waited_us() >= waited_us);
}

/* A logarithm of a probability, and any float at all. */
static void test_six_digits_are_those_of_printf(void **state)
{
    static const double edges[] = {0,        -0.0,  1,           -1,          0.5,      999999.5,
                                   999999.4, -1e-4, 9.999995e-5, 0.000123456, 1e6,      123456,
                                   1e15,     1e-15, 1e300,       -1e-300,     INFINITY, -INFINITY};
    char text[16], expected[16];
    struct rng r = rng_from(7);
    for (int i = 0; i < 100000 + (int)(sizeof edges / sizeof *edges); i++) {
        uint32_t bits = (uint32_t)rng_next(&r);
        float any;
        memcpy(&any, &bits, sizeof any);
        double value =
            i < 100000 ? i % 2 ? any : log((bits + 1.0) / 4294967296.0) : edges[i - 100000];
        value = (double)(float)value;
        if (isnan(value))
            continue;
        int n = snprintf(expected, sizeof expected, "%.6g", value);
        assert_int_equal(format_six(text, value), n);
        assert_string_equal(text, expected);
    }
}

static void test_integers_are_those_of_printf(void **state)
{
    static const int64_t values[] = {0, 1, -1, 9, 10, -10, 123456789012, INT64_MAX, INT64_MIN};
    char text[24], expected[24];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        int n = snprintf(expected, sizeof expected, "%lld", (long long)values[i]);
        assert_int_equal(format_i64(text, values[i]), n);
        assert_string_equal(text, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_six_digits_are_those_of_printf),
        cmocka_unit_test(test_integers_are_those_of_printf),
        cmocka_unit_test(test_utf8_decodes_each_length_and_refuses_ill_formed),
        cmocka_unit_test(test_utf8_round_trips_every_code_point),
        cmocka_unit_test(test_utf8_unfinished_counts_only_a_possible_beginning),
        cmocka_unit_test(test_integers_are_strict_as_in_redis),
        cmocka_unit_test(test_reals_take_exponents_and_refuse_nan_inf_hex_and_blanks),
        cmocka_unit_test(test_sizes_and_times_carry_units),
        cmocka_unit_test(test_globs_match_as_in_redis),
        cmocka_unit_test(test_escaped_bytes_are_read_back),
        cmocka_unit_test(test_a_glob_of_many_stars_takes_no_exponential_time),
        cmocka_unit_test(test_table_finds_what_was_put_and_not_what_was_removed),
        cmocka_unit_test(test_table_is_freed_in_slices_while_it_grows_too),
        cmocka_unit_test(test_a_scan_across_growth_misses_no_key),
        cmocka_unit_test(test_options_set_print_and_name_the_limit_and_the_value),
        cmocka_unit_test(test_a_line_is_split_by_the_quoting_rules),
        cmocka_unit_test(test_random_is_a_function_of_its_key),
        cmocka_unit_test(test_fixed_entropy_repeats_until_it_is_let_go),
        cmocka_unit_test(test_every_job_is_run_once_and_collected_by_the_main_thread),
        cmocka_unit_test(test_the_log_level_moves_while_other_threads_log),
        cmocka_unit_test(test_a_failed_replacement_leaves_the_old_file),
        cmocka_unit_test(test_the_nth_allocation_fails_and_bytes_are_counted),
        cmocka_unit_test(test_the_wall_clock_steps_without_the_monotonic_one),
        cmocka_unit_test(test_a_list_removes_twice_and_keeps_order),
        cmocka_unit_test(test_a_spliced_list_keeps_both_orders_and_empties_the_other),
        cmocka_unit_test(test_who_asks_to_go_first_gets_it_alone_and_keeps_its_policy),
        cmocka_unit_test(test_a_thread_knows_how_long_it_waited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
