/* pool.h - the blocks: who is free, held, cached; counts, serial numbers, least recently used. */
#ifndef CACHE_POOL_H
#define CACHE_POOL_H

#include <stdbool.h>
#include <stdint.h>

enum pool_place {
    POOL_FREE,  /* unreferenced, not findable: in the free list */
    POOL_HELD,  /* referenced */
    POOL_LEAF,  /* unreferenced, findable, no children: in the heap, may be evicted */
    POOL_INNER, /* unreferenced, findable, with children: becomes a leaf when they are gone */
    POOL_N_PLACES
};

struct pool_block {
    uint32_t serial;    /* grows each time the block is taken */
    uint16_t n_tables;  /* entries of block tables that name it */
    uint16_t n_pins;    /* pending copies that read it */
    uint16_t n_moves;   /* transfers to host memory that read it */
    bool is_leaving;    /* nothing but such transfers holds it */
    int32_t n_children; /* nodes of the prefix index whose parent it is */
    bool is_findable;   /* the prefix index has a node for it */
    bool is_unwanted;   /* nobody is left who would look for it: evicted before all others */
    uint8_t place;      /* enum pool_place */
    int32_t next, prev; /* POOL_FREE: neighbours in the free list, -1 at its ends */
    int32_t heap_at;    /* POOL_LEAF: position in the heap */
    uint64_t stamp;     /* when it was last let go, 0 when unwanted; the heap's order */
};

struct pool {
    struct pool_block *blocks; /* [n_blocks] owns */
    int32_t *heap;             /* [n_blocks] owns; leaves, oldest on top */
    int32_t n_blocks, n_leaves, first_free;
    int32_t n_in[POOL_N_PLACES];
    int32_t n_shared;   /* named by more than one table */
    int32_t n_unwanted; /* cached, or in a transfer */
    int32_t n_leaving;  /* held ones that will be available when the running step is done */
    uint64_t clock;     /* of stamps */
};

void pool_init(struct pool *p, int32_t n_blocks);
void pool_done(struct pool *p);

/* A free block with a new serial, named by one table; -1 when none is free (evict first). near: the
 * block after it is preferred, so that a sequence lies in runs; -1 for none. */
int32_t pool_take(struct pool *p, int32_t near);
int32_t pool_oldest_leaf(const struct pool *p); /* what eviction takes next; -1 for none */

void pool_hold(struct pool *p, int32_t b); /* one more table entry */
void pool_drop(struct pool *p, int32_t b); /* one less */
void pool_pin(struct pool *p, int32_t b);  /* one more pending copy reads it */
void pool_unpin(struct pool *p, int32_t b);
void pool_move(struct pool *p, int32_t b); /* one more transfer reads it */
void pool_unmove(struct pool *p, int32_t b);
void pool_set_unwanted(struct pool *p, int32_t b); /* until somebody uses it */
void pool_set_findable(struct pool *p, int32_t b, bool is_findable);
void pool_add_child(struct pool *p, int32_t b, int32_t change); /* +1 or -1 */

static inline bool pool_is_held(const struct pool *p, int32_t b)
{
    return p->blocks[b].n_tables + p->blocks[b].n_pins + p->blocks[b].n_moves > 0;
}
static inline int32_t pool_available(const struct pool *p) /* free or evictable, sooner or later */
{
    return p->n_blocks - p->n_in[POOL_HELD];
}

#endif
