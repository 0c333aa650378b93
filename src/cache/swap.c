/* swap.c - the slots of host memory that hold blocks of preempted generations.
 *
 * A slot holds one block. It is taken when its group is preempted, and counted by each branch whose
 * table named that block (it is copied once), and by each copy under way: out until the step of the
 * preemption is done, in until the step of the return is. So it comes back behind the fence of its
 * copies, whoever ends in between, and never while a device may still read or write it.
 *
 *     preempt: take ── copy out ──▶ step done     admit: ── copy in ──▶ step done: free
 *              tables hold it ───────────────────────┘ tables let go
 *
 * A slot is nobody's to find: it serves its own group only. What others may want of it stays in the
 * prefix index as long as the pool has room. Main thread only. */
#include "cache/swap.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"

/* The lowest slot on top, so that host memory is touched from its beginning on. */
void swap_init(struct swap *s, int32_t n_slots)
{
    *s = (struct swap){.n_slots = n_slots};
    s->n_users = xcalloc((size_t)n_slots + 1, sizeof *s->n_users);
    s->free = xcalloc((size_t)n_slots + 1, sizeof *s->free);
    for (int32_t slot = n_slots - 1; slot >= 0; slot--)
        s->free[s->n_free++] = slot;
}

void swap_done(struct swap *s)
{
    xfree(s->n_users);
    xfree(s->free);
    *s = (struct swap){0};
}

int32_t swap_take(struct swap *s)
{
    if (s->n_free == 0)
        return -1;
    int32_t slot = s->free[--s->n_free];
    ASSERT(s->n_users[slot] == 0);
    s->n_users[slot] = 1;
    return slot;
}

void swap_hold(struct swap *s, int32_t slot)
{
    ASSERT(s->n_users[slot] > 0 && s->n_users[slot] < UINT16_MAX);
    if (!PLANTED(SLOT_SHARED) || s->n_users[slot] == 1)
        s->n_users[slot]++;
}

void swap_drop(struct swap *s, int32_t slot)
{
    ASSERT(s->n_users[slot] > 0);
    if (--s->n_users[slot] == 0)
        s->free[s->n_free++] = slot;
}
