/* lone.h - the lone run: what a branch must produce, on plain arrays, without any block.
 *
 * The toy model is defined here once, for the lone run, the plain beam search and the toy runner
 * that computes it through block tables: the K/V of a position is a hash of everything up to it,
 * and the next token is a hash of all K/V before it. So a wrong, stale or missing slot anywhere is
 * another token. */
#ifndef TESTS_SIMULATION_LONE_H
#define TESTS_SIMULATION_LONE_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/engine.h"
#include "kernels/backend.h"

enum {
    LONE_MAX_IDS = 128, /* a world's context is at most this */
    TOY_END = 0,        /* the end-of-text id; 1 .. are the letters a .. */
    TOY_VOCAB = 24,     /* the last one is never made */
};

uint64_t toy_mix(uint64_t a, uint64_t b);
/* K/V of a position: of the one before it (0 at the beginning) and its token. */
static inline uint64_t toy_slot(uint64_t before, int32_t id)
{
    return toy_mix(before, (uint64_t)(uint32_t)id + 1);
}
/* Everything that the K/V of positions 0 .. p says, folded one slot at a time from 0. */
static inline uint64_t toy_fold(uint64_t fold, uint64_t slot)
{
    return toy_mix(fold, slot);
}

/* What a plan_sample says about a choice, with its arrays. */
struct toy_choice {
    uint64_t fold; /* of all slots before the token */
    uint64_t seed; /* 0 when greedy */
    int32_t branch, position;
    const int32_t *recent; /* [n_recent] */
    int32_t n_recent;
    const struct plan_count *counts; /* [n_counts] */
    int32_t n_counts;
    uint32_t banned; /* bit i: id i must not come */
};
int32_t toy_choose(const struct toy_choice *choice, int32_t n_letters);
/* Log-probability of an id behind what `seen` folds: multiples of 1/16, so that sums are exact and
 * ties are frequent. */
float toy_logprob(uint64_t seen, int32_t id);
/* best [n] <- the likeliest ids, ties by the lower one; -1 behind the last that is not banned. */
void toy_best(uint64_t seen, uint32_t banned, int32_t n, struct chosen *best);
/* What best_adjusted looks at besides the slots. */
uint64_t toy_seen(uint64_t fold, const int32_t *recent, int32_t n_recent,
                  const struct plan_count *counts, int32_t n_counts);
int32_t toy_count_ids(const int32_t *ids, int32_t n, struct plan_count counts[TOY_VOCAB]);
uint32_t toy_banned(const struct gen_options *options); /* bit i: id i must not come */

struct lone {
    int32_t ids[LONE_MAX_IDS];    /* [n_ids] the prompt, then all that is ever sampled */
    uint64_t slots[LONE_MAX_IDS]; /* [n_ids] K/V of each */
    uint64_t folds[LONE_MAX_IDS]; /* [n_ids] of all slots up to it */
    int32_t n_prompt, n_ids;
    int32_t n_text;         /* generated ids that stand for the final text: less after a cut */
    enum gen_finish finish; /* by itself: GEN_STOP or GEN_LENGTH */
};
/* What stands before the first id that is sampled. */
void lone_open(struct lone *l, const int32_t *ids, int32_t n, int32_t n_resumed);
/* Generates branch `branch` to its end. ids [n], of which the last n_resumed count as generated;
 * 0 < n - n_resumed, n < n_context <= LONE_MAX_IDS. */
void lone_run(struct lone *l, const int32_t *ids, int32_t n, int32_t n_resumed,
              const struct gen_options *options, int32_t branch, int32_t n_context,
              int32_t n_letters);
/* Length of the longest stop string that letters [n] of the generated ids end with; 0: none. Every
 * token is one letter. */
int32_t lone_stop_length(const int32_t *ids, int32_t n, const struct gen_options *options);

#endif
