/* test_ops.c - every operation on every backend and code path against ref, and with itself.
 *
 * Activations are the backend's own, so operations are tested in the pairs in which they meet:
 * norm + matmul, norm + gate_up + act + down; attention is in test_ops_attention.c.
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
/* A backend may hold a float table as bf16. */
#define BOUND_EMBED 1e-5

/* All that are tested; the first n_others are compared with ref, which stands last. */
static struct subject subjects[8];
static int n_subjects, n_others;

static const enum tensor_type all_types[] = {
    TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,
    TENSOR_Q5_1, TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K,
};
static const int32_t row_counts[] = {1, 7, 33, 2, 3, 4, 5, 6, 16};
enum { N_ROW_COUNTS = HARNESS_PART > 1 ? 3 : COUNT(row_counts) };
#define MAX_T 33

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
    struct subject ref = harness_ref();
    char what[80];

    harness_fill(&r, data, (size_t)(2 * MAX_T + 1) * (size_t)c);
    ref_sums = xmalloc((size_t)MAX_T * (size_t)c * sizeof(*ref_sums));
    struct backend *rb = harness_open(&ref, 1, 16, 64, 64);
    struct weight *rw = harness_pack(rb, &m, 1, WEIGHT_PLAIN);
    norm_matmul(rb, &k, 0, MAX_T, rw, n, want, ref_sums);

    for (int i = 0; i < n_others; i++) {
        struct backend *b = harness_open(&subjects[i], 2, 16, 64, 64);
        struct weight *w = harness_pack(b, &m, 1, WEIGHT_PLAIN);
        for (int t = 0; t < N_ROW_COUNTS; t++) {
            int32_t rows = row_counts[t];
            snprintf(what, sizeof(what), "norm + matmul %s [%d, %d] rows %d",
                     tensor_type_name(type), n, c, rows);
            norm_matmul(b, &k, 0, rows, w, n, got, sums);
            harness_check(&subjects[i], what, got, want, (size_t)rows * (size_t)n, BOUND_MATMUL);
            harness_check(&subjects[i], "x + delta", sums, ref_sums, (size_t)rows * (size_t)c,
                          1e-13);
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
        check_norm_matmul(all_types[i], 192 / HARNESS_PART, k_quant ? 1536 : 576);
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
    struct subject ref = harness_ref();
    struct backend *rb = harness_open(&ref, 1, 16, 64, 64);
    struct weight *rw = harness_pack(rb, parts, 3, WEIGHT_PLAIN);
    norm_matmul(rb, &k, 0, MAX_T, rw, N, want, NULL);
    for (int i = 0; i < n_others; i++) {
        struct backend *b = harness_open(&subjects[i], 2, 16, 64, 64);
        struct weight *w = harness_pack(b, parts, 3, WEIGHT_PLAIN);
        norm_matmul(b, &k, 0, MAX_T, w, N, got, NULL);
        harness_check(&subjects[i], "mixed parts", got, want, MAX_T * N, BOUND_MATMUL);
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
    enum { C = 512, N = 104 / HARNESS_PART };
    static float data[(2 * MAX_T + 1) * C], all[MAX_T * N], part[MAX_T * N];
    static const int32_t cuts[] = {1, 6, 2, 7, 16, 1}; /* sum 33 */
    struct rng r = rng_from(21);
    harness_fill(&r, data, (2 * MAX_T + 1) * C);
    struct norm_case k = {MAX_T, C, data, data + MAX_T * C, data + 2 * MAX_T * C};

    for (int i = 0; i < n_subjects * COUNT(all_types); i++) {
        const struct subject *s = &subjects[i / COUNT(all_types)];
        struct tensor m = harness_matrix(&r, all_types[i % COUNT(all_types)], N, C);
        struct backend *two = harness_open(s, 2, 16, 64, 64), *one = harness_open(s, 1, 16, 64, 64);
        struct weight *w2 = harness_pack(two, &m, 1, WEIGHT_PLAIN),
                      *w1 = harness_pack(one, &m, 1, WEIGHT_PLAIN);
        norm_matmul(two, &k, 0, MAX_T, w2, N, all, NULL);
        for (int c = 0, at = 0; c < COUNT(cuts); at += cuts[c++])
            norm_matmul(one, &k, at, cuts[c], w1, N, part + at * N, NULL);
        harness_check_same(s, tensor_type_name(m.type), part, all, MAX_T * N);
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
    struct weight *gate_up = harness_pack(b, m, 2, WEIGHT_GATE_UP),
                  *down = harness_pack(b, m + 2, 1, WEIGHT_PLAIN);
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
    struct subject ref = harness_ref();
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
            for (int t = 0; t < N_ROW_COUNTS; t++) {
                b = harness_open(&subjects[s], 2, 16, 64, 64);
                run_ffn(b, row_counts[t], C, f, x, ones, m, got);
                harness_check(&subjects[s], "gate_up, act, down", got, want,
                              (size_t)row_counts[t] * C, BOUND_FFN);
                b->ops->close(b);
            }
        }
        for (int k = 0; k < 3; k++)
            harness_matrix_free(&m[k]);
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
        struct weight *w = harness_pack(b, &m, 1, WEIGHT_PLAIN);
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
            harness_check(s, tensor_type_name(m.type), got + t * C, row, C, BOUND_EMBED);
        }
        for (int k = 0; k < COUNT(rows); k++)
            harness_check_same(s, "gather", picked + k * C, got + rows[k] * C, C);
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
    struct subject ref = harness_ref();
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
        cmocka_unit_test(test_embed_and_gather),
        cmocka_unit_test(test_choose_takes_the_same_ids_everywhere),
    };
    n_subjects = harness_subjects(subjects, COUNT(subjects));
    n_others = n_subjects - 1;
    harness_tell_part("1, 7 and 33 rows, the widest matrices cut to a quarter");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
