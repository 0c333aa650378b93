/* state.h - the struct behind engine.h, for the files of this folder only. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "cache/cache.h"
#include "engine/engine.h"
#include "engine/sched.h"
#include "engine/step.h"

struct engine {
    struct runner *runner;             /* borrows */
    const struct tokenizer *tokenizer; /* borrows */
    struct cache *cache;               /* owns */
    struct sched sched;
    struct step step;
    struct step_counts counts;
    struct list outbox;       /* of struct gen, by in_outbox: something is to be told */
    int64_t tell_us;          /* of telling a turn; 0: no bound */
    int64_t next_deadline_us; /* not later than the first deadline; 0: none */
    int32_t n_due;            /* queued ones whose resumed ids end them */
    bool is_turning;          /* no callback may turn */
    uint64_t ends[GEN_N_FINISHES];
};

#endif
