/* test_config.c - the option table, conf files and the command line; the conf file explains every
 * option with its default; syntax lines of all commands parse. */
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
#include "base/log.h"
#include "base/mem.h"
#include "server/command.h"
#include "server/config.h"
#include "server/docs.h"
#include "server/gen_options.h"
#include "server/notify.h"

static int read_args(struct config *c, const char *const *args, struct config_command *command,
                     struct err *err)
{
    char *argv[32] = {(char *)(uintptr_t) "kvasir-server"};
    int argc = 1;
    for (; *args; args++)
        argv[argc++] = (char *)(uintptr_t)*args;
    return config_read_args(c, argc, argv, command, err);
}
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* The error of a command line, "" when it is accepted. */
static const char *error_of(const char *const *args)
{
    static struct err err;
    struct config c;
    struct config_command command;
    err.text[0] = '\0';
    config_default(&c);
    (void)read_args(&c, args, &command, &err);
    config_free(&c);
    return err.text;
}

static char *write_file(const char *text)
{
    static char path[64];
    struct err err;
    snprintf(path, sizeof path, "/tmp/kvasir-config-%d", (int)getpid());
    assert_int_equal(file_replace(path, text, strlen(text), &err), 0);
    return path;
}

static void test_units_and_types_of_options(void **state)
{
    struct config c;
    struct config_command command;
    struct err err;
    config_default(&c);
    assert_int_equal(read_args(&c,
                               ARGS("--kv-cache-size", "2gb", "--orphan-timeout", "1500",
                                    "--piece-interval", "0", "--share-prefixes", "YES", "--bind",
                                    "127.0.0.1", "::1", "--loglevel", "verbose", "--timeout", "30"),
                               &command, &err),
                     0);
    assert_int_equal(c.kv_cache_size, 2ull << 30);
    assert_int_equal(c.orphan_timeout_ms, 1500);
    assert_int_equal(c.piece_interval_ms, 0);
    assert_true(c.share_prefixes);
    assert_string_equal(c.bind, "127.0.0.1 ::1");
    assert_int_equal(c.loglevel, LOG_INFO);
    assert_int_equal(c.timeout_s, 30);
    config_free(&c);
}

static void test_wrong_values_name_option_limit_and_value(void **state)
{
    assert_string_equal(error_of(ARGS("--port", "65536")),
                        "command line: port must be between 0 and 65535, not 65536");
    assert_string_equal(error_of(ARGS("--port", "+1")),
                        "command line: port must be a whole number, not '+1'");
    assert_string_equal(error_of(ARGS("--backend", "gpu")),
                        "command line: backend must be one of auto, cpu, ref, not 'gpu'");
    assert_string_equal(error_of(ARGS("--block-size", "24")),
                        "command line: block-size must be 8, 16, 32, 64 or 128");
    assert_string_equal(error_of(ARGS("--unixsocketperm", "8")),
                        "command line: unixsocketperm must be octal permissions such as 700");
    assert_string_equal(error_of(ARGS("--model", "a", "b")),
                        "command line: model takes one value, not 2");
    assert_string_equal(error_of(ARGS("--model")), "command line: model needs a value");
    assert_non_null(strstr(error_of(ARGS("--client-output-buffer-limit", "normal", "1", "2")),
                           "must be 'CLASS HARD SOFT SECONDS ...'"));
}

static void test_unknown_option_is_an_error_on_the_command_line(void **state)
{
    assert_string_equal(error_of(ARGS("--kv-dtype", "int8")),
                        "command line: unknown option 'kv-dtype' (see conf/kvasir.conf)");
    assert_non_null(strstr(error_of(ARGS("--port", "1", "-x")), "port takes one value"));
}

static const char *spelled(const char *letters)
{
    static char text[32];
    struct str out = {0};
    unsigned flags;
    assert_true(notify_parse(bytes_from(letters), &flags));
    notify_print(flags, &out);
    snprintf(text, sizeof text, "%s", out.len > 0 ? out.data : "");
    str_free(&out);
    return text;
}

/* As redis-server 7.0.15 prints them, but for n behind A, which it forgets. */
static void test_classes_of_events_have_one_spelling(void **state)
{
    unsigned flags;
    assert_string_equal(spelled(""), "");
    assert_string_equal(spelled("KEA"), "AKE");
    assert_string_equal(spelled("KEAm"), "AKEm");
    assert_string_equal(spelled("$KEg"), "g$KE");
    assert_string_equal(spelled("KK"), "K");
    assert_string_equal(spelled("dtexzhsl$gE"), "AE");
    assert_string_equal(spelled("KEAn"), "AnKE");
    assert_false(notify_parse(BYTES("KEq"), &flags));
    assert_false(notify_parse(BYTES("K E"), &flags));
    assert_string_equal(error_of(ARGS("--notify-keyspace-events", "KEq")),
                        "command line: Invalid event class character. Use 'Ag$lshzxeKEtmdn'.");
}

static void test_a_redis_conf_starts(void **state)
{
    char *path = write_file("# a comment\n\n"
                            "  save 900 1\n"
                            "port 7000\n"
                            "client-output-buffer-limit normal 1mb 2kb 3\n"
                            "client-output-buffer-limit replica 256mb 64mb 60\n"
                            "client-output-buffer-limit pubsub 5mb 0 0\n"
                            "notify-keyspace-events Elg\n"
                            "appendonly no\r\n"
                            "bind 127.0.0.1 -::1\n"
                            "requirepass \"a \\x62\"");
    struct config c;
    struct config_command command;
    struct err err;
    log_threshold = LOG_WARNING; /* the ignored lines are named in the log */
    config_default(&c);
    int rc = read_args(&c, ARGS(path, "--port", "7001"), &command, &err);
    if (rc < 0)
        fail_msg("%s", err.text);
    assert_int_equal(c.port, 7001); /* the command line counts more */
    assert_string_equal(c.requirepass, "a b");
    struct config_output_limit limit = config_output_limit(&c, CONFIG_NORMAL);
    assert_int_equal(limit.hard_bytes, 1 << 20);
    assert_int_equal(limit.soft_bytes, 2 << 10);
    assert_int_equal(limit.soft_s, 3);
    assert_int_equal(config_output_limit(&c, CONFIG_PUBSUB).hard_bytes, 5 << 20);
    assert_string_equal(c.client_output_buffer_limit,
                        "normal 1048576 2048 3 slave 268435456 67108864 60 pubsub 5242880 0 0");
    assert_string_equal(c.notify_keyspace_events, "glE");
    config_free(&c);
    unlink(path);
}

static void test_a_wrong_line_is_named(void **state)
{
    struct config c;
    struct config_command command;
    struct err err;
    char expected[256];
    char *path = write_file("port 1\nmaxclients none\n");
    config_default(&c);
    assert_int_equal(read_args(&c, ARGS(path), &command, &err), -1);
    snprintf(expected, sizeof expected, "%s:2: maxclients must be a whole number, not 'none'",
             path);
    assert_string_equal(err.text, expected);
    config_free(&c);
    unlink(path);
}

static void test_options_that_exclude_each_other(void **state)
{
    struct config c;
    struct err err;
    config_default(&c);
    assert_int_equal(config_check(&c, &err), 0);
    c.port = 0;
    assert_int_equal(config_check(&c, &err), -1);
    c.port = 1;
    c.max_running = 500;
    assert_int_equal(config_check(&c, &err), -1);
    assert_string_equal(err.text,
                        "max-batch-tokens 512 must be at least max-running 500 + block-size 16");
    config_free(&c);
}

/* conf/kvasir.conf holds every option once, with its default, and a comment above it. */
static void test_the_conf_file_is_the_manual(void **state)
{
    const char *src = getenv("KVASIR_SRC");
    char path[512];
    struct config shown, defaults;
    struct str text = {0};
    struct err err;
    snprintf(path, sizeof path, "%s/conf/kvasir.conf", src ? src : ".");
    assert_int_equal(file_read(path, 1 << 20, &text, &err), 0);
    config_default(&shown);
    config_default(&defaults);
    assert_int_equal(config_read_file(&shown, path, &err), 0);
    for (const struct option *o = config_options; o->name; o++) {
        struct str a = {0}, b = {0}, line = {0};
        option_print(o, &shown, &a);
        option_print(o, &defaults, &b);
        assert_true(bytes_equal(bytes_of(&a), bytes_of(&b)));
        str_printf(&line, "\n%s ", o->name);
        const char *at = strstr(text.data, line.data);
        if (!at || strstr(at + 1, line.data))
            fail_msg("conf/kvasir.conf must hold %s once", o->name);
        const char *before = at;
        while (before > text.data && before[-1] != '\n')
            before--;
        assert_int_equal(*before, '#');
        str_free(&a);
        str_free(&b);
        str_free(&line);
    }
    config_free(&shown);
    config_free(&defaults);
    str_free(&text);
}

/* ---- the command table ------------------------------------------------------------------------ */

static void check_docs(const struct command *c)
{
    struct err err;
    assert_non_null(c->summary);
    assert_non_null(c->since);
    assert_non_null(c->group);
    assert_non_null(c->complexity);
    assert_true(c->run || (c->subcommands && c->arity <= -2)); /* what a bare container would run */
    assert_true(!c->subcommands || command_find_sub(c, BYTES("help")));
    struct docs_node *root = docs_parse(c->syntax ? c->syntax : "", &err);
    if (!root)
        fail_msg("%s: %s", c->name, err.text);
    docs_free(root);
    for (const struct command *sub = c->subcommands; sub && sub->name; sub++)
        check_docs(sub);
}

static void test_every_command_is_documented(void **state)
{
    int n = 0;
    for (const struct command *const *family = command_families; *family; family++) {
        for (const struct command *c = *family; c->name; c++) {
            check_docs(c);
            n++;
        }
    }
    assert_int_equal(n, commands_count());
    assert_true(n > 50);
}

static void test_syntax_lines_read_as_people_write_them(void **state)
{
    struct err err;
    struct str out = {0};
    struct docs_node *root = docs_parse(
        "key:key [<c: NX|XX>] (STREAMS k:key... id...) [BIAS i v:double]... [AT x] <a|B c>", &err);
    assert_non_null(root);
    docs_print(root, &out);
    assert_string_equal(out.data,
                        "key [NX | XX] STREAMS k ... id ... [BIAS i v] ... [AT x] <a | B c>");
    docs_free(root);
    str_free(&out);
    assert_null(docs_parse("[a", &err));
    assert_null(docs_parse("<a|b", &err));
    assert_null(docs_parse("a]", &err));
}

static void collect_tokens(const struct docs_node *n, struct str *out)
{
    if (n->token.len > 0)
        str_printf(out, " %s ", n->token.data);
    for (int i = 0; i < n->n; i++)
        collect_tokens(n->children[i], out);
}

/* The documentation of GEN and the table that parses it name the same options. */
static void test_gen_syntax_names_every_option(void **state)
{
    struct err err;
    struct str tokens = {0}, wanted = {0};
    struct docs_node *root = docs_parse(GEN_SYNTAX, &err);
    collect_tokens(root, &tokens);
    for (int i = 0; gen_option_name(i); i++) {
        str_clear(&wanted);
        str_printf(&wanted, " %s ", gen_option_name(i));
        if (!strstr(tokens.data, wanted.data))
            fail_msg("%s is not in GEN_SYNTAX", gen_option_name(i));
    }
    docs_free(root);
    str_free(&tokens);
    str_free(&wanted);
}

/* ---- GEN options ------------------------------------------------------------------------------ */

enum { VOCABULARY = 1000, MAX_WORDS = 3000 };

/* Parses words separated by blanks; ~ stands for an empty word. The error, "" for none. */
static const char *gen_error(const char *line, struct gen_parse *p)
{
    static struct bytes args[MAX_WORDS];
    static struct err err;
    struct request q = {.args = args};
    while (*line) {
        size_t n = strcspn(line, " ");
        args[q.n_args++] = *line == '~' ? BYTES("") : (struct bytes){line, n};
        line += n + (line[n] == ' ');
    }
    err.text[0] = '\0';
    *p = (struct gen_parse){0};
    if (gen_parse(p, &q, VOCABULARY, &err) < 0)
        assert_true(err.text[0] != '\0');
    return err.text;
}

static void expect_gen(const char *line, const char *error)
{
    struct gen_parse p;
    assert_string_equal(gen_error(line, &p), error);
    gen_parse_free(&p);
}

static void test_gen_options_reach_the_request(void **state)
{
    struct gen_parse p;
    const char *line =
        "GEN k prompt AS user maxtokens 7 TEMP 0.5 TOPK 40 TOPP 0.9 MINP 0.1 REPEAT "
        "1.1 PRESENCE -2 FREQUENCY 1e1 SEED 18446744073709551615 STOP a STOP b BIAS 3 "
        "-1.5 BIAS 4 2 BIAS 3 9 IGNOREEOS DEADLINE 100 ID 5f0c WITHINFO BLOCK 4000";
    assert_string_equal(gen_error(line, &p), "");
    const struct gen_request *r = &p.request;
    assert_true(r->has_prompt && bytes_equal(r->prompt, BYTES("prompt")));
    assert_true(bytes_equal(r->role, BYTES("user")));
    assert_int_equal(r->options.max_tokens, 7);
    assert_true(r->options.temperature == 0.5f && r->options.top_p == 0.9f);
    assert_true(r->options.min_p == 0.1f && r->options.repeat == 1.1f);
    assert_true(r->options.presence == -2 && r->options.frequency == 10);
    assert_int_equal(r->options.top_k, 40);
    assert_true(r->options.seed == UINT64_MAX);
    assert_int_equal(r->options.n_stops, 2);
    assert_true(bytes_equal(r->options.stops[1], BYTES("b")));
    assert_int_equal(r->options.n_bias, 2);
    assert_int_equal(r->options.bias[0].id, 3);
    assert_true(r->options.bias[0].value == 9); /* the last of an id counts */
    assert_true(r->options.ignore_eos && r->with_info && !r->async && !r->ids);
    assert_int_equal(r->deadline_ms, 100);
    assert_true(bytes_equal(r->id, BYTES("5f0c")));
    assert_int_equal(r->block_ms, 4000);
    assert_int_equal(r->given, GEN_HAS_MAX_TOKENS | GEN_HAS_TEMPERATURE | GEN_HAS_SEED);
    assert_true(bytes_equal(r->args[0], BYTES("k")));
    assert_true(bytes_equal(r->args[r->block_arg], BYTES("BLOCK")));
    gen_parse_free(&p);
}

static void test_gen_words_behind_the_key_are_the_prompt(void **state)
{
    struct gen_parse p;
    assert_string_equal(gen_error("GEN k MAXTOKENS", &p), "");
    assert_true(bytes_equal(p.request.prompt, BYTES("MAXTOKENS")));
    gen_parse_free(&p);
    assert_string_equal(gen_error("GEN k", &p), "");
    assert_false(p.request.has_prompt);
    expect_gen(
        "GEN k MAXTOKENS 5",
        "ERR unknown GEN option '5'. What follows the key is the prompt, options come behind "
        "it: GEN key \"\" MAXTOKENS 5 goes on without one");
    expect_gen("GEN k ~ MAXTOKENS 5", "");
}

static void test_gen_refuses_what_is_out_of_range(void **state)
{
    static const struct {
        const char *options, *error;
    } cases[] = {
        {"MAXTOKENS 0", "ERR GEN MAXTOKENS must be an integer from 1 to 2147483647, not '0'"},
        {"MAXTOKENS 2147483648",
         "ERR GEN MAXTOKENS must be an integer from 1 to 2147483647, not '2147483648'"},
        {"MAXTOKENS 5.0", "ERR GEN MAXTOKENS must be an integer from 1 to 2147483647, not '5.0'"},
        {"TEMP 100.1", "ERR GEN TEMP must be a number from 0 to 100, not '100.1'"},
        {"TEMP nan", "ERR GEN TEMP must be a number from 0 to 100, not 'nan'"},
        {"TEMP 0x1", "ERR GEN TEMP must be a number from 0 to 100, not '0x1'"},
        {"TEMP 0,5", "ERR GEN TEMP must be a number from 0 to 100, not '0,5'"},
        {"TEMP -0.1", "ERR GEN TEMP must be a number from 0 to 100, not '-0.1'"},
        {"TOPK 1001", "ERR GEN TOPK must be an integer from 0 to 1000, not '1001'"},
        {"TOPK -1", "ERR GEN TOPK must be an integer from 0 to 1000, not '-1'"},
        {"TOPP 1.01", "ERR GEN TOPP must be a number from 0 to 1, not '1.01'"},
        {"MINP -1", "ERR GEN MINP must be a number from 0 to 1, not '-1'"},
        {"REPEAT 0", "ERR GEN REPEAT must be a number above 0 up to 10, not '0'"},
        {"REPEAT 1e-60", "ERR GEN REPEAT must be a number above 0 up to 10, not '1e-60'"},
        {"PRESENCE 101", "ERR GEN PRESENCE must be a number from -100 to 100, not '101'"},
        {"FREQUENCY -101", "ERR GEN FREQUENCY must be a number from -100 to 100, not '-101'"},
        {"SEED 18446744073709551616",
         "ERR GEN SEED must be an integer from 0 to 18446744073709551615, not "
         "'18446744073709551616'"},
        {"SEED -1", "ERR GEN SEED must be an integer from 0 to 18446744073709551615, not '-1'"},
        {"STOP ~", "ERR GEN STOP must not be empty"},
        {"BIAS 1000 0",
         "ERR GEN BIAS id must be a token of the vocabulary, from 0 to 999, not '1000'"},
        {"BIAS 1 1001", "ERR GEN BIAS must be a number from -1000 to 1000, not '1001'"},
        {"BIAS 1", "ERR GEN BIAS needs 2 values"},
        {"DEADLINE 0", "ERR GEN DEADLINE must be an integer from 1 to 4611686018427387, not '0'"},
        {"ID ~", "ERR GEN ID must have 1 to 128 bytes, not 0"},
        {"ID 01234567890123456789012345678901234567890123456789012345678901234567890123456789"
         "0123456789012345678901234567890123456789012345678",
         "ERR GEN ID must have 1 to 128 bytes, not 129"},
        {"ID a ID b", "ERR GEN ID is given twice"},
        {"TEMP 1 temp 2", "ERR GEN TEMP is given twice"},
        {"TEMP", "ERR GEN TEMP needs 1 value"},
        {"BLOCK 1 ASYNC", "ERR GEN BLOCK and ASYNC exclude each other"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        snprintf(line, sizeof line, "GEN k p %s", cases[i].options);
        expect_gen(line, cases[i].error);
    }
}

static void test_gen_counts_stops_and_biases(void **state)
{
    struct str line = {0};
    str_append_str(&line, "GEN k p");
    for (int i = 0; i < 64; i++)
        str_append_str(&line, " STOP x");
    expect_gen(line.data, "");
    str_append_str(&line, " STOP x");
    expect_gen(line.data, "ERR GEN has more than 64 STOP");
    str_clear(&line);
    str_append_str(&line, "GEN k p STOP ");
    for (int i = 0; i < 1025; i++)
        str_append_char(&line, 'x');
    expect_gen(line.data, "ERR GEN STOP has 1025 bytes, at most 1024 are allowed");
    str_free(&line);
}

static void test_gen_counts_biases(void **state)
{
    enum { N = 1025 };
    static struct bytes args[3 + 3 * N];
    struct request q = {.args = args, .n_args = 3};
    struct gen_parse p = {0};
    struct err err;
    args[0] = BYTES("GEN"), args[1] = BYTES("k"), args[2] = BYTES("p");
    for (int i = 0; i < N; i++) {
        args[q.n_args++] = BYTES("BIAS");
        args[q.n_args++] = BYTES("1");
        args[q.n_args++] = BYTES("0");
    }
    assert_int_equal(gen_parse(&p, &q, VOCABULARY, &err), -1);
    assert_string_equal(err.text, "ERR GEN has more than 1024 BIAS");
    gen_parse_free(&p);
    p = (struct gen_parse){0};
    q.n_args -= 3;
    assert_int_equal(gen_parse(&p, &q, VOCABULARY, &err), 0);
    assert_int_equal(p.request.options.n_bias, 1);
    gen_parse_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_and_types_of_options),
        cmocka_unit_test(test_wrong_values_name_option_limit_and_value),
        cmocka_unit_test(test_unknown_option_is_an_error_on_the_command_line),
        cmocka_unit_test(test_classes_of_events_have_one_spelling),
        cmocka_unit_test(test_a_redis_conf_starts),
        cmocka_unit_test(test_a_wrong_line_is_named),
        cmocka_unit_test(test_options_that_exclude_each_other),
        cmocka_unit_test(test_the_conf_file_is_the_manual),
        cmocka_unit_test(test_every_command_is_documented),
        cmocka_unit_test(test_syntax_lines_read_as_people_write_them),
        cmocka_unit_test(test_gen_syntax_names_every_option),
        cmocka_unit_test(test_gen_options_reach_the_request),
        cmocka_unit_test(test_gen_words_behind_the_key_are_the_prompt),
        cmocka_unit_test(test_gen_refuses_what_is_out_of_range),
        cmocka_unit_test(test_gen_counts_stops_and_biases),
        cmocka_unit_test(test_gen_counts_biases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
