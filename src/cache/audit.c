/* audit.c - walks pool, index and tables and proves that they agree with each other.
 *
 * Everything is counted anew from what the caller lists as holders and compared with what is kept:
 *   P1  the counts of a block equal the table entries and pending copies that name it
 *   P2  a block is in exactly one place, the one that follows from its counts and its node
 *   P3  the places add up to the pool
 *   X1  a node can be found where its parent and ids say, a full one holds block_size ids
 *   X2  its parent is there and is a confirmed block (a promise may hang from its leader's promise)
 *   H1  the counts of a host slot equal the tables and transfers that name it
 *   T1  a table's confirmed entries are full blocks, each the parent of the next; a tail never says
 *       more than its owner has computed
 *   W1  a promise is held by a table of the owner that made it, and is in that owner's list
 * The contents of blocks are beyond bookkeeping: the simulation compares them with plain arrays.
 * Time is linear in the pool; tests run it after every operation, DEBUG AUDIT on demand. */
#include "cache/audit.h"

struct audit {
    const struct pool *pool;
    struct prefix *prefix;
    const struct cache_holders *holders;
    int32_t *n_tables, *n_children; /* [n_blocks] counted anew; children of blocks */
    struct err *err;
};

/* ---- P1: references -------------------------------------------------------------------------- */

static int count_tables(struct audit *a)
{
    for (int32_t i = 0; i < a->holders->n_tables; i++) {
        const struct block_table *t = a->holders->tables[i];
        for (int32_t j = 0; j < t->n_blocks; j++) {
            int32_t b = t->blocks[j];
            if (b < 0 || b >= a->pool->n_blocks)
                return err_set(a->err, "P1: entry %d of a table is block %d of %d", j, b,
                               a->pool->n_blocks);
            a->n_tables[b]++;
        }
    }
    return 0;
}

static int check_moves(struct audit *a)
{
    int32_t n_leaving = 0;
    for (int32_t b = 0; b < a->pool->n_blocks; b++)
        a->n_tables[b] = 0;
    for (int32_t i = 0; i < a->holders->n_outs; i++)
        a->n_tables[a->holders->moves[i].block]++;
    for (int32_t b = 0; b < a->pool->n_blocks; b++) {
        const struct pool_block *block = &a->pool->blocks[b];
        if (block->n_moves != a->n_tables[b])
            return err_set(a->err, "P1: block %d counts %d transfers, %d read it", b,
                           block->n_moves, a->n_tables[b]);
        n_leaving += block->n_moves > 0 && block->n_tables + block->n_pins == 0;
    }
    if (n_leaving != a->pool->n_leaving)
        return err_set(a->err, "P3: %d blocks are leaving, counted %d", n_leaving,
                       a->pool->n_leaving);
    return 0;
}

static int check_references(struct audit *a)
{
    for (int32_t b = 0; b < a->pool->n_blocks; b++)
        a->n_tables[b] = 0;
    if (count_tables(a) < 0)
        return -1;
    for (int32_t b = 0; b < a->pool->n_blocks; b++) {
        const struct pool_block *block = &a->pool->blocks[b];
        if (block->n_tables != a->n_tables[b])
            return err_set(a->err, "P1: block %d counts %d tables, %d name it", b, block->n_tables,
                           a->n_tables[b]);
        a->n_tables[b] = 0;
    }
    for (int32_t i = 0; i < a->holders->n_pins; i++)
        a->n_tables[a->holders->pins[i]]++;
    for (int32_t b = 0; b < a->pool->n_blocks; b++)
        if (a->pool->blocks[b].n_pins != a->n_tables[b])
            return err_set(a->err, "P1: block %d counts %d copies, %d read it", b,
                           a->pool->blocks[b].n_pins, a->n_tables[b]);
    return check_moves(a);
}

/* ---- P2, P3: places -------------------------------------------------------------------------- */

static int check_free_list(const struct audit *a)
{
    int32_t n = 0, before = -1;
    for (int32_t b = a->pool->first_free; b >= 0; before = b, b = a->pool->blocks[b].next) {
        if (a->pool->blocks[b].place != POOL_FREE || a->pool->blocks[b].prev != before)
            return err_set(a->err, "P2: block %d in the free list is in place %d", b,
                           a->pool->blocks[b].place);
        if (++n > a->pool->n_in[POOL_FREE])
            break;
    }
    if (n != a->pool->n_in[POOL_FREE])
        return err_set(a->err, "P2: the free list holds %d blocks or more, counted %d", n,
                       a->pool->n_in[POOL_FREE]);
    return 0;
}

static int check_heap(const struct audit *a)
{
    const struct pool *p = a->pool;
    if (p->n_leaves != p->n_in[POOL_LEAF])
        return err_set(a->err, "P2: %d leaves in the heap, counted %d", p->n_leaves,
                       p->n_in[POOL_LEAF]);
    for (int32_t i = 0; i < p->n_leaves; i++) {
        const struct pool_block *block = &p->blocks[p->heap[i]];
        if (block->place != POOL_LEAF || block->heap_at != i)
            return err_set(a->err, "P2: block %d in the heap is in place %d", p->heap[i],
                           block->place);
        if (i > 0 && p->blocks[p->heap[(i - 1) / 2]].stamp > block->stamp)
            return err_set(a->err, "P2: leaf %d is older than the one above it", p->heap[i]);
    }
    return 0;
}

static enum pool_place right_place(const struct audit *a, int32_t b)
{
    if (pool_is_held(a->pool, b))
        return POOL_HELD;
    if (a->prefix->nodes[b].kind == PREFIX_NONE)
        return POOL_FREE;
    return a->n_children[b] > 0 ? POOL_INNER : POOL_LEAF;
}

static int check_places(const struct audit *a)
{
    int32_t n_in[POOL_N_PLACES] = {0}, n_shared = 0, n_unwanted = 0;
    for (int32_t b = 0; b < a->pool->n_blocks; b++) {
        const struct pool_block *block = &a->pool->blocks[b];
        n_in[block->place]++;
        n_shared += block->n_tables > 1;
        n_unwanted += block->is_unwanted;
        if (block->is_unwanted && (block->place == POOL_FREE || block->n_tables > 0))
            return err_set(a->err, "P2: block %d is unwanted in place %d", b, block->place);
        if (block->n_children != a->n_children[b])
            return err_set(a->err, "X2: block %d counts %d children, %d hang from it", b,
                           block->n_children, a->n_children[b]);
        if (block->is_findable != (a->prefix->nodes[b].kind != PREFIX_NONE))
            return err_set(a->err, "P2: block %d and its node disagree", b);
        if (block->place != right_place(a, b))
            return err_set(a->err, "P2: block %d is in place %d instead of %d", b, block->place,
                           right_place(a, b));
    }
    for (int32_t place = 0; place < POOL_N_PLACES; place++)
        if (n_in[place] != a->pool->n_in[place])
            return err_set(a->err, "P3: %d blocks in place %d, counted %d", n_in[place], place,
                           a->pool->n_in[place]);
    if (n_shared != a->pool->n_shared || n_unwanted != a->pool->n_unwanted)
        return err_set(a->err, "P3: %d blocks shared, counted %d; %d unwanted, counted %d",
                       n_shared, a->pool->n_shared, n_unwanted, a->pool->n_unwanted);
    return check_free_list(a) < 0 ? -1 : check_heap(a);
}

/* ---- X1, X2: nodes --------------------------------------------------------------------------- */

static int check_parent(const struct audit *a, int32_t b)
{
    const struct prefix_node *node = &a->prefix->nodes[b];
    int32_t p = node->parent.number;
    if (p < 0) {
        int32_t root = -1 - p;
        if (root >= a->prefix->roots_cap || !a->prefix->roots[root].is_used ||
            a->prefix->roots[root].serial != node->parent.serial)
            return err_set(a->err, "X2: the root of block %d is gone", b);
        return 0;
    }
    const struct prefix_node *above = &a->prefix->nodes[p];
    if (above->kind == PREFIX_NONE || a->pool->blocks[p].serial != node->parent.serial)
        return err_set(a->err, "X2: block %d, the parent of %d, is gone", p, b);
    bool promised = above->kind == PREFIX_PROMISED && node->kind == PREFIX_PROMISED;
    if (above->kind != PREFIX_FULL && !(promised && above->owner == node->owner))
        return err_set(a->err, "X2: block %d, the parent of %d, is not confirmed", p, b);
    a->n_children[p]++;
    return 0;
}

static int check_findable(const struct audit *a, int32_t b)
{
    struct prefix *x = a->prefix;
    const struct prefix_node *node = &x->nodes[b];
    bool whole = node->n_ids == x->block_size;
    if (node->n_ids < 1 || node->n_ids > x->block_size || whole == (node->kind == PREFIX_TAIL))
        return err_set(a->err, "X1: block %d of kind %d holds %d ids of %d", b, node->kind,
                       node->n_ids, x->block_size);
    int32_t k = x->kin[node->kin_hash & x->bucket_mask];
    while (k >= 0 && k != b)
        k = x->nodes[k].kin_next;
    if (k != b)
        return err_set(a->err, "X1: block %d is missing among its siblings", b);
    uint64_t rejected = x->rejected;
    int32_t found = whole ? prefix_find(x, node->parent, prefix_ids(x, b)) : b;
    x->rejected = rejected;
    if (found != b)
        return err_set(a->err, "X1: the ids of block %d lead to block %d", b, found);
    return 0;
}

static int check_nodes(const struct audit *a)
{
    int32_t n_kind[PREFIX_PROMISED + 1] = {0};
    for (int32_t b = 0; b < a->pool->n_blocks; b++)
        a->n_children[b] = 0;
    for (int32_t b = 0; b < a->pool->n_blocks; b++) {
        n_kind[a->prefix->nodes[b].kind]++;
        if (a->prefix->nodes[b].kind != PREFIX_NONE &&
            (check_parent(a, b) < 0 || check_findable(a, b) < 0))
            return -1;
    }
    for (int32_t kind = 0; kind <= PREFIX_PROMISED; kind++)
        if (n_kind[kind] != a->prefix->n_kind[kind])
            return err_set(a->err, "X1: %d nodes of kind %d, counted %d", n_kind[kind], kind,
                           a->prefix->n_kind[kind]);
    return 0;
}

static int check_roots(const struct audit *a)
{
    const struct prefix *x = a->prefix;
    int64_t n_children = 0, n_users = 0, n_tops = 0;
    for (int32_t r = 0; r < x->roots_cap; r++) {
        if (!x->roots[r].is_used)
            continue;
        if (x->roots[r].n_children + x->roots[r].n_users == 0)
            return err_set(a->err, "X2: root %d has neither users nor blocks", r);
        n_children += x->roots[r].n_children;
        n_users += x->roots[r].n_users;
    }
    for (int32_t b = 0; b < a->pool->n_blocks; b++)
        n_tops += x->nodes[b].kind != PREFIX_NONE && x->nodes[b].parent.number < 0;
    if (n_children != n_tops)
        return err_set(a->err, "X2: roots count %lld blocks, %lld hang from them",
                       (long long)n_children, (long long)n_tops);
    if (n_users != a->holders->n_tables)
        return err_set(a->err, "X2: roots count %lld tables, %d are open", (long long)n_users,
                       a->holders->n_tables);
    return 0;
}

/* ---- T1, W1: tables and promises ------------------------------------------------------------- */

/* Tokens that the owner of a table has computed of entry j: branches that go on from one prompt name
 * the blocks that the first of them fills. */
static int32_t computed_of(const struct audit *a, const struct block_table *t, int32_t j)
{
    int32_t most = 0;
    for (const struct block_table *o = t->owner->tables; o; o = o->next)
        if (j < o->n_blocks && o->blocks[j] == t->blocks[j] && o->computed > most)
            most = o->computed;
    return most - j * a->prefix->block_size;
}

static int check_entry(const struct audit *a, const struct block_table *t, int32_t j)
{
    const struct prefix *x = a->prefix;
    const struct prefix_node *node = &x->nodes[t->blocks[j]];
    if (j < t->n_confirmed && node->kind != PREFIX_FULL)
        return err_set(a->err, "T1: confirmed block %d is of kind %d", t->blocks[j], node->kind);
    if (node->kind == PREFIX_NONE)
        return 0;
    struct prefix_parent parent = block_table_parent(t, x, j);
    if (parent.number != node->parent.number || parent.serial != node->parent.serial)
        return err_set(a->err, "T1: the parent of block %d is %d, in its table %d", t->blocks[j],
                       node->parent.number, parent.number);
    if (node->kind == PREFIX_TAIL && node->n_ids > computed_of(a, t, j))
        return err_set(a->err, "T1: tail %d says %d tokens, %d are computed", t->blocks[j],
                       node->n_ids, computed_of(a, t, j));
    return 0;
}

static int check_table(const struct audit *a, const struct block_table *t)
{
    int32_t size = a->prefix->block_size;
    if (t->n_blocks > t->cap || t->computed + t->ahead > t->n_blocks * size ||
        t->n_confirmed != t->computed / size)
        return err_set(a->err, "T1: %d blocks of at most %d, %d confirmed, %d + %d tokens",
                       t->n_blocks, t->cap, t->n_confirmed, t->computed, t->ahead);
    for (int32_t j = 0; j < t->n_blocks; j++)
        if (check_entry(a, t, j) < 0)
            return -1;
    return 0;
}

/* Every promise is in a table of its owner; lists and counts of owners agree with the nodes. */
static int check_promises(const struct audit *a)
{
    const struct prefix *x = a->prefix;
    int32_t n_found = 0;
    for (int32_t i = 0; i < a->holders->n_tables; i++) {
        const struct block_table *t = a->holders->tables[i];
        for (int32_t j = 0; j < t->n_blocks; j++)
            n_found += x->nodes[t->blocks[j]].kind == PREFIX_PROMISED &&
                       x->nodes[t->blocks[j]].owner == t->owner;
        int32_t n_listed = 0;
        for (int32_t b = t->owner->first_promise - 1; b >= 0; b = x->nodes[b].promise_next)
            if (x->nodes[b].owner != t->owner || ++n_listed > a->pool->n_blocks)
                return err_set(a->err, "W1: block %d is in the list of a stranger", b);
        if (n_listed != t->owner->n_promises)
            return err_set(a->err, "W1: %d promises listed, counted %d", n_listed,
                           t->owner->n_promises);
    }
    if (n_found < x->n_kind[PREFIX_PROMISED])
        return err_set(a->err, "W1: %d promises, %d are held by their owners",
                       x->n_kind[PREFIX_PROMISED], n_found);
    return 0;
}

int audit_run(const struct pool *p, struct prefix *x, const struct cache_holders *holders,
              int32_t *counts, struct err *err)
{
    struct audit a = {p, x, holders, counts, counts + p->n_blocks, err};
    if (check_references(&a) < 0 || check_nodes(&a) < 0 || check_places(&a) < 0 ||
        check_roots(&a) < 0)
        return -1;
    for (int32_t i = 0; i < holders->n_tables; i++)
        if (check_table(&a, holders->tables[i]) < 0)
            return -1;
    return check_promises(&a);
}

int audit_swap(const struct swap *s, const struct cache_holders *holders, int32_t *counts,
               struct err *err)
{
    int32_t n_free = 0;
    for (int32_t slot = 0; slot < s->n_slots; slot++)
        counts[slot] = 0;
    for (int32_t i = 0; i < holders->n_tables; i++)
        for (int32_t j = 0; j < holders->tables[i]->n_slots; j++)
            counts[holders->tables[i]->slots[j]]++;
    for (int32_t i = 0; i < holders->n_moves; i++)
        counts[holders->moves[i].slot]++;
    for (int32_t slot = 0; slot < s->n_slots; slot++) {
        n_free += counts[slot] == 0;
        if (counts[slot] != s->n_users[slot])
            return err_set(err, "H1: host slot %d counts %d users, %d name it", slot,
                           s->n_users[slot], counts[slot]);
    }
    return n_free == s->n_free
               ? 0
               : err_set(err, "H1: %d host slots are free, counted %d", n_free, s->n_free);
}
