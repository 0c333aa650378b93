/* cpu_rows.c - the operations on rows: embed, norm, act, gather.
 *
 * Threads split the tiles of the activation that is written, not single rows: rows of one tile are
 * interleaved word by word, and two threads in one tile would fight over its cache lines. */
#include <string.h>
#include "kernels/cpu/cpu_backend.h"

struct rows_job {
    struct cpu *c;
    int32_t rows, width;
    float *x;
    const float *delta, *w, *in;
    float eps, scale;
    const struct weight *weight;
    void *out;
    float *out_x, *out_delta;
};

/* The rows [*first, *end) of a thread: whole tiles. */
static void share_rows(int32_t rows, int thread, int n_threads, int32_t *first, int32_t *end)
{
    int first_tile, end_tile;
    cpu_share(cpu_tiles(rows), thread, n_threads, &first_tile, &end_tile);
    *first = cpu_tile_first(rows, first_tile);
    *end = cpu_tile_first(rows, end_tile);
}

static void run_rows(struct cpu *c, cpu_work work, struct rows_job *job)
{
    if (job->rows > 0)
        cpu_pool_run(c->pool, cpu_threads_for(c, job->rows), work, job);
}

static void embed_work(void *arg, int thread, int n_threads)
{
    const struct rows_job *job = arg;
    int32_t first, end;
    share_rows(job->rows, thread, n_threads, &first, &end);
    for (int32_t t = first; t < end; t++) {
        float *row = job->x + (size_t)t * (size_t)job->width;
        cpu_weight_row(job->c, job->weight, job->c->plan->ids[t], row);
        for (int32_t i = 0; i < job->width; i++)
            row[i] *= job->scale;
    }
}

/* x [T, C] = scale * rows ids[t] of w, read back from its panels: one copy serves head and embedding */
void cpu_embed(struct backend *b, const struct weight *w, float scale, float *x)
{
    struct cpu *c = (struct cpu *)b;
    ASSERT(!w->is_gate_up);
    struct rows_job job = {
        .c = c, .rows = c->plan->n_rows, .width = w->k, .x = x, .scale = scale, .weight = w};
    run_rows(c, embed_work, &job);
}

static void norm_work(void *arg, int thread, int n_threads)
{
    const struct rows_job *job = arg;
    const struct cpu *c = job->c;
    float *scratch = c->threads[thread].row;
    int32_t first, end;
    share_rows(job->rows, thread, n_threads, &first, &end);
    for (int32_t t = first; t < end; t++) {
        size_t at = (size_t)t * (size_t)job->width;
        c->kernel->norm(job->x + at, job->delta ? job->delta + at : NULL, job->w, job->eps,
                        job->width, scratch);
        cpu_act_put(c, job->out, job->rows, job->width, t, scratch);
    }
}

/* x [rows, C] += delta; out = act of rmsnorm(x) * w */
void cpu_norm(struct backend *b, int32_t rows, int32_t width, float *x, const float *delta,
              const float *w, float eps, void *out)
{
    struct cpu *c = (struct cpu *)b;
    ASSERT(width % CPU_BLOCK == 0);
    cpu_row_reserve(c, width);
    struct rows_job job = {.c = c,
                           .rows = rows,
                           .width = width,
                           .x = x,
                           .delta = delta,
                           .w = w,
                           .eps = eps,
                           .out = out};
    run_rows(c, norm_work, &job);
}

static void act_work(void *arg, int thread, int n_threads)
{
    const struct rows_job *job = arg;
    const struct cpu *c = job->c;
    float *scratch = c->threads[thread].row;
    int32_t first, end;
    share_rows(job->rows, thread, n_threads, &first, &end);
    for (int32_t t = first; t < end; t++) {
        c->kernel->swiglu(job->in + (size_t)t * 2 * (size_t)job->width, job->width, scratch);
        cpu_act_put(c, job->out, job->rows, job->width, t, scratch);
    }
}

/* gate_up [rows, F / 16, (gate 16, up 16)] -> out: act of silu(gate) * up [rows, F] */
void cpu_act(struct backend *b, int32_t rows, int32_t f, const float *gate_up, void *out)
{
    struct cpu *c = (struct cpu *)b;
    ASSERT(f % CPU_BLOCK == 0);
    cpu_row_reserve(c, f);
    struct rows_job job = {.c = c, .rows = rows, .width = f, .in = gate_up, .out = out};
    run_rows(c, act_work, &job);
}

/* x, delta [T, C] -> out_x, out_delta [R, C]: the row of each sample, in the samples' order. A few
 * kilobytes each: not worth a second thread. */
void cpu_gather(struct backend *b, int32_t width, const float *x, const float *delta, float *out_x,
                float *out_delta)
{
    const struct plan *p = ((struct cpu *)b)->plan;
    size_t row_bytes = (size_t)width * sizeof(float);
    for (int32_t i = 0; i < p->n_samples; i++) {
        size_t from = (size_t)p->samples[i].row * (size_t)width, to = (size_t)i * (size_t)width;
        memcpy(out_x + to, x + from, row_bytes);
        memcpy(out_delta + to, delta + from, row_bytes);
    }
}
