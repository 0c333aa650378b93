/* ref_attention.c - the reference K/V pool: layout, copies, rotation and writes, attention.
 *
 * For a row at position p, a query head and its K/V head:
 *
 *     s[t] = scale * sum over d ascending of q[d] * k[t, d]        t in 0 .. p
 *     e[t] = exp(s[t] - max s),  l = sum over t ascending of e[t]
 *     out[d] = (sum over t ascending of e[t] * v[t, d]) / l
 *
 * all in double, rounded once. K and V are read back from the pool, those of this step included, so
 * that a prompt cut in two gives the same bits. The pool is found through the row's block table;
 * loops end at p, because slots beyond it may hold anything, NaN included: a vector of scores may
 * cover such slots in lanes that nobody reads.
 *
 * A pool is float. As bf16 or int8 it holds what a pool of that type stands for, still as floats: the
 * values are rounded when they are written, which makes it the definition of those types, too. Blocks
 * of 8 to 128 tokens: multiples of the lanes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "kernels/f16.h"
#include "kernels/ref/ref.h"

/* Four sums a vector, four vectors at once: an addition takes four cycles, and a chain cannot be
 * split, so that many chains are needed to keep the unit busy. */
#define VECTOR 4
#define TILE (4 * VECTOR)
typedef double lanes __attribute__((vector_size(VECTOR * sizeof(double))));
typedef float floats __attribute__((vector_size(VECTOR * sizeof(float)), aligned(4)));

static int32_t round_up(int32_t n)
{
    return (n + TILE - 1) / TILE * TILE;
}

/* Four floats, widened. A macro: a function that returns a vector has another ABI with AVX. */
#define WIDEN(p) __builtin_convertvector(*(const floats *)(p), lanes)

/* ---- the pool ------------------------------------------------------------------------------- */

/* Floats of one block in one layer: K and V. */
static void block_floats(const struct attention_shape *s, size_t *k, size_t *v)
{
    size_t tokens = (size_t)s->n_kv_heads * (size_t)s->block_size;
    *k = tokens * (size_t)s->head_dim;
    *v = tokens * (size_t)round_up(s->head_dim);
}

size_t ref_block_bytes(struct backend *b, const struct attention_shape *shape)
{
    (void)b;
    size_t k, v;
    block_floats(shape, &k, &v);
    return (k + v) * sizeof(float) * (size_t)shape->n_layers;
}

static int check_shape(const struct ref *r, struct attention_shape *s, struct err *err)
{
    int32_t size = s->block_size;
    if (backend_kv_type(&ref_backend_ops, s->kv_type, &s->kv_type, err) < 0)
        return -1;
    if (size < 8 || size > 128 || (size & (size - 1)) != 0)
        return err_set(err, "ref: block size %d; it takes 8, 16, 32, 64 and 128", size);
    if (size != r->config.limits.block_size)
        return err_set(err, "ref: block size %d, but plans have %d", size,
                       r->config.limits.block_size);
    if (s->n_blocks < 1 || s->n_blocks > INT32_MAX / size)
        return err_set(err, "ref: %d blocks of %d tokens; from 1 to %d fit", s->n_blocks, size,
                       INT32_MAX / size);
    ASSERT(s->n_heads % s->n_kv_heads == 0 && s->rope_dim % 2 == 0 && s->rope_dim <= s->head_dim);
    return 0;
}

int ref_pool_open(struct backend *b, const struct attention_shape *shape, struct err *err)
{
    struct ref *r = (struct ref *)b;
    struct attention_shape s = *shape;
    if (check_shape(r, &s, err) != 0)
        return -1;
    r->shape = s;
    r->v_stride = round_up(shape->head_dim);
    block_floats(shape, &r->k_block, &r->v_block);

    size_t blocks = (size_t)shape->n_layers * (size_t)shape->n_blocks;
    size_t scores = (size_t)r->config.n_threads * (size_t)round_up(r->config.n_context);
    r->k = calloc(blocks, r->k_block * sizeof(float)); /* mapped on first use */
    r->v = calloc(blocks, r->v_block * sizeof(float));
    r->scores = calloc(scores, sizeof(double));
    if (r->k != NULL && r->v != NULL && r->scores != NULL)
        return 0;
    ref_pool_close(b);
    return err_set(err, "ref: no memory for %d blocks of %zu bytes", shape->n_blocks,
                   ref_block_bytes(b, shape));
}

void ref_pool_close(struct backend *b)
{
    struct ref *r = (struct ref *)b;
    free(r->k);
    free(r->v);
    free(r->scores);
    free(r->host);
    r->k = r->v = r->host = NULL;
    r->scores = NULL;
}

int ref_host_open(struct backend *b, int32_t n_slots, struct err *err)
{
    struct ref *r = (struct ref *)b;
    size_t block = ref_block_bytes(b, &r->shape);
    r->host = calloc((size_t)n_slots, block); /* mapped on first use */
    if (r->host != NULL)
        return 0;
    return err_set(err, "ref: no host memory for %d blocks of %zu bytes", n_slots, block);
}

/* K of one head in one block: [D, block_size]; V: [block_size, v_stride]. */
static float *k_at(const struct ref *r, int32_t layer, int32_t block, int32_t head)
{
    size_t index = (size_t)layer * (size_t)r->shape.n_blocks + (size_t)block;
    return r->k + index * r->k_block +
           (size_t)head * (size_t)r->shape.head_dim * (size_t)r->shape.block_size;
}

static float *v_at(const struct ref *r, int32_t layer, int32_t block, int32_t head)
{
    size_t index = (size_t)layer * (size_t)r->shape.n_blocks + (size_t)block;
    return r->v + index * r->v_block +
           (size_t)head * (size_t)r->v_stride * (size_t)r->shape.block_size;
}

/* Whole blocks, in the plan's order: slots past n_tokens are nobody's before they are written. */
void ref_copy(struct backend *b)
{
    const struct ref *r = (const struct ref *)b;
    for (int32_t i = 0; i < r->plan->n_copies; i++) {
        const struct plan_copy *c = &r->plan->copies[i];
        for (int32_t layer = 0; layer < r->shape.n_layers; layer++) {
            memcpy(k_at(r, layer, c->dst, 0), k_at(r, layer, c->src, 0),
                   r->k_block * sizeof(float));
            memcpy(v_at(r, layer, c->dst, 0), v_at(r, layer, c->src, 0),
                   r->v_block * sizeof(float));
        }
    }
}

/* K and V of one layer of a host slot, one behind the other. */
static float *host_at(const struct ref *r, int32_t slot, int32_t layer)
{
    size_t index = (size_t)slot * (size_t)r->shape.n_layers + (size_t)layer;
    return r->host + index * (r->k_block + r->v_block);
}

void ref_out(struct backend *b)
{
    const struct ref *r = (const struct ref *)b;
    for (int32_t i = 0; i < r->plan->n_outs; i++) {
        const struct plan_move *m = &r->plan->outs[i];
        for (int32_t layer = 0; layer < r->shape.n_layers; layer++) {
            float *host = host_at(r, m->slot, layer);
            memcpy(host, k_at(r, layer, m->block, 0), r->k_block * sizeof(float));
            memcpy(host + r->k_block, v_at(r, layer, m->block, 0), r->v_block * sizeof(float));
        }
    }
}

void ref_in(struct backend *b)
{
    const struct ref *r = (const struct ref *)b;
    for (int32_t i = 0; i < r->plan->n_ins; i++) {
        const struct plan_move *m = &r->plan->ins[i];
        for (int32_t layer = 0; layer < r->shape.n_layers; layer++) {
            const float *host = host_at(r, m->slot, layer);
            memcpy(k_at(r, layer, m->block, 0), host, r->k_block * sizeof(float));
            memcpy(v_at(r, layer, m->block, 0), host + r->k_block, r->v_block * sizeof(float));
        }
    }
}

/* ---- rotation and writes -------------------------------------------------------------------- */

/* Rotates the first rope_dim of x [D] by the angles of a position. */
static void rotate(const struct attention_shape *s, int32_t position, float *x)
{
    int32_t half = s->rope_dim / 2;
    const float *cosine = s->rope_cos + (size_t)position * (size_t)half;
    const float *sine = s->rope_sin + (size_t)position * (size_t)half;
    for (int32_t i = 0; i < half; i++) {
        int32_t first = s->rope_neox ? i : 2 * i;
        int32_t second = s->rope_neox ? i + half : 2 * i + 1;
        double a = x[first], c = x[second];
        x[first] = (float)(a * cosine[i] - c * sine[i]);
        x[second] = (float)(a * sine[i] + c * cosine[i]);
    }
}

static void keep_f32(float *x, int32_t n)
{
    (void)x;
    (void)n;
}

static void round_bf16(float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = bf16_to_float(bf16_from_float(x[i]));
}

/* One scale for the n values, a bf16 that maps the largest to 127 at most. Below 2^-100 all are
 * zero. */
static void round_int8(float *x, int32_t n)
{
    float most = 0;
    for (int32_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float scale = most >= 0x1p-100f ? bf16_to_float(bf16_from_float_up(most / 127)) : 0;
    for (int32_t i = 0; i < n; i++)
        x[i] = scale > 0 ? scale * rintf(x[i] / scale) : 0;
}

/* What a pool of the type makes of one token's K or V in one head. */
static void (*const roundings[KV_N_TYPES])(float *x, int32_t n) = {
    [KV_F32] = keep_f32,
    [KV_BF16] = round_bf16,
    [KV_INT8] = round_int8,
};

static void write_slot(const struct ref *r, int32_t layer, int32_t slot, int32_t head, float *k,
                       float *v)
{
    roundings[r->shape.kv_type](k, r->shape.head_dim);
    roundings[r->shape.kv_type](v, r->shape.head_dim);
    int32_t size = r->shape.block_size, at = slot % size, dim = r->shape.head_dim;
    float *to_k = k_at(r, layer, slot / size, head);
    float *to_v = v_at(r, layer, slot / size, head) + (size_t)at * (size_t)r->v_stride;
    for (int32_t d = 0; d < dim; d++)
        to_k[(size_t)d * (size_t)size + (size_t)at] = k[d];
    memcpy(to_v, v, (size_t)dim * sizeof(*v));
}

/* qkv [T, (H + 2G) D] + bias -> q [T, H, D] rotated; K rotated and V to the slots of the rows. */
void ref_rope_kv_write(struct backend *b, int32_t layer, const float *qkv, const float *bias,
                       void *q)
{
    const struct ref *r = (const struct ref *)b;
    const struct attention_shape *s = &r->shape;
    size_t dim = (size_t)s->head_dim, heads = (size_t)s->n_heads, kv = (size_t)s->n_kv_heads;
    size_t width = (heads + 2 * kv) * dim;
    float *row = xmalloc(width * sizeof(*row));

    for (int32_t t = 0; t < r->plan->n_rows; t++) {
        for (size_t i = 0; i < width; i++)
            row[i] = qkv[(size_t)t * width + i] + (bias != NULL ? bias[i] : 0);
        for (size_t h = 0; h < heads + kv; h++)
            rotate(s, r->plan->positions[t], row + h * dim);
        memcpy((float *)q + (size_t)t * heads * dim, row, heads * dim * sizeof(*row));
        for (size_t g = 0; g < kv; g++)
            write_slot(r, layer, r->plan->slots[t], (int32_t)g, row + (heads + g) * dim,
                       row + (heads + kv + g) * dim);
    }
    xfree(row);
}

/* ---- attention ------------------------------------------------------------------------------ */

struct reader {
    const struct ref *ref;
    int32_t layer;
    const float *q; /* [T, H, D] */
    float *out;     /* [T, H, D] */
    void (*head)(const struct reader *a, int32_t row, int32_t h, double *scores);
};

/* scores [n rounded up] = scale * q . K over one sequence's table; those past n are anything. A
 * tile is two runs of eight tokens, which may lie in different blocks. */
static inline __attribute__((always_inline)) void score(const struct reader *a, const float *q,
                                                        const int32_t *table, int32_t g, int32_t n,
                                                        double *scores)
{
    const struct attention_shape *s = &a->ref->shape;
    int32_t size = s->block_size;
    double scale = s->scale;
    for (int32_t t = 0; t < n; t += TILE) {
        int32_t u = t + TILE / 2 < n ? t + TILE / 2 : t; /* a run past the end repeats the first */
        const float *k = k_at(a->ref, a->layer, table[t / size], g) + t % size;
        const float *l = k_at(a->ref, a->layer, table[u / size], g) + u % size;
        lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
        for (int32_t d = 0; d < s->head_dim; d++, k += size, l += size) {
            double x = q[d];
            s0 += x * WIDEN(k);
            s1 += x * WIDEN(k + VECTOR);
            s2 += x * WIDEN(l);
            s3 += x * WIDEN(l + VECTOR);
        }
        const lanes all[] = {s0 * scale, s1 * scale, s2 * scale, s3 * scale};
        memcpy(scores + t, all, sizeof(all));
    }
}

/* out [D] = (weights [n] . V) / sum over one sequence's table. */
static inline __attribute__((always_inline)) void mix(const struct reader *a, const double *weights,
                                                      double sum, const int32_t *table, int32_t g,
                                                      int32_t n, float *out)
{
    const struct ref *r = a->ref;
    int32_t size = r->shape.block_size;
    for (int32_t d = 0; d < r->shape.head_dim; d += TILE) {
        lanes o0 = {0}, o1 = {0}, o2 = {0}, o3 = {0};
        for (int32_t t = 0; t < n; t++) {
            const float *v = v_at(r, a->layer, table[t / size], g) +
                             (size_t)(t % size) * (size_t)r->v_stride + d;
            o0 += weights[t] * WIDEN(v);
            o1 += weights[t] * WIDEN(v + VECTOR);
            o2 += weights[t] * WIDEN(v + 2 * VECTOR);
            o3 += weights[t] * WIDEN(v + 3 * VECTOR);
        }
        const lanes all[] = {o0 / sum, o1 / sum, o2 / sum, o3 / sum};
        double values[TILE];
        memcpy(values, all, sizeof(all));
        for (int32_t i = 0; i < TILE && d + i < r->shape.head_dim; i++)
            out[d + i] = (float)values[i];
    }
}

/* scores [n] -> exp(score - max); returns their sum. */
static double exponentials(double *scores, int32_t n)
{
    double max = scores[0], sum = 0;
    for (int32_t t = 1; t < n; t++)
        max = scores[t] > max ? scores[t] : max;
    for (int32_t t = 0; t < n; t++) {
        scores[t] = exp(scores[t] - max);
        sum += scores[t];
    }
    return sum;
}

/* One row and head. */
static inline __attribute__((always_inline)) void head_body(const struct reader *a, int32_t row,
                                                            int32_t h, double *scores)
{
    const struct ref *r = a->ref;
    const struct attention_shape *s = &r->shape;
    const struct plan_seq *seq = &r->plan->seqs[r->plan->row_seq[row]];
    const int32_t *table = r->plan->tables + seq->table_at;
    int32_t n = r->plan->positions[row] + 1, g = h / (s->n_heads / s->n_kv_heads);
    size_t at = ((size_t)row * (size_t)s->n_heads + (size_t)h) * (size_t)s->head_dim;

    score(a, a->q + at, table, g, n, scores);
    double sum = exponentials(scores, n);
    mix(a, scores, sum, table, g, n, a->out + at);
}

static void head_plain(const struct reader *a, int32_t row, int32_t h, double *scores)
{
    head_body(a, row, h, scores);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void head_avx2(const struct reader *a, int32_t row,
                                                      int32_t h, double *scores)
{
    head_body(a, row, h, scores);
}
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
#define head_avx2 head_plain
static bool has_avx2(void)
{
    return false;
}
#endif

static void attend_row(void *arg, int32_t row, int thread)
{
    const struct reader *a = arg;
    double *scores = a->ref->scores + (size_t)thread * (size_t)round_up(a->ref->config.n_context);
    for (int32_t h = 0; h < a->ref->shape.n_heads; h++)
        a->head(a, row, h, scores);
}

/* q [T, H, D] over the pool, causal -> out [T, H * D] */
void ref_attention(struct backend *b, int32_t layer, const void *q, void *out)
{
    const struct ref *r = (const struct ref *)b;
    struct reader a = {r, layer, q, out, has_avx2() ? head_avx2 : head_plain};
    ref_parallel(r, r->plan->n_rows, attend_row, &a);
}
