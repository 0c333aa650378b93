/* audit.h - walks pool, index and tables and proves that they agree with each other. */
#ifndef CACHE_AUDIT_H
#define CACHE_AUDIT_H

#include <stdint.h>
#include "base/err.h"
#include "cache/pool.h"
#include "cache/prefix.h"
#include "cache/swap.h"
#include "cache/table.h"

/* One block between the pool and a slot of host memory. */
struct cache_move {
    int32_t block, slot;
};

/* Everybody who holds a block, listed by the caller: nobody else may. */
struct cache_holders {
    const struct block_table *const *tables; /* [n_tables] all open ones */
    int32_t n_tables;
    const int32_t *pins; /* [n_pins] sources of copies of the running step */
    int32_t n_pins;
    const struct cache_move *moves; /* [n_moves] transfers of the running step, out and in */
    int32_t n_moves, n_outs;        /* the first n_outs go out */
};

/* 0, or -1 and the fault by its name (P1 ...). counts: scratch of 2 * n_blocks. The index does not
 * change, but for looking things up in it. */
int audit_run(const struct pool *p, struct prefix *x, const struct cache_holders *holders,
              int32_t *counts, struct err *err);
/* H1: the counts of host slots equal the tables and transfers that name them. counts: n_slots. */
int audit_swap(const struct swap *s, const struct cache_holders *holders, int32_t *counts,
               struct err *err);

#endif
