/* test_resp.c - the request reader: every byte stream of workloads/resp, whole and cut anywhere;
 * limits before and after AUTH; memory that follows the data and not the header; failing
 * allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/reply.h"
#include "server/resp.h"

static const struct resp_limits open_limits = {true, 512u << 20, 64u << 20};
static const struct resp_limits closed_limits = {false, 512u << 20, 64u << 20};

/* What the reader made of some bytes, as text: a line a request, then the state at the end. */
struct transcript {
    struct resp_reader reader;
    struct str text;
    bool broken;
};

static void feed(struct transcript *t, const struct resp_limits *limits, const char *data,
                 size_t len)
{
    struct err err;
    while (len > 0 && !t->broken) {
        size_t used;
        enum resp_status s = resp_read(&t->reader, limits, data, len, &used, &err);
        assert_true(used <= len);
        data += used;
        len -= used;
        if (s == RESP_BROKEN) {
            str_printf(&t->text, "!%s", err.text);
            t->broken = true;
        } else if (s == RESP_READY) {
            str_printf(&t->text, "%d:", t->reader.request.n_args);
            for (int i = 0; i < t->reader.request.n_args; i++) {
                struct bytes a = t->reader.request.args[i];
                assert_int_equal(a.data[a.len], '\0');
                str_append_char(&t->text, ' ');
                str_append(&t->text, a.data, a.len);
            }
            str_append_char(&t->text, '\n');
        } else {
            assert_int_equal(len, 0);
        }
    }
}

static void transcript_end(struct transcript *t)
{
    resp_free(&t->reader);
    str_free(&t->text);
}

static void expect(const struct resp_limits *limits, struct bytes input, const char *text)
{
    struct transcript t = {0};
    feed(&t, limits, input.data, input.len);
    assert_string_equal(t.text.data ? t.text.data : "", text);
    transcript_end(&t);
}
#define EXPECT(input, text) expect(&open_limits, BYTES(input), text)

/* ---- the files of workloads/resp ------------------------------------------------------------- */

struct case_file {
    const char *name;
    const char *text; /* of the transcript; NULL: only sameness is checked */
    bool before_auth;
};
static const struct case_file files[] = {
    {"args_1m_header_only", "", false},
    {"bad_bulk_2e9", "!Protocol error: invalid bulk length", false},
    {"bad_bulk_2p63", "!Protocol error: invalid bulk length", false},
    {"bad_bulk_neg1", "!Protocol error: invalid bulk length", false},
    {"bad_bulk_neg10", "!Protocol error: invalid bulk length", false},
    {"bad_bulk_text", "!Protocol error: invalid bulk length", false},
    {"bad_bulk_wrong_terminator", "!Protocol error: expected CR LF after a bulk string", false},
    {"bad_dollar_nul", "!Protocol error: too big inline request", false},
    {"bad_header_f", "!Protocol error: expected '$', got 'f'", false},
    {"bad_http_post", "3: POST / HTTP/1.1\n2: Host: localhost\n1: FLUSHALL\n", false},
    {"bad_inline_70k_no_newline", "!Protocol error: too big inline request", false},
    {"bad_len_line_70k", "!Protocol error: too big mbulk count string", false},
    {"bad_multibulk_2p31", "!Protocol error: invalid multibulk length", false},
    {"bad_multibulk_2p63", "!Protocol error: invalid multibulk length", false},
    {"bad_multibulk_3e9", "!Protocol error: invalid multibulk length", false},
    {"bad_multibulk_leading_zero", "!Protocol error: invalid multibulk length", false},
    {"bad_multibulk_plus", "!Protocol error: invalid multibulk length", false},
    {"bad_multibulk_space", "!Protocol error: invalid multibulk length", false},
    {"bad_multibulk_text", "!Protocol error: invalid multibulk length", false},
    {"bad_no_bulk", "!Protocol error: expected '$', got 'f'", false},
    {"bad_nul_line", "!Protocol error: too big inline request", false},
    {"bad_star_nul", "!Protocol error: too big mbulk count string", false},
    {"bad_tls_hello_on_plain", "!Protocol error: TLS record on a port without TLS", false},
    {"bad_unbalanced_quotes", "!Protocol error: unbalanced quotes in request", false},
    {"hello3_then_garbage", "2: HELLO 3\n!Protocol error: invalid bulk length", false},
    {"hello_bad_version", "2: HELLO 999\n", false},
    {"ok_binary_arg", NULL, false},
    {"ok_empty_line", "1: PING\n", false},
    {"ok_neg_multibulk", "1: PING\n", false},
    {"ok_null_bulk_arg", "2: PING \n", false},
    {"ok_ping_inline", "1: PING\n", false},
    {"ok_ping_lf_only", "1: PING\n", false},
    {"ok_pipeline_3", "1: PING\n1: PING\n1: PING\n", false},
    {"ok_zero_multibulk", "1: PING\n", false},
    {"trunc_mid_bulk", "", false},
    {"trunc_mid_len", "", false},
    {"unauth_11_args", "!Protocol error: unauthenticated multibulk length", true},
    {"unauth_bulk_16385", "!Protocol error: unauthenticated bulk length", true},
    {"unauth_flood_ping_5000", NULL, true},
};

static bool same_text(const struct transcript *a, const struct transcript *b)
{
    return bytes_equal(bytes_of(&a->text), bytes_of(&b->text)) && a->broken == b->broken;
}

static void check_cut(const struct resp_limits *limits, struct bytes data, size_t at,
                      const struct transcript *whole, const char *name)
{
    struct transcript cut = {0};
    feed(&cut, limits, data.data, at);
    feed(&cut, limits, data.data + at, data.len - at);
    if (!same_text(whole, &cut))
        fail_msg("%s cut at %zu: %s", name, at, cut.text.data);
    transcript_end(&cut);
}

/* Large files are cut everywhere near their ends and near the line limit, and at every 97th byte.
 */
static bool cut_here(size_t at, size_t len)
{
    return len < 4096 || at < 64 || len - at < 64 || at % 97 == 0 ||
           (at > RESP_MAX_LINE - 8 && at < RESP_MAX_LINE + 8);
}

static void check_file(const struct case_file *f, struct bytes data)
{
    const struct resp_limits *limits = f->before_auth ? &closed_limits : &open_limits;
    struct transcript whole = {0}, bytewise = {0};
    feed(&whole, limits, data.data, data.len);
    if (f->text && strcmp(whole.text.data ? whole.text.data : "", f->text) != 0)
        fail_msg("%s: %s", f->name, whole.text.data);
    for (size_t i = 0; i < data.len; i++)
        feed(&bytewise, limits, data.data + i, 1);
    if (!same_text(&whole, &bytewise))
        fail_msg("%s byte by byte: %s", f->name, bytewise.text.data);
    for (size_t at = 0; at <= data.len; at++)
        if (cut_here(at, data.len))
            check_cut(limits, data, at, &whole, f->name);
    transcript_end(&whole);
    transcript_end(&bytewise);
}

static void resp_folder(char *path, size_t cap)
{
    const char *workloads = getenv("KVASIR_WORKLOADS"), *src = getenv("KVASIR_SRC");
    if (workloads)
        snprintf(path, cap, "%s/resp", workloads);
    else
        snprintf(path, cap, "%s/tests/fuzz/seeds/resp", src ? src : ".");
}

static void test_every_stream_reads_the_same_however_it_is_cut(void **state)
{
    char folder[512], path[1024];
    resp_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct str data = {0};
        struct err err;
        snprintf(path, sizeof path, "%s/%s.resp", folder, files[i].name);
        if (file_read(path, 1 << 20, &data, &err) < 0)
            fail_msg("%s", err.text);
        check_file(&files[i], bytes_of(&data));
        str_free(&data);
    }
}

/* ---- single facts ---------------------------------------------------------------------------- */

static void test_binary_arguments_keep_their_bytes(void **state)
{
    struct transcript t = {0};
    feed(&t, &open_limits, "*2\r\n$4\r\nECHO\r\n$4\r\n\0\r\n\xff\r\n", 24);
    assert_int_equal(t.text.len, strlen("2: ECHO ") + 4 + 1);
    assert_memory_equal(t.text.data + 8, "\0\r\n\xff", 4);
    transcript_end(&t);
}

static void test_inline_words_follow_the_quoting_rules(void **state)
{
    EXPECT("echo \"\\x41\\n\" 'b c'\r\n", "3: echo A\n b c\n");
    EXPECT("   \r\n\n\r\n  PING  \n", "1: PING\n");
    EXPECT("echo \"a\"b\r\n", "!Protocol error: unbalanced quotes in request");
}

static void test_empty_requests_leave_the_reader_as_new(void **state)
{
    /* CVE-2026-27623: each kind of nothing, followed by each kind of request */
    EXPECT("*0\r\nPING\r\n", "1: PING\n");
    EXPECT("*-1\r\n*1\r\n$4\r\nPING\r\n", "1: PING\n");
    EXPECT("\r\n*0\r\n\r\n*1\r\n$4\r\nPING\r\nPING\n", "1: PING\n1: PING\n");
}

static void test_lf_only_requests_wait(void **state)
{
    EXPECT("*1\n$4\nPING\n", "");
    EXPECT("*1\r$4\r\n", "!Protocol error: expected LF after CR");
}

static void test_number_of_arguments_is_bounded(void **state)
{
    EXPECT("*1048576\r\n", "");
    EXPECT("*1048577\r\n", "!Protocol error: invalid multibulk length");
    EXPECT("*18446744073709551617\r\n", "!Protocol error: invalid multibulk length");
}

static void test_limits_before_auth_include_inline_requests(void **state)
{
    expect(&closed_limits, BYTES("a b c d e f g h i j\n"), "10: a b c d e f g h i j\n");
    expect(&closed_limits, BYTES("a b c d e f g h i j k\n"),
           "!Protocol error: unauthenticated multibulk length");
    expect(&closed_limits, BYTES("*10\r\n$16384\r\n"), "");
    struct str line = {0};
    for (int i = 0; i < RESP_AUTH_BULK + 1; i++)
        str_append_char(&line, 'x');
    str_append_char(&line, '\n');
    expect(&closed_limits, bytes_of(&line), "!Protocol error: unauthenticated bulk length");
    str_free(&line);
}

static void test_one_request_is_bounded_with_what_keeps_it(void **state)
{
    struct resp_limits small = {true, 512u << 20, 4096};
    struct transcript t = {0};
    feed(&t, &small, "*1000\r\n", 7);
    for (int i = 0; i < 1000 && !t.broken; i++)
        feed(&t, &small, "$1\r\na\r\n", 7);
    assert_string_equal(t.text.data, "!Protocol error: request over client-query-buffer-limit");
    transcript_end(&t);
    expect(&small, BYTES("*1\r\n$5000\r\n"), "");
}

static void test_headers_alone_allocate_nothing(void **state)
{
    size_t before = mem_bytes(MEM_CLIENT);
    struct transcript t = {0};
    feed(&t, &open_limits, "*1048576\r\n$500000000\r\nabc", 26);
    assert_true(mem_bytes(MEM_CLIENT) - before < 4096);
    transcript_end(&t);
    assert_int_equal(mem_bytes(MEM_CLIENT), before);
}

static void test_an_idle_reader_gives_its_memory_back(void **state)
{
    size_t before = mem_bytes(MEM_CLIENT);
    struct transcript t = {0};
    struct str big = {0};
    str_append_str(&big, "*2\r\n$4\r\nECHO\r\n$100000\r\n");
    for (int i = 0; i < 100000; i++)
        str_append_char(&big, 'x');
    str_append_str(&big, "\r\n");
    feed(&t, &open_limits, big.data, big.len);
    assert_true(mem_bytes(MEM_CLIENT) - before > 100000);
    resp_rest(&t.reader);
    assert_int_equal(mem_bytes(MEM_CLIENT), before);
    transcript_end(&t);
    str_free(&big);
}

static void test_a_taken_request_outlives_the_reader(void **state)
{
    struct resp_reader r = {0};
    struct err err;
    size_t used;
    const char *input = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n";
    assert_int_equal(resp_read(&r, &open_limits, input, strlen(input), &used, &err), RESP_READY);
    struct request q = resp_take(&r);
    assert_int_equal(resp_read(&r, &open_limits, input + used, strlen(input) - used, &used, &err),
                     RESP_READY);
    resp_free(&r);
    assert_int_equal(q.n_args, 2);
    assert_string_equal(q.args[1].data, "k");
    request_free(&q);
}

/* Every allocation fails once: an error, never a crash, never a request that lost an argument. */
static void test_failing_memory_is_a_protocol_error(void **state)
{
    const char *input = "*3\r\n$3\r\nGEN\r\n$1\r\nk\r\n$400\r\n";
    struct str all = {0};
    str_append_str(&all, input);
    for (int i = 0; i < 400; i++)
        str_append_char(&all, 'x');
    str_append_str(&all, "\r\necho \"hello there\" 'and more'\r\n");
    size_t n_failed = 0;
    for (uint64_t n = 1; n < 100; n++) {
        struct transcript t = {0};
        mem_fail_at(n, false);
        for (size_t i = 0; i < all.len; i++)
            feed(&t, &open_limits, all.data + i, 1);
        bool failed = mem_try_calls() >= n;
        mem_fail_at(0, false);
        if (failed) {
            assert_true(t.broken);
            assert_non_null(strstr(t.text.data, "out of memory"));
            n_failed++;
        }
        transcript_end(&t);
    }
    assert_true(n_failed > 3);
    str_free(&all);
}

static void test_random_bytes_read_the_same_in_random_pieces(void **state)
{
    static const char alphabet[] = "*$0123459\r\n\r\n\"' aPING-+x\\";
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        struct rng rng = rng_from(seed);
        char data[96];
        size_t len = 1 + rng_below(&rng, sizeof data);
        for (size_t i = 0; i < len; i++)
            data[i] = alphabet[rng_below(&rng, sizeof alphabet - 1)];
        struct transcript whole = {0}, pieces = {0};
        feed(&whole, &open_limits, data, len);
        for (size_t at = 0, n; at < len; at += n) {
            n = 1 + rng_below(&rng, len - at);
            feed(&pieces, &open_limits, data + at, n);
        }
        if (!same_text(&whole, &pieces))
            fail_msg("seed %llu", (unsigned long long)seed);
        transcript_end(&whole);
        transcript_end(&pieces);
    }
}

/* ---- replies --------------------------------------------------------------------------------- */

static struct reply reply_to(struct str *out, int protocol)
{
    return (struct reply){.out = out, .protocol = protocol};
}

static void write_every_type(struct reply *r)
{
    reply_map(r, 1);
    reply_set(r, 1);
    reply_null(r);
    reply_null_array(r);
    reply_verbatim(r, BYTES("a\n"));
    reply_int(r, -7);
    reply_bulk(r, BYTES("x\r\ny"));
}

static void test_reply_types_of_both_protocols(void **state)
{
    struct str out = {0};
    struct reply r2 = reply_to(&out, 2);
    write_every_type(&r2);
    assert_string_equal(out.data,
                        "*2\r\n*1\r\n$-1\r\n*-1\r\n$2\r\na\n\r\n:-7\r\n"
                        "$4\r\nx\r\ny\r\n");
    str_clear(&out);
    struct reply r3 = reply_to(&out, 3);
    write_every_type(&r3);
    assert_string_equal(out.data, "%1\r\n~1\r\n_\r\n_\r\n=6\r\ntxt:a\n\r\n:-7\r\n"
                                  "$4\r\nx\r\ny\r\n");
    str_free(&out);
}

static void test_an_error_stays_one_line(void **state)
{
    struct str out = {0};
    struct reply r = reply_to(&out, 2);
    reply_error(&r, "ERR no such key '%s'", "a\r\n+OK\x01");
    assert_string_equal(out.data, "-ERR no such key 'a  +OK '\r\n");
    assert_int_equal(r.errors, 1);
    str_free(&out);
}

static void test_an_overlong_reply_becomes_an_error(void **state)
{
    struct str out = {0};
    struct reply r = reply_to(&out, 2);
    r.limit = 100;
    reply_begin(&r);
    reply_ok(&r);
    reply_end(&r);
    reply_begin(&r);
    reply_array(&r, 50);
    for (int i = 0; i < 50; i++)
        reply_text(&r, "0123456789");
    reply_end(&r);
    assert_memory_equal(out.data, "+OK\r\n-ERR the reply is over client-output-buffer-limit", 54);
    assert_string_equal(out.data + out.len - 11, "use COUNT\r\n");
    str_free(&out);
}

static void test_a_header_can_follow_its_elements(void **state)
{
    struct str out = {0};
    struct reply r = reply_to(&out, 3);
    reply_ok(&r);
    size_t at = reply_hold(&r);
    reply_int(&r, 1);
    reply_int(&r, 2);
    reply_map_at(&r, at, 1);
    assert_string_equal(out.data, "+OK\r\n%1\r\n:1\r\n:2\r\n");
    str_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_stream_reads_the_same_however_it_is_cut),
        cmocka_unit_test(test_binary_arguments_keep_their_bytes),
        cmocka_unit_test(test_inline_words_follow_the_quoting_rules),
        cmocka_unit_test(test_empty_requests_leave_the_reader_as_new),
        cmocka_unit_test(test_lf_only_requests_wait),
        cmocka_unit_test(test_number_of_arguments_is_bounded),
        cmocka_unit_test(test_limits_before_auth_include_inline_requests),
        cmocka_unit_test(test_one_request_is_bounded_with_what_keeps_it),
        cmocka_unit_test(test_headers_alone_allocate_nothing),
        cmocka_unit_test(test_an_idle_reader_gives_its_memory_back),
        cmocka_unit_test(test_a_taken_request_outlives_the_reader),
        cmocka_unit_test(test_failing_memory_is_a_protocol_error),
        cmocka_unit_test(test_random_bytes_read_the_same_in_random_pieces),
        cmocka_unit_test(test_reply_types_of_both_protocols),
        cmocka_unit_test(test_an_error_stays_one_line),
        cmocka_unit_test(test_an_overlong_reply_becomes_an_error),
        cmocka_unit_test(test_a_header_can_follow_its_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
