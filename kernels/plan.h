/* plan.h - one step of the model over the batch, as flat arrays: immutable once launched.
 *
 * The engine fills the sequences, their rows, block tables, copies and samples; plan_finish then
 * derives what every backend needs from them: position and slot of each row, and the attention
 * work items. Plain C, shared by all backends and by the toy runner of the simulation.
 *
 * Order inside a step: swap-in, then copies, then the K/V writes of the rows, then attention reads.
 * Blocks that are swapped out are not written in their step, nor are their host slots read: those
 * copies may go on beside everything else, and are done with the step. A slot is
 * block * block_size + position % block_size. Letters: T rows, S sequences, R samples. */
#ifndef KERNELS_PLAN_H
#define KERNELS_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

#define PLAN_BEST 64   /* best ids of one sample at most: two a beam of 16, and all end-of-text ids */
#define PLAN_RECENT 64 /* ids that the repeat penalty looks back over */

/* Copy the first n_tokens slots of block src into block dst, in every layer, K and V. */
struct plan_copy {
    int32_t src, dst, n_tokens;
};

/* A whole block to or from a slot of host memory, in every layer, K and V. */
struct plan_move {
    int32_t block, slot;
};

/* The rows of one sequence in this step: n_rows consecutive tokens from `position` on. */
struct plan_seq {
    int32_t first_row, n_rows;  /* rows [first_row, first_row + n_rows) of the plan */
    int32_t position;           /* of the first row in its sequence */
    int32_t table_at, n_blocks; /* plan->tables[table_at ..]: covers position + n_rows tokens */
};

/* How the next token after `row` is chosen. Every array is a range of the plan's pools. */
struct plan_sample {
    int32_t row;      /* the last of its sequence; any when its id is given or logits are measured */
    int32_t position; /* of the token to be drawn = number of ids before it */
    uint64_t seed;
    int32_t branch;
    float temperature;           /* 0: greedy, ties take the lowest id */
    int32_t top_k;               /* 0: off */
    float top_p, min_p;          /* 1 and 0: off */
    float repeat;                /* 1: off; over the ids in recent */
    float presence, frequency;   /* 0: off; over the ids in counts */
    int32_t recent_at, n_recent; /* plan->recent: the last PLAN_RECENT ids, duplicates kept */
    int32_t counts_at, n_counts; /* plan->counts: distinct ids this generation made, with counts */
    int32_t bias_at, n_bias;     /* plan->bias: added to the logit; -INFINITY bans an id */
    int32_t best_at, n_best;     /* chosen[n_samples + best_at ..]: so many best ids are wanted too */
    bool best_adjusted;          /* best with bias and penalties; else by the raw logits */
    bool is_given;               /* nothing is drawn: `id` is told with its log-probability */
    int32_t id;
};
struct plan_count {
    int32_t id, count;
};
struct plan_bias {
    int32_t id;
    float value;
};

struct plan_limits {
    int32_t max_rows, max_seqs; /* a sample for each sequence at most */
    int32_t max_table_blocks;   /* sum over the sequences of a step */
    int32_t max_copies;
    int32_t max_best;            /* of all samples of a step */
    int32_t max_outs, max_ins; /* 0: without swap */
    int32_t max_bias, max_counts;
    int32_t block_size;
};

struct plan {
    struct plan_limits limits;
    int32_t n_rows, n_seqs, n_table_blocks, n_copies, n_samples, n_recent, n_counts, n_bias;
    int32_t n_outs, n_ins;
    int32_t n_best;              /* of all samples */
    /* filled by the engine; all arrays are owned, sized by the limits */
    int32_t *ids;          /* [T] token of each row */
    struct plan_seq *seqs; /* [S] in the order of their rows */
    int32_t *tables;       /* block numbers */
    struct plan_copy *copies;
    struct plan_move *outs, *ins; /* block to slot, slot to block */
    struct plan_sample *samples;  /* [R] */
    int32_t *recent;
    struct plan_count *counts;
    struct plan_bias *bias;
    /* derived by plan_finish */
    int32_t *positions; /* [T] */
    int32_t *slots;     /* [T] where the K and V of the row go */
    int32_t *row_seq;   /* [T] index into seqs */
};

struct plan *plan_new(const struct plan_limits *limits);
void plan_free(struct plan *p);
void plan_clear(struct plan *p);
/* Appends; the caller has kept within the limits (ASSERT). Return the index. */
int32_t plan_add_seq(struct plan *p, int32_t position, const int32_t *ids, int32_t n_rows,
                     const int32_t *blocks, int32_t n_blocks);
void plan_add_copy(struct plan *p, int32_t src, int32_t dst, int32_t n_tokens);
void plan_add_out(struct plan *p, int32_t block, int32_t slot);
void plan_add_in(struct plan *p, int32_t slot, int32_t block);
/* Copies the sample's arrays into the pools and sets its ranges. */
int32_t plan_add_sample(struct plan *p, const struct plan_sample *sample, const int32_t *recent,
                        int32_t n_recent, const struct plan_count *counts, int32_t n_counts,
                        const struct plan_bias *bias, int32_t n_bias);
/* Derives positions, slots and row_seq, and asserts that every row lies inside its table. */
void plan_finish(struct plan *p);

#endif
