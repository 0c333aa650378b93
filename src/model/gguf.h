/* gguf.h - a GGUF file, read only: keys with typed values, and a table of tensors.
 *
 * Opening checks everything that later access relies on, so the getters cannot run off the file.
 * All that they hand out (texts, arrays, tensor data) is borrowed from the map and goes with
 * gguf_close. An opened file is immutable: any thread may read it. Strings are length-counted: NUL
 * is a byte.
 *
 * Getters return 1 and the value, 0 when the key is absent (*out untouched, so it may hold the
 * default), or -1 with a fault that names file and key when the type or the value does not fit. */
#ifndef MODEL_GGUF_H
#define MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"
#include "kernels/tensor.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPES,
};

enum {
    GGUF_MAX_DIMS = 4,
    /* Files in use have tens of keys, and some 1,300 tensors at 126 layers. The limits keep what a
     * hostile file makes us allocate for its tables below 1 MiB. */
    GGUF_MAX_KEYS = 1024,
    GGUF_MAX_TENSORS = 4096,
};

struct gguf; /* owns the map, the value table and the tensor table */

struct gguf_tensor {
    struct bytes name;           /* borrows from the map */
    struct tensor tensor;        /* [n, k]: k = dims[0], n the product of the others */
    int32_t n_dims;              /* 1 .. GGUF_MAX_DIMS, as the file says */
    int64_t dims[GGUF_MAX_DIMS]; /* fastest first, each > 0; 1 beyond n_dims */
};

/* An array value, and the cursor for its strings. Copy it to start again. */
struct gguf_array {
    enum gguf_type element;
    uint64_t n;        /* elements; for strings: left to read */
    const uint8_t *at; /* unaligned, little-endian */
};

struct gguf *gguf_open(const char *path, struct err *err);
/* The same over bytes that the caller keeps until gguf_close. name stands in messages. */
struct gguf *gguf_open_memory(const char *name, const void *data, size_t len, struct err *err);
void gguf_close(struct gguf *g); /* accepts NULL */

const char *gguf_path(const struct gguf *g);
size_t gguf_size_bytes(const struct gguf *g);
/* All before the tensor data: header, keys, tensor table. */
struct bytes gguf_metadata(const struct gguf *g);

/* ---- keys ---------------------------------------------------------------------------------- */
size_t gguf_n_keys(const struct gguf *g);
struct bytes gguf_key(const struct gguf *g, size_t i, enum gguf_type *type); /* in file order */
/* Integers of any width and sign are taken when the value fits. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *err);
int gguf_get_i32(const struct gguf *g, const char *key, int32_t *out, struct err *err);
int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *err); /* finite */
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *err);
int gguf_get_string(const struct gguf *g, const char *key, struct bytes *out, struct err *err);
/* element: GGUF_STRING, GGUF_F32, or GGUF_I32 (which takes an array of u32 as well). */
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type element,
                   struct gguf_array *out, struct err *err);
int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i); /* i < a->n */
bool gguf_array_next_string(struct gguf_array *a, struct bytes *out); /* false at the end */

/* ---- tensors ------------------------------------------------------------------------------- */
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i); /* in file order */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name); /* or NULL */

/* Gives the pages of the tensor data back to the system; reading them again reads the file. */
void gguf_drop_pages(const struct gguf *g);

#endif
