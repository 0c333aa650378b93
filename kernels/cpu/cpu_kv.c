/* cpu_kv.c - the K/V pool: layout, copies, host slots, rotation and writes.
 *
 * A page holds 16 tokens of one K/V head, laid out so that no sum ever crosses lanes (a block of 64
 * tokens is four pages in a row):
 *
 *     block   [G heads][pages][K page, V page, scales]
 *
 *     bf16    K page  [D/2 pairs of dimensions][16 tokens][2]   lanes are tokens:      scores
 *             V page  [8 pairs of tokens][D dimensions][2]      lanes are dimensions:  outputs
 *     int8    K page  [D/4 quads of dimensions][16 tokens][4]
 *             V page  [4 quads of tokens][D dimensions][4]      a quad: tokens t, t + 4, t + 8, t + 12
 *             scales  [K, V][16 tokens] bf16, what a code of 1 stands for
 *
 * A vector of quads is two vectors of 16-bit pairs: its even bytes and its odd ones, each widened by
 * shifts. So a query of int8 lies as words of pairs, dimensions (0, 2) and (1, 3) of each quad, and the
 * probabilities as pairs of tokens (t, t + 8), which is what two neighbouring vectors give. */
#include <string.h>
#include "kernels/cpu/cpu_backend.h"
#include "kernels/f16.h"

/* ---- formats ----------------------------------------------------------------------------------------- */

/* Largest |x| to the largest code: the scale of codes, and what to multiply by. Vectors that are as
 * good as zero count as zero: the inverse would overflow. */
static float scale_of(float most, float most_code)
{
    return most >= 0x1p-100f ? most / most_code : 0.f;
}
static float inverse_of(float scale)
{
    return scale > 0 ? 1.f / scale : 0.f;
}

static void write_bf16(const struct cpu *c, uint8_t *page, int32_t token, const float *k,
                       const float *v)
{
    uint16_t half[CPU_MAX_HEAD], *at = (uint16_t *)page;
    int32_t dim = c->shape.head_dim;
    c->kernel->round_bf16(k, dim, half);
    for (int32_t p = 0; p < dim / 2; p++)
        memcpy(at + p * 2 * CPU_PAGE + token * 2, half + 2 * p, 4);
    c->kernel->round_bf16(v, dim, half);
    at = (uint16_t *)(page + c->v_at) + token / 2 * 2 * dim + token % 2;
    for (int32_t d = 0; d < dim; d++)
        at[2 * d] = half[d];
}

/* codes [dim] of x and their scale, a bf16 that is no less than it must be. */
static uint16_t encode_int8(const struct cpu *c, const float *x, int32_t *codes)
{
    int32_t dim = c->shape.head_dim;
    uint16_t scale = bf16_from_float_up(scale_of(c->kernel->largest(x, dim), 127));
    c->kernel->to_codes(x, dim, inverse_of(bf16_to_float(scale)), 127, codes);
    return scale;
}

static void write_int8(const struct cpu *c, uint8_t *page, int32_t token, const float *k,
                       const float *v)
{
    int32_t codes[CPU_MAX_HEAD], dim = c->shape.head_dim;
    uint16_t *scales = (uint16_t *)(page + c->scales_at);
    scales[token] = encode_int8(c, k, codes);
    for (int32_t d = 0; d < dim; d++)
        page[d / 4 * 4 * CPU_PAGE + token * 4 + d % 4] = (uint8_t)codes[d];
    scales[CPU_PAGE + token] = encode_int8(c, v, codes);
    uint8_t *at = page + c->v_at + token % 4 * 4 * dim + token / 4;
    for (int32_t d = 0; d < dim; d++)
        at[4 * d] = (uint8_t)codes[d];
}

static void put_q_bf16(const struct cpu *c, const float *x, uint16_t *q)
{
    c->kernel->round_bf16(x, c->shape.head_dim, q);
}

/* 16 bits, of which the scores keep the rounding of K alone; then their scale. */
static void put_q_int8(const struct cpu *c, const float *x, uint16_t *q)
{
    int32_t codes[CPU_MAX_HEAD], dim = c->shape.head_dim;
    float scale = scale_of(c->kernel->largest(x, dim), 32767);
    c->kernel->to_codes(x, dim, inverse_of(scale), 32767, codes);
    for (int32_t d = 0; d < dim; d++)
        q[d / 4 * 4 + d % 2 * 2 + d % 4 / 2] = (uint16_t)codes[d]; /* dims 0 2 1 3 */
    memcpy(q + dim, &scale, sizeof scale);
}

static const struct kv_format {
    size_t value_bytes, scale_bytes; /* of a value; of a token's K or V in one head */
    int32_t q_extra;                 /* 16-bit words behind the D of a query */
    void (*write)(const struct cpu *c, uint8_t *page, int32_t token, const float *k,
                  const float *v);
    void (*put_q)(const struct cpu *c, const float *x, uint16_t *q);
} formats[KV_N_TYPES] = {
    [KV_BF16] = {2, 0, 0, write_bf16, put_q_bf16},
    [KV_INT8] = {1, 2, 2, write_int8, put_q_int8},
};

static const struct kv_format *format_of(const struct cpu *c)
{
    return &formats[c->shape.kv_type];
}

/* ---- the pool -------------------------------------------------------------------------------------- */

/* Resolves the default and refuses what this backend or its pages cannot do. */
static int check_shape(const struct cpu *c, struct attention_shape *s, struct err *err)
{
    int32_t size = s->block_size;
    if (backend_kv_type(&cpu_backend_ops, s->kv_type, &s->kv_type, err) < 0)
        return -1;
    if (size < 16 || size > 128 || (size & (size - 1)) != 0)
        return err_set(err, "cpu: block size %d; it takes 16, 32, 64 and 128", size);
    if (size != c->config.limits.block_size)
        return err_set(err, "cpu: block size %d, but plans have %d", size,
                       c->config.limits.block_size);
    if (s->head_dim % 16 != 0 || s->head_dim < 16 || s->head_dim > CPU_MAX_HEAD)
        return err_set(err, "cpu: head size %d; it takes multiples of 16 up to %d", s->head_dim,
                       CPU_MAX_HEAD);
    if (s->n_heads * s->head_dim % CPU_BLOCK != 0)
        return err_set(err, "cpu: %d heads of %d; the product must be a multiple of %d", s->n_heads,
                       s->head_dim, CPU_BLOCK);
    if (s->n_blocks < 1 || s->n_blocks > INT32_MAX / size)
        return err_set(err, "cpu: %d blocks of %d tokens; from 1 to %d fit", s->n_blocks, size,
                       INT32_MAX / size);
    ASSERT(s->n_heads % s->n_kv_heads == 0 && s->rope_dim % 2 == 0 && s->rope_dim <= s->head_dim);
    return 0;
}

/* Bytes of a page of the type: K, V and scales. */
static size_t page_bytes(const struct attention_shape *s)
{
    const struct kv_format *f = &formats[s->kv_type];
    return 2 * CPU_PAGE * ((size_t)s->head_dim * f->value_bytes + f->scale_bytes);
}

size_t cpu_block_bytes(struct backend *b, const struct attention_shape *shape)
{
    struct attention_shape s = *shape;
    struct err err;
    if (backend_kv_type(b->ops, s.kv_type, &s.kv_type, &err) < 0)
        return 0;
    /* pages first: a size that is no whole number of them is refused later, with its reason */
    return page_bytes(&s) * (size_t)s.block_size / CPU_PAGE * (size_t)s.n_kv_heads *
           (size_t)s.n_layers;
}

static void set_sizes(struct cpu *c, const struct attention_shape *s)
{
    c->shape = *s;
    c->page_bytes = page_bytes(s);
    c->v_at = CPU_PAGE * (size_t)s->head_dim * format_of(c)->value_bytes;
    c->scales_at = 2 * c->v_at;
    c->q_values = (size_t)(s->head_dim + format_of(c)->q_extra);
    c->head_bytes = c->page_bytes * (size_t)(s->block_size / CPU_PAGE);
    c->block_bytes = c->head_bytes * (size_t)s->n_kv_heads;
    c->layer_bytes = c->block_bytes * (size_t)s->n_blocks;
}

int cpu_pool_open_kv(struct backend *b, const struct attention_shape *shape, struct err *err)
{
    struct cpu *c = (struct cpu *)b;
    struct attention_shape s = *shape;
    if (check_shape(c, &s, err) < 0)
        return -1;
    set_sizes(c, &s);
    c->kv = cpu_map(c->layer_bytes * (size_t)s.n_layers);
    cpu_row_reserve(c, (s.n_heads + 2 * s.n_kv_heads) * s.head_dim);
    if (c->kv && cpu_attention_open(c))
        return 0;
    cpu_pool_close_kv(b);
    return err_set(err, "cpu: no memory for %d blocks of %zu bytes", s.n_blocks,
                   cpu_block_bytes(b, &s));
}

void cpu_pool_close_kv(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    cpu_unmap(c->kv);
    cpu_unmap(c->host);
    c->kv = c->host = NULL;
    cpu_attention_close(c);
}

int cpu_host_open(struct backend *b, int32_t n_slots, struct err *err)
{
    struct cpu *c = (struct cpu *)b;
    size_t block = cpu_block_bytes(b, &c->shape);
    c->host = cpu_map((size_t)n_slots * block);
    if (c->host)
        return 0;
    return err_set(err, "cpu: no host memory for %d blocks of %zu bytes", n_slots, block);
}

/* The K page of a token's slot; V page and scales follow. */
uint8_t *cpu_kv_page(const struct cpu *c, int32_t layer, int32_t block, int32_t head,
                     int32_t offset)
{
    return c->kv + (size_t)layer * c->layer_bytes + (size_t)block * c->block_bytes +
           (size_t)head * c->head_bytes + (size_t)(offset / CPU_PAGE) * c->page_bytes;
}

size_t cpu_q_bytes(struct backend *b, int32_t rows)
{
    const struct cpu *c = (const struct cpu *)b;
    return (size_t)rows * (size_t)c->shape.n_heads * c->q_values * sizeof(uint16_t);
}

/* ---- host slots ------------------------------------------------------------------------------------ */

static void move_block(const struct cpu *c, const struct plan_move *m, int layer, bool is_out)
{
    size_t index = (size_t)m->slot * (size_t)c->shape.n_layers + (size_t)layer;
    uint8_t *host = c->host + index * c->block_bytes, *page = cpu_kv_page(c, layer, m->block, 0, 0);
    memcpy(is_out ? host : page, is_out ? page : host, c->block_bytes);
}

static void out_work(void *arg, int thread, int n_threads)
{
    const struct cpu *c = arg;
    int first, end;
    cpu_share(c->shape.n_layers, thread, n_threads, &first, &end);
    for (int layer = first; layer < end; layer++)
        for (int32_t i = 0; i < c->plan->n_outs; i++)
            move_block(c, &c->plan->outs[i], layer, true);
}

static void in_work(void *arg, int thread, int n_threads)
{
    const struct cpu *c = arg;
    int first, end;
    cpu_share(c->shape.n_layers, thread, n_threads, &first, &end);
    for (int layer = first; layer < end; layer++)
        for (int32_t i = 0; i < c->plan->n_ins; i++)
            move_block(c, &c->plan->ins[i], layer, false);
}

/* Host and pool are one memory here, so there is no other engine to copy beside the step: it begins
 * with it, on all threads. 370 KB a block of SmolLM2: 0.05 ms. */
void cpu_out(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    if (c->plan->n_outs > 0)
        cpu_pool_run(c->pool, c->step_threads, out_work, c);
}

void cpu_in(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    if (c->plan->n_ins > 0)
        cpu_pool_run(c->pool, c->step_threads, in_work, c);
}

/* ---- copies ---------------------------------------------------------------------------------------- */

static void copy_work(void *arg, int thread, int n_threads)
{
    const struct cpu *c = arg;
    int first, end;
    cpu_share(c->shape.n_layers, thread, n_threads, &first, &end);
    for (int layer = first; layer < end; layer++) {
        for (int32_t i = 0; i < c->plan->n_copies; i++) {
            const struct plan_copy *copy = &c->plan->copies[i];
            memcpy(cpu_kv_page(c, layer, copy->dst, 0, 0), cpu_kv_page(c, layer, copy->src, 0, 0),
                   c->block_bytes);
        }
    }
}

/* Whole blocks, in the plan's order within each layer: slots past n_tokens are nobody's yet. */
void cpu_copy(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    if (c->plan->n_copies > 0)
        cpu_pool_run(c->pool, c->step_threads, copy_work, c);
}

/* ---- rotation and writes --------------------------------------------------------------------------- */

struct rope_job {
    struct cpu *c;
    int32_t layer;
    const float *qkv, *bias;
    uint16_t *q;
};

/* Rotates the first rope_dim of x [D] by the angles of a position. Plain C, compiled once: the same
 * on every path. */
static void rotate(const struct attention_shape *s, int32_t position, float *x)
{
    int32_t half = s->rope_dim / 2, step = s->rope_neox ? 1 : 2, apart = s->rope_neox ? half : 1;
    const float *cosine = s->rope_cos + (size_t)position * (size_t)half;
    const float *sine = s->rope_sin + (size_t)position * (size_t)half;
    for (int32_t i = 0; i < half; i++) {
        float *first = x + i * step, *second = first + apart, a = *first, b = *second;
        *first = a * cosine[i] - b * sine[i];
        *second = a * sine[i] + b * cosine[i];
    }
}

static void rope_row(const struct rope_job *job, int32_t t, float *row)
{
    const struct cpu *c = job->c;
    const struct attention_shape *s = &c->shape;
    int32_t dim = s->head_dim, heads = s->n_heads, kv = s->n_kv_heads;
    int32_t width = (heads + 2 * kv) * dim, slot = c->plan->slots[t];
    const float *from = job->qkv + (size_t)t * (size_t)width;
    for (int32_t i = 0; i < width; i++)
        row[i] = job->bias ? from[i] + job->bias[i] : from[i];
    for (int32_t h = 0; h < heads + kv; h++)
        rotate(s, c->plan->positions[t], row + h * dim);
    for (int32_t h = 0; h < heads; h++)
        format_of(c)->put_q(c, row + h * dim, job->q + (size_t)(t * heads + h) * c->q_values);
    for (int32_t g = 0; g < kv; g++) {
        int32_t offset = slot % s->block_size;
        uint8_t *page = cpu_kv_page(c, job->layer, slot / s->block_size, g, offset);
        format_of(c)->write(c, page, offset % CPU_PAGE, row + (heads + g) * dim,
                            row + (heads + kv + g) * dim);
    }
}

static void rope_work(void *arg, int thread, int n_threads)
{
    const struct rope_job *job = arg;
    int first, end;
    cpu_share(job->c->plan->n_rows, thread, n_threads, &first, &end);
    for (int t = first; t < end; t++)
        rope_row(job, t, job->c->threads[thread].row);
}

/* qkv [T, (H + 2G) D] + bias -> q [T, H] rows of the attend's form, rotated; K and V to the slots of
 * the rows. */
void cpu_rope_kv_write(struct backend *b, int32_t layer, const float *qkv, const float *bias,
                       void *q)
{
    struct cpu *c = (struct cpu *)b;
    struct rope_job job = {c, layer, qkv, bias, q};
    if (c->plan->n_rows > 0)
        cpu_pool_run(c->pool, cpu_threads_for(c, c->plan->n_rows), rope_work, &job);
}
