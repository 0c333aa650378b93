/* sim_buddy.h - contiguous memory in powers of two, as the systems before paging kept K/V. */
#ifndef UTILS_SIM_BUDDY_H
#define UTILS_SIM_BUDDY_H

#include <stdint.h>

enum { SIM_BUDDY_ORDERS = 31 };

/* Owned by one policy. A chunk of order k is 2^k slots at a multiple of 2^k. */
struct sim_buddy {
    int32_t n_slots, n_free;
    int8_t *order;        /* [n_slots] owns; of the free chunk that begins here, else -1 */
    int32_t *next, *prev; /* [n_slots] owns; neighbours among the free of one order */
    int32_t first[SIM_BUDDY_ORDERS]; /* -1 at the end */
};

void sim_buddy_init(struct sim_buddy *b, int32_t n_slots);
void sim_buddy_done(struct sim_buddy *b);
int32_t sim_buddy_order(int32_t n); /* of the smallest chunk that holds n slots; n >= 1 */
int32_t sim_buddy_take(struct sim_buddy *b, int32_t order); /* where it begins; -1: no room */
void sim_buddy_put(struct sim_buddy *b, int32_t at, int32_t order);

#endif
