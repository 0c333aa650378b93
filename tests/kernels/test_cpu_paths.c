/* test_cpu_paths.c - the CPU backend against itself: every instruction set, every number of threads,
 * every cut of the rows must give the bits of the scalar path on one thread.
 *
 * Whether those bits are right is test_ops' business. Here results are compared with memcmp: one lane
 * too wide, one sum in another order, one row that sees its neighbour shows as a differing bit. Paths
 * that this machine lacks are skipped aloud. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_isa.h"

enum { N_CONTEXT = 640, N_VOCAB = 1003, MAX_ROWS = 640 };

/* There every access is looked at, or every instruction is a call: a quarter of the tokens is a
 * sixteenth of the work. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__ || defined EMULATED
enum { SHORTER = 4 };
#else
enum { SHORTER = 1 };
#endif

static const int types[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1,
                            TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K,
                            TENSOR_BF16, TENSOR_F16,  TENSOR_F32};
enum { N_TYPES = sizeof types / sizeof *types };

static float random_float(struct rng *r)
{
    return (float)(rng_next(r) >> 40) * 0x1p-23f - 1.f;
}
static void fill(struct rng *r, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(r) * scale;
}

static struct cpu *open_path(const char *isa, int n_threads, int block_size)
{
    struct backend_config config = {
        .n_threads = n_threads,
        .isa = isa,
        .n_context = N_CONTEXT,
        .n_vocab = N_VOCAB,
        .limits = {.max_rows = MAX_ROWS,
                   .max_seqs = 16,
                   .max_table_blocks = 1024,
                   .max_copies = 4,
                   .max_bias = 64,
                   .max_counts = 64,
                   .block_size = block_size},
    };
    struct err err;
    struct backend *b = cpu_backend_ops.open(&config, &err);
    if (!b)
        fail_msg("%s: %s", isa, err.text);
    return (struct cpu *)b;
}
static void close_path(struct cpu *c)
{
    c->base.ops->close(&c->base);
}

/* A random [n, k] tensor of a type; free data with xfree. */
static struct tensor random_tensor(int type, int32_t n, int32_t k, uint64_t seed)
{
    struct rng r = rng_from(seed);
    float *row = xmalloc((size_t)k * sizeof *row);
    size_t row_bytes = tensor_row_bytes(type, k);
    uint8_t *data = xmalloc((size_t)n * row_bytes);
    for (int32_t i = 0; i < n; i++) {
        fill(&r, row, (size_t)k, 0.1f);
        tensor_row_pack(type, k, row, data + (size_t)i * row_bytes);
    }
    xfree(row);
    return (struct tensor){.type = type, .n = n, .k = k, .data = data};
}

static struct weight *pack(struct cpu *c, const struct tensor *parts, int n,
                           enum weight_shape shape)
{
    struct err err;
    struct weight *w = cpu_pack(&c->base, parts, n, shape, &err);
    if (!w)
        fail_msg("%s", err.text);
    return w;
}

/* out [rows, N] = norm(x [rows, K]) x w */
static void norm_matmul(struct cpu *c, const struct weight *w, int32_t rows, const float *x,
                        float *out)
{
    const struct backend_ops *ops = c->base.ops;
    size_t n = (size_t)rows * (size_t)w->k;
    float *copy = xmemdup(x, n * sizeof *x), *ones = xmalloc((size_t)w->k * sizeof *ones);
    for (int32_t i = 0; i < w->k; i++)
        ones[i] = 1.f + 0.01f * (float)(i % 7);
    void *act = ops->alloc(&c->base, ops->act_bytes(&c->base, rows, w->k));
    ops->norm(&c->base, rows, w->k, copy, NULL, ones, 1e-5f, act);
    ops->matmul(&c->base, rows, act, w, out);
    ops->free(&c->base, act);
    xfree(copy);
    xfree(ones);
}

/* The scalar path on one thread. */
static void same_as_scalar(const char *isa, int n_threads, int type, int32_t n, int32_t k)
{
    static const int32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 16, 33, 64};
    struct tensor t = random_tensor(type, n, k, 7);
    struct cpu *a = open_path("scalar", 1, 16), *b = open_path(isa, n_threads, 16);
    struct weight *wa = pack(a, &t, 1, WEIGHT_PLAIN), *wb = pack(b, &t, 1, WEIGHT_PLAIN);
    struct rng r = rng_from(11);
    float *x = xmalloc(64 * (size_t)k * sizeof *x);
    float *want = xmalloc(64 * (size_t)n * sizeof *want),
          *got = xmalloc(64 * (size_t)n * sizeof *got);
    fill(&r, x, 64 * (size_t)k, 2.f);
    memset(x + k, 0, (size_t)k * sizeof *x); /* a row of zeros */
    norm_matmul(a, wa, 64, x, want);
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
        int32_t rows = row_counts[i];
        memset(got, 0xff, 64 * (size_t)n * sizeof *got);
        norm_matmul(b, wb, rows, x, got);
        if (memcmp(want, got, (size_t)rows * (size_t)n * sizeof *got) != 0)
            fail_msg("%s, %d threads, %s [%d, %d], %d rows: not the scalar path's bits", isa,
                     n_threads, tensor_type_name(type), n, k, rows);
    }
    xfree(x);
    xfree(want);
    xfree(got);
    cpu_unpack(&a->base, wa);
    cpu_unpack(&b->base, wb);
    close_path(a);
    close_path(b);
    xfree((void *)(uintptr_t)t.data);
}

static void same_matmuls(const char *isa, int n_threads)
{
    for (int i = 0; i < N_TYPES; i++) {
        int32_t k = tensor_block(types[i]) == 256 ? 256 : 96;
        same_as_scalar(isa, n_threads, types[i], 45, k); /* a padded panel, one that is whole */
        same_as_scalar(isa, n_threads, types[i], 96, 3 * k);
        same_as_scalar(isa, n_threads, types[i], 31, k); /* nothing but padding */
    }
    same_as_scalar(isa, n_threads, TENSOR_Q4_1, 64, 1536); /* K in pieces */
    same_as_scalar(isa, n_threads, TENSOR_Q8_0, 64, 1536);
}

static void test_scalar_matmul_rows_do_not_see_each_other(void **state)
{
    (void)state;
    same_matmuls("scalar", 1);
}
static void test_scalar_matmul_is_the_same_on_three_threads(void **state)
{
    (void)state;
    same_matmuls("scalar", 3);
}

static bool has_path(const char *isa)
{
    struct err err;
    return cpu_isa_find(isa, &err) != NULL;
}

static void test_avx2_matmul_is_scalar_to_the_bit(void **state)
{
    (void)state;
    same_matmuls("avx2", 1);
    same_matmuls("avx2", 2);
}
static void test_avx512_matmul_is_scalar_to_the_bit(void **state)
{
    (void)state;
    same_matmuls("avx512", 1);
    same_matmuls("avx512", 2);
}
static void pass(void **state)
{
    (void)state;
}

/* ---- embed, gate and up, mixed parts ---------------------------------------------------------------- */

static void test_embedding_rows_are_what_the_file_says(void **state)
{
    (void)state;
    static const char *const isas[] = {"scalar", NULL};
    for (int p = 0; p < 2; p++) {
        struct cpu *c = open_path(isas[p], 1, 16);
        for (int i = 0; i < N_TYPES; i++) {
            enum { N = 45, K = 256 };
            struct tensor t = random_tensor(types[i], N, K, 5);
            struct weight *w = pack(c, &t, 1, WEIGHT_PLAIN);
            float want[K], got[K];
            for (int32_t row = 0; row < N; row++) {
                tensor_row_unpack(&t, row, want);
                cpu_weight_row(c, w, row, got);
                for (int k = 0; k < K; k++) {
                    /* K-quants: one rounding more or less of scale * quant + minimum */
                    if (fabsf(want[k] - got[k]) > 1e-6f * (fabsf(want[k]) + 0.1f))
                        fail_msg("%s row %d k %d: %g, not %g", tensor_type_name(types[i]), row, k,
                                 (double)got[k], (double)want[k]);
                }
            }
            cpu_unpack(&c->base, w);
            xfree((void *)(uintptr_t)t.data);
        }
        close_path(c);
    }
}

static void test_parts_of_mixed_types_stack_by_rows(void **state)
{
    (void)state;
    enum { K = 256, ROWS = 7 };
    struct tensor parts[3] = {random_tensor(TENSOR_Q4_K, 40, K, 1),
                              random_tensor(TENSOR_Q4_K, 24, K, 2),
                              random_tensor(TENSOR_Q6_K, 33, K, 3)};
    struct cpu *c = open_path(NULL, 2, 16);
    struct weight *all = pack(c, parts, 3, WEIGHT_PLAIN);
    struct rng r = rng_from(3);
    float x[ROWS * K], together[ROWS * 97], alone[ROWS * 40];
    fill(&r, x, ROWS * K, 1.f);
    assert_int_equal(all->n, 97);
    norm_matmul(c, all, ROWS, x, together);
    for (int i = 0, first = 0; i < 3; first += (int)parts[i++].n) {
        struct weight *w = pack(c, &parts[i], 1, WEIGHT_PLAIN);
        norm_matmul(c, w, ROWS, x, alone);
        for (int row = 0; row < ROWS; row++)
            assert_memory_equal(together + row * 97 + first, alone + row * w->n,
                                (size_t)w->n * sizeof(float));
        cpu_unpack(&c->base, w);
        xfree((void *)(uintptr_t)parts[i].data);
    }
    cpu_unpack(&c->base, all);
    close_path(c);
}

/* out [rows, C] = down(act(gate_up(norm(x)))) */
static void feed_forward(struct cpu *c, int type, int32_t rows, const float *x, float *out)
{
    enum { C = 256, F = 512 };
    const struct backend_ops *ops = c->base.ops;
    struct tensor gate_up[2] = {random_tensor(type, F, C, 21), random_tensor(type, F, C, 22)};
    struct tensor down = random_tensor(type, C, F, 23);
    struct weight *w1 = pack(c, gate_up, 2, WEIGHT_GATE_UP), *w2 = pack(c, &down, 1, WEIGHT_PLAIN);
    float *wide = ops->alloc(&c->base, (size_t)rows * 2 * F * sizeof *wide);
    void *act = ops->alloc(&c->base, ops->act_bytes(&c->base, rows, F));
    norm_matmul(c, w1, rows, x, wide);
    ops->act(&c->base, rows, F, wide, act);
    ops->matmul(&c->base, rows, act, w2, out);
    ops->free(&c->base, wide);
    ops->free(&c->base, act);
    cpu_unpack(&c->base, w1);
    cpu_unpack(&c->base, w2);
    xfree((void *)(uintptr_t)gate_up[0].data);
    xfree((void *)(uintptr_t)gate_up[1].data);
    xfree((void *)(uintptr_t)down.data);
}

static void same_feed_forward(const char *isa, int n_threads)
{
    static const int some[] = {TENSOR_Q4_1, TENSOR_BF16, TENSOR_F32};
    enum { C = 256, ROWS = 20 };
    struct rng r = rng_from(9);
    float x[ROWS * C], want[ROWS * C], got[ROWS * C];
    fill(&r, x, ROWS * C, 3.f);
    for (int i = 0; i < 3; i++) {
        struct cpu *a = open_path("scalar", 1, 16), *b = open_path(isa, n_threads, 16);
        feed_forward(a, some[i], ROWS, x, want);
        feed_forward(b, some[i], ROWS, x, got);
        assert_memory_equal(want, got, sizeof want);
        feed_forward(b, some[i], 1, x + 3 * C, got);
        assert_memory_equal(want + 3 * C, got, C * sizeof *got);
        close_path(a);
        close_path(b);
    }
}
static void test_feed_forward_is_scalar_to_the_bit(void **state)
{
    (void)state;
    same_feed_forward("scalar", 2);
    same_feed_forward(NULL, 1);
    same_feed_forward(NULL, 2);
}

/* ---- attention --------------------------------------------------------------------------------------- */

struct geometry {
    int32_t heads, kv_heads, dim, block_size;
    bool neox;
    enum kv_type kv_type;
};

static float angles[2][N_CONTEXT * 128];

static struct attention_shape shape_of(const struct geometry *g)
{
    for (int32_t i = 0; i < N_CONTEXT * (g->dim / 2); i++) {
        angles[0][i] = (float)cos(0.01 * i);
        angles[1][i] = (float)sin(0.01 * i);
    }
    return (struct attention_shape){.n_heads = g->heads,
                                    .n_kv_heads = g->kv_heads,
                                    .head_dim = g->dim,
                                    .rope_dim = g->dim,
                                    .rope_neox = g->neox,
                                    .scale = 1.f / sqrtf((float)g->dim),
                                    .n_layers = 2,
                                    .n_blocks = 2 * N_CONTEXT / g->block_size,
                                    .block_size = g->block_size,
                                    .kv_type = g->kv_type,
                                    .rope_cos = angles[0],
                                    .rope_sin = angles[1]};
}

/* Runs one sequence of n tokens, `chunk` rows a step, beside a second sequence of `beside` tokens that
 * is decoded with it; out [n, H D] floats of layer 1 as an identity-like weight shows them. Every
 * other block of the table belongs to this sequence; the pool is full of NaN at first. */
static void attend_all(const char *isa, int n_threads, const struct geometry *g, int32_t n,
                       int32_t chunk, int32_t beside, float *out)
{
    struct cpu *c = open_path(isa, n_threads, g->block_size);
    const struct backend_ops *ops = c->base.ops;
    struct attention_shape shape = shape_of(g);
    struct err err;
    int32_t width = (g->heads + 2 * g->kv_heads) * g->dim, inner = g->heads * g->dim;
    assert_int_equal(ops->pool_open(&c->base, &shape, &err), 0);
    memset(c->kv, 0xff, c->layer_bytes * 2);
    struct tensor t = random_tensor(TENSOR_F32, inner, inner, 31);
    struct weight *w = pack(c, &t, 1, WEIGHT_PLAIN);
    struct plan *plan = plan_new(&c->config.limits);
    float *qkv = xmalloc((size_t)MAX_ROWS * (size_t)width * sizeof *qkv);
    float *o = xmalloc((size_t)MAX_ROWS * (size_t)inner * sizeof *o);
    void *q = ops->alloc(&c->base, ops->q_bytes(&c->base, MAX_ROWS));
    void *act = ops->alloc(&c->base, ops->act_bytes(&c->base, MAX_ROWS, inner));
    int32_t ids[MAX_ROWS] = {0}, table[2][N_CONTEXT / 16], n_blocks = N_CONTEXT / g->block_size;
    for (int32_t i = 0; i < n_blocks; i++) {
        table[0][i] = 2 * (n_blocks - 1 - i);
        table[1][i] = 2 * i + 1;
    }
    for (int32_t at = 0; at < n; at += chunk) {
        int32_t rows = n - at < chunk ? n - at : chunk, first = 0;
        plan_clear(plan);
        if (beside && at / chunk < beside) {
            plan_add_seq(plan, at / chunk, ids, 1, table[1], n_blocks);
            first = 1;
        }
        plan_add_seq(plan, at, ids, rows, table[0], n_blocks);
        plan_finish(plan);
        struct rng other = rng_from(77);
        fill(&other, qkv, (size_t)width, 1.f);
        for (int32_t i = 0; i < rows; i++) { /* a row's input depends on its position alone */
            struct rng r = rng_from(1000 + (uint64_t)(at + i));
            fill(&r, qkv + (size_t)(first + i) * (size_t)width, (size_t)width, 2.f);
        }
        ops->step_begin(&c->base, plan);
        for (int32_t layer = 0; layer < 2; layer++) {
            ops->rope_kv_write(&c->base, layer, qkv, NULL, q);
            ops->attention(&c->base, layer, q, act);
        }
        ops->matmul(&c->base, first + rows, act, w, o);
        ops->step_end(&c->base);
        memcpy(out + (size_t)at * (size_t)inner, o + (size_t)first * (size_t)inner,
               (size_t)rows * (size_t)inner * sizeof *o);
    }
    ops->free(&c->base, q);
    ops->free(&c->base, act);
    xfree(qkv);
    xfree(o);
    plan_free(plan);
    cpu_unpack(&c->base, w);
    xfree((void *)(uintptr_t)t.data);
    close_path(c);
}

static void same_attention(const char *isa, const struct geometry *g, int32_t n_tokens)
{
    int32_t n = n_tokens / SHORTER;
    static const struct cut {
        int32_t chunk, beside;
        int n_threads;
    } cuts[] = {{640, 0, 1}, {1, 0, 2}, {7, 5, 1}, {64, 3, 2}, {100, 0, 2}, {255, 2, 1}};
    size_t size = (size_t)n * (size_t)(g->heads * g->dim);
    float *want = xmalloc(size * sizeof *want), *got = xmalloc(size * sizeof *got);
    attend_all("scalar", 1, g, n, 33, 0, want);
    for (size_t i = 0; i < size; i++) {
        if (!isfinite(want[i]))
            fail_msg("a slot beyond the sequence was read: value %zu is %g", i, (double)want[i]);
    }
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        attend_all(isa, cuts[i].n_threads, g, n, cuts[i].chunk, cuts[i].beside, got);
        if (memcmp(want, got, size * sizeof *got) != 0)
            fail_msg("%s, %d tokens in chunks of %d, %d threads: not the scalar path's bits",
                     isa ? isa : "best path", n, cuts[i].chunk, cuts[i].n_threads);
    }
    xfree(want);
    xfree(got);
}

static const struct geometry smol = {9, 3, 64, 16, false, KV_BF16},
                             wide = {8, 1, 128, 64, true, KV_BF16},
                             small = {4, 4, 16, 32, true, KV_BF16},
                             odd = {2, 2, 48, 128, false, KV_BF16};

static struct geometry as_int8(struct geometry g)
{
    g.kv_type = KV_INT8;
    return g;
}

static void test_attention_does_not_depend_on_chunks_or_threads(void **state)
{
    (void)state;
    same_attention("scalar", &small, 300);
}
static void test_attention_of_the_best_path_is_scalar_to_the_bit(void **state)
{
    (void)state;
    same_attention(NULL, &smol, 299);
    same_attention(NULL, &wide, 131);
    same_attention(NULL, &small, 523);
    same_attention(NULL, &odd, 65);
}
static void test_int8_attention_of_the_best_path_is_scalar_to_the_bit(void **state)
{
    (void)state;
    const struct geometry all[] = {as_int8(smol), as_int8(wide), as_int8(small), as_int8(odd)};
    same_attention("scalar", &all[2], 300);
    same_attention(NULL, &all[0], 299);
    same_attention(NULL, &all[1], 131);
    same_attention(NULL, &all[2], 523);
    same_attention(NULL, &all[3], 65);
}

/* ---- sequences that share blocks --------------------------------------------------------------------- */

enum { SHARERS = 7, PREFIX = 512, TABLE = N_CONTEXT / 16 };

struct sharing {
    struct cpu *c;
    struct plan *plan;
    const struct geometry *g;
    struct weight *w;
    float *qkv, *out; /* [MAX_ROWS, width], [MAX_ROWS, H D] */
    void *q, *act;
    int32_t tables[SHARERS][TABLE], lengths[SHARERS];
};

/* The plan's rows, input by sequence and position, through layer 0 and a weight, to s->out. */
static void sharing_step(struct sharing *s)
{
    const struct backend_ops *ops = s->c->base.ops;
    size_t width = (size_t)(s->g->heads + 2 * s->g->kv_heads) * (size_t)s->g->dim;
    plan_finish(s->plan);
    for (int32_t i = 0; i < s->plan->n_rows; i++) {
        struct rng r = rng_from((uint64_t)s->plan->ids[i] * 1000 + (uint64_t)s->plan->positions[i]);
        fill(&r, s->qkv + (size_t)i * width, width, 2.f);
    }
    ops->step_begin(&s->c->base, s->plan);
    ops->rope_kv_write(&s->c->base, 0, s->qkv, NULL, s->q);
    ops->attention(&s->c->base, 0, s->q, s->act);
    ops->matmul(&s->c->base, s->plan->n_rows, s->act, s->w, s->out);
    ops->step_end(&s->c->base);
}

/* Sequences 0 to 4 share 512 tokens, two splits; 5 only the first 256; 6 nothing. The sequence's
 * number is the id of its own tokens: 0 writes what is shared. */
static void sharing_open(struct sharing *s, const struct geometry *g)
{
    const struct backend_ops *ops = &cpu_backend_ops;
    int32_t inner = g->heads * g->dim, width = (g->heads + 2 * g->kv_heads) * g->dim, fresh = 0;
    struct attention_shape shape = shape_of(g);
    struct err err;
    shape.n_blocks = SHARERS * TABLE;
    *s = (struct sharing){.c = open_path(NULL, 2, g->block_size), .g = g};
    assert_int_equal(ops->pool_open(&s->c->base, &shape, &err), 0);
    s->plan = plan_new(&s->c->config.limits);
    struct tensor t = random_tensor(TENSOR_F32, inner, inner, 31);
    s->w = pack(s->c, &t, 1, WEIGHT_PLAIN);
    xfree((void *)(uintptr_t)t.data);
    s->qkv = xmalloc((size_t)MAX_ROWS * (size_t)width * sizeof *s->qkv);
    s->out = xmalloc((size_t)MAX_ROWS * (size_t)inner * sizeof *s->out);
    s->q = ops->alloc(&s->c->base, ops->q_bytes(&s->c->base, MAX_ROWS));
    s->act = ops->alloc(&s->c->base, ops->act_bytes(&s->c->base, MAX_ROWS, inner));
    for (int32_t i = 0; i < SHARERS; i++) {
        int32_t ids[N_CONTEXT], shared = i == 6 ? 0 : i == 5 ? 256 : i > 0 ? PREFIX : 0;
        s->lengths[i] = PREFIX + 13 * i + 1;
        for (int32_t k = 0; k < N_CONTEXT; k++)
            ids[k] = i;
        for (int32_t k = 0; k < N_CONTEXT / g->block_size; k++)
            s->tables[i][k] = k < shared / g->block_size ? s->tables[0][k] : fresh++;
        plan_clear(s->plan);
        plan_add_seq(s->plan, shared, ids, s->lengths[i] - shared, s->tables[i],
                     N_CONTEXT / g->block_size);
        sharing_step(s);
    }
}

static void sharing_close(struct sharing *s)
{
    s->c->base.ops->free(&s->c->base, s->q);
    s->c->base.ops->free(&s->c->base, s->act);
    cpu_unpack(&s->c->base, s->w);
    plan_free(s->plan);
    xfree(s->qkv);
    xfree(s->out);
    close_path(s->c);
}

static void decode_together(const struct geometry *g)
{
    struct sharing s;
    size_t inner = (size_t)(g->heads * g->dim);
    float *alone = xmalloc(SHARERS * inner * sizeof *alone);
    sharing_open(&s, g);
    for (int32_t n = 1; n <= SHARERS; n += SHARERS - 1) { /* one by one, then all */
        for (int32_t i = 0; i < SHARERS; i++) {
            if (n == 1 || i == 0)
                plan_clear(s.plan);
            plan_add_seq(s.plan, s.lengths[i], &i, 1, s.tables[i], N_CONTEXT / g->block_size);
            if (n > 1 && i < SHARERS - 1)
                continue;
            sharing_step(&s);
            if (n == 1)
                memcpy(alone + (size_t)i * inner, s.out, inner * sizeof *alone);
        }
    }
    /* first split: 0 to 5 in one item, 6; second: 0 to 4, 5, 6; third: everyone's own */
    assert_int_equal(s.c->n_items, (2 + 3 + SHARERS) * g->kv_heads);
    assert_memory_equal(alone, s.out, SHARERS * inner * sizeof *alone);
    sharing_close(&s);
    xfree(alone);
}

static void test_sequences_over_one_prefix_get_what_each_gets_alone(void **state)
{
    (void)state;
    const struct geometry all[] = {smol, as_int8(smol), wide, as_int8(odd)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        decode_together(&all[i]);
}

/* ---- int8 -------------------------------------------------------------------------------------------- */

/* What a client could send to a model that blows up: no scale, code or weight leaves its range. */
static void test_int8_takes_zeros_infinities_and_extremes(void **state)
{
    (void)state;
    static const float values[] = {0.f, -0.f, 1e-38f, -1e-30f, 3e38f, -3e38f, INFINITY, NAN};
    enum { DIM = 16, N = sizeof values / sizeof *values };
    const struct cpu_kernel *best = cpu_isa_find(NULL, NULL), *plain = &cpu_kernel_scalar;
    for (int i = 0; i < N * N; i++) {
        float x[DIM];
        int32_t want[DIM], got[DIM];
        for (int d = 0; d < DIM; d++)
            x[d] = values[d % 2 ? i / N : i % N];
        float most = plain->largest(x, DIM), inverse = most > 0 ? 127 / most : 0;
        assert_true(most == best->largest(x, DIM) && most >= 0);
        plain->to_codes(x, DIM, inverse, 127, want);
        best->to_codes(x, DIM, inverse, 127, got);
        assert_memory_equal(want, got, sizeof want);
        for (int d = 0; d < DIM; d++)
            assert_in_range(got[d] + 127, 0, 254);
    }
}

/* ---- choose ------------------------------------------------------------------------------------------ */

static void choose_all(const char *isa, int n_threads, struct chosen *out, int n)
{
    struct cpu *c = open_path(isa, n_threads, 16);
    struct plan *plan = plan_new(&c->config.limits);
    struct rng r = rng_from(41);
    float *logits = xmalloc((size_t)n * N_VOCAB * sizeof *logits);
    const int32_t id = 0, block = 0;
    fill(&r, logits, (size_t)n * N_VOCAB, 6.f);
    for (int i = 0; i < n; i++) {
        int32_t recent[3] = {1, 2, 2};
        struct plan_count counts[1] = {{5, 2}};
        struct plan_sample s = {.row = plan->n_rows,
                                .position = i,
                                .seed = 99,
                                .temperature = 0.3f * (float)(i % 4),
                                .top_k = i % 3 * 20,
                                .top_p = i % 2 ? 0.9f : 1.f,
                                .min_p = i % 5 ? 0.f : 0.05f,
                                .repeat = 1.1f,
                                .presence = 0.2f};
        plan_add_seq(plan, 0, &id, 1, &block, 1);
        plan_add_sample(plan, &s, recent, 3, counts, 1, NULL, 0);
    }
    logits[N_VOCAB / 2] = NAN;
    plan_finish(plan);
    cpu_backend_ops.step_begin(&c->base, plan);
    cpu_choose(&c->base, logits, out);
    cpu_backend_ops.step_end(&c->base);
    xfree(logits);
    plan_free(plan);
    close_path(c);
}

static void test_choose_gives_the_same_on_every_path(void **state)
{
    (void)state;
    struct chosen want[16], got[16];
    memset(want, 0, sizeof want);
    memset(got, 0, sizeof got);
    choose_all("scalar", 1, want, 16);
    choose_all(NULL, 1, got, 16);
    assert_memory_equal(want, got, sizeof want);
    choose_all(NULL, 2, got, 16);
    assert_memory_equal(want, got, sizeof want);
}

/* ---- what is refused --------------------------------------------------------------------------------- */

static void test_wrong_requests_are_refused_with_a_reason(void **state)
{
    (void)state;
    struct err err;
    struct backend_config config = {.n_threads = 1, .isa = "neon", .n_vocab = 8, .n_context = 16};
    assert_null(cpu_backend_ops.open(&config, &err));
    assert_non_null(strstr(err.text, "neon"));
    config.isa = NULL;
    config.n_threads = 2;
    config.affinity = "0-x";
    assert_null(cpu_backend_ops.open(&config, &err));
    assert_non_null(strstr(err.text, "0-x"));
    struct cpu *c = open_path(NULL, 1, 16);
    float row[48] = {0};
    struct tensor t = {TENSOR_F32, 1, 48, row};
    assert_null(cpu_pack(&c->base, &t, 1, WEIGHT_PLAIN, &err));
    assert_non_null(strstr(err.text, "48"));
    struct geometry g = {2, 2, 40, 16, false, KV_BF16};
    struct attention_shape shape = shape_of(&g);
    assert_int_equal(cpu_pool_open_kv(&c->base, &shape, &err), -1);
    close_path(c);
}

/* TAP's way to skip is an ok with a directive behind the name. */
static void skip_aloud(struct CMUnitTest *test, const char *isa, const char *name)
{
    if (!has_path(isa))
        *test = (struct CMUnitTest){name, pass, NULL, NULL, NULL};
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalar_matmul_rows_do_not_see_each_other),
        cmocka_unit_test(test_scalar_matmul_is_the_same_on_three_threads),
        cmocka_unit_test(test_avx2_matmul_is_scalar_to_the_bit),
        cmocka_unit_test(test_avx512_matmul_is_scalar_to_the_bit),
        cmocka_unit_test(test_embedding_rows_are_what_the_file_says),
        cmocka_unit_test(test_parts_of_mixed_types_stack_by_rows),
        cmocka_unit_test(test_feed_forward_is_scalar_to_the_bit),
        cmocka_unit_test(test_attention_does_not_depend_on_chunks_or_threads),
        cmocka_unit_test(test_attention_of_the_best_path_is_scalar_to_the_bit),
        cmocka_unit_test(test_int8_attention_of_the_best_path_is_scalar_to_the_bit),
        cmocka_unit_test(test_sequences_over_one_prefix_get_what_each_gets_alone),
        cmocka_unit_test(test_int8_takes_zeros_infinities_and_extremes),
        cmocka_unit_test(test_choose_gives_the_same_on_every_path),
        cmocka_unit_test(test_wrong_requests_are_refused_with_a_reason),
    };
    skip_aloud(&tests[2], "avx2", "avx2 matmul # SKIP this machine has no AVX2, FMA, F16C");
    skip_aloud(&tests[3], "avx512", "avx512 matmul # SKIP this machine has no AVX-512 VNNI");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
