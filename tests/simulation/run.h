/* run.h - runs scripts in a process of their own, so that an assertion is a finding like another. */
#ifndef TESTS_SIMULATION_RUN_H
#define TESTS_SIMULATION_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include "script.h"
#include "world.h"

struct run_result {
    bool is_wrong;
    uint64_t seed; /* of the world that was wrong */
    int64_t n_ops; /* operations made, in all worlds together */
    int32_t at;    /* operation of that world after which it was wrong */
    int64_t n_worlds;
    uint64_t n_steps, n_rows, n_accepted;
    uint64_t n_hits, n_copies, n_evictions, n_preemptions, n_merged, n_rejected;
    uint64_t n_branches, n_swapped_out, n_swapped_in, n_swap_full;
    struct drains drains;
    char fault[400];
};

/* Worlds from seed on, n_ops operations in all, ops_each in each. */
void run_worlds(enum draw_kind kind, uint64_t seed, int64_t n_ops, int32_t ops_each, bool quiet,
                struct run_result *result);
void run_script(const struct script *s, bool trace, bool quiet, struct run_result *result);
/* Drops what is not needed to fail, one operation at a time in the end. */
void run_shrink(struct script *s, int32_t at, int32_t n_tries);

#endif
