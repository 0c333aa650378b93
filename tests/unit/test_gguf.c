/* test_gguf.c - the GGUF reader against files that are right, wrong, hostile and cut.
 *
 * Wrong files are built by hand from parts, since the writer cannot be talked into most faults. A
 * refusal must be one line that names what is wrong: the tests look for the words. What other
 * readers got wrong (the counts that wrap of CVE-2024-21836, -23605, -23496, -21825, -21802, and
 * the tensor of CVE-2026-33298 whose bytes wrap) has a test each: counts of tensors, keys and array
 * elements, lengths of strings, dimensions, rows of part blocks, arrays of another type, headers,
 * twins, alignments, offsets, files cut anywhere. */
#include <inttypes.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include "model/gguf.h"
#include "model/gguf_write.h"

/* ---- building ------------------------------------------------------------------------------ */

static void u32(struct str *s, uint32_t v)
{
    str_append(s, &v, sizeof v);
}

static void u64(struct str *s, uint64_t v)
{
    str_append(s, &v, sizeof v);
}

static void text(struct str *s, const char *t)
{
    u64(s, strlen(t));
    str_append_str(s, t);
}

static void header(struct str *s, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    str_append_str(s, "GGUF");
    u32(s, version);
    u64(s, n_tensors);
    u64(s, n_keys);
}

/* A row of the tensor table with up to four dimensions. */
static void info(struct str *s, const char *name, uint32_t n_dims, const uint64_t *dims,
                 uint32_t type, uint64_t offset)
{
    text(s, name);
    u32(s, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        u64(s, dims[i]);
    u32(s, type);
    u64(s, offset);
}

/* Zeros to the next multiple of 32, and n more. */
static void data(struct str *s, size_t n)
{
    static const char zeros[4096];
    str_append(s, zeros, (size_t)(-s->len & 31));
    for (; n > 0; n -= n < sizeof zeros ? n : sizeof zeros)
        str_append(s, zeros, n < sizeof zeros ? n : sizeof zeros);
}

static struct gguf *open_exact(const char *bytes, size_t len, struct err *err)
{
    return gguf_open_memory("m.gguf", bytes, len, err);
}

/* Refused with a line that begins with the file and has `words`. Frees s. The copy is exact in
 * size, so that asan sees a read past the end. */
static void assert_refused(struct str *s, const char *words)
{
    struct err err = {{0}};
    char *copy = malloc(s->len + 1);
    memcpy(copy, s->data ? s->data : "", s->len);
    copy = realloc(copy, s->len ? s->len : 1);
    struct gguf *g = open_exact(copy, s->len, &err);
    if (g != NULL)
        fail_msg("was opened, expected: %s", words);
    if (strncmp(err.text, "m.gguf: ", 8) != 0 || strstr(err.text, words) == NULL ||
        strchr(err.text, '\n') != NULL)
        fail_msg("said \"%s\", expected: %s", err.text, words);
    free(copy);
    str_free(s);
}

/* A small valid file with every kind of value and two tensors. */
static void build_valid(struct str *out)
{
    struct gguf_writer w = {0};
    static const int64_t dims[2] = {32, 3}, vector[1] = {5};
    static const struct bytes words[] = {{"a", 1}, {"", 0}, {"b\0c", 3}};
    static const float floats[] = {0.5f, -2};
    static const int32_t ints[] = {7, -8, 9};
    float values[5] = {1, 2, 3, 4, 5};
    uint8_t q8[3 * 34] = {0, 0x3c, 1};
    int16_t i16 = -3;
    uint64_t big = UINT64_C(1) << 40;
    int64_t negative = -5;
    double pi = 3.25;
    gguf_write_string(&w, "general.architecture", BYTES("llama"));
    gguf_write_u32(&w, "a.u32", 4000000000u);
    gguf_write_value(&w, "a.i16", GGUF_I16, &i16, 2);
    gguf_write_value(&w, "a.u64", GGUF_U64, &big, 8);
    gguf_write_value(&w, "a.i64", GGUF_I64, &negative, 8);
    gguf_write_value(&w, "a.f64", GGUF_F64, &pi, 8);
    gguf_write_f32(&w, "a.f32", 1.5f);
    gguf_write_bool(&w, "a.bool", true);
    gguf_write_strings(&w, "a.words", words, 3);
    gguf_write_array(&w, "a.floats", GGUF_F32, floats, 2, 4);
    gguf_write_array(&w, "a.ints", GGUF_I32, ints, 3, 4);
    gguf_write_tensor(&w, "first", TENSOR_F32, vector, 1, values, sizeof values);
    gguf_write_tensor(&w, "second", TENSOR_Q8_0, dims, 2, q8, sizeof q8);
    gguf_write_finish(&w, out);
}

/* ---- right files --------------------------------------------------------------------------- */

static void test_values_come_back(void **state)
{
    struct str s = {0};
    struct err err;
    build_valid(&s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_non_null(g);
    uint32_t a = 0;
    int32_t b = 0;
    uint64_t c = 0;
    float f = 0;
    bool yes = false;
    struct bytes name;
    assert_int_equal(gguf_get_u32(g, "a.u32", &a, &err), 1);
    assert_int_equal(a, 4000000000u);
    assert_int_equal(gguf_get_i32(g, "a.i16", &b, &err), 1);
    assert_int_equal(b, -3);
    assert_int_equal(gguf_get_i32(g, "a.i64", &b, &err), 1);
    assert_int_equal(b, -5);
    assert_int_equal(gguf_get_u64(g, "a.u64", &c, &err), 1);
    assert_true(c == UINT64_C(1) << 40);
    assert_int_equal(gguf_get_f32(g, "a.f32", &f, &err), 1);
    assert_true(f == 1.5f);
    assert_int_equal(gguf_get_f32(g, "a.f64", &f, &err), 1);
    assert_true(f == 3.25f);
    assert_int_equal(gguf_get_bool(g, "a.bool", &yes, &err), 1);
    assert_true(yes);
    assert_int_equal(gguf_get_string(g, "general.architecture", &name, &err), 1);
    assert_true(bytes_equal(name, BYTES("llama")));
    assert_int_equal(gguf_n_keys(g), 11);
    assert_true(bytes_equal(gguf_key(g, 2, NULL), BYTES("a.i16")));
    gguf_close(g);
    str_free(&s);
}

static void test_arrays_come_back(void **state)
{
    struct str s = {0};
    struct err err;
    struct gguf_array array;
    struct bytes word;
    build_valid(&s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_int_equal(gguf_get_array(g, "a.ints", GGUF_I32, &array, &err), 1);
    assert_int_equal(array.n, 3);
    assert_int_equal(gguf_array_i32(&array, 1), -8);
    assert_int_equal(gguf_get_array(g, "a.floats", GGUF_F32, &array, &err), 1);
    assert_true(gguf_array_f32(&array, 1) == -2);
    assert_int_equal(gguf_get_array(g, "a.words", GGUF_STRING, &array, &err), 1);
    assert_int_equal(array.n, 3);
    assert_true(gguf_array_next_string(&array, &word) && bytes_equal(word, BYTES("a")));
    assert_true(gguf_array_next_string(&array, &word) && word.len == 0);
    assert_true(gguf_array_next_string(&array, &word) && bytes_equal(word, BYTES("b\0c")));
    assert_false(gguf_array_next_string(&array, &word));
    gguf_close(g);
    str_free(&s);
}

static void test_tensors_point_at_their_data(void **state)
{
    struct str s = {0};
    struct err err;
    float row[32];
    build_valid(&s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    const struct gguf_tensor *first = gguf_tensor_find(g, "first");
    const struct gguf_tensor *second = gguf_tensor_find(g, "second");
    assert_int_equal(gguf_n_tensors(g), 2);
    assert_ptr_equal(gguf_tensor_at(g, 1), second);
    assert_null(gguf_tensor_find(g, "third"));
    assert_true(first->tensor.n == 1 && first->tensor.k == 5 && first->n_dims == 1);
    assert_true(second->tensor.n == 3 && second->tensor.k == 32 && second->n_dims == 2);
    tensor_row_unpack(&first->tensor, 0, row);
    assert_true(row[4] == 5);
    tensor_row_unpack(&second->tensor, 0, row);
    assert_true(row[0] == 1 && row[1] == 0);
    gguf_close(g);
    str_free(&s);
}

static void test_an_own_alignment_is_kept_and_version_2_read(void **state)
{
    struct gguf_writer w = {.alignment = 128};
    struct str s = {0};
    struct err err;
    static const int64_t dims[1] = {3};
    static const float values[] = {1, 2, 3};
    gguf_write_u32(&w, "general.alignment", 128);
    gguf_write_tensor(&w, "a", TENSOR_F32, dims, 1, values, sizeof values);
    gguf_write_tensor(&w, "b", TENSOR_F32, dims, 1, values, sizeof values);
    gguf_write_finish(&w, &s);
    s.data[4] = 2;
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_non_null(g);
    const char *b = gguf_tensor_find(g, "b")->tensor.data;
    assert_int_equal(b - (const char *)gguf_tensor_find(g, "a")->tensor.data, 128);
    assert_int_equal(gguf_metadata(g).len % 128, 0);
    gguf_close(g);
    str_free(&s);
}

static void test_a_file_without_keys_and_tensors_opens(void **state)
{
    struct str s = {0};
    struct err err;
    header(&s, 3, 0, 0);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_non_null(g);
    assert_int_equal(gguf_metadata(g).len, 24);
    gguf_close(g);
    str_free(&s);
}

/* ---- getters say what does not fit --------------------------------------------------------- */

static void test_getters_refuse_wrong_types_and_values(void **state)
{
    struct str s = {0};
    struct err err;
    build_valid(&s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    uint32_t a = 77;
    int32_t b = 77;
    float f = 77;
    bool yes;
    struct bytes name;
    struct gguf_array array;
    assert_int_equal(gguf_get_u32(g, "absent", &a, &err), 0);
    assert_int_equal(a, 77);
    assert_int_equal(gguf_get_u32(g, "a.u64", &a, &err), -1);
    assert_string_equal(err.text, "m.gguf: key a.u64: 1099511627776 is above 4294967295");
    assert_int_equal(gguf_get_u32(g, "a.i16", &a, &err), -1);
    assert_string_equal(err.text, "m.gguf: key a.i16: -3 is below 0");
    assert_int_equal(gguf_get_i32(g, "a.u32", &b, &err), -1);
    assert_int_equal(gguf_get_u32(g, "a.f32", &a, &err), -1);
    assert_string_equal(err.text, "m.gguf: key a.f32: type f32, expected an integer");
    assert_int_equal(gguf_get_f32(g, "a.u32", &f, &err), -1);
    assert_int_equal(gguf_get_bool(g, "a.u32", &yes, &err), -1);
    assert_int_equal(gguf_get_string(g, "a.words", &name, &err), -1);
    assert_string_equal(err.text, "m.gguf: key a.words: an array of string, expected string");
    assert_int_equal(gguf_get_array(g, "a.f32", GGUF_F32, &array, &err), -1);
    assert_int_equal(gguf_get_array(g, "a.words", GGUF_I32, &array, &err), -1);
    assert_true(a == 77 && b == 77 && f == 77);
    gguf_close(g);
    str_free(&s);
}

/* An array declared u8 and read as f32 or i32 ran past its end elsewhere. */
static void test_an_array_of_bytes_is_no_array_of_scores(void **state)
{
    struct gguf_writer w = {0};
    struct str s = {0};
    struct err err;
    struct gguf_array array;
    static const uint8_t bytes[100];
    gguf_write_array(&w, "tokenizer.ggml.scores", GGUF_U8, bytes, 100, 1);
    gguf_write_array(&w, "tokenizer.ggml.token_type", GGUF_U8, bytes, 100, 1);
    gguf_write_finish(&w, &s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_int_equal(gguf_get_array(g, "tokenizer.ggml.scores", GGUF_F32, &array, &err), -1);
    assert_string_equal(err.text, "m.gguf: key tokenizer.ggml.scores: an array of u8, expected an "
                                  "array of f32");
    assert_int_equal(gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &array, &err), -1);
    gguf_close(g);
    str_free(&s);
}

static void test_a_float_that_is_not_finite_is_refused(void **state)
{
    struct gguf_writer w = {0};
    struct str s = {0};
    struct err err;
    double huge = 1e300;
    float f;
    gguf_write_value(&w, "d", GGUF_F64, &huge, 8);
    gguf_write_finish(&w, &s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_int_equal(gguf_get_f32(g, "d", &f, &err), -1);
    gguf_close(g);
    str_free(&s);
}

/* ---- wild counts and lengths --------------------------------------------------------------- */

static const uint64_t wild[] = {UINT64_C(1) << 60, UINT64_C(1) << 61, UINT64_C(1) << 62,
                                UINT64_C(1) << 63, UINT64_MAX - 1,    UINT64_MAX};
enum { N_WILD = sizeof wild / sizeof wild[0] };

static void test_tensor_counts_that_wrap_are_refused(void **state)
{
    for (int i = 0; i < N_WILD; i++) {
        struct str s = {0};
        header(&s, 3, wild[i], 0);
        data(&s, 4096);
        assert_refused(&s, "tensors do not fit into the");
    }
}

static void test_key_counts_that_wrap_are_refused(void **state)
{
    for (int i = 0; i < N_WILD; i++) {
        struct str s = {0};
        header(&s, 3, 0, wild[i]);
        data(&s, 4096);
        assert_refused(&s, "keys do not fit into the");
    }
}

static void test_counts_above_the_limits_are_refused(void **state)
{
    struct str s = {0};
    header(&s, 3, GGUF_MAX_TENSORS + 1, 0);
    data(&s, 100 * (GGUF_MAX_TENSORS + 1));
    assert_refused(&s, "4097 tensors, at most 4096 are supported");
    header(&s, 3, 0, GGUF_MAX_KEYS + 1);
    data(&s, 100 * (GGUF_MAX_KEYS + 1));
    assert_refused(&s, "1025 keys, at most 1024 are supported");
}

static void test_string_lengths_that_wrap_are_refused(void **state)
{
    for (int i = 0; i < N_WILD + 1; i++) {
        uint64_t len = i < N_WILD ? wild[i] : 24 + 8 + 64 + 1; /* the size of the file and one */
        struct str s = {0};
        header(&s, 3, 0, 1);
        u64(&s, len);
        str_append(&s, (char[64]){0}, 64);
        assert_refused(&s, "key number 0: needs");
        header(&s, 3, 0, 1);
        text(&s, "k");
        u32(&s, GGUF_STRING);
        u64(&s, len);
        str_append(&s, (char[64]){0}, 64);
        assert_refused(&s, "key k: needs");
    }
}

static void test_array_counts_that_wrap_are_refused(void **state)
{
    for (int type = 0; type < GGUF_N_TYPES; type++) {
        for (int i = 0; i < N_WILD; i++) {
            struct str s = {0};
            header(&s, 3, 0, 1);
            text(&s, "k");
            u32(&s, GGUF_ARRAY);
            u32(&s, (uint32_t)type);
            u64(&s, wild[i]);
            str_append(&s, (char[64]){0}, 64);
            assert_refused(&s, type == GGUF_ARRAY ? "key k: arrays of arrays" : "does not fit");
        }
    }
}

static void test_a_string_inside_an_array_may_not_leave_the_file(void **state)
{
    struct str s = {0};
    header(&s, 3, 0, 1);
    text(&s, "k");
    u32(&s, GGUF_ARRAY);
    u32(&s, GGUF_STRING);
    u64(&s, 2);
    text(&s, "ok");
    u64(&s, UINT64_MAX);
    assert_refused(&s, "key k: needs 18446744073709551615 bytes");
}

/* ---- keys ---------------------------------------------------------------------------------- */

static void test_broken_headers_are_refused(void **state)
{
    static const uint32_t versions[] = {0, 1, 4, 1000, 0x03000000};
    struct str s = {0};
    assert_refused(&s, "header: needs 4 bytes");
    str_append_str(&s, "GGUX");
    data(&s, 64);
    assert_refused(&s, "no GGUF file: begins with 47 47 55 58");
    for (int i = 0; i < 5; i++) {
        header(&s, versions[i], 0, 0);
        assert_refused(&s, i == 4 ? "(a big-endian file?), expected 2 or 3" : ", expected 2 or 3");
    }
}

static void test_broken_keys_are_refused_by_name(void **state)
{
    struct str s = {0};
    header(&s, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        text(&s, "twin");
        u32(&s, GGUF_U32);
        u32(&s, 1);
    }
    assert_refused(&s, "key twin: appears twice");
    header(&s, 3, 0, 1);
    text(&s, "k");
    u32(&s, 13);
    u64(&s, 0);
    assert_refused(&s, "key k: value type 13 is unknown");
    header(&s, 3, 0, 1);
    text(&s, "");
    u32(&s, GGUF_U32);
    u64(&s, 0);
    assert_refused(&s, "key number 0: a name of 0 bytes");
    header(&s, 3, 0, 1);
    text(&s, "flag");
    u32(&s, GGUF_BOOL);
    str_append_char(&s, 2);
    assert_refused(&s, "key flag: a bool of value 2");
    header(&s, 3, 0, 1);
    text(&s, "new\nline");
    u32(&s, 99);
    u64(&s, 0);
    assert_refused(&s, "key new?line: value type 99");
}

static void test_a_broken_alignment_is_refused(void **state)
{
    static const struct {
        uint32_t value;
        const char *words;
    } cases[] = {
        {0, "general.alignment: 0 is not a power of two"},
        {3, "general.alignment: 3 is not a power of two"},
        {33, "general.alignment: 33 is not a power of two"},
        {4, "general.alignment: 4 is not between 8 and 2097152"},
        {UINT32_C(1) << 31, "general.alignment: 2147483648 is not between"},
    };
    struct str s = {0};
    for (int i = 0; i < 5; i++) {
        header(&s, 3, 0, 1);
        text(&s, "general.alignment");
        u32(&s, GGUF_U32);
        u32(&s, cases[i].value);
        data(&s, 64);
        assert_refused(&s, cases[i].words);
    }
    header(&s, 3, 0, 1);
    text(&s, "general.alignment");
    u32(&s, GGUF_STRING);
    text(&s, "32");
    assert_refused(&s, "key general.alignment: type string, expected an integer");
}

/* ---- tensors ------------------------------------------------------------------------------- */

static void test_dimensions_are_one_to_four_and_positive(void **state)
{
    static const uint32_t counts[] = {0, 5, 255, UINT32_MAX};
    static const uint64_t zero[2] = {32, 0}, negative[2] = {(uint64_t)-32, 1};
    struct str s = {0};
    for (int i = 0; i < 4; i++) {
        header(&s, 3, 1, 0);
        text(&s, "t");
        u32(&s, counts[i]);
        data(&s, 4096);
        assert_refused(&s, "dimensions, expected 1 to 4");
    }
    header(&s, 3, 1, 0);
    info(&s, "t", 2, zero, TENSOR_F32, 0);
    data(&s, 4096);
    assert_refused(&s, "tensor t: dimension 1 is 0");
    header(&s, 3, 1, 0);
    info(&s, "t", 2, negative, TENSOR_F32, 0);
    data(&s, 4096);
    assert_refused(&s, "tensor t: dimension 0 is -32");
}

static void test_tensors_whose_bytes_wrap_are_refused(void **state)
{
    static const uint64_t square[2] = {UINT64_C(1) << 31, UINT64_C(1) << 31};
    static const uint64_t wide[1] = {UINT64_C(1) << 62};
    static const uint64_t deep[4] = {1, UINT64_C(1) << 31, UINT64_C(1) << 31, 2};
    static const uint64_t large[2] = {UINT64_C(1) << 20, UINT64_C(1) << 20};
    struct str s = {0};
    header(&s, 3, 1, 0);
    info(&s, "t", 2, square, TENSOR_F32, 0);
    data(&s, 64);
    assert_refused(&s, "tensor t: 2147483648 x 2147483648 values of F32 overflow");
    header(&s, 3, 1, 0);
    info(&s, "t", 1, wide, TENSOR_F32, 0);
    data(&s, 64);
    assert_refused(&s, "tensor t: ");
    header(&s, 3, 1, 0);
    info(&s, "t", 4, deep, TENSOR_F32, 0);
    data(&s, 64);
    assert_refused(&s, "tensor t: dimension 3 of 2 overflows");
    header(&s, 3, 1, 0);
    info(&s, "t", 2, large, TENSOR_Q4_K, 0);
    data(&s, 64);
    assert_refused(&s, "tensor t: 618475290624 bytes at offset 0 end behind the data's 64 bytes");
}

static void test_rows_are_whole_blocks(void **state)
{
    static const int quantised[] = {TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,
                                    TENSOR_Q5_1, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K};
    for (int i = 0; i < 8; i++) {
        uint64_t dims[2] = {(uint64_t)tensor_block(quantised[i]) + 16, 2};
        struct str s = {0};
        char words[80];
        header(&s, 3, 1, 0);
        info(&s, "t", 2, dims, (uint32_t)quantised[i], 0);
        data(&s, 4096);
        snprintf(words, sizeof words, "tensor t: rows of %" PRIu64 " values are no multiple of %d",
                 dims[0], tensor_block(quantised[i]));
        assert_refused(&s, words);
    }
}

static void test_types_that_we_lack_are_named(void **state)
{
    static const struct {
        uint32_t type;
        const char *words;
    } cases[] = {
        {10, "tensor t: type Q2_K is not supported"},
        {39, "tensor t: type MXFP4 is not supported"},
        {4, "tensor t: tensor type 4 is unknown"},
        {31, "tensor t: tensor type 31 is unknown"},
        {UINT32_MAX, "tensor t: tensor type 4294967295 is unknown"},
        {UINT32_C(1) << 31, "tensor t: tensor type 2147483648 is unknown"},
    };
    static const uint64_t dims[1] = {256};
    for (int i = 0; i < 6; i++) {
        struct str s = {0};
        header(&s, 3, 1, 0);
        info(&s, "t", 1, dims, cases[i].type, 0);
        data(&s, 4096);
        assert_refused(&s, cases[i].words);
    }
}

static void test_offsets_are_aligned_inside_and_apart(void **state)
{
    static const uint64_t dims[1] = {16}; /* 64 bytes of F32 */
    static const struct {
        uint64_t first, second;
        const char *words;
    } cases[] = {
        {0, 65, "tensor b: offset 65 is no multiple of the alignment 32"},
        {0, 96, "tensor b: 64 bytes at offset 96 end behind the data's 128 bytes"},
        {0, UINT64_MAX - 31, "tensor b: 64 bytes at offset 18446744073709551584"},
        {0, UINT64_C(1) << 63, "tensor b: 64 bytes at offset 9223372036854775808"},
        {0, 32, "tensor a: overlaps tensor b"},
        {64, 32, "tensor b: overlaps tensor a"},
        {64, 64, "overlaps tensor"},
    };
    for (int i = 0; i < 7; i++) {
        struct str s = {0};
        header(&s, 3, 2, 0);
        info(&s, "a", 1, dims, TENSOR_F32, cases[i].first);
        info(&s, "b", 1, dims, TENSOR_F32, cases[i].second);
        data(&s, 128);
        assert_refused(&s, cases[i].words);
    }
}

/* 68 bytes, of which the next tensor begins at 64: the smallest overlap that alignment allows. */
static void test_an_overlap_of_four_bytes_is_seen(void **state)
{
    static const uint64_t dims[1] = {17};
    struct str s = {0};
    header(&s, 3, 2, 0);
    info(&s, "a", 1, dims, TENSOR_F32, 0);
    info(&s, "b", 1, dims, TENSOR_F32, 64);
    data(&s, 132);
    assert_refused(&s, "tensor a: overlaps tensor b");
}

static void test_tensor_names_are_short_and_single(void **state)
{
    static const uint64_t dims[1] = {8};
    char name[66];
    struct str s = {0};
    header(&s, 3, 2, 0);
    info(&s, "twin", 1, dims, TENSOR_F32, 0);
    info(&s, "twin", 1, dims, TENSOR_F32, 32);
    data(&s, 64);
    assert_refused(&s, "tensor twin: appears twice");
    memset(name, 'x', 65);
    name[65] = 0;
    header(&s, 3, 1, 0);
    info(&s, name, 1, dims, TENSOR_F32, 0);
    data(&s, 64);
    assert_refused(&s, "tensor number 0: a name of 65 bytes, expected 1 to 64");
}

/* ---- cut files and cost -------------------------------------------------------------------- */

static void test_a_file_cut_anywhere_is_refused(void **state)
{
    struct str s = {0};
    build_valid(&s);
    for (size_t len = 0; len < s.len; len++) {
        struct str part = {0};
        str_append(&part, s.data, len);
        assert_refused(&part, ": ");
    }
    str_free(&s);
}

/* Every single bit flipped: opened or refused, never a crash. */
static void test_a_flipped_bit_never_crashes(void **state)
{
    struct str s = {0};
    struct err err;
    build_valid(&s);
    for (size_t bit = 0; bit < s.len * 8; bit++) {
        s.data[bit / 8] ^= (char)(1 << bit % 8);
        gguf_close(open_exact(s.data, s.len, &err));
        s.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    str_free(&s);
}

/* As many keys and tensors as are allowed, each as short as can be: what opening allocates stays
 * below 1 MiB. The last one is broken, so this is also the longest way to a refusal. */
static void test_opening_costs_little_memory_and_time(void **state)
{
    struct str s = {0};
    struct err err = {{0}};
    static const uint64_t dims[1] = {8};
    char name[16];
    header(&s, 3, GGUF_MAX_TENSORS, GGUF_MAX_KEYS);
    for (int i = 0; i < GGUF_MAX_KEYS; i++) {
        snprintf(name, sizeof name, "%x", i);
        text(&s, name);
        u32(&s, GGUF_U8);
        str_append_char(&s, 0);
    }
    for (int i = 0; i < GGUF_MAX_TENSORS; i++) {
        snprintf(name, sizeof name, "%x", i);
        info(&s, name, 1, dims, TENSOR_F32, i + 1 < GGUF_MAX_TENSORS ? (uint64_t)i * 32 : 1);
    }
    size_t last_offset = s.len - 8;
    uint64_t good = (GGUF_MAX_TENSORS - 1) * 32;
    data(&s, GGUF_MAX_TENSORS * 32);
    clock_t begin = clock(); /* time of the processor: other load does not count */
    assert_null(open_exact(s.data, s.len, &err));
    assert_true(clock() - begin < CLOCKS_PER_SEC / 10);
    assert_non_null(strstr(err.text, "offset 1 is no multiple"));
    memcpy(s.data + last_offset, &good, sizeof good);
    size_t before = mallinfo2().uordblks; /* stands still under asan, which has its own heap */
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_non_null(g);
    assert_true(mallinfo2().uordblks - before < 1 << 20);
    gguf_close(g);
    str_free(&s);
}

static void test_a_missing_file_is_named(void **state)
{
    struct err err;
    assert_null(gguf_open("/nonexistent/m.gguf", &err));
    assert_non_null(strstr(err.text, "/nonexistent/m.gguf"));
    gguf_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_come_back),
        cmocka_unit_test(test_arrays_come_back),
        cmocka_unit_test(test_tensors_point_at_their_data),
        cmocka_unit_test(test_an_own_alignment_is_kept_and_version_2_read),
        cmocka_unit_test(test_a_file_without_keys_and_tensors_opens),
        cmocka_unit_test(test_getters_refuse_wrong_types_and_values),
        cmocka_unit_test(test_an_array_of_bytes_is_no_array_of_scores),
        cmocka_unit_test(test_a_float_that_is_not_finite_is_refused),
        cmocka_unit_test(test_tensor_counts_that_wrap_are_refused),
        cmocka_unit_test(test_key_counts_that_wrap_are_refused),
        cmocka_unit_test(test_counts_above_the_limits_are_refused),
        cmocka_unit_test(test_string_lengths_that_wrap_are_refused),
        cmocka_unit_test(test_array_counts_that_wrap_are_refused),
        cmocka_unit_test(test_a_string_inside_an_array_may_not_leave_the_file),
        cmocka_unit_test(test_broken_headers_are_refused),
        cmocka_unit_test(test_broken_keys_are_refused_by_name),
        cmocka_unit_test(test_a_broken_alignment_is_refused),
        cmocka_unit_test(test_dimensions_are_one_to_four_and_positive),
        cmocka_unit_test(test_tensors_whose_bytes_wrap_are_refused),
        cmocka_unit_test(test_rows_are_whole_blocks),
        cmocka_unit_test(test_types_that_we_lack_are_named),
        cmocka_unit_test(test_offsets_are_aligned_inside_and_apart),
        cmocka_unit_test(test_an_overlap_of_four_bytes_is_seen),
        cmocka_unit_test(test_tensor_names_are_short_and_single),
        cmocka_unit_test(test_a_file_cut_anywhere_is_refused),
        cmocka_unit_test(test_a_flipped_bit_never_crashes),
        cmocka_unit_test(test_opening_costs_little_memory_and_time),
        cmocka_unit_test(test_a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
