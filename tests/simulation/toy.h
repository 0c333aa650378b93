/* toy.h - a runner without a model: K/V are hashes in an array, a step ends when it is told to. */
#ifndef TESTS_SIMULATION_TOY_H
#define TESTS_SIMULATION_TOY_H

#include <stdbool.h>
#include <stdint.h>
#include "runner/runner.h"

/* Owned by the world, first member the contract. */
struct toy {
    struct runner runner;
    uint64_t *slots;         /* [n_blocks * block_size] owns */
    uint64_t *host;          /* [n_slots * block_size] owns; blocks that were swapped out */
    struct chosen *samples;  /* [max_seqs + max_best] owns */
    const struct plan *plan; /* the step that runs; NULL when none does */
    int32_t n_letters;
    uint64_t n_steps, n_rows;
    char fault[160]; /* what a plan asked for and must not; empty when all was right */
    void (*launched)(void *owner); /* behind each launch */
    void *owner;
    /* what the next poll does */
    bool may_finish;
    bool must_fail;
    bool is_late; /* K/V are written when the step ends, not when it begins; what is swapped out is
                     read behind all of that, not before */
    bool is_written;
};

void toy_init(struct toy *t, const struct runner_info *info, int32_t n_letters);
void toy_done(struct toy *t);

#endif
