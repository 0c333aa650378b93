/* test_golden_tokens.c - ids of texts, against those that other programs made.
 *
 * smollm2-*-tokens.jsonl were made by llama.cpp with the real model; tokenizer-vectors/ holds
 * llama.cpp's own vectors for nine vocabularies, of which gpt-2's vocabulary is there too.
 *
 * On ill-formed text we differ in four files, on purpose: llama.cpp decodes overlong forms to the
 * character (C0 AF to a slash) and keeps surrogates; for us they are not UTF-8, so each of their
 * bytes is U+FFFD. All other ill-formed files agree, the number of marks included. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <openssl/sha.h>
#include "base/err.h"
#include "base/mem.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "tests/golden/golden.h"
#include "tests/unit/token_checks.h"

/* ---- the real model ------------------------------------------------------------------------- */

/* NULL when there is no such file. */
static struct tokenizer *load_file(const char *path)
{
    struct err err;
    if (access(path, R_OK) != 0)
        return NULL;
    struct gguf *gguf = gguf_open(path, &err);
    if (!gguf)
        fail_msg("%s", err.text);
    struct tokenizer *t = tokenizer_load(gguf, &err);
    if (!t)
        fail_msg("%s", err.text);
    gguf_close(gguf); /* the tokenizer keeps nothing of the file */
    return t;
}

static struct tokenizer *load_model(void)
{
    char path[GOLDEN_PATH_MAX];
    if (!golden_find_model(path))
        skip();
    return load_file(path);
}

static void check_text(const struct tokenizer *t, struct bytes text, bool special,
                       const json_t *expected, const char *what)
{
    struct ids ids = {0};
    tokenizer_encode(t, text, special, &ids);
    golden_check_ids(what, &ids, expected);
    ids_free(&ids);
}

static void test_texts_have_the_golden_ids(void **state)
{
    (void)state;
    char path[GOLDEN_PATH_MAX];
    if (!golden_find("smollm2-text-tokens.jsonl", path))
        skip();
    struct tokenizer *t = load_model();
    json_t *lines = golden_read_lines(path), *line;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        struct bytes text = golden_text(line, "text");
        check_text(t, text, false, json_object_get(line, "ids"), text.data);
        check_round_trip(t, text, text);
    }
    json_decref(lines);
    tokenizer_free(t);
}

static const char *const DIFFER_ON_PURPOSE[] = {
    "badutf8_overlong_nul.bin",
    "badutf8_overlong_slash.bin",
    "badutf8_surrogate_hi.bin",
    "badutf8_surrogate_pair_cesu8.bin",
};

static bool differs_on_purpose(const char *file)
{
    for (size_t i = 0; i < sizeof DIFFER_ON_PURPOSE / sizeof *DIFFER_ON_PURPOSE; i++)
        if (strcmp(file, DIFFER_ON_PURPOSE[i]) == 0)
            return true;
    return false;
}

/* SHA-256 over little-endian int32, in hexadecimal. */
static void hash_ids(const struct ids *ids, char hex[65])
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    uint8_t *bytes = xmalloc((size_t)ids->n * 4 + 1);
    for (int32_t i = 0; i < ids->n; i++)
        for (int b = 0; b < 4; b++)
            bytes[i * 4 + b] = (uint8_t)((uint32_t)ids->data[i] >> (8 * b));
    SHA256(bytes, (size_t)ids->n * 4, digest);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    xfree(bytes);
}

static void check_file(const struct tokenizer *t, const json_t *line, struct bytes text)
{
    const char *file = json_string_value(json_object_get(line, "file"));
    const json_t *ids = json_object_get(line, "ids");
    const json_t *special = json_object_get(line, "ids_special");
    struct ids got = {0};
    char hex[65];
    tokenizer_encode(t, text, false, &got);
    if (ids)
        golden_check_ids(file, &got, ids);
    hash_ids(&got, hex);
    if (strcmp(hex, json_string_value(json_object_get(line, "sha256"))) != 0)
        fail_msg("%s: %d ids, expected %lld; their digest is another", file, got.n,
                 (long long)json_integer_value(json_object_get(line, "n")));
    if (special)
        check_text(t, text, true, special, file);
    ids_free(&got);
}

/* Every byte of those files that is not ASCII is one U+FFFD. */
static void check_marks_only(const struct tokenizer *t, struct bytes text)
{
    struct str expected = {0};
    for (size_t i = 0; i < text.len; i++) {
        if ((uint8_t)text.data[i] < 0x80)
            str_append_char(&expected, text.data[i]);
        else
            str_append_str(&expected, "\xef\xbf\xbd");
    }
    check_round_trip(t, text, bytes_of(&expected));
    str_free(&expected);
}

static void test_files_have_the_golden_ids(void **state)
{
    (void)state;
    char path[GOLDEN_PATH_MAX], name[GOLDEN_PATH_MAX], input[GOLDEN_PATH_MAX];
    if (!golden_find("smollm2-file-tokens.jsonl", path))
        skip();
    struct tokenizer *t = load_model();
    json_t *lines = golden_read_lines(path), *line;
    size_t i, n_read = 0;
    json_array_foreach(lines, i, line)
    {
        const char *file = json_string_value(json_object_get(line, "file"));
        struct str text = {0};
        snprintf(name, sizeof name, "prompts/%s", file);
        if (!golden_find_workload(name, input))
            continue;
        n_read++;
        golden_read_file(input, &text);
        if (differs_on_purpose(file))
            check_marks_only(t, bytes_of(&text));
        else
            check_file(t, line, bytes_of(&text));
        str_free(&text);
    }
    json_decref(lines);
    tokenizer_free(t);
    if (n_read == 0)
        skip();
}

/* The two files on which the program that made the golden ids aborts. */
static void test_files_that_abort_the_peer_are_encoded(void **state)
{
    (void)state;
    static const char *const FILES[] = {"prompts/badutf8_over_10ffff.bin",
                                        "prompts/long_random_bytes.bin"};
    struct tokenizer *t = load_model();
    for (size_t i = 0; i < 2; i++) {
        char path[GOLDEN_PATH_MAX];
        struct str text = {0};
        struct ids ids = {0};
        if (!golden_find_workload(FILES[i], path)) {
            tokenizer_free(t);
            skip();
        }
        golden_read_file(path, &text);
        tokenizer_encode(t, bytes_of(&text), false, &ids);
        assert_true(ids.n > 0);
        ids_free(&ids);
        str_free(&text);
    }
    tokenizer_free(t);
}

static void test_model_names_its_ends_and_its_beginning(void **state)
{
    (void)state;
    struct tokenizer *t = load_model();
    int32_t n;
    const int32_t *ends = tokenizer_end_ids(t, &n);
    bool add = true;
    assert_int_equal(n, 2); /* <|endoftext|> by its spelling, <|im_end|> by the metadata too */
    assert_int_equal(ends[0], 0);
    assert_int_equal(ends[1], 2);
    assert_int_equal(tokenizer_bos(t, &add), 1);
    assert_false(add);
    assert_int_equal(tokenizer_n_vocab(t), 49152);
    assert_int_equal(tokenizer_token(t, 2).len, 0);
    assert_true(bytes_equal(tokenizer_spelling(t, 2), BYTES("<|im_end|>")));
    assert_true(bytes_equal(tokenizer_token(t, 905), BYTES(" world")));
    tokenizer_free(t);
}

/* ---- llama.cpp's vectors -------------------------------------------------------------------- */

/* The vocabulary is stored packed; gunzip is on every system that has tar. */
static struct tokenizer *load_gpt2(void)
{
    char path[GOLDEN_PATH_MAX], command[GOLDEN_PATH_MAX + 32], buffer[4096];
    struct err err;
    struct str data = {0};
    size_t n;
    if (!golden_find_workload("tokenizer-vectors/gpt2-vocab-only.gguf.gz", path))
        skip();
    snprintf(command, sizeof command, "gunzip -c '%s'", path);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    while ((n = fread(buffer, 1, sizeof buffer, pipe)) > 0)
        str_append(&data, buffer, n);
    assert_int_equal(pclose(pipe), 0);
    struct gguf *gguf = gguf_open_memory("gpt2-vocab-only.gguf", data.data, data.len, &err);
    if (!gguf)
        fail_msg("%s", err.text);
    struct tokenizer *t = tokenizer_load(gguf, &err);
    if (!t)
        fail_msg("%s", err.text);
    gguf_close(gguf);
    str_free(&data);
    return t;
}

/* The text of a line, or that of the input file it names; data NULL: not here, said aloud. */
static struct bytes vector_text(const json_t *line, struct str *file)
{
    char path[GOLDEN_PATH_MAX];
    if (json_object_get(line, "text"))
        return golden_text(line, "text");
    if (!golden_find_workload(json_string_value(json_object_get(line, "file")), path))
        return (struct bytes){NULL, 0};
    golden_read_file(path, file);
    return bytes_of(file);
}

/* Every line of the file that has ids under `column`. Returns their number. */
static size_t check_lines(const struct tokenizer *t, const char *path, const char *column)
{
    json_t *lines = golden_read_lines(path), *line;
    size_t i, n = 0;
    json_array_foreach(lines, i, line)
    {
        struct str file = {0};
        struct bytes text = vector_text(line, &file);
        if (text.data && json_object_get(line, column)) {
            check_text(t, text, false, json_object_get(line, column), text.data);
            check_round_trip(t, text, text);
            n++;
        }
        str_free(&file);
    }
    json_decref(lines);
    printf("# %s: %zu texts\n", column, n);
    return n;
}

static void check_gpt2(const char *name)
{
    char path[GOLDEN_PATH_MAX];
    if (!golden_find_workload(name, path))
        skip();
    struct tokenizer *t = load_gpt2();
    assert_true(check_lines(t, path, "gpt-2") > 0);
    tokenizer_free(t);
}

static void test_gpt2_vectors_of_llamacpp(void **state)
{
    (void)state;
    check_gpt2("tokenizer-vectors/llamacpp_47.jsonl");
}

static void test_gpt2_vectors_of_our_own_files(void **state)
{
    (void)state;
    check_gpt2("tokenizer-vectors/extra_gpt2_starcoder.jsonl");
}

/* The other vocabularies are not here; who has them as GGUF names their folder. */
static void test_vectors_of_other_vocabularies(void **state)
{
    (void)state;
    static const char *const COLUMNS[] = {"starcoder", "llama-bpe", "qwen2"};
    const char *folder = getenv("KVASIR_VOCABULARIES");
    char path[GOLDEN_PATH_MAX], vocabulary[GOLDEN_PATH_MAX];
    size_t n = 0;
    if (!golden_find_workload("tokenizer-vectors/llamacpp_47.jsonl", path))
        skip();
    for (size_t i = 0; i < sizeof COLUMNS / sizeof *COLUMNS; i++) {
        snprintf(vocabulary, sizeof vocabulary, "%s/%s.gguf", folder ? folder : "", COLUMNS[i]);
        struct tokenizer *t = folder ? load_file(vocabulary) : NULL;
        if (t)
            n += check_lines(t, path, COLUMNS[i]);
        else
            printf("# no vocabulary of %s here (KVASIR_VOCABULARIES): its ids are not checked; its "
                   "cuts are, in test_tok_split\n",
                   COLUMNS[i]);
        tokenizer_free(t);
    }
    if (n == 0)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_have_the_golden_ids),
        cmocka_unit_test(test_files_have_the_golden_ids),
        cmocka_unit_test(test_files_that_abort_the_peer_are_encoded),
        cmocka_unit_test(test_model_names_its_ends_and_its_beginning),
        cmocka_unit_test(test_gpt2_vectors_of_llamacpp),
        cmocka_unit_test(test_gpt2_vectors_of_our_own_files),
        cmocka_unit_test(test_vectors_of_other_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
