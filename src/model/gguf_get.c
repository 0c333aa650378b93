/* gguf_get.c - typed access to the keys and tensors of an open GGUF file.
 *
 * gguf.c has checked every length, so nothing here can run off the map; what is left to check is
 * what the caller asks for: the type of a value, and whether a number fits. Writers differ in the
 * width and sign that they give a number (u32, i32 and u64 are all seen for the same key), so any
 * integer type is taken and its value is checked. Arrays are not so: their elements are read in
 * place, and an array of u8 that is read as f32 runs past its end (that was a bug of llama.cpp).
 *
 * Values are unaligned in the file: memcpy everywhere. Any thread; no state beside the file. */
#include "model/gguf_file.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

// clang-format off
static const struct {
    const char *name;
    int size_bytes; /* 0: not of fixed size */
} types[GGUF_N_TYPES] = {
    [GGUF_U8]  = {"u8", 1},   [GGUF_I8]  = {"i8", 1},   [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},  [GGUF_U32] = {"u32", 4},  [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},  [GGUF_U64] = {"u64", 8},  [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},  [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0},
};
// clang-format on

const char *gguf_type_name(enum gguf_type type)
{
    ASSERT(type < GGUF_N_TYPES);
    return types[type].name;
}

int gguf_type_bytes(enum gguf_type type)
{
    ASSERT(type < GGUF_N_TYPES);
    return types[type].size_bytes;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

size_t gguf_size_bytes(const struct gguf *g)
{
    return g->map.len;
}

struct bytes gguf_metadata(const struct gguf *g)
{
    size_t len = g->data_at < g->map.len ? g->data_at : g->map.len;
    return (struct bytes){(const char *)g->map.data, len};
}

/* ---- getters ------------------------------------------------------------------------------- */

size_t gguf_n_keys(const struct gguf *g)
{
    return g->n_keys;
}

struct bytes gguf_key(const struct gguf *g, size_t i, enum gguf_type *type)
{
    ASSERT(i < g->n_keys);
    if (type != NULL)
        *type = g->values[i].type;
    return g->values[i].key;
}

static const struct gguf_value *find(const struct gguf *g, const char *key)
{
    return table_get(g->keys, bytes_from(key));
}

static int wrong_type(const struct gguf *g, const char *key, const struct gguf_value *v,
                      const char *expected, struct err *err)
{
    if (v->type == GGUF_ARRAY)
        return err_set(err, "%s: key %s: an array of %s, expected %s", g->path, key,
                       gguf_type_name(v->element), expected);
    return err_set(err, "%s: key %s: type %s, expected %s", g->path, key, gguf_type_name(v->type),
                   expected);
}

/* Any integer, sign-extended to 64 bits; false when v is no integer. */
static bool load_integer(const struct gguf_value *v, uint64_t *bits, bool *is_negative)
{
    int size = gguf_type_bytes(v->type);
    bool is_signed =
        v->type == GGUF_I8 || v->type == GGUF_I16 || v->type == GGUF_I32 || v->type == GGUF_I64;
    if (!is_signed && v->type != GGUF_U8 && v->type != GGUF_U16 && v->type != GGUF_U32 &&
        v->type != GGUF_U64)
        return false;
    *bits = 0;
    memcpy(bits, v->at, (size_t)size);
    *is_negative = is_signed && (v->at[size - 1] & 0x80) != 0;
    if (*is_negative && size < 8)
        *bits |= ~(uint64_t)0 << size * 8;
    return true;
}

/* An integer in [low, high]; high may be above INT64_MAX, low is not above 0. */
static int get_integer(const struct gguf *g, const char *key, int64_t low, uint64_t high,
                       uint64_t *out, struct err *err)
{
    const struct gguf_value *v = find(g, key);
    uint64_t bits;
    bool is_negative;
    if (v == NULL)
        return 0;
    if (!load_integer(v, &bits, &is_negative))
        return wrong_type(g, key, v, "an integer", err);
    if (is_negative && (int64_t)bits < low)
        return err_set(err, "%s: key %s: %" PRId64 " is below %" PRId64, g->path, key,
                       (int64_t)bits, low);
    if (!is_negative && bits > high)
        return err_set(err, "%s: key %s: %" PRIu64 " is above %" PRIu64, g->path, key, bits, high);
    *out = bits;
    return 1;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *err)
{
    uint64_t bits;
    int status = get_integer(g, key, 0, UINT32_MAX, &bits, err);
    if (status == 1)
        *out = (uint32_t)bits;
    return status;
}

int gguf_get_i32(const struct gguf *g, const char *key, int32_t *out, struct err *err)
{
    uint64_t bits;
    int status = get_integer(g, key, INT32_MIN, INT32_MAX, &bits, err);
    if (status == 1)
        *out = (int32_t)(int64_t)bits;
    return status;
}

int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *err)
{
    const struct gguf_value *v = find(g, key);
    float f;
    double d;
    if (v == NULL)
        return 0;
    if (v->type == GGUF_F32) {
        memcpy(&f, v->at, sizeof f);
    } else if (v->type == GGUF_F64) {
        memcpy(&d, v->at, sizeof d);
        f = (float)d;
    } else {
        return wrong_type(g, key, v, "f32", err);
    }
    if (!isfinite(f))
        return err_set(err, "%s: key %s: %g is no finite number", g->path, key, (double)f);
    *out = f;
    return 1;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *err)
{
    const struct gguf_value *v = find(g, key);
    if (v == NULL)
        return 0;
    if (v->type != GGUF_BOOL)
        return wrong_type(g, key, v, "bool", err);
    *out = *v->at == 1;
    return 1;
}

int gguf_get_string(const struct gguf *g, const char *key, struct bytes *out, struct err *err)
{
    const struct gguf_value *v = find(g, key);
    if (v == NULL)
        return 0;
    if (v->type != GGUF_STRING)
        return wrong_type(g, key, v, "string", err);
    *out = (struct bytes){(const char *)v->at, (size_t)v->n};
    return 1;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type element,
                   struct gguf_array *out, struct err *err)
{
    const struct gguf_value *v = find(g, key);
    char expected[32];
    if (v == NULL)
        return 0;
    bool fits = v->type == GGUF_ARRAY &&
                (v->element == element || (element == GGUF_I32 && v->element == GGUF_U32));
    snprintf(expected, sizeof expected, "an array of %s", gguf_type_name(element));
    if (!fits)
        return wrong_type(g, key, v, expected, err);
    *out = (struct gguf_array){.element = element, .n = v->n, .at = v->at};
    return 1;
}

int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i)
{
    int32_t value;
    ASSERT(a->element == GGUF_I32 && i < a->n);
    memcpy(&value, a->at + i * sizeof value, sizeof value);
    return value;
}

/* The lengths were checked by take_array. */
bool gguf_array_next_string(struct gguf_array *a, struct bytes *out)
{
    uint64_t len;
    ASSERT(a->element == GGUF_STRING);
    if (a->n == 0)
        return false;
    memcpy(&len, a->at, sizeof len);
    *out = (struct bytes){(const char *)a->at + sizeof len, (size_t)len};
    a->at += sizeof len + (size_t)len;
    a->n--;
    return true;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    ASSERT(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    return table_get(g->names, bytes_from(name));
}
