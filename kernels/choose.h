/* choose.h - which id comes next, given one row of logits: plain C, exact over the vocabulary.
 *
 * The order is backend.h's: bias, repeat, presence, frequency; then greedy, or temperature, top-k,
 * top-p, min-p, draw. The passes over a whole row (largest value, sum of exponentials, next value
 * above a bound) come from the caller, so that a backend may run them as fast as it can; what
 * follows is small. */
#ifndef KERNELS_CHOOSE_H
#define KERNELS_CHOOSE_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/backend.h"
#include "kernels/plan.h"

struct choose_passes {
    /* Largest of x [n]; -INFINITY when all are NaN. */
    float (*max)(const float *x, int32_t n);
    /* Sum over i of exp((x[i] - max) * scale), scale > 0; NaN elements count as nothing. */
    double (*sum_exp)(const float *x, int32_t n, float max, double scale);
    /* The first i >= from with x[i] >= bound; n when there is none. */
    int32_t (*find)(const float *x, int32_t n, int32_t from, float bound);
};
extern const struct choose_passes choose_passes_plain;

struct choose_candidate {
    float logit;
    int32_t id;
};
/* Room for the candidates of one row; one per thread that chooses. */
struct choose_scratch {
    struct choose_candidate *candidates; /* [n_vocab] owns */
    float *row;                          /* [n_vocab] owns: logits with bias and penalties */
    int32_t n_vocab;
};
int choose_scratch_init(struct choose_scratch *s, int32_t n_vocab, struct err *err);
void choose_scratch_free(struct choose_scratch *s);

/* logits [n_vocab] are those of sample s. Any thread. */
/* The n_best ids of highest logit, best first, ties by the lower id, with their log-probabilities:
 * raw, or with bias and penalties where the sample says so. Entries that lack get id -1. */
void choose_best(const struct plan *plan, const struct plan_sample *s, const float *logits,
                 const struct choose_passes *passes, struct choose_scratch *scratch,
                 struct chosen *out);
/* The id that is drawn, or that is given, with its raw log-probability. */
void choose_row(const struct plan *plan, const struct plan_sample *s, const float *logits,
                const struct choose_passes *passes, struct choose_scratch *scratch,
                struct chosen *out);

#endif
