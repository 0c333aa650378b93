/* cache.h - the paged cache as the engine sees it: look, reserve, confirm, publish, release.
 *
 * Pure bookkeeping over block numbers and token ids: it knows no backend, model or socket. It asks
 * for copies by returning a cache_copy that the engine puts into its plan; the source stays counted
 * (pinned) until cache_copy_done. Main thread only.
 *
 * Life of a table:
 *     cache_open       submit
 *     cache_look       is there a prefix? who promises the rest?           changes nothing
 *     cache_reserve    admission: counts the hits, pins the copy source, takes new blocks, promises
 *     cache_write_room decode: a block for the next token, copied where it is shared
 *     cache_landed     the step with its copy is done: computed += ahead
 *     cache_advance    the step with its rows is done: computed += n; full blocks are inserted
 *     cache_publish    FORK: the half-filled last block becomes findable
 *     cache_release    end, cancel, preemption: promises dropped, tail published, last block first
 *     cache_close
 *
 * Blocks are taken (cache_reserve, cache_write_room) only while no step runs; everything else may
 * happen at any time. */
#ifndef CACHE_CACHE_H
#define CACHE_CACHE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "cache/audit.h"
#include "cache/lineage.h"
#include "cache/namespace.h"
#include "cache/table.h"

struct cache;

struct cache_config {
    int32_t n_blocks;   /* 1 .. 2^30 */
    int32_t block_size; /* tokens; 1 or more */
    int32_t n_slots;    /* blocks that host memory holds; 0: no swap */
    int32_t hash_bits;  /* 64; tests cut it to 8, so that digests collide: 0 means 64 */
};
struct cache *cache_new(const struct cache_config *config);
void cache_free(struct cache *c); /* all tables closed before */

/* max_blocks: as many entries as the table will ever need. owner outlives the table. */
void cache_open(struct cache *c, struct block_table *t, const struct cache_namespace *ns,
                struct cache_owner *owner, int32_t max_blocks);
void cache_close(struct cache *c, struct block_table *t); /* released before; closed is fine */

/* ---- admission ------------------------------------------------------------------------------- */

/* What cache_look found. The hits themselves wait in the table's array. Stale as soon as anything
 * is reserved, advanced or released, but for cache_is_promised. */
struct cache_found {
    int32_t n_hits;        /* leading full blocks that are there */
    int32_t n_idle_hits;   /* of them unreferenced: available now, not after a reservation */
    int32_t source, n_run; /* block to copy n_run tokens from after the hits; -1 and 0 */
    bool is_source_idle;   /* the source is unreferenced and no hit */
    struct cache_owner *promised_by; /* who computes the next missing block: wait; or NULL */
    int32_t promised;                /* that block */
    uint32_t promised_serial;
};
/* ids [n], n >= 1: all known ids of the sequence. The table is open and holds no block. */
void cache_look(struct cache *c, struct block_table *t, const int32_t *ids, int32_t n,
                struct cache_found *found);
/* The promise that `found` met still stands: looking again would find the same. */
bool cache_is_promised(const struct cache *c, const struct cache_found *found);

struct cache_copy {
    int32_t src, dst, n_tokens; /* n_tokens 0: nothing to copy */
};
/* Blocks for all of ids [n], leaving `keep` available ones besides. False: not enough, nothing
 * changed. The copy is given up when its pinned source is the block that lacks. On true the table
 * holds ceil(n / block_size) blocks, computed and ahead say what need not be computed (less than
 * n), and the full blocks that were not found are promised by the table's owner. */
bool cache_reserve(struct cache *c, struct block_table *t, const int32_t *ids, int32_t n,
                   const struct cache_found *found, int32_t keep, struct cache_copy *copy);

/* One table of a group that is admitted as a whole. */
struct cache_seat {
    struct block_table *table;
    const int32_t *ids; /* [n] all known ids of the branch; borrowed */
    int32_t n;
    struct cache_found found; /* by cache_look */
    struct cache_copy copy;   /* out */
};
/* The same for n_seats tables of one owner at once: all or none. Their first n_common blocks are
 * equal; what of them is not found is taken once, and computed through the first table: until that
 * is done the others wait (computed less than n_common blocks). */
bool cache_reserve_all(struct cache *c, struct cache_seat *seats, int32_t n_seats, int32_t n_common,
                       int32_t keep);

/* ---- swap ---------------------------------------------------------------------------------------
 *
 * Preemption: cache_swap_out, then cache_release as ever. The blocks stay held by the transfers, the
 * slots by transfers and tables. On return cache_look and cache_reserve_all go on behind the hits
 * with what the slots hold (ahead), and cache_swap_in says which copies that takes.
 */

/* Copies what tables [n] of one owner have computed to host slots: each block once. False when the
 * slots that are free do not hold it all: nothing changed. Appends to moves [*n_moves], which has
 * room for every slot there is. */
bool cache_swap_out(struct cache *c, struct block_table *const *tables, int32_t n,
                    struct cache_move *moves, int32_t *n_moves);
/* Behind cache_reserve_all with the same seats: what is to be copied in; slots are let go. moves has
 * room for every block there is. */
void cache_swap_in(struct cache *c, struct cache_seat *seats, int32_t n_seats, int32_t n_common,
                   struct cache_move *moves, int32_t *n_moves);
/* The step of the transfer is done: its block (is_out) and its slot are let go. */
void cache_move_done(struct cache *c, const struct cache_move *move, bool is_out);
/* What the slots hold is worth nothing, or nobody's: cache_close does it too. */
void cache_swap_drop(struct cache *c, struct block_table *t);

/* ---- while it runs --------------------------------------------------------------------------- */

/* Blocks that cache_write_room would take now: 0 or 1. */
int32_t cache_write_need(const struct cache *c, const struct block_table *t);
/* The same for tables [n] in this order: of those that share a block, the last needs no copy. */
int32_t cache_write_needs(const struct cache *c, struct block_table *const *tables, int32_t n);
/* Room for the token at position computed. At least cache_write_need blocks are available. */
void cache_write_room(struct cache *c, struct block_table *t, struct cache_copy *copy);
/* The step that held the copy is done: its source is let go. Once per copy with n_tokens > 0. */
void cache_copy_done(struct cache *c, const struct cache_copy *copy);
/* The step in which the table was reserved, or its block copied, is done and did not fail. */
void cache_landed(struct cache *c, struct block_table *t);
/* A step has computed n_rows more tokens; ids: all ids from position 0 on. */
void cache_advance(struct cache *c, struct block_table *t, const int32_t *ids, int32_t n_rows);
/* The half-filled last block becomes findable with its confirmed count. Takes no reference. */
void cache_publish(struct cache *c, struct block_table *t, const int32_t *ids);
/* Another branch of the same generation takes the table: `to` is open, holds nothing. */
void cache_share(struct cache *c, const struct block_table *from, struct block_table *to);
/* The one release path. ids: all ids from position 0 on, at least computed of them. Idempotent. */
void cache_release(struct cache *c, struct block_table *t, const int32_t *ids);
/* Before the tables of a group are released one by one: all promises of the owner are dropped, those
 * that several tables hold first of all. */
void cache_unpromise(struct cache *c, struct cache_owner *owner);
/* After a failed step: the same, but nothing more becomes findable. */
void cache_discard(struct cache *c, struct block_table *t);

/* ---- conversations ----------------------------------------------------------------------------
 *
 * A conversation that can be deleted has a lineage (lineage_new), which it gives its owners. Blocks
 * that it has used alone are evicted first when it goes.
 */

/* *child begins with what *from has computed; *from may be another one then. */
void cache_fork_lineage(struct cache *c, struct lineage **from, struct lineage **child);
/* The conversation is gone, and no owner of it holds a block. */
void cache_drop_lineage(struct cache *c, struct lineage *l);
/* Blocks that only this conversation has used since its last fork; n_cached: those that no table
 * names now. Walks them. */
int32_t cache_count_lineage(const struct cache *c, const struct lineage *l, int32_t *n_cached);

/* ---- figures --------------------------------------------------------------------------------- */

int32_t cache_available(const struct cache *c); /* free + unreferenced cached blocks */
int32_t
cache_leaving(const struct cache *c); /* available when the transfers of the step are done */
int32_t cache_block_size(const struct cache *c);
int32_t cache_shared(const struct cache *c, const struct block_table *t); /* blocks that another
                                                                             table names too */
/* What all tables of an owner name, each block and slot once; n_shared: those that several name. */
void cache_count_blocks(struct cache *c, const struct cache_owner *owner, int32_t *n,
                        int32_t *n_shared, int32_t *n_slots);
/* Tokens that all tables of an owner have computed; those in a block that several name count once. */
int32_t cache_count_computed(struct cache *c, const struct cache_owner *owner);
/* Tokens of ids [n] that the cache holds, tails included; at most n - 1. */
int32_t cache_probe(struct cache *c, const struct cache_namespace *ns, const int32_t *ids,
                    int32_t n);
int32_t cache_clear(struct cache *c); /* drops every unreferenced block from the index; how many */
int cache_audit(struct cache *c, const struct cache_holders *holders, struct err *err);
/* A write of slot `offset` of block b would change a confirmed one (P4): asked of every plan. */
bool cache_is_confirmed(const struct cache *c, int32_t block, int32_t offset);

/* Read-only, for tests that compare what blocks hold. */
const struct pool *cache_blocks(const struct cache *c);
const struct prefix *cache_index(const struct cache *c);

struct cache_stats {
    int32_t n_blocks, block_size;
    int32_t free_blocks;     /* never used or not findable */
    int32_t cached_blocks;   /* unreferenced and findable */
    int32_t used_blocks;     /* referenced */
    int32_t shared_blocks;   /* of them named by more than one table */
    int32_t unwanted_blocks; /* cached ones of conversations that are gone */
    int32_t promised_blocks;
    int32_t namespaces;
    uint64_t hits_full; /* blocks matched at admission */
    uint64_t hits_tail; /* tokens copied out of tails or parts of full blocks */
    uint64_t copies;    /* block copies asked for */
    uint64_t copies_given_up;
    uint64_t evictions;
    uint64_t merged;                  /* equal full blocks folded into one */
    uint64_t promises_taken;          /* promises that an equal confirmed block ended */
    int32_t n_slots, free_slots;      /* of host memory */
    uint64_t swapped_out, swapped_in; /* blocks */
    uint64_t swap_full;               /* times that it had no room for a group */
    uint64_t rejected_matches;        /* equal hashes of other tokens or another parent */
};
void cache_stats(const struct cache *c, struct cache_stats *stats);

#endif
