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

#endif
