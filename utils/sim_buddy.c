/* sim_buddy.c - contiguous memory in powers of two, as the systems before paging kept K/V.
 *
 * The buddy system (Knowlton 1965): a chunk of 2^k slots is halved until it fits, and joins its
 * other half again when both are free. Memory that is no power of two is laid out as the powers it
 * is the sum of, the largest first, so that every chunk lies at a multiple of its size:
 *
 *     15,728 slots   | 8192 | 4096 | 2048 | 1024 | 256 | 64 | 32 | 16 |
 *
 * which is why seven requests of 2,048 fit, and 8.9 % is nobody's. */
#include "utils/sim_buddy.h"

#include "base/err.h"
#include "base/mem.h"

int32_t sim_buddy_order(int32_t n)
{
    int32_t order = 0;

    ASSERT(n >= 1 && n <= 1 << (SIM_BUDDY_ORDERS - 1));
    while (1 << order < n)
        order++;
    return order;
}

static void push(struct sim_buddy *b, int32_t at, int32_t order)
{
    b->order[at] = (int8_t)order;
    b->prev[at] = -1;
    b->next[at] = b->first[order];
    if (b->next[at] >= 0)
        b->prev[b->next[at]] = at;
    b->first[order] = at;
}

static void unlink_free(struct sim_buddy *b, int32_t at)
{
    if (b->prev[at] >= 0)
        b->next[b->prev[at]] = b->next[at];
    else
        b->first[b->order[at]] = b->next[at];
    if (b->next[at] >= 0)
        b->prev[b->next[at]] = b->prev[at];
    b->order[at] = -1;
}

void sim_buddy_init(struct sim_buddy *b, int32_t n_slots)
{
    int32_t at = 0;

    ASSERT(n_slots >= 1);
    *b = (struct sim_buddy){.n_slots = n_slots, .n_free = n_slots};
    b->order = xmalloc((size_t)n_slots);
    b->next = xcalloc((size_t)n_slots, sizeof *b->next);
    b->prev = xcalloc((size_t)n_slots, sizeof *b->prev);
    for (int32_t i = 0; i < n_slots; i++)
        b->order[i] = -1;
    for (int32_t k = 0; k < SIM_BUDDY_ORDERS; k++)
        b->first[k] = -1;
    for (int32_t k = SIM_BUDDY_ORDERS - 1; k >= 0; k--)
        if (n_slots >> k & 1) {
            push(b, at, k);
            at += 1 << k;
        }
}

void sim_buddy_done(struct sim_buddy *b)
{
    xfree(b->order);
    xfree(b->next);
    xfree(b->prev);
    *b = (struct sim_buddy){0};
}

int32_t sim_buddy_take(struct sim_buddy *b, int32_t order)
{
    int32_t k = order;

    while (k < SIM_BUDDY_ORDERS && b->first[k] < 0)
        k++;
    if (k == SIM_BUDDY_ORDERS)
        return -1;
    int32_t at = b->first[k];
    unlink_free(b, at);
    while (k-- > order)
        push(b, at + (1 << k), k); /* the upper half stays free */
    b->n_free -= 1 << order;
    return at;
}

void sim_buddy_put(struct sim_buddy *b, int32_t at, int32_t order)
{
    b->n_free += 1 << order;
    for (;; order++) {
        int32_t buddy = at ^ 1 << order;
        if (buddy >= b->n_slots || b->order[buddy] != order)
            break;
        unlink_free(b, buddy);
        at &= ~(1 << order);
    }
    push(b, at, order);
}
