/* gguf_bytes.h - GGUF files in memory for its tests: one that is right, and parts to build wrong ones
 * from, since the writer cannot be talked into most faults. */
#ifndef TESTS_UNIT_GGUF_BYTES_H
#define TESTS_UNIT_GGUF_BYTES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "model/gguf.h"
#include "model/gguf_write.h"

static inline void u32(struct str *s, uint32_t v)
{
    str_append(s, &v, sizeof v);
}

static inline void u64(struct str *s, uint64_t v)
{
    str_append(s, &v, sizeof v);
}

static inline void text(struct str *s, const char *t)
{
    u64(s, strlen(t));
    str_append_str(s, t);
}

static inline void header(struct str *s, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    str_append_str(s, "GGUF");
    u32(s, version);
    u64(s, n_tensors);
    u64(s, n_keys);
}

/* A row of the tensor table with up to four dimensions. */
static inline void info(struct str *s, const char *name, uint32_t n_dims, const uint64_t *dims,
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
static inline void data(struct str *s, size_t n)
{
    static const char zeros[4096];
    str_append(s, zeros, (size_t)(-s->len & 31));
    for (; n > 0; n -= n < sizeof zeros ? n : sizeof zeros)
        str_append(s, zeros, n < sizeof zeros ? n : sizeof zeros);
}

static inline struct gguf *open_exact(const char *bytes, size_t len, struct err *err)
{
    return gguf_open_memory("m.gguf", bytes, len, err);
}

/* Refused with a line that begins with the file and has `words`. Frees s. The copy is exact in
 * size, so that asan sees a read past the end. */
static inline void assert_refused(struct str *s, const char *words)
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
static inline void build_valid(struct str *out)
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

#endif
