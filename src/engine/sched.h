/* sched.h - who is computed next: one order, admission, the budget of a step, victims. */
#ifndef ENGINE_SCHED_H
#define ENGINE_SCHED_H

#include <stdbool.h>
#include <stdint.h>
#include "base/list.h"
#include "cache/cache.h"
#include "engine/generation.h"
#include "engine/step.h"

/* Owned by the engine, main thread. Both lists stand in the one order (gen_precedes). */
struct sched {
    struct cache *cache;         /* borrows */
    struct list queued, running; /* of struct gen, by in_order */
    int32_t n_queued, n_running; /* generations */
    int32_t n_branches;          /* live ones of those that run; max_running bounds these */
    int32_t max_batch_tokens, max_chunk, max_running, max_queue;
    int32_t block_size, n_blocks, n_context;
    uint64_t next_arrival;
    uint64_t planned_before; /* arrivals below this were there when the last step was planned */
    int64_t n_looked;        /* tokens looked at in the cache for the step that is being made */
    int32_t n_free_samples;  /* of that step: no running branch may need them */
    int32_t n_awaited;       /* blocks that they need who sit that step out */
    bool swaps;              /* preemption-mode swap, and host memory is there */
    bool has_preempted;      /* in the step that is being made */
    bool is_backlogged;      /* somebody in the queue was looked at and had to stay */
    /* figures */
    uint64_t preemptions, prompt_tokens, cached_tokens;
    uint64_t dropped_tokens; /* computed ones, thrown away by preemption */
};

void sched_init(struct sched *s, struct cache *c, const struct engine_config *config);

int64_t sched_blocks_for(const struct sched *s, int64_t n_prompt, int64_t max_tokens,
                         int32_t n_branches);
int64_t sched_fit_max_tokens(const struct sched *s, int64_t n_prompt, int32_t n_branches);
bool sched_is_full(const struct sched *s);
void sched_enqueue(struct sched *s, struct gen *g);
void sched_remove(struct sched *s, struct gen *g);
void sched_release(struct sched *s, struct gen *g);
void sched_plan(struct sched *s, struct step *step);
int32_t sched_place(const struct sched *s, const struct gen *g);
int sched_audit(const struct sched *s, const struct step *step, struct err *err);

#endif
