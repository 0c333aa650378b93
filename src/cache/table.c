/* table.c - a sequence's blocks in order, and how far they are computed.
 *
 *      computed = 38                ahead = 0            block_size = 16
 *      [ 7 full ][ 9 full ][ 12: 6 of 16 confirmed, the rest to come ]
 *        ^ n_confirmed = 2    the index knows the first two; the third when it is full, or when it
 *                             is published as a tail of 6
 *
 * An entry counts its block, whoever else counts it. Entries before n_confirmed are full blocks of
 * the index, each the parent of the next: so whoever holds a block holds all its ancestors, which
 * is what lets eviction trust that an unreferenced subtree is unreferenced as a whole. */
#include "cache/table.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"

void block_table_init(struct block_table *t, int32_t root, struct cache_owner *owner, int32_t cap)
{
    ASSERT(!t->is_open && cap > 0);
    *t = (struct block_table){
        .owner = owner, .root = root, .is_open = true, .cap = cap, .copying = -1};
    t->blocks = xcalloc((size_t)cap, sizeof *t->blocks);
    t->next = owner->tables;
    if (t->next)
        t->next->prev = t;
    owner->tables = t;
}

void block_table_done(struct block_table *t)
{
    ASSERT(t->n_blocks == 0 && t->n_slots == 0);
    xfree(t->blocks);
    try_free(MEM_CACHE, t->slots);
    if (t->prev)
        t->prev->next = t->next;
    else
        t->owner->tables = t->next;
    if (t->next)
        t->next->prev = t->prev;
    *t = (struct block_table){0};
}

struct prefix_parent block_table_parent(const struct block_table *t, const struct prefix *x,
                                        int32_t j)
{
    return j == 0 ? prefix_root_parent(x, t->root) : prefix_block_parent(x, t->blocks[j - 1]);
}

void block_table_append_shared(struct block_table *t, struct pool *p, int32_t block)
{
    pool_hold(p, block);
    block_table_append_taken(t, block);
}

void block_table_append_taken(struct block_table *t, int32_t block)
{
    ASSERT(t->n_blocks < t->cap);
    t->blocks[t->n_blocks++] = block;
}

/* Branches that go on from one prompt name one block there: if only one of them were renamed, the
 * entries behind it would hang from different parents in different tables. */
void block_table_rename(struct block_table *t, struct pool *p, int32_t j, int32_t block)
{
    int32_t old = t->blocks[j];
    for (struct block_table *o = t->owner->tables; o; o = o->next) {
        if (j >= o->n_blocks || o->blocks[j] != old || (PLANTED(RENAME_ONE) && o != t))
            continue;
        pool_hold(p, block);
        o->blocks[j] = block;
        pool_drop(p, old);
    }
}

/* The last block first: its stamp is then older than its parent's, and the ends of the tree are
 * evicted before the trunk that others may still find. */
void block_table_drop_all(struct block_table *t, struct pool *p)
{
    for (int32_t j = 0; PLANTED(RELEASE_HEAD) && j < t->n_blocks / 2; j++) {
        int32_t first = t->blocks[j];
        t->blocks[j] = t->blocks[t->n_blocks - 1 - j];
        t->blocks[t->n_blocks - 1 - j] = first;
    }
    while (t->n_blocks > 0)
        pool_drop(p, t->blocks[--t->n_blocks]);
    t->computed = t->ahead = t->n_confirmed = 0;
    t->copying = -1;
}

/* The owner of a tail goes on filling above its count without a copy: slots below it never change.
 * A promised block is its leader's own to write. */
enum table_need block_table_need(const struct block_table *t, const struct prefix *x)
{
    int32_t at = t->computed + t->ahead;
    int32_t j = at / x->block_size;
    if (j == t->n_blocks)
        return TABLE_NEEDS_BLOCK;
    const struct prefix_node *node = &x->nodes[t->blocks[j]];
    bool is_shared = x->pool->blocks[t->blocks[j]].n_tables > 1 && !PLANTED(WRITE_SHARED);
    if (is_shared || node->kind == PREFIX_FULL)
        return TABLE_NEEDS_COPY;
    if (node->kind == PREFIX_TAIL && at % x->block_size < node->n_ids)
        return TABLE_NEEDS_COPY;
    return TABLE_NEEDS_NOTHING;
}
