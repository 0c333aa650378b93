/* op-bench.c - kvasir-op-bench: how fast the CPU backend multiplies, format by format.
 *
 * One thread, one matrix at a time, timed by the CPU time of the thread, so that a busy machine
 * disturbs the figures little (caches and memory are still shared). `cold` cycles through copies of
 * the weight that no cache holds, as a step of up to 8 sequences does; more rows reuse one matrix.
 *
 *     kvasir-op-bench [isa] [type]
 *
 * GOP/s counts multiply and add as two. GB/s counts the packed weight, what memory delivers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/cpu_backend.h"

enum { MAX_ROWS = 512, COLD_ROWS = 8, COLD_BYTES = 96 << 20, MIN_MS = 60 };

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static size_t packed_bytes(const struct weight *w)
{
    size_t sum = 0;
    for (int i = 0; i < w->n_segments; i++)
        sum += (size_t)w->segments[i].n_panels * w->segments[i].panel_bytes;
    return sum;
}

/* Seconds of one product; walks the weights round and round. */
static double time_matmul(struct cpu *c, struct weight *const *w, int n_weights, int32_t rows,
                          const void *act, float *out)
{
    double begin = cpu_seconds(), end;
    int n = 0;
    do {
        cpu_matmul_run(&c->base, rows, act, w[n % n_weights], out);
        n++;
        end = cpu_seconds();
    } while ((end - begin) * 1e3 < MIN_MS || n < 3);
    return (end - begin) / n;
}

static void bench_shape(struct cpu *c, int type, int32_t n, int32_t k)
{
    static const int32_t rows[] = {1, 2, 4, 6, 8, 32, 512};
    struct rng r = rng_from(1);
    float *row = xmalloc((size_t)k * sizeof *row), *ones = xmalloc((size_t)k * sizeof *ones);
    size_t row_bytes = tensor_row_bytes(type, k);
    uint8_t *data = xmalloc((size_t)n * row_bytes);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < k; j++)
            row[j] = rng_unit(rng_next(&r)) - 0.5f;
        tensor_row_pack(type, k, row, data + (size_t)i * row_bytes);
    }
    struct tensor t = {.type = type, .n = n, .k = k, .data = data};
    struct weight *w[64] = {cpu_pack(&c->base, &t, 1, WEIGHT_PLAIN, NULL)};
    int n_weights = 1;
    for (; n_weights < 64 && packed_bytes(w[0]) * (size_t)n_weights < COLD_BYTES; n_weights++)
        w[n_weights] = cpu_pack(&c->base, &t, 1, WEIGHT_PLAIN, NULL);
    float *x = cpu_map((size_t)MAX_ROWS * (size_t)k * sizeof *x);
    float *out = cpu_map((size_t)MAX_ROWS * (size_t)n * sizeof *out);
    void *act = cpu_map(cpu_act_bytes(&c->base, MAX_ROWS, k));
    for (int32_t i = 0; i < k; i++)
        ones[i] = 1.f;
    for (int32_t i = 0; i < MAX_ROWS * k; i++)
        x[i] = rng_unit(rng_next(&r)) - 0.5f;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cpu_norm(&c->base, rows[i], k, x, NULL, ones, 1e-5f, act);
        double s = time_matmul(c, w, rows[i] <= COLD_ROWS ? n_weights : 1, rows[i], act, out);
        printf("%-5s %6d x %-5d rows %3d %8.1f GOP/s %7.2f GB/s%s\n", tensor_type_name(type), n, k,
               rows[i], 2e-9 * n * k * rows[i] / s, 1e-9 * (double)packed_bytes(w[0]) / s,
               rows[i] <= COLD_ROWS ? " cold" : "");
    }
    for (int i = 0; i < n_weights; i++)
        cpu_unpack(&c->base, w[i]);
    cpu_unmap(x);
    cpu_unmap(out);
    cpu_unmap(act);
    xfree(data);
    xfree(row);
    xfree(ones);
}

int main(int argc, char **argv)
{
    static const int types[] = {TENSOR_Q4_1, TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_Q4_K,
                                TENSOR_Q6_K, TENSOR_BF16, TENSOR_F16};
    struct err err;
    struct backend_config config = {.n_threads = 1,
                                    .isa = argc > 1 && *argv[1] ? argv[1] : NULL,
                                    .n_context = 16,
                                    .n_vocab = 16};
    struct backend *b = cpu_backend_ops.open(&config, &err);
    if (!b) {
        fprintf(stderr, "kvasir-op-bench: %s\n", err.text);
        return 1;
    }
    puts(cpu_backend_ops.describe(b));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (argc > 2 && tensor_type_find(argv[2]) != types[i])
            continue;
        bool k_quant = tensor_block(types[i]) == 256;
        bench_shape((struct cpu *)b, types[i], 3072, k_quant ? 512 : 576);
        bench_shape((struct cpu *)b, types[i], 576, 1536);
    }
    cpu_backend_ops.close(b);
    return 0;
}
