/* test_tok_load.c - a tokenizer out of GGUF metadata: kinds, ends, beginnings, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/err.h"
#include "model/gguf.h"
#include "model/gguf_write.h"
#include "model/tokenizer.h"
#include "tests/unit/token_checks.h"

#define KEY(name) "tokenizer.ggml." name
#define G "\xc4\xa0" /* how a blank is spelled in vocabularies */

/* Ids 0 .. 9, then the missing words for a fault. Types: see gguf's token_type. */
static const struct token {
    const char *text;
    int32_t type;
} TOKENS[] = {
    {"a", 1},          {"b", 1},          {"ab", 1},          {G "a", 1},  {G, 1},
    {"<|im_end|>", 3}, {"<|eot_id|>", 4}, {"<tool_call>", 4}, {"    ", 4}, {"<0x0A>", 6},
    {"<s>", 3},        {"[PAD11]", 5},    {"</s>", 1},
};
enum {
    N_TOKENS = sizeof TOKENS / sizeof *TOKENS,
    AB = 2,
    BLANK = 4,
    IM_END,
    EOT,
    TOOL,
    WIDE,
    NEWLINE,
    BOS,
    PAD,
    SLASH_S
};

/* What a case changes of a file that loads. */
struct change {
    const char *model, *pre; /* NULL: gpt2, gpt-2; "" leaves the key out */
    int64_t eos, bos;        /* 0: no key (token 0 ends nothing here) */
    int add_bos;             /* 0 no key, 1 true, -1 false */
    bool no_tokens, no_merges, types_u8;
    uint64_t n_types;  /* 0: one for each token */
    const char *merge; /* instead of "a b"; NULL: that */
};

static void write_vocabulary(struct gguf_writer *w, const struct change *c)
{
    struct bytes texts[N_TOKENS],
        merges[2] = {bytes_from(c->merge ? c->merge : "a b"), bytes_from(G " a")};
    int32_t types[N_TOKENS];
    uint8_t narrow[N_TOKENS];
    uint64_t n_types = c->n_types ? c->n_types : N_TOKENS;
    for (int i = 0; i < N_TOKENS; i++) {
        texts[i] = bytes_from(TOKENS[i].text);
        types[i] = TOKENS[i].type;
        narrow[i] = (uint8_t)TOKENS[i].type;
    }
    if (!c->no_tokens)
        gguf_write_strings(w, KEY("tokens"), texts, N_TOKENS);
    if (c->types_u8)
        gguf_write_array(w, KEY("token_type"), GGUF_U8, narrow, n_types, 1);
    else
        gguf_write_array(w, KEY("token_type"), GGUF_I32, types, n_types, 4);
    if (!c->no_merges)
        gguf_write_strings(w, KEY("merges"), merges, 2);
}

static struct tokenizer *load(const struct change *c, struct err *err)
{
    struct gguf_writer w = {0};
    struct str file = {0};
    const char *model = c->model ? c->model : "gpt2", *pre = c->pre ? c->pre : "gpt-2";
    if (*model)
        gguf_write_string(&w, KEY("model"), bytes_from(model));
    if (*pre)
        gguf_write_string(&w, KEY("pre"), bytes_from(pre));
    if (c->eos)
        gguf_write_u32(&w, KEY("eos_token_id"), (uint32_t)c->eos);
    if (c->bos)
        gguf_write_u32(&w, KEY("bos_token_id"), (uint32_t)c->bos);
    if (c->add_bos)
        gguf_write_bool(&w, KEY("add_bos_token"), c->add_bos > 0);
    write_vocabulary(&w, c);
    gguf_write_finish(&w, &file);
    struct gguf *gguf = gguf_open_memory("toy.gguf", file.data, file.len, err);
    if (!gguf)
        fail_msg("%s", err->text);
    struct tokenizer *t = tokenizer_load(gguf, err);
    gguf_close(gguf); /* nothing is kept of the file: the sanitizer says so */
    str_free(&file);
    return t;
}

static struct tokenizer *load_or_fail(const struct change *c)
{
    struct err err;
    struct tokenizer *t = load(c, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

static void test_tokens_of_every_type_are_what_the_file_says(void **state)
{
    (void)state;
    struct tokenizer *t = load_or_fail(&(struct change){0});
    CHECK_IDS(t, "ab a", false, AB, 3);
    CHECK_IDS(t, "a\nb", false, 0, NEWLINE, 1); /* a byte token, as no normal one is there */
    CHECK_IDS(t, "a    b", false, 0, WIDE, 1);
    assert_true(bytes_equal(tokenizer_token(t, 3), BYTES(" a")));
    assert_true(bytes_equal(tokenizer_token(t, NEWLINE), BYTES("\n")));
    assert_true(bytes_equal(tokenizer_token(t, TOOL), BYTES("<tool_call>")));
    assert_int_equal(tokenizer_token(t, IM_END).len, 0);
    assert_int_equal(tokenizer_token(t, PAD).len, 0);
    CHECK_IDS(t, "a<tool_call>", true, 0, TOOL);
    tokenizer_free(t);
}

/* A user-defined word that looks like a mark is no mark in a client's text. */
static void test_user_defined_marks_are_found_only_where_asked(void **state)
{
    (void)state;
    struct tokenizer *t = load_or_fail(&(struct change){0});
    CHECK_IDS(t, "<tool_call>a", false, 0, 0); /* of its bytes only the two a have tokens */
    CHECK_IDS(t, "<|eot_id|>a", false, 0);
    tokenizer_free(t);
}

static void check_ends(const struct change *c, const int32_t *expected, int32_t n)
{
    struct tokenizer *t = load_or_fail(c);
    int32_t got_n;
    const int32_t *got = tokenizer_end_ids(t, &got_n);
    assert_int_equal(got_n, n);
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(got[i], expected[i]);
        assert_true(tokenizer_is_end(t, got[i]));
        assert_int_equal(tokenizer_token(t, got[i]).len, 0);
    }
    assert_false(tokenizer_is_end(t, 0));
    assert_false(tokenizer_is_end(t, -1));
    assert_false(tokenizer_is_end(t, N_TOKENS));
    tokenizer_free(t);
}

static void test_every_end_id_counts(void **state)
{
    (void)state;
    /* by their spelling; and that of the metadata, whatever its type */
    check_ends(&(struct change){0}, (const int32_t[]){IM_END, EOT}, 2);
    check_ends(&(struct change){.eos = SLASH_S}, (const int32_t[]){IM_END, EOT, SLASH_S}, 3);
    check_ends(&(struct change){.eos = IM_END}, (const int32_t[]){IM_END, EOT}, 2);
}

static void test_a_wrong_end_id_is_ignored(void **state)
{
    (void)state;
    check_ends(&(struct change){.eos = N_TOKENS}, (const int32_t[]){IM_END, EOT}, 2);
    check_ends(&(struct change){.eos = UINT32_MAX}, (const int32_t[]){IM_END, EOT}, 2);
    check_ends(&(struct change){.eos = PAD}, (const int32_t[]){IM_END, EOT, PAD}, 3);
}

static void check_bos(const struct change *c, int32_t expected, bool expected_add)
{
    struct tokenizer *t = load_or_fail(c);
    bool add = !expected_add;
    assert_int_equal(tokenizer_bos(t, &add), expected);
    assert_int_equal(add, expected_add);
    tokenizer_free(t);
}

static void test_bos_is_added_where_the_metadata_or_the_rule_says(void **state)
{
    (void)state;
    check_bos(&(struct change){0}, -1, false);
    check_bos(&(struct change){.bos = BOS}, BOS, false);
    check_bos(&(struct change){.bos = BOS, .add_bos = 1}, BOS, true);
    check_bos(&(struct change){.bos = BOS, .pre = "llama-bpe"}, BOS, true);
    check_bos(&(struct change){.bos = BOS, .pre = "llama-bpe", .add_bos = -1}, BOS, false);
    check_bos(&(struct change){.bos = N_TOKENS, .add_bos = 1}, -1, false);
    check_bos(&(struct change){.add_bos = 1}, -1, false);
}

struct fault {
    struct change change;
    const char *words;
};

static void test_what_can_not_be_read_is_refused_by_name(void **state)
{
    (void)state;
    static const struct fault faults[] = {
        {{.model = "llama"}, "SentencePiece"},
        {{.model = "bert"}, "'bert'"},
        {{.model = ""}, "tokenizer ''"},
        {{.pre = ""}, "tokenizer.ggml.pre"},
        {{.pre = "tekken"}, "'tekken'"},
        {{.no_tokens = true}, "tokenizer.ggml.tokens"},
        {{.no_merges = true}, "tokenizer.ggml.merges"},
        {{.types_u8 = true}, "tokenizer.ggml.token_type"},
        {{.n_types = 3}, "3 values for 13 tokens"},
        {{.merge = "ab"}, "merge 'ab'"},
        {{.merge = ""}, "merge ''"},
        {{.merge = "a "}, "merge 'a '"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct err err = {0};
        assert_null(load(&faults[i].change, &err));
        if (!strstr(err.text, faults[i].words) || !strstr(err.text, "toy.gguf"))
            fail_msg("fault %zu: '%s' does not say '%s'", i, err.text, faults[i].words);
    }
}

/* A merge of symbols that are no tokens can not happen; the file is taken all the same. */
static void test_a_merge_without_tokens_is_left_out(void **state)
{
    (void)state;
    struct tokenizer *t = load_or_fail(&(struct change){.merge = "b b"});
    CHECK_IDS(t, "bb", false, 1, 1);
    CHECK_IDS(t, "ab a", false, 0, 1, 3);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_of_every_type_are_what_the_file_says),
        cmocka_unit_test(test_user_defined_marks_are_found_only_where_asked),
        cmocka_unit_test(test_every_end_id_counts),
        cmocka_unit_test(test_a_wrong_end_id_is_ignored),
        cmocka_unit_test(test_bos_is_added_where_the_metadata_or_the_rule_says),
        cmocka_unit_test(test_what_can_not_be_read_is_refused_by_name),
        cmocka_unit_test(test_a_merge_without_tokens_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
