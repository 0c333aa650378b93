/* sim_reserve.c - how much contiguous K/V memory a request takes before it runs, and taking it.
 *
 * Before paging, K/V of a request lay in one run of slots that was taken when it was admitted. How
 * long it will get is not known then:
 *
 *     max      the longest that the model allows
 *     pow2     prompt, and the output's length rounded up to a power of two: it is told to within a
 *              factor of two
 *     exact    prompt and output: an oracle
 *
 * These are the three of the PagedAttention paper. Runs come from a buddy allocator. The simulator's
 * policies use this in virtual time (sim_orca.c), kvasir-model-bench in front of the real engine. */
#include "utils/sim_reserve.h"

void sim_reserve_init(struct sim_reserve *r, enum sim_reserve_rule rule, int32_t n_slots,
                      int32_t n_context)
{
    *r = (struct sim_reserve){.rule = rule, .n_context = n_context};
    sim_buddy_init(&r->buddy, n_slots);
}

void sim_reserve_done(struct sim_reserve *r)
{
    sim_buddy_done(&r->buddy);
}

int32_t sim_reserve_for(const struct sim_reserve *r, int32_t n_prompt, int32_t n_output)
{
    int32_t n = n_prompt + n_output;

    if (r->rule == SIM_RESERVE_NONE)
        return 0;
    if (r->rule == SIM_RESERVE_POW2)
        n = n_prompt + (1 << sim_buddy_order(n_output));
    return r->rule == SIM_RESERVE_MAX || n > r->n_context ? r->n_context : n;
}

bool sim_reserve_take(struct sim_reserve *r, int32_t n_prompt, int32_t n_output,
                      struct sim_place *place)
{
    *place = (struct sim_place){.n_reserved = sim_reserve_for(r, n_prompt, n_output)};
    if (place->n_reserved == 0)
        return true;
    place->order = sim_buddy_order(place->n_reserved);
    place->at = sim_buddy_take(&r->buddy, place->order);
    return place->at >= 0;
}

void sim_reserve_put(struct sim_reserve *r, const struct sim_place *place)
{
    if (place->n_reserved > 0)
        sim_buddy_put(&r->buddy, place->at, place->order);
}
