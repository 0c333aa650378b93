/* step.h - the step that is being made or runs: chosen sequences, their rows, what they owe. */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include <stdbool.h>
#include <stdint.h>
#include "cache/cache.h"
#include "engine/generation.h"
#include "kernels/plan.h"
#include "runner/runner.h"

/* The rows of one branch. */
struct step_part {
    struct seq *seq; /* borrows; NULL once it has ended: its results are nobody's */
    int32_t n_rows;
    int32_t n_given;   /* samples of the plan for ids of its prompt, before those below */
    int32_t n_samples; /* of the plan that belong to it: none, its own, or the first of each branch
                          of its group */
};

/* Owned by the engine, main thread. All arrays have their final size from step_init on. */
struct step {
    struct plan *plan;       /* owns; untouched while is_running */
    struct step_part *parts; /* [n_parts] owns; one a sequence, in the order of the plan's */
    struct gen **landing;    /* [n_landing] owns; NULL once ended: the first n_written copy a block
                                before they write to it, the others were admitted in this step */
    struct cache_copy
        *copies;              /* [n_copies] owns; their sources are pinned until the step is done */
    int32_t *pins;            /* [n_copies] owns; those sources, for the audit */
    struct cache_move *moves; /* [n_outs + n_ins] owns; transfers: outs, then ins */
    struct gen **leaving;     /* [n_leaving] owns; swapped out in this step, NULL once ended */
    int32_t n_parts, n_landing, n_written, n_copies, n_outs, n_ins, n_leaving;
    int32_t n_decodes;
    bool is_running;
};

/* Plain counters of the engine's life, for INFO. */
struct step_counts {
    uint64_t steps, rows, computed_prompt_tokens, generated_tokens;
    int64_t last_step_us, max_step_us;
};

void step_init(struct step *s, const struct plan_limits *limits);
void step_done(struct step *s);

void step_begin(struct step *s);
void step_add_copy(struct step *s, const struct cache_copy *copy);
void step_add_leaving(struct step *s, struct gen *g, int32_t n_outs_before);
void step_add_ins(struct step *s, int32_t n_ins);
void step_add_landing(struct step *s, struct gen *g);
void step_add_decode(struct step *s, struct seq *q);
void step_add_rows(struct step *s, struct seq *q);
bool step_launch(struct step *s, struct runner *r);

void step_forget(struct step *s, const struct gen *g);
void step_settle(struct step *s, struct cache *c, bool failed);
void step_count(const struct step *s, int64_t duration_us, struct step_counts *counts);
int step_audit(const struct step *s, const struct cache *c, struct err *err);

#endif
