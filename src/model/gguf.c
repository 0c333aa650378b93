/* gguf.c - opens a GGUF file and refuses it unless every byte of its tables makes sense.
 *
 *      ┌──────────┬───────────────┬──────────────────┬─────┬──────────────────────────────────┐
 *      │ header   │ keys          │ tensor table     │ pad │ tensor data                      │
 *      │ magic    │ name type     │ name dims type   │     │ offset from here, each a         │
 *      │ version  │ value ...     │ offset ...       │     │ multiple of general.alignment    │
 *      │ 2 counts │               │                  │     │                                  │
 *      └──────────┴───────────────┴──────────────────┴─────┴──────────────────────────────────┘
 *
 * Model files are downloaded from strangers, and this format has a row of CVEs in other readers:
 * counts whose product with a size wraps, lengths plus one that wrap, dimensions past a fixed
 * array. So one rule holds throughout: **a number from the file is compared with the bytes that are
 * left before it is used for anything**, by division and never by multiplication, and what can
 * still overflow (elements, bytes of a tensor) goes through a checked product. There is one place
 * that moves the reading position, `take`.
 *
 * Two tables are allocated, of bounded size (GGUF_MAX_KEYS, GGUF_MAX_TENSORS); strings, arrays and
 * data stay in the map. Each name is copied once, into the lookup table. So opening needs at most
 * the file's size and 1 MiB more, whatever the file says. String arrays are walked once here, so
 * that reading them later needs no checks.
 *
 * Stricter than the format asks: no empty or repeated names, no arrays of arrays, no overlapping
 * tensors, alignment of at least 8 (as the specification says, and readers may then use floats in
 * place) and at most a huge page. More lenient: bytes after the last tensor are ignored.
 *
 * Versions 2 and 3 differ in nothing that matters here; version 1 had 32-bit lengths and is
 * extinct. The format is the ggml project's; its specification is docs/gguf.md there. */
#include "model/gguf_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/mem.h"

enum {
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 2 << 20,                  /* a huge page: nothing is gained by more */
    MAX_KEY_BYTES = 65535,                    /* by the specification */
    MAX_TENSOR_NAME = 64,                     /* by the specification */
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,            /* length, one letter, type, one byte of value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* length, letter, n_dims, one dim, type, offset */
};

// clang-format off
/* Tensor types that exist and that we do not compute with: an error can name them. */
static const struct {
    uint32_t type;
    const char *name;
} foreign_types[] = {
    {9, "Q8_1"},     {10, "Q2_K"},   {11, "Q3_K"},    {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"},  {20, "IQ4_NL"},  {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"},  {39, "MXFP4"},
};
// clang-format on

/* ---- reading ------------------------------------------------------------------------------- */

/* What is being read, for messages: "key general.name", "tensor 7". Names come from the file, so
 * they are cut and their odd bytes are masked: a message is one line. */
struct place {
    char text[96];
};

struct reader {
    struct gguf *g;
    size_t at; /* <= map.len */
    struct place place;
    struct err *err;
};

static struct place place_of(const char *kind, struct bytes name)
{
    struct place p;
    int n = snprintf(p.text, sizeof p.text, "%s ", kind);
    size_t room = sizeof p.text - (size_t)n - 4; /* 4: "..." and NUL */
    size_t len = name.len < room ? name.len : room;
    for (size_t i = 0; i < len; i++) {
        char c = name.data[i];
        p.text[n++] = c > ' ' && c < 127 ? c : '?';
    }
    snprintf(p.text + n, 4, "%s", name.len > len ? "..." : "");
    return p;
}

static void place_number(struct reader *r, const char *kind, uint64_t number)
{
    snprintf(r->place.text, sizeof r->place.text, "%s number %" PRIu64, kind, number);
}

static size_t left(const struct reader *r)
{
    return r->g->map.len - r->at;
}

#define FAULT(r, format, ...)                                                                      \
    err_set((r)->err, "%s: %s: " format, (r)->g->path, (r)->place.text, __VA_ARGS__)

/* The next n bytes, or NULL with a fault. */
static const uint8_t *take(struct reader *r, uint64_t n)
{
    if (n > left(r)) {
        FAULT(r, "needs %" PRIu64 " bytes at %zu, the file has %zu more", n, r->at, left(r));
        return NULL;
    }
    const uint8_t *p = r->g->map.data + r->at;
    r->at += (size_t)n;
    return p;
}

static int take_into(struct reader *r, void *out, size_t n)
{
    const uint8_t *p = take(r, n);
    if (p == NULL)
        return -1;
    memcpy(out, p, n);
    return 0;
}

static int take_string(struct reader *r, struct bytes *out)
{
    uint64_t n;
    if (take_into(r, &n, sizeof n) != 0)
        return -1;
    const uint8_t *p = take(r, n);
    if (p == NULL)
        return -1;
    *out = (struct bytes){(const char *)p, (size_t)n};
    return 0;
}

/* A name of 1 .. limit bytes that is not in the table yet. */
static int take_name(struct reader *r, const char *kind, size_t limit, const struct table *seen,
                     struct bytes *out)
{
    if (take_string(r, out) != 0)
        return -1;
    if (out->len == 0 || out->len > limit)
        return FAULT(r, "a name of %zu bytes, expected 1 to %zu", out->len, limit);
    r->place = place_of(kind, *out);
    if (table_get(seen, *out) != NULL)
        return FAULT(r, "appears %s", "twice");
    return 0;
}

/* ---- header -------------------------------------------------------------------------------- */

/* Both limits, in this order: bytes left first, so that a wild count is named as what it is. */
static int check_count(struct reader *r, const char *what, uint64_t n, size_t least_bytes,
                       uint64_t limit)
{
    if (n > left(r) / least_bytes)
        return FAULT(r, "%" PRIu64 " %s do not fit into the %zu bytes that are left", n, what,
                     left(r));
    if (n > limit)
        return FAULT(r, "%" PRIu64 " %s, at most %" PRIu64 " are supported", n, what, limit);
    return 0;
}

static int read_header(struct reader *r)
{
    struct gguf *g = r->g;
    char magic[4];
    uint32_t version;
    uint64_t n_tensors, n_keys;
    snprintf(r->place.text, sizeof r->place.text, "header");
    if (take_into(r, magic, sizeof magic) != 0)
        return -1;
    if (memcmp(magic, "GGUF", 4) != 0)
        return FAULT(r, "no GGUF file: begins with %02x %02x %02x %02x", (uint8_t)magic[0],
                     (uint8_t)magic[1], (uint8_t)magic[2], (uint8_t)magic[3]);
    if (take_into(r, &version, sizeof version) != 0)
        return -1;
    if (version != 2 && version != 3)
        return FAULT(r, "GGUF version %" PRIu32 "%s, expected 2 or 3", version,
                     (version & 0xffff) == 0 && version != 0 ? " (a big-endian file?)" : "");
    if (take_into(r, &n_tensors, 8) != 0 || take_into(r, &n_keys, 8) != 0 ||
        check_count(r, "tensors", n_tensors, MIN_TENSOR_BYTES, GGUF_MAX_TENSORS) != 0 ||
        check_count(r, "keys", n_keys, MIN_KEY_BYTES, GGUF_MAX_KEYS) != 0)
        return -1;
    g->values = xcalloc(n_keys + 1, sizeof *g->values);
    g->tensors = xcalloc(n_tensors + 1, sizeof *g->tensors);
    g->n_tensors = (size_t)n_tensors;
    g->n_keys = (size_t)n_keys;
    return 0;
}

/* ---- keys ---------------------------------------------------------------------------------- */

static int take_type(struct reader *r, enum gguf_type *out)
{
    uint32_t type;
    if (take_into(r, &type, sizeof type) != 0)
        return -1;
    if (type >= GGUF_N_TYPES)
        return FAULT(r, "value type %" PRIu32 " is unknown", type);
    *out = (enum gguf_type)type;
    return 0;
}

static int take_array(struct reader *r, struct gguf_value *v)
{
    if (take_type(r, &v->element) != 0 || take_into(r, &v->n, sizeof v->n) != 0)
        return -1;
    if (v->element == GGUF_ARRAY)
        return FAULT(r, "arrays of arrays are not supported (%" PRIu64 " of them)", v->n);
    int size = gguf_type_bytes(v->element);
    size_t least = size != 0 ? (size_t)size : sizeof(uint64_t); /* a string has its length */
    if (v->n > left(r) / least)
        return FAULT(r, "array of %" PRIu64 " x %s does not fit into the %zu bytes that are left",
                     v->n, gguf_type_name(v->element), left(r));
    v->at = r->g->map.data + r->at;
    if (size != 0)
        return take(r, v->n * least) != NULL ? 0 : -1;
    struct bytes skipped;
    for (uint64_t i = 0; i < v->n; i++)
        if (take_string(r, &skipped) != 0)
            return -1;
    return 0;
}

static int take_value(struct reader *r, struct gguf_value *v)
{
    struct bytes text;
    v->n = 1;
    if (v->type == GGUF_ARRAY)
        return take_array(r, v);
    if (v->type == GGUF_STRING) {
        if (take_string(r, &text) != 0)
            return -1;
        v->at = (const uint8_t *)text.data;
        v->n = text.len;
        return 0;
    }
    v->at = take(r, (uint64_t)gguf_type_bytes(v->type));
    if (v->at == NULL)
        return -1;
    if (v->type == GGUF_BOOL && *v->at > 1)
        return FAULT(r, "a bool of value %u, expected 0 or 1", *v->at);
    return 0;
}

static int read_keys(struct reader *r)
{
    struct gguf *g = r->g;
    for (size_t i = 0; i < g->n_keys; i++) {
        struct gguf_value *v = &g->values[i];
        place_number(r, "key", i);
        if (take_name(r, "key", MAX_KEY_BYTES, g->keys, &v->key) != 0 ||
            take_type(r, &v->type) != 0 || take_value(r, v) != 0)
            return -1;
        (void)table_put(g->keys, v->key, v); /* take_name saw that there is no other */
    }
    return 0;
}

static int read_alignment(struct reader *r)
{
    struct gguf *g = r->g;
    const char *key = "general.alignment";
    uint32_t n = DEFAULT_ALIGNMENT;
    if (gguf_get_u32(g, key, &n, r->err) < 0)
        return -1;
    r->place = place_of("key", bytes_from(key));
    if (n == 0 || (n & (n - 1)) != 0)
        return FAULT(r, "%" PRIu32 " is not a power of two", n);
    if (n < MIN_ALIGNMENT || n > MAX_ALIGNMENT)
        return FAULT(r, "%" PRIu32 " is not between %d and %d", n, MIN_ALIGNMENT, MAX_ALIGNMENT);
    g->alignment = n;
    return 0;
}

/* ---- tensors ------------------------------------------------------------------------------- */

static int take_dims(struct reader *r, struct gguf_tensor *t)
{
    uint32_t n_dims;
    if (take_into(r, &n_dims, sizeof n_dims) != 0)
        return -1;
    if (n_dims == 0 || n_dims > GGUF_MAX_DIMS)
        return FAULT(r, "%" PRIu32 " dimensions, expected 1 to %d", n_dims, GGUF_MAX_DIMS);
    t->n_dims = (int32_t)n_dims;
    t->tensor.n = 1;
    for (int i = 0; i < GGUF_MAX_DIMS; i++) {
        t->dims[i] = 1;
        if (i < t->n_dims && take_into(r, &t->dims[i], 8) != 0)
            return -1;
        if (t->dims[i] <= 0)
            return FAULT(r, "dimension %d is %" PRId64, i, t->dims[i]);
        if (i > 0 && __builtin_mul_overflow(t->tensor.n, t->dims[i], &t->tensor.n))
            return FAULT(r, "dimension %d of %" PRId64 " overflows the number of rows", i,
                         t->dims[i]);
    }
    t->tensor.k = t->dims[0];
    return 0;
}

static int take_tensor_type(struct reader *r, struct tensor *t)
{
    uint32_t type;
    if (take_into(r, &type, sizeof type) != 0)
        return -1;
    if (type <= INT32_MAX && tensor_type_name((int)type) != NULL) {
        t->type = (enum tensor_type)type;
        return 0;
    }
    for (size_t i = 0; i < sizeof foreign_types / sizeof foreign_types[0]; i++)
        if (foreign_types[i].type == type)
            return FAULT(r, "type %s is not supported", foreign_types[i].name);
    return FAULT(r, "tensor type %" PRIu32 " is unknown", type);
}

/* Bytes of a tensor; -1 when rows are no whole blocks or the product overflows. */
static int tensor_bytes(struct reader *r, const struct tensor *t, size_t *out)
{
    size_t row = tensor_row_bytes(t->type, t->k);
    if (row == 0)
        return FAULT(r, "rows of %" PRId64 " values are no multiple of %d, the block of %s", t->k,
                     tensor_block(t->type), tensor_type_name(t->type));
    if (!mul_ok(row, (size_t)t->n, out))
        return FAULT(r, "%" PRId64 " x %" PRId64 " values of %s overflow", t->k, t->n,
                     tensor_type_name(t->type));
    return 0;
}

/* Until place_tensors, data holds the offset: where the data begins is known only at the end. */
static int read_tensors(struct reader *r, uint64_t *offsets)
{
    struct gguf *g = r->g;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        place_number(r, "tensor", i);
        if (take_name(r, "tensor", MAX_TENSOR_NAME, g->names, &t->name) != 0 ||
            take_dims(r, t) != 0 || take_tensor_type(r, &t->tensor) != 0 ||
            take_into(r, &offsets[i], 8) != 0)
            return -1;
        (void)table_put(g->names, t->name, t); /* take_name saw that there is no other */
    }
    return 0;
}

/* Points each tensor at its bytes, which lie inside the file. */
static int place_tensors(struct reader *r, const uint64_t *offsets)
{
    struct gguf *g = r->g;
    g->data_at = r->at + (size_t)(-r->at & (g->alignment - 1));
    if (g->n_tensors == 0) /* then the padding need not be there */
        g->data_at = r->at;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        size_t bytes = 0, room = g->map.len > g->data_at ? g->map.len - g->data_at : 0;
        r->place = place_of("tensor", t->name);
        if (tensor_bytes(r, &t->tensor, &bytes) != 0)
            return -1;
        if (offsets[i] % g->alignment != 0)
            return FAULT(r, "offset %" PRIu64 " is no multiple of the alignment %" PRIu32,
                         offsets[i], g->alignment);
        if (bytes > room || offsets[i] > room - bytes)
            return FAULT(r, "%zu bytes at offset %" PRIu64 " end behind the data's %zu bytes",
                         bytes, offsets[i], room);
        t->tensor.data = g->map.data + g->data_at + (size_t)offsets[i];
    }
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;
    uintptr_t p = (uintptr_t)(*x)->tensor.data, q = (uintptr_t)(*y)->tensor.data;
    return p < q ? -1 : p > q;
}

/* A tensor that reaches into the next one is a broken file, though nothing would be read outside.
 */
static int check_overlap(struct reader *r)
{
    struct gguf *g = r->g;
    int status = 0;
    const struct gguf_tensor **order = xcalloc(g->n_tensors + 1, sizeof *order);
    for (size_t i = 0; i < g->n_tensors; i++)
        order[i] = &g->tensors[i];
    qsort(order, g->n_tensors, sizeof *order, by_place);
    for (size_t i = 0; i + 1 < g->n_tensors && status == 0; i++) {
        const struct tensor *t = &order[i]->tensor;
        const uint8_t *end =
            (const uint8_t *)t->data + tensor_row_bytes(t->type, t->k) * (size_t)t->n;
        struct place next = place_of("tensor", order[i + 1]->name);
        r->place = place_of("tensor", order[i]->name);
        if (end > (const uint8_t *)order[i + 1]->tensor.data)
            status = FAULT(r, "overlaps %s", next.text);
    }
    xfree(order);
    return status;
}

/* ---- opening ------------------------------------------------------------------------------- */

static int read_all(struct reader *r)
{
    if (read_header(r) != 0)
        return -1;
    uint64_t *offsets = xcalloc(r->g->n_tensors + 1, sizeof *offsets);
    int status = -1;
    if (read_keys(r) == 0 && read_alignment(r) == 0 && read_tensors(r, offsets) == 0 &&
        place_tensors(r, offsets) == 0 && check_overlap(r) == 0)
        status = 0;
    xfree(offsets);
    return status;
}

static struct gguf *open_map(const char *path, struct file_map map, bool is_mapped, struct err *err)
{
    struct gguf *g = xcalloc(1, sizeof *g);
    g->path = xstrdup(path);
    g->map = map;
    g->is_mapped = is_mapped;
    g->keys = table_new();
    g->names = table_new();
    struct reader r = {.g = g, .err = err};
    if (read_all(&r) == 0)
        return g;
    gguf_close(g);
    return NULL;
}

struct gguf *gguf_open(const char *path, struct err *err)
{
    struct file_map map;
    if (file_map_open(path, &map, err) != 0)
        return NULL;
    return open_map(path, map, true, err);
}

struct gguf *gguf_open_memory(const char *name, const void *data, size_t len, struct err *err)
{
    return open_map(name, (struct file_map){.data = data, .len = len}, false, err);
}

void gguf_close(struct gguf *g)
{
    if (g == NULL)
        return;
    table_free(g->names, NULL);
    table_free(g->keys, NULL);
    xfree(g->tensors);
    xfree(g->values);
    if (g->is_mapped)
        file_map_close(&g->map);
    xfree(g->path);
    xfree(g);
}

/* Clean pages of a private map may go at any time; the next reader faults them in again. */
void gguf_drop_pages(const struct gguf *g)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t from = (g->data_at + page - 1) / page * page;
    if (g->is_mapped && from < g->map.len)
        (void)madvise((void *)(uintptr_t)(g->map.data + from), g->map.len - from,
                      MADV_DONTNEED); /* advice: nothing to do when it is not taken */
}
