/* sim_policy.h - what a simulation asks of a way to keep K/V and to batch.
 *
 * A policy gets requests as they arrive and makes one step after the other. It owns memory and
 * order; time, cost and figures are the driver's (sim_run.c). */
#ifndef UTILS_SIM_POLICY_H
#define UTILS_SIM_POLICY_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "utils/sim_cost.h"
#include "utils/sim_load.h"
#include "utils/sim_reserve.h"

/* Where the K/V memory is, in tokens. Their sum is all of it. */
enum sim_share {
    SHARE_RUNNING,  /* tokens of running requests */
    SHARE_CACHED,   /* tokens of ended ones that a new one may find; given up for any new block */
    SHARE_RESERVED, /* for tokens that a running request has still to compute */
    SHARE_INTERNAL, /* inside what was taken, and never used */
    SHARE_EXTERNAL, /* nobody's: rounding, holes, free */
    SIM_N_SHARES
};

/* A step that was launched. */
struct sim_step {
    struct sim_work work;
    int32_t n_running;
    int64_t named_blocks, used_blocks; /* by block tables; in the pool: less where they share */
    int64_t shares[SIM_N_SHARES];      /* when it ends */
};

/* Running totals. */
struct sim_totals {
    int64_t prompt_tokens, cached_tokens, preemptions;
    int64_t dropped_tokens, swapped_out, swapped_in; /* computed in vain; blocks */
};

struct sim_setup {
    const struct sim_model *model; /* borrows */
    int32_t block_size;            /* of `paged` */
    int32_t max_running;           /* sequences in a step, whatever memory would hold */
    int32_t max_rows;              /* token budget of a step, of `paged` */
    bool swap; /* `paged` preempts into host memory, which holds as much as the pool */
};

struct sim_batch {
    const struct sim_policy *policy;
};

struct sim_policy {
    const char *name;
    struct sim_batch *(*open)(const struct sim_policy *p, const struct sim_setup *setup,
                              struct err *err);
    void (*close)(struct sim_batch *b);
    /* It arrives. Fails when it can never be served. The request outlives the batch. */
    int (*submit)(struct sim_batch *b, struct sim_request *r, int64_t now_us, struct err *err);
    /* Ends the step that ran until now, if any (end_us of requests that are complete), and launches
     * the next; false when there is nothing to do. */
    bool (*step)(struct sim_batch *b, int64_t now_us, struct sim_step *step);
    void (*totals)(const struct sim_batch *b, struct sim_totals *totals);
    enum sim_reserve_rule reserve;
};

enum { SIM_N_POLICIES = 4 };
extern const struct sim_policy sim_paged, sim_orca_max, sim_orca_pow2, sim_orca_oracle;
extern const struct sim_policy *const sim_policies[SIM_N_POLICIES + 1]; /* ends with NULL */
const struct sim_policy *sim_policy_find(const char *name);

#endif
