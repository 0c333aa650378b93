/* ref_ops.c - the reference of the row operations: embed, norm, act, gather, choose.
 *
 * One row after the other, sums in double over ascending indices. Nothing here is worth a thread:
 * all of it together is a few per cent of the matmuls of a step. */
#include <math.h>
#include <string.h>
#include "kernels/ref/ref.h"

/* x [T, C] = scale * row ids[t] of w [V, C] */
void ref_embed(struct backend *b, const struct weight *w, float scale, float *x)
{
    const struct plan *p = ((struct ref *)b)->plan;
    for (int32_t t = 0; t < p->n_rows; t++) {
        float *row = x + (size_t)t * (size_t)w->k;
        ref_weight_row(w, p->ids[t], row);
        for (int64_t i = 0; i < w->k; i++)
            row[i] *= scale;
    }
}

/* out [c] = x [c] / sqrt(mean of squares + eps) * w [c] */
static void rmsnorm_row(const float *x, const float *w, int32_t c, float eps, float *out)
{
    double sum = 0;
    for (int32_t i = 0; i < c; i++)
        sum += (double)x[i] * x[i];
    double scale = 1.0 / sqrt(sum / c + eps);
    for (int32_t i = 0; i < c; i++)
        out[i] = (float)(x[i] * scale * w[i]);
}

/* x [rows, C] += delta [rows, C] where delta is not NULL; out [rows, C] = rmsnorm(x) * w [C] */
void ref_norm(struct backend *b, int32_t rows, int32_t c, float *x, const float *delta,
              const float *w, float eps, void *out)
{
    (void)b;
    for (int32_t t = 0; t < rows; t++) {
        float *row = x + (size_t)t * (size_t)c;
        for (int32_t i = 0; delta != NULL && i < c; i++)
            row[i] += delta[(size_t)t * (size_t)c + i];
        rmsnorm_row(row, w, c, eps, (float *)out + (size_t)t * (size_t)c);
    }
}

/* gate_up [rows, 2F], gate first -> out [rows, F] = silu(gate) * up */
void ref_act(struct backend *b, int32_t rows, int32_t f, const float *gate_up, void *out)
{
    (void)b;
    for (int32_t t = 0; t < rows; t++) {
        const float *gate = gate_up + (size_t)t * 2 * (size_t)f, *up = gate + f;
        float *row = (float *)out + (size_t)t * (size_t)f;
        for (int32_t i = 0; i < f; i++)
            row[i] = (float)(gate[i] / (1.0 + exp(-(double)gate[i])) * up[i]);
    }
}

/* x, delta [T, C] -> out_x, out_delta [R, C]: the row of each sample, in the samples' order */
void ref_gather(struct backend *b, int32_t c, const float *x, const float *delta, float *out_x,
                float *out_delta)
{
    const struct plan *p = ((struct ref *)b)->plan;
    size_t row_bytes = (size_t)c * sizeof(float);
    for (int32_t i = 0; i < p->n_samples; i++) {
        size_t from = (size_t)p->samples[i].row * (size_t)c, to = (size_t)i * (size_t)c;
        memcpy(out_x + to, x + from, row_bytes);
        memcpy(out_delta + to, delta + from, row_bytes);
    }
}

/* logits [R, V] -> out [R] */
void ref_choose(struct backend *b, const float *logits, struct chosen *out)
{
    struct ref *r = (struct ref *)b;
    for (int32_t i = 0; i < r->plan->n_samples; i++) {
        const float *row = logits + (size_t)i * (size_t)r->config.n_vocab;
        const struct plan_sample *s = &r->plan->samples[i];
        choose_row(r->plan, s, row, &choose_passes_plain, &r->choose, &out[i]);
        if (s->n_best > 0)
            choose_best(r->plan, s, row, &choose_passes_plain, &r->choose,
                        out + r->plan->n_samples + s->best_at);
    }
}
