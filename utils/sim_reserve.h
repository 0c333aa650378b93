/* sim_reserve.h - how much contiguous K/V memory a request takes before it runs, and taking it. */
#ifndef UTILS_SIM_RESERVE_H
#define UTILS_SIM_RESERVE_H

#include <stdbool.h>
#include <stdint.h>
#include "utils/sim_buddy.h"

enum sim_reserve_rule {
    SIM_RESERVE_NONE, /* of a paged policy: memory is taken as it is needed */
    SIM_RESERVE_MAX,
    SIM_RESERVE_POW2,
    SIM_RESERVE_EXACT
};

/* Owned by a policy. */
struct sim_reserve {
    enum sim_reserve_rule rule;
    struct sim_buddy buddy;
    int32_t n_context;
};

/* What one request has taken. */
struct sim_place {
    int32_t at, order;  /* its chunk */
    int32_t n_reserved; /* slots of it that were asked for */
};

void sim_reserve_init(struct sim_reserve *r, enum sim_reserve_rule rule, int32_t n_slots,
                      int32_t n_context);
void sim_reserve_done(struct sim_reserve *r);
int32_t sim_reserve_for(const struct sim_reserve *r, int32_t n_prompt, int32_t n_output);
bool sim_reserve_take(struct sim_reserve *r, int32_t n_prompt, int32_t n_output,
                      struct sim_place *place); /* false: no room now */
void sim_reserve_put(struct sim_reserve *r, const struct sim_place *place);

#endif
