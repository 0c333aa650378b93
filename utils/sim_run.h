/* sim_run.h - one load through one policy in virtual time, and what came of it. */
#ifndef UTILS_SIM_RUN_H
#define UTILS_SIM_RUN_H

#include "utils/sim_policy.h"

struct sim_result {
    double latency_s; /* mean over requests of (end - arrival) / output tokens */
    double latency_p90_s;
    double mean_batch;           /* running requests, over the time of the window */
    double shares[SIM_N_SHARES]; /* parts of the K/V memory, the same; their sum is 1 */
    double saved_part;           /* of the blocks that tables name: shared with another table */
    double tokens_per_s;         /* generated, over the whole run */
    double steps;
    int32_t n_ended;
    struct sim_totals totals;
};

/* Runs until everything has ended; the load's end_us are filled anew. Figures of batch and memory
 * are of a window: from a fifth of the arrivals' time to their end, so that neither an empty start
 * nor the draining counts. */
int sim_run(const struct sim_policy *policy, const struct sim_setup *setup, struct sim_load *load,
            struct sim_result *result, struct err *err);

#endif
