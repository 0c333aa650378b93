/* test_ref.c - the reference against formulas written out anew, and what it refuses. */
#include <math.h>
#include <stdio.h>
#include "harness.h"

static const struct subject ref = {NULL, NULL};

static struct backend *open_ref_backend(int n_threads, int32_t block_size)
{
    struct subject s = ref;
    s.ops = backend_find("ref", NULL);
    assert_non_null(s.ops);
    return harness_open(&s, n_threads, block_size, 256, 100);
}

static void test_unknown_backend_is_refused_with_the_known_names(void **state)
{
    (void)state;
    struct err err = {""};
    assert_null(backend_find("tpu", &err));
    assert_non_null(strstr(err.text, "tpu"));
    assert_non_null(strstr(err.text, "ref"));
    assert_non_null(backend_find("auto", &err));
}

static void test_matmul_sums_the_unpacked_rows(void **state)
{
    (void)state;
    enum { T = 7, N = 77, K = 512 };
    static const enum tensor_type types[] = {TENSOR_F32,  TENSOR_Q4_1, TENSOR_Q8_0,
                                             TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_F16};
    struct rng r = rng_from(1);
    float in[T * K], out[T * N], row[K];
    harness_fill(&r, in, T * K);
    for (int i = 0; i < COUNT(types); i++) {
        struct backend *b = open_ref_backend(2, 16);
        struct tensor m = harness_matrix(&r, types[i], N, K);
        struct weight *w = b->ops->pack(b, &m, 1, WEIGHT_PLAIN, NULL);
        b->ops->matmul(b, T, in, w, out);
        for (int n = 0; n < N; n++) {
            tensor_row_unpack(&m, n, row);
            for (int t = 0; t < T; t++) {
                double sum = 0;
                for (int k = 0; k < K; k++)
                    sum += (double)in[t * K + k] * row[k];
                assert_float_equal(out[t * N + n], sum, 1e-6);
            }
        }
        b->ops->unpack(b, w);
        harness_matrix_free(&m);
        b->ops->close(b);
    }
}

static void test_norm_adds_the_residual_first(void **state)
{
    (void)state;
    struct backend *b = open_ref_backend(1, 16);
    float x[] = {1, 2, 0, 0, 4, -4}, out[6];
    const float delta[] = {2, 2, 0, 1, 0, 0}, w[] = {1, 2, 3};
    b->ops->norm(b, 2, 3, x, delta, w, 0.5f, out);
    const float sums[] = {3, 4, 0, 1, 4, -4};
    assert_memory_equal(x, sums, sizeof(sums));
    for (int i = 0; i < 6; i++) {
        double square = i < 3 ? 25.0 / 3 : 33.0 / 3;
        assert_float_equal(out[i], sums[i] / sqrt(square + 0.5) * w[i % 3], 1e-6);
    }
    b->ops->close(b);
}

static void test_act_is_silu_of_gate_times_up(void **state)
{
    (void)state;
    struct backend *b = open_ref_backend(1, 16);
    const float gate_up[] = {0, 2, -90, 5, 3, 7};
    float out[3];
    b->ops->act(b, 1, 3, gate_up, out);
    assert_float_equal(out[0], 0, 0);
    assert_float_equal(out[1], 2 / (1 + exp(-2.0)) * 3, 1e-6);
    assert_float_equal(out[2], 0, 1e-30);
    b->ops->close(b);
}

/* ---- attention ------------------------------------------------------------------------------ */

enum { H = 6, G = 2, D = 20, ROPE = 12, CONTEXT = 256, QKV = (H + 2 * G) * D };

/* Tables of an arbitrary rotation: the backend must use them, not angles of its own. */
static void fill_rope(float *cosine, float *sine)
{
    for (int p = 0; p < CONTEXT; p++)
        for (int i = 0; i < ROPE / 2; i++) {
            cosine[p * (ROPE / 2) + i] = (float)cos(p * 0.3 / (i + 1));
            sine[p * (ROPE / 2) + i] = (float)sin(p * 0.3 / (i + 1));
        }
}

static void rotate_plainly(float *x, const float *cosine, const float *sine, bool neox)
{
    for (int i = 0; i < ROPE / 2; i++) {
        float *a = neox ? x + i : x + 2 * i, *c = neox ? x + i + ROPE / 2 : x + 2 * i + 1;
        double was_a = *a, was_c = *c;
        *a = (float)(was_a * cosine[i] - was_c * sine[i]);
        *c = (float)(was_c * cosine[i] + was_a * sine[i]);
    }
}

/* qkv [n, QKV] after bias and rotation -> out [H, D] of the row at position n - 1. */
static void attend_plainly(const float *qkv, int n, float *out)
{
    double s[CONTEXT];
    for (int h = 0; h < H; h++) {
        const float *q = qkv + (n - 1) * QKV + h * D;
        int g = h / (H / G);
        double max = -INFINITY, sum = 0;
        for (int t = 0; t < n; t++) {
            s[t] = 0;
            for (int d = 0; d < D; d++)
                s[t] += (double)q[d] * qkv[t * QKV + (H + g) * D + d];
            s[t] *= 0.25;
            max = fmax(max, s[t]);
        }
        for (int t = 0; t < n; t++)
            sum += s[t] = exp(s[t] - max);
        for (int d = 0; d < D; d++) {
            double o = 0;
            for (int t = 0; t < n; t++)
                o += s[t] / sum * qkv[t * QKV + (H + G + g) * D + d];
            out[h * D + d] = (float)o;
        }
    }
}

/* A prompt of n tokens in chunks over a shuffled table, checked row by row. */
static void check_attention(int32_t block_size, bool neox, int32_t n, int32_t chunk)
{
    static float cosine[CONTEXT * ROPE / 2], sine[CONTEXT * ROPE / 2];
    struct rng r = rng_from((uint64_t)(block_size + n));
    struct backend *b = open_ref_backend(2, block_size);
    struct attention_shape shape = {.n_heads = H,
                                    .n_kv_heads = G,
                                    .head_dim = D,
                                    .rope_dim = ROPE,
                                    .rope_neox = neox,
                                    .scale = 0.25f,
                                    .n_layers = 2,
                                    .n_blocks = 40,
                                    .block_size = block_size,
                                    .rope_cos = cosine,
                                    .rope_sin = sine};
    struct plan_limits limits = harness_limits(block_size);
    struct plan *p = plan_new(&limits);
    float *qkv = xmalloc((size_t)n * QKV * sizeof(float)), bias[QKV], want[H * D];
    float *q = xmalloc((size_t)n * H * D * sizeof(float)), *out = xmalloc((size_t)n * H * D * 4);
    int32_t table[40], ids[CONTEXT] = {0}, n_blocks = (n + block_size - 1) / block_size;

    fill_rope(cosine, sine);
    assert_int_equal(b->ops->pool_open(b, &shape, NULL), 0);
    harness_fill(&r, qkv, (size_t)n * QKV);
    harness_fill(&r, bias, QKV);
    for (int i = 0; i < n_blocks; i++)
        table[i] = (i * 7 + 3) % 40;
    for (int at = 0; at < n; at += chunk) {
        int rows = n - at < chunk ? n - at : chunk;
        plan_clear(p);
        plan_add_seq(p, at, ids, rows, table, n_blocks);
        plan_finish(p);
        b->ops->step_begin(b, p);
        b->ops->rope_kv_write(b, 1, qkv + at * QKV, bias, q);
        b->ops->attention(b, 1, q, out + at * H * D);
        b->ops->step_end(b);
    }
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < QKV; i++)
            qkv[t * QKV + i] += bias[i];
        for (int h = 0; h < H + G; h++)
            rotate_plainly(qkv + t * QKV + h * D, cosine + t * ROPE / 2, sine + t * ROPE / 2, neox);
        attend_plainly(qkv, t + 1, want);
        assert_true(harness_nmse(out + t * H * D, want, H * D) < 1e-12);
    }
    b->ops->pool_close(b);
    b->ops->close(b);
    plan_free(p);
    xfree(qkv);
    xfree(q);
    xfree(out);
}

static void test_attention_is_causal_softmax_over_the_table(void **state)
{
    (void)state;
    check_attention(8, false, 61, 61);
    check_attention(16, true, 33, 5);
    check_attention(32, false, 200, 64);
    check_attention(64, true, 64, 1);
    check_attention(128, false, 256, 100);
}

static void test_pool_refuses_other_block_sizes(void **state)
{
    (void)state;
    static const int32_t sizes[] = {4, 12, 24, 256};
    for (int i = 0; i < COUNT(sizes); i++) {
        struct err err = {""};
        struct backend *b = open_ref_backend(1, sizes[i]);
        struct attention_shape shape = {.n_heads = 1,
                                        .n_kv_heads = 1,
                                        .head_dim = 8,
                                        .n_layers = 1,
                                        .n_blocks = 2,
                                        .block_size = sizes[i]};
        char number[16];
        assert_int_equal(b->ops->pool_open(b, &shape, &err), -1);
        snprintf(number, sizeof(number), "%d", sizes[i]);
        assert_non_null(strstr(err.text, number));
        b->ops->close(b);
    }
}

/* Sanitizers end the program on sizes that malloc merely refuses. Called by their runtimes. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void test_first_error_stays_until_sync(void **state)
{
    (void)state;
    struct backend *b = open_ref_backend(1, 16);
    struct err err = {""};
    assert_null(b->ops->alloc(b, SIZE_MAX / 2 - 7));
    assert_null(b->ops->alloc(b, SIZE_MAX / 4 - 7));
    assert_int_equal(b->ops->sync(b, &err), -1);
    char number[32];
    snprintf(number, sizeof(number), "%zu", SIZE_MAX / 2 - 7);
    assert_non_null(strstr(err.text, number));
    assert_int_equal(b->ops->sync(b, &err), 0);
    b->ops->close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_backend_is_refused_with_the_known_names),
        cmocka_unit_test(test_matmul_sums_the_unpacked_rows),
        cmocka_unit_test(test_norm_adds_the_residual_first),
        cmocka_unit_test(test_act_is_silu_of_gate_times_up),
        cmocka_unit_test(test_attention_is_causal_softmax_over_the_table),
        cmocka_unit_test(test_pool_refuses_other_block_sizes),
        cmocka_unit_test(test_first_error_stays_until_sync),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
