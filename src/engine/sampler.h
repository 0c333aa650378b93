/* sampler.h - how the next token of a sequence is chosen, as the plan carries it. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include <stdint.h>
#include "engine/engine.h"
#include "kernels/plan.h"
#include "model/tokenizer.h"

/* Choices of one branch. Owned by its sequence, main thread, dies with it. */
struct sampler {
    struct plan_sample sample; /* options filled in; row and position belong to the step */
    struct plan_bias *bias;    /* [n_bias] owns; one entry an id, banned end ids among them */
    int32_t n_bias;
    struct plan_count *counts; /* [n_counts of counts_cap] owns, by id; NULL when no penalty asks */
    int32_t n_counts, counts_cap;
};

/* max_ids: as many ids as will ever be counted. branch: of its generation, from 0. */
void sampler_init(struct sampler *s, const struct tokenizer *t, const struct gen_options *options,
                  int32_t branch, int32_t max_ids);
void sampler_free(struct sampler *s);
void sampler_count(struct sampler *s, int32_t id);
void sampler_plan(const struct sampler *s, struct plan *plan, int32_t row, const int32_t *ids,
                  int32_t n_ids);

#endif
