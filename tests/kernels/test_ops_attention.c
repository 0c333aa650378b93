/* test_ops_attention.c - attention on every backend and code path against ref, and with itself.
 *
 * Tested as it is met: rope_kv_write + attention + matmul by the identity, over blocks that hold NaN
 * beyond what was written, in several chunks, block tables and numbers of threads. The bounds are
 * normalised mean square errors, see test_ops.c; sameness is bit for bit. */
#include <math.h>
#include <stdio.h>
#include "harness.h"

/* bf16 of q and p (ref rounds k and v alike), and one of the int8 or bf16 activations before the
 * identity. */
#define BOUND_ATTENTION 1e-4
/* int8 of V: largest of 64 to 128 about 2.6 deviations, 4e-5 of the power. Of K as much in each factor
 * of a score: its deviation is 1, its error 6e-3, and that is the relative error of a weight. */
#define BOUND_INT8 3e-4

/* All that are tested; the first n_others are compared with ref, which stands last. */
static struct subject subjects[8];
static int n_subjects, n_others;

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
    struct weight *identity = harness_pack(b, &m, 1, WEIGHT_PLAIN);
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
        harness_check(s, what, got[k], want[k], (size_t)lengths[k] * width, bound);
    }
    free_all(got);
}

static void test_attention_over_poisoned_blocks(void **state)
{
    (void)state;
    static float bias[8192];
    struct subject ref = harness_ref();
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
    struct subject ref = harness_ref();
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
            harness_check_same(s, kv_type_names[a->kv_type], got[k], want[k],
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_over_poisoned_blocks),
        cmocka_unit_test(test_coarser_types_stay_near_f32),
        cmocka_unit_test(test_attention_is_the_same_in_any_chunks_tables_and_threads),
    };
    n_subjects = harness_subjects(subjects, COUNT(subjects));
    n_others = n_subjects - 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
