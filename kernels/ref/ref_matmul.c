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

/* Half of the lanes: the widest vector that AVX2 holds in one register. Wider ones are lowered
 * through memory. */
typedef double half __attribute__((vector_size(REF_LANES / 2 * sizeof(double))));
struct lanes {
    half low, high;
};

struct product {
    int32_t rows;
    const double *in; /* [rows, K] widened */
    const struct weight *w;
    float *out; /* [rows, N] */
    void (*tile)(const struct product *p, const struct lanes *turned, int64_t n, int32_t width);
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
static inline void store(float *out, const struct lanes *acc, int32_t width)
{
    for (int32_t i = 0; i < width; i++)
        out[i] = (float)(i < REF_LANES / 2 ? acc->low[i] : acc->high[i - REF_LANES / 2]);
}

/* acc[i] = in[t + i, :] . turned; rows past the end repeat the last. Written out, because an array
 * of accumulators stays in memory. */
static inline __attribute__((always_inline)) void
dots(const struct product *p, int32_t t, const struct lanes *turned, struct lanes acc[ROWS])
{
    const double *x[ROWS];
    int64_t k_n = p->w->k;
    half a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};

    for (int32_t i = 0; i < ROWS; i++)
        x[i] = p->in + (size_t)(t + i < p->rows ? t + i : p->rows - 1) * (size_t)k_n;
    for (int64_t k = 0; k < k_n; k++) {
        half low = turned[k].low, high = turned[k].high;
        a0 += low * x[0][k];
        b0 += high * x[0][k];
        a1 += low * x[1][k];
        b1 += high * x[1][k];
        a2 += low * x[2][k];
        b2 += high * x[2][k];
        a3 += low * x[3][k];
        b3 += high * x[3][k];
    }
    acc[0] = (struct lanes){a0, b0};
    acc[1] = (struct lanes){a1, b1};
    acc[2] = (struct lanes){a2, b2};
    acc[3] = (struct lanes){a3, b3};
}

/* out[:, n .. n + width) for all rows. */
static inline __attribute__((always_inline)) void
tile_body(const struct product *p, const struct lanes *turned, int64_t n, int32_t width)
{
    for (int32_t t = 0; t < p->rows; t += ROWS) {
        struct lanes acc[ROWS];
        dots(p, t, turned, acc);
        for (int32_t i = 0; i < ROWS && t + i < p->rows; i++)
            store(p->out + (size_t)(t + i) * (size_t)p->w->n + n, &acc[i], width);
    }
}

static void tile_plain(const struct product *p, const struct lanes *turned, int64_t n,
                       int32_t width)
{
    tile_body(p, turned, n, width);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void
tile_avx2(const struct product *p, const struct lanes *turned, int64_t n, int32_t width)
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

/* Unpacks rows n .. n + width of the weight into lanes; lanes beyond width are 0. row [K]. */
static void turn(const struct weight *w, int64_t n, int32_t width, float *row, struct lanes *turned)
{
    double *values = (double *)turned; /* [K, 8] */
    if (width < REF_LANES)
        memset(turned, 0, (size_t)w->k * sizeof(*turned));
    for (int32_t lane = 0; lane < width; lane++) {
        ref_weight_row(w, n + lane, row);
        for (int64_t k = 0; k < w->k; k++)
            values[k * REF_LANES + lane] = row[k];
    }
}

static void columns(void *arg, int32_t job, int thread)
{
    const struct product *p = arg;
    int64_t n = (int64_t)job * COLUMNS_JOB;
    int64_t end = n + COLUMNS_JOB < p->w->n ? n + COLUMNS_JOB : p->w->n;
    float *row = xmalloc((size_t)p->w->k * sizeof(*row));
    struct lanes *turned = xaligned(sizeof(half), (size_t)p->w->k * sizeof(*turned));

    (void)thread;
    for (; n < end; n += REF_LANES) {
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
    size_t n = (size_t)rows * (size_t)w->k;
    double *wide = xmalloc(n * sizeof(*wide));
    struct product p = {rows, wide, w, out, has_avx2() ? tile_avx2 : tile_plain};

    for (size_t i = 0; i < n; i++)
        wide[i] = ((const float *)in)[i];
    ref_parallel((struct ref *)b, (int32_t)((w->n + COLUMNS_JOB - 1) / COLUMNS_JOB), columns, &p);
    xfree(wide);
}
