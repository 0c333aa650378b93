/* state.h - the struct behind cache.h, for the files of this folder only. */
#ifndef CACHE_STATE_H
#define CACHE_STATE_H

#include "cache/cache.h"
#include "cache/lineage.h"
#include "cache/pool.h"
#include "cache/prefix.h"
#include "cache/swap.h"

struct cache {
    struct pool pool;
    struct prefix prefix;
    struct swap swap;
    struct lineages lineages;
    int32_t *slot_of;           /* [n_blocks] owns; -1 but inside cache_swap_out */
    int32_t *scratch;           /* [2 * n_blocks + n_slots] owns; counts of an audit */
    struct cache_stats counted; /* the running totals among its fields */
};

/* cache.c */

/* A block to be filled for t, close to block `near` where it may choose; the oldest cached one goes
 * where none is free. Something is available. */
int32_t cache_take(struct cache *c, const struct block_table *t, int32_t near);
/* Block j of t will begin with n_tokens of `source`, which is pinned until the copy is done. dst is
 * the caller's. */
struct cache_copy cache_start_copy(struct cache *c, struct block_table *t, int32_t source,
                                   int32_t j, int32_t n_tokens);

#endif
