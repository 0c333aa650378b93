/* cpu_matmul.c - activations in tiles, and matrix products dealt out over the threads.
 *
 * An activation buffer has room for three forms, one after the other: int8 with factors, bf16, f32
 * (cpu_kernel.h has the layouts). Producers write the forms that the packed weights read: int8 alone
 * for a quantised model. The tiles follow from the number of rows, so producer and matmul agree on
 * them without a header; whoever writes a row writes into its tile's stream.
 *
 * Work is a rectangle of panels x tiles. Threads split the panels where there are enough of them to
 * be fair; a narrow matrix under many threads is split along the tiles too. Never along K. */
#include <string.h>
#include "kernels/cpu/cpu_backend.h"

/* ---- activations ---------------------------------------------------------------------------------- */

static size_t int8_bytes(int32_t rows, int32_t k)
{
    return (size_t)rows * (size_t)(k / CPU_BLOCK) * CPU_BLOCK_WORDS * 4;
}
static size_t bf16_bytes(int32_t rows, int32_t k)
{
    return (size_t)rows * (size_t)k * 4; /* as floats; half of it where pairs stay packed */
}

size_t cpu_act_bytes(struct backend *b, int32_t rows, int32_t k)
{
    (void)b;
    return int8_bytes(rows, k) + bf16_bytes(rows, k) + (size_t)rows * (size_t)k * 4;
}

/* Where the stream of the form starts. */
static const uint8_t *find_form(const void *act, unsigned form, int32_t rows, int32_t k)
{
    const uint8_t *at = act;
    if (form == CPU_FORM_INT8)
        return at;
    at += int8_bytes(rows, k);
    return form == CPU_FORM_BF16 ? at : at + bf16_bytes(rows, k);
}

static int32_t tile_of(int32_t rows, int32_t row)
{
    int32_t n = cpu_tiles(rows), base = rows / n, extra = rows % n, wide = extra * (base + 1);
    return row < wide ? row / (base + 1) : extra + (row - wide) / base;
}

void cpu_act_put(const struct cpu *c, void *act, int32_t rows, int32_t k, int32_t row,
                 const float *values)
{
    int32_t tile = tile_of(rows, row), first = cpu_tile_first(rows, tile);
    int32_t R = cpu_tile_first(rows, tile + 1) - first, r = row - first;
    uint8_t *base = act;
    if (c->forms & CPU_FORM_INT8)
        c->kernel->put_int8(values, k, R, r, (int32_t *)(base + int8_bytes(first, k)));
    if (c->forms & CPU_FORM_BF16) {
        uint8_t *stream = base + int8_bytes(rows, k);
        stream += (size_t)first * (size_t)(k / 2) * (size_t)c->kernel->bf16_words * 4;
        c->kernel->put_bf16(values, k, R, r, stream);
    }
    if (c->forms & CPU_FORM_F32) {
        float *stream = (float *)(base + int8_bytes(rows, k) + bf16_bytes(rows, k));
        stream += (size_t)first * (size_t)k + r;
        for (int32_t i = 0; i < k; i++)
            stream[(size_t)i * R] = values[i];
    }
}

/* ---- products -------------------------------------------------------------------------------------- */

struct matmul_job {
    const struct cpu *c;
    const struct weight *w;
    const void *in;
    int32_t rows;
    float *out;
};

static unsigned form_of(enum cpu_format format)
{
    return format < CPU_BF16 ? CPU_FORM_INT8 : format == CPU_BF16 ? CPU_FORM_BF16 : CPU_FORM_F32;
}

/* How many groups of threads share the panels; each group takes a part of the tiles. Panels alone are
 * fair when a thread gets at least eight of them (12 % idle at worst). */
static int tile_groups(int32_t n_panels, int32_t n_tiles, int n_threads)
{
    int groups = 1;
    while (n_threads % (groups * 2) == 0 && n_panels < 8 * (n_threads / groups) &&
           n_tiles >= 2 * groups * 2)
        groups *= 2;
    return groups;
}

static void matmul_work(void *arg, int thread, int n_threads)
{
    const struct matmul_job *job = arg;
    for (int i = 0; i < job->w->n_segments; i++) {
        const struct cpu_segment *s = &job->w->segments[i];
        int32_t n_tiles = cpu_tiles(job->rows);
        int groups = tile_groups(s->n_panels, n_tiles, n_threads), first, end;
        struct cpu_matmul m = {
            .panels = s->panels,
            .panel_bytes = s->panel_bytes,
            .n = s->n,
            .k = job->w->k,
            .x = find_form(job->in, form_of(s->format), job->rows, job->w->k),
            .rows = job->rows,
            .out = job->out + s->first,
            .ld = (size_t)job->w->n,
        };
        cpu_share(s->n_panels, thread / groups, n_threads / groups, &first, &end);
        m.first_panel = first;
        m.end_panel = end;
        cpu_share(n_tiles, thread % groups, groups, &first, &end);
        m.first_tile = first;
        m.end_tile = end;
        if (m.first_panel < m.end_panel && m.first_tile < m.end_tile)
            job->c->kernel->matmul[s->format](&m);
    }
}

/* out [rows, N] = in [rows, K] x w [N, K]; of gate and up the columns lie as their panels do. */
void cpu_matmul_run(struct backend *b, int32_t rows, const void *in, const struct weight *w,
                    float *out)
{
    struct cpu *c = (struct cpu *)b;
    struct matmul_job job = {c, w, in, rows, out};
    if (rows > 0)
        cpu_pool_run(c->pool, cpu_threads_for(c, rows), matmul_work, &job);
}
