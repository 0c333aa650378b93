/* swap.h - the slots of host memory that hold blocks of preempted generations. */
#ifndef CACHE_SWAP_H
#define CACHE_SWAP_H

#include <stdint.h>

/* Owned by the cache, main thread. */
struct swap {
    uint16_t *n_users; /* [n_slots] owns; tables that name the slot, and copies under way */
    int32_t *free;     /* [n_free of n_slots] owns; a stack */
    int32_t n_slots, n_free;
};

void swap_init(struct swap *s, int32_t n_slots);
void swap_done(struct swap *s);
int32_t swap_take(struct swap *s); /* one user; -1 when it is full */
void swap_hold(struct swap *s, int32_t slot);
void swap_drop(struct swap *s, int32_t slot); /* free again behind the last user */

#endif
