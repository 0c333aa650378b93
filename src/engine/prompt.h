/* prompt.h - log-probabilities of the ids of a prompt: which rows owe them, what they told. */
#ifndef ENGINE_PROMPT_H
#define ENGINE_PROMPT_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/engine.h"
#include "kernels/plan.h"

struct gen;
struct seq;

/* Of one generation, which owns it. Main thread only. */
struct prompt_rows {
    struct chosen *rows; /* [n_prompt, 1 + n_best] owns; NULL: nobody asked */
    int32_t n_best;
    int32_t n_known; /* ids whose row is there, from the first on */
    int32_t n_told;  /* of them */
};

struct chosen *prompt_new_rows(int64_t n, int32_t n_best);
bool prompt_init(struct prompt_rows *p, const struct gen_options *options, const int32_t *ids,
                 int32_t n_prompt);
void prompt_free(struct prompt_rows *p);

bool prompt_owes(const struct gen *g);
int32_t prompt_findable(const struct seq *q, int32_t n);
int32_t prompt_n_given(const struct seq *q, int32_t at, int32_t n_rows);
int32_t prompt_fit_rows(const struct seq *q, int32_t n_free);
int32_t prompt_plan(const struct seq *q, struct plan *plan, int32_t at, int32_t n_rows);
void prompt_take(struct seq *q, const struct chosen *samples, int32_t at, int32_t n,
                 const struct plan *plan);

#endif
