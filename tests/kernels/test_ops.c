/* test_ops.c - every operation on every backend and code path against ref, and with itself.
 *
 * Activations are the backend's own, so operations are tested in the pairs in which they meet:
 * norm + matmul, norm + gate_up + act + down, rope_kv_write + attention + matmul by the identity.
 *
 * The bounds are normalised mean square errors. An int8 activation with a scale per 32 values errs
 * by amax / 127 / sqrt(12); for normal values amax is about 2.1 standard deviations: 2.3e-5 of the
 * power. bf16 rounds by 2^-9 at most, 2^-9 / sqrt(3) on average of a mantissa: 1.3e-6 per operand.
 * A wrong scale, lane, row or offset gives errors around 1. Sameness is bit for bit. */
#include <math.h>
#include <stdio.h>
#include "harness.h"

/* One int8 rounding. The rows here are products of two normal values (x and the norm's weight): their
 * largest of 32 is 4 to 5 deviations, not 2.1, and with it 1e-4; two rows of one block scatter. */
#define BOUND_MATMUL 3e-4
/* Three roundings in a row, the middle one through silu(gate) * up, which doubles its share. */
#define BOUND_FFN 3e-4
/* bf16 of q and p (ref rounds k and v alike), and one of the int8 or bf16 activations before the
 * identity. */
#define BOUND_ATTENTION 1e-4
/* int8 of V: largest of 64 to 128 about 2.6 deviations, 4e-5 of the power. Of K as much in each factor
 * of a score: its deviation is 1, its error 6e-3, and that is the relative error of a weight. */
#define BOUND_INT8 3e-4
/* A backend may hold a float table as bf16. */
#define BOUND_EMBED 1e-5

/* All that are tested; the first n_others are compared with ref, which stands last. */
static struct subject subjects[8];
static int n_subjects, n_others;

static const enum tensor_type all_types[] = {
    TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,
    TENSOR_Q5_1, TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K,
};
static const int32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 16, 33};
#define MAX_T 33

static void check(const struct subject *s, const char *what, const float *got, const float *want,
                  size_t n, double bound)
{
    double error = harness_nmse(got, want, n);
    if (!(error <= bound)) /* also when it is NaN */
        fail_msg("%s: %s: error %.3g, bound %.3g", harness_name(s), what, error, bound);
}

static void check_same(const struct subject *s, const char *what, const float *got,
                       const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof(*got)) != 0)
            fail_msg("%s: %s: value %zu is %.9g, not %.9g", harness_name(s), what, i, got[i],
                     want[i]);
}

static struct subject ref_subject(void)
{
    return (struct subject){backend_find("ref", NULL), NULL};
}

static struct weight *pack(struct backend *b, const struct tensor *parts, int n,
                           enum weight_shape shape)
{
    struct err err = {""};
    struct weight *w = b->ops->pack(b, parts, n, shape, &err);
    if (w == NULL)
        fail_msg("%s does not pack %s: %s", b->ops->name, tensor_type_name(parts[0].type),
                 err.text);
    return w;
}

/* ---- norm + matmul -------------------------------------------------------------------------- */

struct norm_case {
    int32_t rows, c;
    const float *x, *delta, *norm; /* [MAX_T, C], [MAX_T, C] or NULL, [C] */
};

/* rows [at, at + n) of the case through norm and the weight; out [n, N]. sums: x after, or NULL. */
static void norm_matmul(struct backend *b, const struct norm_case *k, int32_t at, int32_t n,
                        const struct weight *w, int64_t width, float *out, float *sums)
{
    size_t from = (size_t)at * (size_t)k->c, size = (size_t)n * (size_t)k->c;
    float *x = harness_upload(b, k->x + from, size);
    float *delta = k->delta != NULL ? harness_upload(b, k->delta + from, size) : NULL;
    float *norm = harness_upload(b, k->norm, (size_t)k->c);
    float *y = harness_upload(b, NULL, (size_t)n * (size_t)width);
    void *act = b->ops->alloc(b, b->ops->act_bytes(b, n, k->c));

    b->ops->norm(b, n, k->c, x, delta, norm, 1e-5f, act);
    b->ops->matmul(b, n, act, w, y);
    float *host = harness_download(b, y, (size_t)n * (size_t)width);
    memcpy(out, host, (size_t)n * (size_t)width * sizeof(*out));
    xfree(host);
    if (sums != NULL)
        b->ops->download(b, sums, x, size * sizeof(*sums));
    void *const all[] = {x, delta, norm, y, act};
    for (int i = 0; i < COUNT(all); i++)
        b->ops->free(b, all[i]);
}

/* One stored type at one shape: all row counts, all subjects. */
static void check_norm_matmul(enum tensor_type type, int32_t n, int32_t c)
{
    struct rng r = rng_from((uint64_t)type * 1000 + (uint64_t)n + (uint64_t)c);
    float *data = xmalloc((size_t)(2 * MAX_T + 1) * (size_t)c * sizeof(*data));
    float *want = xmalloc((size_t)MAX_T * (size_t)n * sizeof(*want));
    float *got = xmalloc((size_t)MAX_T * (size_t)n * sizeof(*got));
    float *sums = xmalloc((size_t)MAX_T * (size_t)c * sizeof(*sums)), *ref_sums = NULL;
    struct norm_case k = {MAX_T, c, data, data + MAX_T * c, data + 2 * MAX_T * c};
    struct tensor m = harness_matrix(&r, type, n, c);
    struct subject ref = ref_subject();
    char what[80];

    harness_fill(&r, data, (size_t)(2 * MAX_T + 1) * (size_t)c);
    ref_sums = xmalloc((size_t)MAX_T * (size_t)c * sizeof(*ref_sums));
    struct backend *rb = harness_open(&ref, 1, 16, 64, 64);
    struct weight *rw = pack(rb, &m, 1, WEIGHT_PLAIN);
    norm_matmul(rb, &k, 0, MAX_T, rw, n, want, ref_sums);

    for (int i = 0; i < n_others; i++) {
        struct backend *b = harness_open(&subjects[i], 2, 16, 64, 64);
        struct weight *w = pack(b, &m, 1, WEIGHT_PLAIN);
        for (int t = 0; t < COUNT(row_counts); t++) {
            int32_t rows = row_counts[t];
            snprintf(what, sizeof(what), "norm + matmul %s [%d, %d] rows %d",
                     tensor_type_name(type), n, c, rows);
            norm_matmul(b, &k, 0, rows, w, n, got, sums);
            check(&subjects[i], what, got, want, (size_t)rows * (size_t)n, BOUND_MATMUL);
            check(&subjects[i], "x + delta", sums, ref_sums, (size_t)rows * (size_t)c, 1e-13);
        }
        b->ops->unpack(b, w);
        b->ops->close(b);
    }
    rb->ops->unpack(rb, rw);
    rb->ops->close(rb);
    harness_matrix_free(&m);
    xfree(data);
    xfree(want);
    xfree(got);
    xfree(sums);
    xfree(ref_sums);
}

static void test_norm_and_matmul_of_every_stored_type(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(all_types); i++) {
        bool k_quant = tensor_block(all_types[i]) == 256;
        check_norm_matmul(all_types[i], 40, k_quant ? 256 : 32);
        check_norm_matmul(all_types[i], 77, k_quant ? 512 : 96);
        check_norm_matmul(all_types[i], 192, k_quant ? 1536 : 576);
    }
}

/* q, k and v of different types in one weight, widths that are no multiple of anything. */
static void test_parts_of_mixed_types_stand_side_by_side(void **state)
{
    (void)state;
    enum { C = 256, N = 70 + 26 + 34 };
    struct rng r = rng_from(8);
    struct tensor parts[] = {harness_matrix(&r, TENSOR_Q4_K, 70, C),
                             harness_matrix(&r, TENSOR_Q4_K, 26, C),
                             harness_matrix(&r, TENSOR_Q6_K, 34, C)};
    static float data[2 * MAX_T * C], want[MAX_T * N], got[MAX_T * N];
    harness_fill(&r, data, 2 * MAX_T * C);
    struct norm_case k = {MAX_T, C, data, NULL, data + MAX_T * C};
    struct subject ref = ref_subject();
    struct backend *rb = harness_open(&ref, 1, 16, 64, 64);
    struct weight *rw = pack(rb, parts, 3, WEIGHT_PLAIN);
    norm_matmul(rb, &k, 0, MAX_T, rw, N, want, NULL);
    for (int i = 0; i < n_others; i++) {
        struct backend *b = harness_open(&subjects[i], 2, 16, 64, 64);
        struct weight *w = pack(b, parts, 3, WEIGHT_PLAIN);
        norm_matmul(b, &k, 0, MAX_T, w, N, got, NULL);
        check(&subjects[i], "mixed parts", got, want, MAX_T * N, BOUND_MATMUL);
        b->ops->unpack(b, w);
        b->ops->close(b);
    }
    rb->ops->unpack(rb, rw);
    rb->ops->close(rb);
    for (int i = 0; i < 3; i++)
        harness_matrix_free(&parts[i]);
}

static void test_a_row_does_not_depend_on_its_batch_or_on_threads(void **state)
{
    (void)state;
    enum { C = 512, N = 104 };
    static float data[(2 * MAX_T + 1) * C], all[MAX_T * N], part[MAX_T * N];
    static const int32_t cuts[] = {1, 6, 2, 7, 16, 1}; /* sum 33 */
    struct rng r = rng_from(21);
    harness_fill(&r, data, (2 * MAX_T + 1) * C);
    struct norm_case k = {MAX_T, C, data, data + MAX_T * C, data + 2 * MAX_T * C};

    for (int i = 0; i < n_subjects * COUNT(all_types); i++) {
        const struct subject *s = &subjects[i / COUNT(all_types)];
        struct tensor m = harness_matrix(&r, all_types[i % COUNT(all_types)], N, C);
        struct backend *two = harness_open(s, 2, 16, 64, 64), *one = harness_open(s, 1, 16, 64, 64);
        struct weight *w2 = pack(two, &m, 1, WEIGHT_PLAIN), *w1 = pack(one, &m, 1, WEIGHT_PLAIN);
        norm_matmul(two, &k, 0, MAX_T, w2, N, all, NULL);
        for (int c = 0, at = 0; c < COUNT(cuts); at += cuts[c++])
            norm_matmul(one, &k, at, cuts[c], w1, N, part + at * N, NULL);
        check_same(s, tensor_type_name(m.type), part, all, MAX_T * N);
        two->ops->unpack(two, w2);
        one->ops->unpack(one, w1);
        two->ops->close(two);
        one->ops->close(one);
        harness_matrix_free(&m);
    }
}

/* ---- gate_up, act, down --------------------------------------------------------------------- */

/* x [T, C] -> norm -> gate_up -> act -> down -> out [T, C] */
static void run_ffn(struct backend *b, int32_t t, int32_t c, int32_t f, const float *x,
                    const float *ones, const struct tensor *m, float *out)
{
    struct weight *gate_up = pack(b, m, 2, WEIGHT_GATE_UP), *down = pack(b, m + 2, 1, WEIGHT_PLAIN);
    float *dx = harness_upload(b, x, (size_t)t * (size_t)c);
    float *norm = harness_upload(b, ones, (size_t)c);
    float *wide = harness_upload(b, NULL, (size_t)t * 2 * (size_t)f);
    float *y = harness_upload(b, NULL, (size_t)t * (size_t)c);
    void *act = b->ops->alloc(b, b->ops->act_bytes(b, t, c));
    void *inner = b->ops->alloc(b, b->ops->act_bytes(b, t, f));

    b->ops->norm(b, t, c, dx, NULL, norm, 1e-5f, act);
    b->ops->matmul(b, t, act, gate_up, wide);
    b->ops->act(b, t, f, wide, inner);
    b->ops->matmul(b, t, inner, down, y);
    float *host = harness_download(b, y, (size_t)t * (size_t)c);
    memcpy(out, host, (size_t)t * (size_t)c * sizeof(*out));
    xfree(host);
    void *const all[] = {dx, norm, wide, y, act, inner};
    for (int i = 0; i < COUNT(all); i++)
        b->ops->free(b, all[i]);
    b->ops->unpack(b, gate_up);
    b->ops->unpack(b, down);
}

static void test_gate_up_act_and_down(void **state)
{
    (void)state;
    enum { T = 33, C = 256 };
    static float x[T * C], ones[C], want[T * C], got[T * C];
    static const struct {
        enum tensor_type type;
        int32_t f;
    } cases[] = {{TENSOR_F32, 96}, {TENSOR_Q4_1, 416}, {TENSOR_Q8_0, 32}, {TENSOR_Q4_K, 512}};
    struct rng r = rng_from(3);
    struct subject ref = ref_subject();
    harness_fill(&r, x, T * C);
    for (int i = 0; i < C; i++)
        ones[i] = 1;
    for (int i = 0; i < COUNT(cases); i++) {
        int32_t f = cases[i].f;
        struct tensor m[] = {harness_matrix(&r, cases[i].type, f, C),
                             harness_matrix(&r, cases[i].type, f, C),
                             harness_matrix(&r, cases[i].type, C, f)};
        struct backend *b = harness_open(&ref, 1, 16, 64, 64);
        run_ffn(b, T, C, f, x, ones, m, want);
        b->ops->close(b);
        for (int s = 0; s < n_others; s++) {
            for (int t = 0; t < COUNT(row_counts); t++) {
                b = harness_open(&subjects[s], 2, 16, 64, 64);
                run_ffn(b, row_counts[t], C, f, x, ones, m, got);
                check(&subjects[s], "gate_up, act, down", got, want, (size_t)row_counts[t] * C,
                      BOUND_FFN);
                b->ops->close(b);
            }
        }
        for (int k = 0; k < 3; k++)
            harness_matrix_free(&m[k]);
    }
}

/* ---- attention ------------------------------------------------------------------------------ */

struct attention_case {
    int32_t n_heads, n_kv_heads, head_dim, rope_dim;
    bool neox, bias;
    int32_t block_size;
};
static const struct attention_case attention_cases[] = {
    {9, 3, 64, 64, false, false, 16}, {4, 4, 32, 32, true, true, 16},
    {8, 2, 128, 64, true, false, 32}, {6, 1, 64, 64, false, true, 64},
    {2, 1, 96, 96, true, false, 128},
};

enum { CONTEXT = 640, BLOCKS = 96, N_SEQS = 3 };
/* lengths that end inside a block, on its border, and beyond two splits of 256 */
static const int32_t lengths[N_SEQS] = {37, 256, 600};

struct attention_run {
    const struct attention_case *c;
    const float *qkv[N_SEQS]; /* [length, QKV] */
    const float *bias;        /* [QKV] or NULL */
    float *cosine, *sine;     /* [CONTEXT, rope_dim / 2] */
    int32_t order;            /* of blocks: another table for the same tokens */
    enum kv_type kv_type;
};

static int32_t qkv_width(const struct attention_case *c)
{
    return (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
}

static void rope_tables(struct attention_run *a)
{
    int32_t half = a->c->rope_dim / 2;
    a->cosine = xmalloc((size_t)CONTEXT * (size_t)half * sizeof(float));
    a->sine = xmalloc((size_t)CONTEXT * (size_t)half * sizeof(float));
    for (int32_t p = 0; p < CONTEXT; p++)
        for (int32_t i = 0; i < half; i++) {
            double angle = p * pow(10000, -2.0 * i / a->c->rope_dim);
            a->cosine[p * half + i] = (float)cos(angle);
            a->sine[p * half + i] = (float)sin(angle);
        }
}

/* Blocks of a sequence: `order` is odd, so that multiplying permutes. */
static int32_t table_of(const struct attention_run *a, int seq, int32_t *table)
{
    int32_t size = a->c->block_size, first = 0;
    for (int i = 0; i < seq; i++)
        first += (lengths[i] + size - 1) / size;
    int32_t n = (lengths[seq] + size - 1) / size;
    for (int32_t i = 0; i < n; i++)
        table[i] = (first + i) * a->order % BLOCKS;
    return n;
}

/* Writes NaN to every slot of the pool, the way a dead sequence might have left it. */
static void poison(struct backend *b, const struct attention_run *a, struct plan *p, void *q)
{
    int32_t width = qkv_width(a->c), rows = 256, ids[256] = {0}, table[BLOCKS];
    float *nan = xmalloc((size_t)rows * (size_t)width * sizeof(*nan));
    for (int32_t i = 0; i < rows * width; i++)
        nan[i] = NAN;
    float *qkv = harness_upload(b, nan, (size_t)rows * (size_t)width);
    for (int32_t at = 0; at < BLOCKS * a->c->block_size; at += rows) {
        int32_t n_blocks = rows / a->c->block_size;
        for (int32_t i = 0; i < n_blocks; i++)
            table[i] = at / a->c->block_size + i;
        plan_clear(p);
        plan_add_seq(p, 0, ids, rows, table, n_blocks);
        plan_finish(p);
        b->ops->step_begin(b, p);
        b->ops->rope_kv_write(b, 0, qkv, NULL, q);
        b->ops->step_end(b);
    }
    b->ops->free(b, qkv);
    xfree(nan);
}

/* One step: the next rows of each sequence. out[seq] gets attention x identity. */
static void attention_step(struct backend *b, const struct attention_run *a, struct plan *p,
                           void *q, const struct weight *identity, int32_t *at, int32_t chunk,
                           float *const *out)
{
    int32_t width = qkv_width(a->c), hd = a->c->n_heads * a->c->head_dim, ids[512] = {0};
    int32_t table[BLOCKS], rows[N_SEQS];
    float *qkv = harness_upload(b, NULL, 512 * (size_t)width);

    plan_clear(p);
    for (int s = 0; s < N_SEQS; s++) {
        rows[s] = lengths[s] - at[s] < chunk ? lengths[s] - at[s] : chunk;
        if (rows[s] == 0)
            continue;
        b->ops->upload(b, qkv + (size_t)p->n_rows * (size_t)width,
                       a->qkv[s] + (size_t)at[s] * (size_t)width,
                       (size_t)rows[s] * (size_t)width * sizeof(float));
        plan_add_seq(p, at[s], ids, rows[s], table, table_of(a, s, table));
    }
    plan_finish(p);
    void *act = b->ops->alloc(b, b->ops->act_bytes(b, p->n_rows, hd));
    float *y = harness_upload(b, NULL, (size_t)p->n_rows * (size_t)hd);
    float *bias = a->bias != NULL ? harness_upload(b, a->bias, (size_t)width) : NULL;
    b->ops->step_begin(b, p);
    b->ops->rope_kv_write(b, 0, qkv, bias, q);
    b->ops->attention(b, 0, q, act);
    b->ops->matmul(b, p->n_rows, act, identity, y);
    b->ops->step_end(b);
    float *host = harness_download(b, y, (size_t)p->n_rows * (size_t)hd);
    for (int s = 0, row = 0; s < N_SEQS; row += rows[s++]) {
        memcpy(out[s] + (size_t)at[s] * (size_t)hd, host + (size_t)row * (size_t)hd,
               (size_t)rows[s] * (size_t)hd * sizeof(float));
        at[s] += rows[s];
    }
    xfree(host);
    void *const all[] = {qkv, act, y, bias};
    for (int i = 0; i < COUNT(all); i++)
        b->ops->free(b, all[i]);
}

/* All sequences in chunks; out[seq] [length, H D], owned by the caller. */
static void run_attention(const struct subject *s, int n_threads, const struct attention_run *a,
                          int32_t chunk, float **out)
{
    const struct attention_case *c = a->c;
    int32_t hd = c->n_heads * c->head_dim, at[N_SEQS] = {0};
    struct err err = {""};
    struct backend *b = harness_open(s, n_threads, c->block_size, CONTEXT, 64);
    struct attention_shape shape = {.n_heads = c->n_heads,
                                    .n_kv_heads = c->n_kv_heads,
                                    .head_dim = c->head_dim,
                                    .rope_dim = c->rope_dim,
                                    .rope_neox = c->neox,
                                    .scale = 1 / sqrtf((float)c->head_dim),
                                    .n_layers = 1,
                                    .n_blocks = BLOCKS,
                                    .block_size = c->block_size,
                                    .kv_type = a->kv_type,
                                    .rope_cos = a->cosine,
                                    .rope_sin = a->sine};
    if (b->ops->pool_open(b, &shape, &err) != 0)
        fail_msg("%s: %s", harness_name(s), err.text);
    struct plan_limits limits = harness_limits(c->block_size);
    struct plan *p = plan_new(&limits);
    struct tensor m = harness_identity(hd);
    struct weight *identity = pack(b, &m, 1, WEIGHT_PLAIN);
    void *q = b->ops->alloc(b, b->ops->q_bytes(b, limits.max_rows));

    for (int i = 0; i < N_SEQS; i++)
        out[i] = xcalloc((size_t)lengths[i] * (size_t)hd, sizeof(float));
    poison(b, a, p, q);
    while (at[N_SEQS - 1] < lengths[N_SEQS - 1])
        attention_step(b, a, p, q, identity, at, chunk, out);
    b->ops->free(b, q);
    b->ops->unpack(b, identity);
    harness_matrix_free(&m);
    plan_free(p);
    b->ops->pool_close(b);
    b->ops->close(b);
}

static void free_all(float **out)
{
    for (int i = 0; i < N_SEQS; i++)
        xfree(out[i]);
}

static void start_attention(struct attention_run *a, const struct attention_case *c, float *bias)
{
    struct rng r = rng_from((uint64_t)c->head_dim);
    int32_t width = qkv_width(c);
    *a = (struct attention_run){.c = c, .order = 1};
    harness_fill(&r, bias, (size_t)width);
    a->bias = c->bias ? bias : NULL;
    rope_tables(a);
    for (int i = 0; i < N_SEQS; i++) {
        float *qkv = xmalloc((size_t)lengths[i] * (size_t)width * sizeof(*qkv));
        harness_fill(&r, qkv, (size_t)lengths[i] * (size_t)width);
        a->qkv[i] = qkv;
    }
}

static void end_attention(struct attention_run *a)
{
    xfree(a->cosine);
    xfree(a->sine);
    for (int i = 0; i < N_SEQS; i++)
        xfree((void *)(uintptr_t)a->qkv[i]);
}

static bool has_kv_type(const struct subject *s, enum kv_type type)
{
    struct err err;
    return backend_kv_type(s->ops, type, &type, &err) == 0;
}

/* Whether anything but ref has it. */
static bool is_tested_kv_type(enum kv_type type)
{
    for (int s = 0; s < n_others; s++)
        if (type != KV_AUTO && has_kv_type(&subjects[s], type))
            return true;
    return false;
}

static void check_attention(const struct subject *s, struct attention_run *a, float *const *want,
                            double bound)
{
    size_t width = (size_t)a->c->n_heads * (size_t)a->c->head_dim;
    float *got[N_SEQS];
    char what[96];
    run_attention(s, 2, a, 170, got);
    for (int k = 0; k < N_SEQS; k++) {
        snprintf(what, sizeof(what), "attention, K/V %s, %d x %d, %d tokens",
                 kv_type_names[a->kv_type], a->c->n_heads, a->c->head_dim, lengths[k]);
        check(s, what, got[k], want[k], (size_t)lengths[k] * width, bound);
    }
    free_all(got);
}

static void test_attention_over_poisoned_blocks(void **state)
{
    (void)state;
    static float bias[8192];
    struct subject ref = ref_subject();
    for (int i = 0; i < COUNT(attention_cases) * KV_N_TYPES; i++) {
        struct attention_run a;
        float *want[N_SEQS];
        start_attention(&a, &attention_cases[i / KV_N_TYPES], bias);
        a.kv_type = (enum kv_type)(i % KV_N_TYPES);
        if (is_tested_kv_type(a.kv_type)) {
            run_attention(&ref, 2, &a, 100, want);
            for (int s = 0; s < n_others; s++)
                if (has_kv_type(&subjects[s], a.kv_type))
                    check_attention(&subjects[s], &a, want, BOUND_ATTENTION);
            free_all(want);
        }
        end_attention(&a);
    }
}

/* The types themselves, on ref, where nothing else is rounded. */
static void test_coarser_types_stay_near_f32(void **state)
{
    (void)state;
    static float bias[8192];
    struct subject ref = ref_subject();
    for (int i = 0; i < 2; i++) {
        struct attention_run a;
        float *want[N_SEQS];
        start_attention(&a, &attention_cases[i], bias);
        a.kv_type = KV_F32;
        run_attention(&ref, 2, &a, 100, want);
        a.kv_type = KV_BF16;
        check_attention(&ref, &a, want, BOUND_INT8 / 10);
        a.kv_type = KV_INT8;
        check_attention(&ref, &a, want, BOUND_INT8);
        free_all(want);
        end_attention(&a);
    }
}

static void check_same_attention(const struct subject *s, struct attention_run *a)
{
    static const int32_t chunks[] = {1, 7, 64, 170};
    float *want[N_SEQS], *got[N_SEQS];
    a->order = 1;
    run_attention(s, 1, a, 16, want);
    for (int i = 0; i < COUNT(chunks); i++) {
        a->order = 2 * i + 5; /* 5, 7, 11 and 13 share nothing with 96; 9 would */
        a->order += a->order >= 9 ? 2 : 0;
        run_attention(s, 2, a, chunks[i], got);
        for (int k = 0; k < N_SEQS; k++)
            check_same(s, kv_type_names[a->kv_type], got[k], want[k],
                       (size_t)lengths[k] * (size_t)a->c->n_heads * (size_t)a->c->head_dim);
        free_all(got);
    }
    free_all(want);
}

static void test_attention_is_the_same_in_any_chunks_tables_and_threads(void **state)
{
    (void)state;
    static float bias[8192];
    for (int s = 0; s < n_subjects; s++) {
        struct attention_run a;
        start_attention(&a, &attention_cases[s % 2], bias);
        for (int i = 0; subjects[s].ops->kv_types[i] != KV_AUTO; i++) {
            a.kv_type = subjects[s].ops->kv_types[i];
            check_same_attention(&subjects[s], &a);
        }
        end_attention(&a);
    }
}

/* ---- the rest ------------------------------------------------------------------------------- */

static void test_embed_and_gather(void **state)
{
    (void)state;
    enum { V = 90, C = 256, T = 40 };
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_Q8_0, TENSOR_Q4_1, TENSOR_Q6_K};
    struct plan_limits limits = harness_limits(16);
    struct plan *p = plan_new(&limits);
    struct rng r = rng_from(17);
    int32_t ids[T], table[] = {0, 1, 2};
    static const int32_t rows[] = {0, 5, 39, 20};
    float row[C];
    for (int i = 0; i < T; i++)
        ids[i] = (int32_t)rng_below(&r, V);
    plan_add_seq(p, 0, ids, T, table, 3);
    for (int i = 0; i < COUNT(rows); i++)
        plan_add_sample(p, &(struct plan_sample){.row = rows[i]}, NULL, 0, NULL, 0, NULL, 0);
    plan_finish(p);

    for (int i = 0; i < n_subjects * COUNT(types); i++) {
        const struct subject *s = &subjects[i / COUNT(types)];
        struct tensor m = harness_matrix(&r, types[i % COUNT(types)], V, C);
        struct backend *b = harness_open(s, 2, 16, 64, V);
        struct weight *w = pack(b, &m, 1, WEIGHT_PLAIN);
        float *x = harness_upload(b, NULL, T * C), *some = harness_upload(b, NULL, T * C);
        float *other = harness_upload(b, NULL, T * C);
        b->ops->step_begin(b, p);
        b->ops->embed(b, w, 1.0f, x);
        b->ops->gather(b, C, x, x, some, other);
        b->ops->step_end(b);
        float *got = harness_download(b, x, T * C);
        float *picked = harness_download(b, other, T * C);
        for (int t = 0; t < T; t++) {
            tensor_row_unpack(&m, ids[t], row);
            check(s, tensor_type_name(m.type), got + t * C, row, C, BOUND_EMBED);
        }
        for (int k = 0; k < COUNT(rows); k++)
            check_same(s, "gather", picked + k * C, got + rows[k] * C, C);
        xfree(got);
        xfree(picked);
        b->ops->free(b, x);
        b->ops->free(b, some);
        b->ops->free(b, other);
        b->ops->unpack(b, w);
        b->ops->close(b);
        harness_matrix_free(&m);
    }
    plan_free(p);
}

enum { CHOOSE_V = 5003, CHOOSE_R = 40 };

/* Samples of every kind over random rows; the same plan for all backends. */
static struct plan *choose_plan(struct rng *r)
{
    struct plan_limits limits = harness_limits(16);
    struct plan *p = plan_new(&limits);
    for (int i = 0; i < CHOOSE_R; i++) {
        int32_t id = 1, block = 0, recent[64];
        struct plan_count counts[8];
        struct plan_bias bias[4];
        for (int k = 0; k < 64; k++)
            recent[k] = (int32_t)rng_below(r, CHOOSE_V);
        for (int k = 0; k < 8; k++)
            counts[k] = (struct plan_count){i * 8 + k, k};
        for (int k = 0; k < 4; k++)
            bias[k] = (struct plan_bias){(int32_t)rng_below(r, CHOOSE_V), k ? 6.0f : -INFINITY};
        struct plan_sample s = {.row = i,
                                .position = i * 3,
                                .seed = rng_next(r),
                                .branch = i % 3,
                                .temperature = i % 4 == 0 ? 0 : 0.3f * (float)(i % 4 + i % 5),
                                .top_k = i % 3 == 0 ? i : 0,
                                .top_p = i % 5 == 0 ? 0.9f : 1,
                                .min_p = i % 7 == 0 ? 0.05f : 0,
                                .repeat = i % 2 ? 1.3f : 1,
                                .presence = i % 6 == 0 ? 0.4f : 0,
                                .frequency = i % 8 == 0 ? 0.2f : 0,
                                .is_given = i % 9 == 8,
                                .id = i * 101};
        plan_add_seq(p, 0, &id, 1, &block, 1);
        plan_add_sample(p, &s, recent, 64, counts, 8, bias, 4);
    }
    plan_finish(p);
    return p;
}

static void run_choose(const struct subject *s, int n_threads, const struct plan *p,
                       const float *logits, struct chosen *out)
{
    struct err err = {""};
    struct backend *b = harness_open(s, n_threads, 16, 64, CHOOSE_V);
    float *device = harness_upload(b, logits, (size_t)CHOOSE_R * CHOOSE_V);
    b->ops->step_begin(b, p);
    b->ops->choose(b, device, out);
    b->ops->step_end(b);
    if (b->ops->sync(b, &err) != 0)
        fail_msg("%s: %s", harness_name(s), err.text);
    b->ops->free(b, device);
    b->ops->close(b);
}

static void test_choose_takes_the_same_ids_everywhere(void **state)
{
    (void)state;
    struct rng r = rng_from(99);
    struct subject ref = ref_subject();
    struct chosen want[CHOOSE_R], got[CHOOSE_R];
    float *logits = xmalloc((size_t)CHOOSE_R * CHOOSE_V * sizeof(*logits));
    harness_fill(&r, logits, (size_t)CHOOSE_R * CHOOSE_V);
    for (int i = 0; i < CHOOSE_R * CHOOSE_V; i++)
        logits[i] = roundf(logits[i] * 64) / 16; /* standard deviation 4, with ties */
    struct plan *p = choose_plan(&r);
    run_choose(&ref, 1, p, logits, want);
    for (int s = 0; s < n_others; s++) {
        run_choose(&subjects[s], 2, p, logits, got);
        for (int i = 0; i < CHOOSE_R; i++) {
            if (got[i].id != want[i].id)
                fail_msg("%s: sample %d: id %d, ref takes %d", harness_name(&subjects[s]), i,
                         got[i].id, want[i].id);
            assert_float_equal(got[i].logprob, want[i].logprob, 1e-4);
        }
    }
    plan_free(p);
    xfree(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_and_matmul_of_every_stored_type),
        cmocka_unit_test(test_parts_of_mixed_types_stand_side_by_side),
        cmocka_unit_test(test_a_row_does_not_depend_on_its_batch_or_on_threads),
        cmocka_unit_test(test_gate_up_act_and_down),
        cmocka_unit_test(test_attention_over_poisoned_blocks),
        cmocka_unit_test(test_coarser_types_stay_near_f32),
        cmocka_unit_test(test_attention_is_the_same_in_any_chunks_tables_and_threads),
        cmocka_unit_test(test_embed_and_gather),
        cmocka_unit_test(test_choose_takes_the_same_ids_everywhere),
    };
    n_subjects = harness_subjects(subjects, COUNT(subjects));
    n_others = n_subjects - 1;
    ASSERT(subjects[n_others].ops == backend_find("ref", NULL));
    if (n_others == 0)
        printf("# no backend but ref: it is only compared with itself in other chunks\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
