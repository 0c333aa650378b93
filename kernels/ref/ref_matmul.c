/* ref_matmul.c - the reference product of activations and a stored weight.
 *
 * out[t, n] = sum over k ascending of in[t, k] * w[n, k], in double from 0, rounded once.
 *
 * Weights are unpacked and turned once, so that the sums of eight of their rows are the lanes of a
 * vector; four rows of activations share each load. A sum never leaves its lane and its order never
 * changes, so neither the tile nor the vector width shows in a bit: the same body is compiled for
 * the build's target and for AVX2. Products of floats are exact in double.
 *
 *     panel [K, 8]           in [T, K]
 *     k: w0 w1 .. w7    x    t: x[k]      ->  lanes 0..7 of sum t = out[t, n .. n + 7] */
#include "kernels/ref/ref.h"

#include <string.h>
#include "base/mem.h"

#define ROWS 4   /* of activations a pass: 4 x 8 doubles are 8 AVX2 registers */
#define PANELS 8 /* that a thread takes at a time */

/* Half of the lanes: the widest vector that AVX2 holds in one register. Wider ones are lowered
 * through memory. */
typedef double half __attribute__((vector_size(REF_LANES / 2 * sizeof(double))));
typedef float half_floats __attribute__((vector_size(REF_LANES / 2 * sizeof(float)), aligned(4)));
/* A macro: a function that returns a vector has another ABI with AVX. */
#define WIDEN(p) __builtin_convertvector(*(const half_floats *)(p), half)

struct lanes {
    half low, high;
};

struct product {
    int32_t rows;
    const double *in; /* [rows, K] widened */
    const struct weight *w;
    float *out; /* [rows, N] */
    void (*panel)(const struct product *p, int64_t index);
};

/* ---- packing -------------------------------------------------------------------------------- */

struct packing {
    const struct tensor *parts;
    int n_parts;
    struct weight *w;
};

/* Unpacks row `row` of the stacked parts into its lane. values [k] */
static void pack_row(const struct packing *p, int64_t row, float *values)
{
    const struct tensor *part = p->parts;
    float *lane = p->w->panels + row / REF_LANES * p->w->k * REF_LANES + row % REF_LANES;
    int64_t at = row;
    while (at >= part->n)
        at -= (part++)->n;
    tensor_row_unpack(part, at, values);
    for (int64_t k = 0; k < p->w->k; k++)
        lane[k * REF_LANES] = values[k];
}

/* One panel; its last rows may be past the end. */
static void pack_panel(void *arg, int32_t index, int thread)
{
    const struct packing *p = arg;
    float *values = xmalloc((size_t)p->w->k * sizeof(*values));
    (void)thread;
    for (int64_t row = (int64_t)index * REF_LANES;
         row < (int64_t)(index + 1) * REF_LANES && row < p->w->n; row++)
        pack_row(p, row, values);
    xfree(values);
}

/* Both shapes are stacked here: gate_up rows are [gate F, up F], which is what ref_act reads. */
struct weight *ref_pack(struct backend *b, const struct tensor *parts, int n_parts,
                        enum weight_shape shape, struct err *err)
{
    ASSERT(n_parts >= 1 && (shape == WEIGHT_PLAIN || (n_parts == 2 && parts[0].n == parts[1].n)));
    struct weight *w = xcalloc(1, sizeof(*w));
    struct packing p = {parts, n_parts, w};

    w->k = parts[0].k;
    for (int i = 0; i < n_parts; i++) {
        ASSERT(parts[i].k == w->k);
        w->n += parts[i].n;
    }
    int64_t n_panels = (w->n + REF_LANES - 1) / REF_LANES;
    size_t size_bytes = (size_t)n_panels * (size_t)w->k * REF_LANES * sizeof(float);
    w->panels = try_malloc(MEM_MODEL, size_bytes);
    if (w->panels == NULL) {
        ref_unpack(b, w);
        return err_null(err, "ref: no memory for a weight of %zu bytes", size_bytes);
    }
    memset(w->panels + (n_panels - 1) * w->k * REF_LANES, 0, size_bytes / (size_t)n_panels);
    ref_parallel((struct ref *)b, (int32_t)n_panels, pack_panel, &p);
    return w;
}

void ref_unpack(struct backend *b, struct weight *w)
{
    (void)b;
    if (w == NULL)
        return;
    try_free(MEM_MODEL, w->panels);
    xfree(w);
}

void ref_weight_row(const struct weight *w, int64_t row, float *out)
{
    const float *lane = w->panels + row / REF_LANES * w->k * REF_LANES + row % REF_LANES;
    for (int64_t k = 0; k < w->k; k++)
        out[k] = lane[k * REF_LANES];
}

/* ---- the product ---------------------------------------------------------------------------- */

/* Stores `width` of the lanes as floats. */
static inline void store(float *out, const struct lanes *acc, int32_t width)
{
    for (int32_t i = 0; i < width; i++)
        out[i] = (float)(i < REF_LANES / 2 ? acc->low[i] : acc->high[i - REF_LANES / 2]);
}

/* acc[i] = in[t + i, :] . panel; rows past the end repeat the last. Written out, because an array
 * of accumulators stays in memory. */
static inline __attribute__((always_inline)) void dots(const struct product *p, int32_t t,
                                                       const float *panel, struct lanes acc[ROWS])
{
    const double *x[ROWS];
    int64_t k_n = p->w->k;
    half a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};

    for (int32_t i = 0; i < ROWS; i++)
        x[i] = p->in + (size_t)(t + i < p->rows ? t + i : p->rows - 1) * (size_t)k_n;
    for (int64_t k = 0; k < k_n; k++, panel += REF_LANES) {
        half low = WIDEN(panel), high = WIDEN(panel + REF_LANES / 2);
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

/* The outputs of panel number `index` for all rows. */
static inline __attribute__((always_inline)) void panel_body(const struct product *p, int64_t index)
{
    const float *panel = p->w->panels + index * p->w->k * REF_LANES;
    int64_t n = index * REF_LANES;
    int32_t width = p->w->n - n < REF_LANES ? (int32_t)(p->w->n - n) : REF_LANES;
    for (int32_t t = 0; t < p->rows; t += ROWS) {
        struct lanes acc[ROWS];
        dots(p, t, panel, acc);
        for (int32_t i = 0; i < ROWS && t + i < p->rows; i++)
            store(p->out + (size_t)(t + i) * (size_t)p->w->n + n, &acc[i], width);
    }
}

static void panel_plain(const struct product *p, int64_t index)
{
    panel_body(p, index);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void panel_avx2(const struct product *p, int64_t index)
{
    panel_body(p, index);
}
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
#define panel_avx2 panel_plain
static bool has_avx2(void)
{
    return false;
}
#endif

static void some_panels(void *arg, int32_t job, int thread)
{
    const struct product *p = arg;
    int64_t n_panels = (p->w->n + REF_LANES - 1) / REF_LANES;
    (void)thread;
    for (int64_t i = (int64_t)job * PANELS; i < (int64_t)(job + 1) * PANELS && i < n_panels; i++)
        p->panel(p, i);
}

/* out [rows, N] = in [rows, K] x w [N, K] */
void ref_matmul(struct backend *b, int32_t rows, const void *in, const struct weight *w, float *out)
{
    size_t n = (size_t)rows * (size_t)w->k;
    double *wide = xmalloc(n * sizeof(*wide));
    struct product p = {rows, wide, w, out, has_avx2() ? panel_avx2 : panel_plain};

    for (size_t i = 0; i < n; i++)
        wide[i] = ((const float *)in)[i];
    int64_t n_jobs = (w->n + REF_LANES * PANELS - 1) / (REF_LANES * PANELS);
    ref_parallel((struct ref *)b, (int32_t)n_jobs, some_panels, &p);
    xfree(wide);
}
