/* ref_matmul.c - the reference product of activations and a stored weight.
 *
 * out[t, n] = sum over k ascending of in[t, k] * w[n, k], in double from 0, rounded once.
 *
 * Eight rows of the weight are unpacked, widened and turned, so that their eight sums are the lanes
 * of one vector; four rows of activations share each load. A sum never leaves its lane and its
 * order never changes, so neither the tile nor the vector width shows in a bit: the same body is
 * compiled for the build's target and for AVX2. Products of floats are exact in double.
 *
 *     turned [K, 8]          in [T, K]
 *     k: w0 w1 .. w7    x    t: x[k]      ->  acc[t] lanes 0..7 = out[t, n .. n + 7] */
#include <string.h>
#include "base/mem.h"
#include "kernels/ref/ref.h"

#define ROWS 4         /* of activations a pass: 4 x 8 doubles are 8 AVX2 registers */
#define COLUMNS_JOB 64 /* outputs that a thread takes at a time: work for some 0.1 ms */

typedef double lanes __attribute__((vector_size(REF_LANES * sizeof(double))));

struct product {
    int32_t rows;
    const float *in; /* [rows, K] */
    const struct weight *w;
    float *out; /* [rows, N] */
    void (*tile)(const struct product *p, const lanes *turned, int64_t n, int32_t width);
};

/* Row of the stacked parts. */
void ref_weight_row(const struct weight *w, int64_t row, float *out)
{
    int i = 0;
    while (row >= w->parts[i].n)
        row -= w->parts[i++].n;
    ASSERT(i < w->n_parts);
    tensor_row_unpack(&w->parts[i], row, out);
}

/* Stores `width` of the lanes as floats. */
static inline void store(float *out, const lanes *acc, int32_t width)
{
    for (int32_t i = 0; i < width; i++)
        out[i] = (float)(*acc)[i];
}

/* out[:, n .. n + width) for all rows. */
static inline __attribute__((always_inline)) void
tile_body(const struct product *p, const lanes *turned, int64_t n, int32_t width)
{
    int64_t k_n = p->w->k;
    for (int32_t t = 0; t < p->rows; t += ROWS) {
        const float *x[ROWS];
        lanes acc[ROWS] = {{0}};
        for (int32_t i = 0; i < ROWS; i++) /* a row past the end repeats the last */
            x[i] = p->in + (size_t)(t + i < p->rows ? t + i : p->rows - 1) * (size_t)k_n;
        for (int64_t k = 0; k < k_n; k++)
            for (int32_t i = 0; i < ROWS; i++)
                acc[i] += turned[k] * (double)x[i][k];
        for (int32_t i = 0; i < ROWS && t + i < p->rows; i++)
            store(p->out + (size_t)(t + i) * (size_t)p->w->n + n, &acc[i], width);
    }
}

static void tile_plain(const struct product *p, const lanes *turned, int64_t n, int32_t width)
{
    tile_body(p, turned, n, width);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void tile_avx2(const struct product *p, const lanes *turned,
                                                      int64_t n, int32_t width)
{
    tile_body(p, turned, n, width);
}
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
#define tile_avx2 tile_plain
static bool has_avx2(void)
{
    return false;
}
#endif

/* Unpacks rows n .. n + width of the weight into lanes; lanes beyond width are 0. */
static void turn(const struct weight *w, int64_t n, int32_t width, float *row, lanes *turned)
{
    memset(turned, 0, (size_t)w->k * sizeof(*turned));
    for (int32_t lane = 0; lane < width; lane++) {
        ref_weight_row(w, n + lane, row);
        for (int64_t k = 0; k < w->k; k++)
            turned[k][lane] = row[k];
    }
}

static void columns(void *arg, int32_t job, int thread)
{
    const struct product *p = arg;
    (void)thread;
    int64_t end =
        (int64_t)(job + 1) * COLUMNS_JOB < p->w->n ? (int64_t)(job + 1) * COLUMNS_JOB : p->w->n;
    float *row = xmalloc((size_t)p->w->k * sizeof(*row));
    lanes *turned = xaligned(sizeof(lanes), (size_t)p->w->k * sizeof(*turned));

    for (int64_t n = (int64_t)job * COLUMNS_JOB; n < end; n += REF_LANES) {
        int32_t width = end - n < REF_LANES ? (int32_t)(end - n) : REF_LANES;
        turn(p->w, n, width, row, turned);
        p->tile(p, turned, n, width);
    }
    xfree(turned);
    xfree(row);
}

/* out [rows, N] = in [rows, K] x w [N, K] */
void ref_matmul(struct backend *b, int32_t rows, const void *in, const struct weight *w, float *out)
{
    struct product p = {rows, in, w, out, has_avx2() ? tile_avx2 : tile_plain};
    ref_parallel((struct ref *)b, (int32_t)((w->n + COLUMNS_JOB - 1) / COLUMNS_JOB), columns, &p);
}
