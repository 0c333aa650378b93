/* table.h - a sequence's blocks in order, and how far they are computed. */
#ifndef CACHE_TABLE_H
#define CACHE_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include "cache/pool.h"
#include "cache/prefix.h"

/* Embedded in a sequence. Zeroed is closed; opened by cache_open, closed by cache_close, in between
 * it holds blocks from cache_reserve to cache_release. Two tables may name one block (branches of a
 * group): it is copied before either writes to it. */
struct block_table {
    struct cache_owner *owner; /* borrows; of its promises */
    int32_t root;              /* of the prefix index */
    bool is_open;
    int32_t *blocks; /* [n_blocks of cap] owns the array; each entry counts its block */
    int32_t n_blocks, cap;
    int32_t computed;    /* tokens whose K/V a finished step has written, from 0 on */
    int32_t ahead;       /* tokens after computed that the running step copies in */
    int32_t n_confirmed; /* leading blocks that went through confirmation */
    int32_t copying;     /* entry that the running step copies into; -1 for none */
    int32_t *slots; /* [n_slots of cap] owns, NULL before the first swap; of host memory: what the
                            first entries held, each counted */
    int32_t n_slots, saved;          /* saved: tokens that they hold */
    struct block_table *next, *prev; /* the owner's other tables; NULL at the ends */
};

void block_table_init(struct block_table *t, int32_t root, struct cache_owner *owner, int32_t cap);
void block_table_done(struct block_table *t);

/* Parent of entry j: the root, or the block before it. */
struct prefix_parent block_table_parent(const struct block_table *t, const struct prefix *x,
                                        int32_t j);
void block_table_append_shared(struct block_table *t, struct pool *p, int32_t block); /* counts */
void block_table_append_taken(struct block_table *t, int32_t block); /* pool_take counted it */
/* Entry j names `block` instead, in every table of the owner that named the same one there: counts
 * that, drops what they named. */
void block_table_rename(struct block_table *t, struct pool *p, int32_t j, int32_t block);
void block_table_drop_all(struct block_table *t, struct pool *p); /* the last block first */

/* Block for the next token at position computed + ahead, if it needs one: appended or copied. */
enum table_need { TABLE_NEEDS_NOTHING, TABLE_NEEDS_BLOCK, TABLE_NEEDS_COPY };
enum table_need block_table_need(const struct block_table *t, const struct prefix *x);

#endif
