/* cache.c - the blocks of a table while it lives: taken, confirmed, published, released.
 *
 *   - equal full blocks merge when the second is confirmed; an equal promise ends then, and the
 *     leader that made it loses those it has left, since its own blocks hang from a parent that
 *     will never be in the index;
 *   - on release promises go first, then the half-filled block becomes a tail, then the last block
 *     is let go first.
 *
 * Invariant for eviction: whoever holds a block of the index holds its ancestors, for as long as
 * blocks can be taken. A pinned source is held without them once its reader is cancelled, but then
 * a step runs, and no block is taken while one does. How tables get their first blocks is in
 * admission.c. Main thread only. */
#include "cache/state.h"

#include "base/mem.h"
#include "base/plant.h"

struct cache *cache_new(const struct cache_config *config)
{
    ASSERT(config->n_blocks > 0 && config->n_blocks <= 1 << 30 && config->block_size > 0);
    struct cache *c = xcalloc(1, sizeof *c);
    pool_init(&c->pool, config->n_blocks);
    prefix_init(&c->prefix, &c->pool, config->block_size,
                config->hash_bits ? config->hash_bits : 64);
    swap_init(&c->swap, config->n_slots);
    lineages_init(&c->lineages, config->n_blocks);
    c->slot_of = xcalloc((size_t)config->n_blocks, sizeof *c->slot_of);
    for (int32_t b = 0; b < config->n_blocks; b++)
        c->slot_of[b] = -1;
    c->scratch =
        xcalloc(2 * (size_t)config->n_blocks + (size_t)config->n_slots, sizeof *c->scratch);
    return c;
}

void cache_free(struct cache *c)
{
    if (!c)
        return;
    prefix_done(&c->prefix);
    pool_done(&c->pool);
    swap_done(&c->swap);
    lineages_done(&c->lineages);
    xfree(c->slot_of);
    xfree(c->scratch);
    xfree(c);
}

void cache_open(struct cache *c, struct block_table *t, const struct cache_namespace *ns,
                struct cache_owner *owner, int32_t max_blocks)
{
    block_table_init(t, prefix_root_open(&c->prefix, ns), owner, max_blocks);
}

void cache_close(struct cache *c, struct block_table *t)
{
    if (!t->is_open)
        return;
    int32_t root = t->root;
    cache_swap_drop(c, t);
    block_table_done(t);
    prefix_root_close(&c->prefix, root);
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Planted: a block that somebody holds is taken all the same. */
static bool evict_held(struct cache *c)
{
    for (int32_t b = 0; b < c->pool.n_blocks; b++) {
        struct pool_block *block = &c->pool.blocks[b];
        if (block->place != POOL_HELD || !block->is_findable || block->n_children > 0)
            continue;
        prefix_unlink(&c->prefix, b);
        while (block->n_tables > 0)
            pool_drop(&c->pool, b);
        return block->place == POOL_FREE;
    }
    return false;
}

/* Planted: a block whose children can never be found again. */
static bool evict_inner(struct cache *c)
{
    for (int32_t b = 0; b < c->pool.n_blocks; b++) {
        if (c->pool.blocks[b].place != POOL_INNER)
            continue;
        c->pool.blocks[b].n_children = 0;
        prefix_unlink(&c->prefix, b);
        return true;
    }
    return false;
}

static void evict_one(struct cache *c)
{
    c->counted.evictions++;
    if ((PLANTED(EVICT_HELD) && evict_held(c)) || (PLANTED(EVICT_INNER) && evict_inner(c)))
        return;
    int32_t leaf = pool_oldest_leaf(&c->pool);
    ASSERT(leaf >= 0); /* the caller asked cache_available; held blocks hold their ancestors */
    prefix_unlink(&c->prefix, leaf);
}

int32_t cache_take(struct cache *c, const struct block_table *t, int32_t near)
{
    if (c->pool.n_in[POOL_FREE] == 0)
        evict_one(c);
    int32_t b = pool_take(&c->pool, near);
    lineage_take(&c->lineages, t->owner->lineage, b);
    return b;
}

struct cache_copy cache_start_copy(struct cache *c, struct block_table *t, int32_t source,
                                   int32_t j, int32_t n_tokens)
{
    if (!PLANTED(COPY_UNPINNED))
        pool_pin(&c->pool, source);
    lineage_use(&c->lineages, t->owner->lineage, source);
    t->copying = j;
    c->counted.copies++;
    return (struct cache_copy){.src = source, .n_tokens = n_tokens};
}

/* ---- while it runs --------------------------------------------------------------------------- */

int32_t cache_write_need(const struct cache *c, const struct block_table *t)
{
    return block_table_need(t, &c->prefix) != TABLE_NEEDS_NOTHING;
}

int32_t cache_write_needs(const struct cache *c, struct block_table *const *tables, int32_t n)
{
    int32_t n_needs = 0;

    for (int32_t i = 0; i < n; i++) {
        const struct block_table *t = tables[i];
        enum table_need need = block_table_need(t, &c->prefix);
        n_needs += need != TABLE_NEEDS_NOTHING;
        if (need != TABLE_NEEDS_COPY)
            continue;
        int32_t j = t->computed / c->prefix.block_size, b = t->blocks[j], n_before = 0;
        for (int32_t k = 0; k < i; k++)
            n_before += j < tables[k]->n_blocks && tables[k]->blocks[j] == b;
        if ((n_before + 1 == c->pool.blocks[b].n_tables || PLANTED(NEEDS_FEW)) && n_before > 0 &&
            !cache_is_confirmed(c, b, t->computed % c->prefix.block_size))
            n_needs--; /* all others have left it by then */
    }
    return n_needs;
}

/* Copy before writing: the table's own reference goes, the pending copy counts the source. A source
 * without slots below the write has nothing to copy. */
static struct cache_copy copy_on_write(struct cache *c, struct block_table *t)
{
    int32_t j = t->computed / c->prefix.block_size;
    int32_t n_tokens = t->computed % c->prefix.block_size;
    int32_t source = t->blocks[j];
    struct cache_copy copy = {0};
    if (n_tokens > 0)
        copy = cache_start_copy(c, t, source, j, n_tokens);
    copy.dst = t->blocks[j] = cache_take(c, t, j > 0 ? t->blocks[j - 1] : -1);
    if (!PLANTED(COPIED_KEPT))
        pool_drop(&c->pool, source);
    return copy;
}

void cache_write_room(struct cache *c, struct block_table *t, struct cache_copy *copy)
{
    *copy = (struct cache_copy){0};
    ASSERT(t->ahead == 0); /* a decode has nothing on its way */
    switch (block_table_need(t, &c->prefix)) {
    case TABLE_NEEDS_NOTHING:
        break;
    case TABLE_NEEDS_BLOCK:
        block_table_append_taken(t,
                                 cache_take(c, t, t->n_blocks ? t->blocks[t->n_blocks - 1] : -1));
        break;
    case TABLE_NEEDS_COPY:
        *copy = copy_on_write(c, t);
        break;
    }
}

void cache_copy_done(struct cache *c, const struct cache_copy *copy)
{
    if (copy->n_tokens > 0 && !PLANTED(COPY_KEPT) && !PLANTED(COPY_UNPINNED))
        pool_unpin(&c->pool, copy->src);
}

/* What came from the host is confirmed with the next cache_advance, by 0 rows too. */
void cache_landed(struct cache *c, struct block_table *t)
{
    (void)c;
    t->computed += t->ahead;
    t->ahead = 0;
    t->copying = -1;
}

/* A parent under which confirmed nodes may hang: a root, or a full block. */
static bool is_confirmed_parent(const struct cache *c, struct prefix_parent parent)
{
    return parent.number < 0 || c->prefix.nodes[parent.number].kind == PREFIX_FULL;
}

/* Block j of the table is full and its step is done: insert it, merge it, or end an equal promise.
 */
static void confirm(struct cache *c, struct block_table *t, const int32_t *ids, int32_t j)
{
    struct prefix *x = &c->prefix;
    int32_t b = t->blocks[j];
    const int32_t *block_ids = ids + (int64_t)j * x->block_size;
    struct prefix_parent parent = block_table_parent(t, x, j);
    ASSERT(is_confirmed_parent(c, parent)); /* the entry before it went through here */
    if (x->nodes[b].kind == PREFIX_FULL)
        return;
    int32_t other = prefix_find(x, parent, block_ids);
    if (other == b) {
        prefix_keep_promise(x, b);
    } else {
        prefix_unlink(x, b);
        if (other >= 0 && x->nodes[other].kind == PREFIX_FULL) {
            lineage_use(&c->lineages, t->owner->lineage, other);
            block_table_rename(t, &c->pool, j, other);
            c->counted.merged++;
            if (PLANTED(MERGE_UNCOUNTED))
                pool_drop(&c->pool, other);
            return;
        }
        if (other >= 0 && !PLANTED(TAKEOVER_MISSED)) {
            c->counted.promises_taken++;
            prefix_drop_promises(x, x->nodes[other].owner);
        }
        prefix_link(x, b, parent, block_ids, x->block_size, PREFIX_FULL, NULL);
    }
    prefix_drop_tails(x, parent, block_ids, x->block_size);
}

void cache_advance(struct cache *c, struct block_table *t, const int32_t *ids, int32_t n_rows)
{
    ASSERT(t->ahead == 0 && n_rows >= 0);
    t->computed += n_rows;
    ASSERT(t->computed <= t->n_blocks * c->prefix.block_size);
    for (; t->n_confirmed < t->computed / c->prefix.block_size; t->n_confirmed++)
        confirm(c, t, ids, t->n_confirmed);
}

/* It was used now, as if the table named it. */
static void touch(struct cache *c, const struct block_table *t, int32_t block)
{
    lineage_use(&c->lineages, t->owner->lineage, block);
    pool_hold(&c->pool, block);
    pool_drop(&c->pool, block);
}

/* Not where a confirmed sibling covers it (a second one would only waste a block), not the target
 * of a running copy (nothing in it is confirmed yet), and not while it is promised: it will be full
 * soon, and whoever waits for it finds it then. */
void cache_publish(struct cache *c, struct block_table *t, const int32_t *ids)
{
    struct prefix *x = &c->prefix;
    int32_t j = t->computed / x->block_size;
    int32_t n = t->computed % x->block_size;
    if (n == 0 || j >= t->n_blocks || (t->copying == j && !PLANTED(COPY_PUBLISHED)))
        return;
    int32_t b = t->blocks[j];
    enum prefix_kind kind = x->nodes[b].kind;
    if (kind == PREFIX_TAIL && x->nodes[b].n_ids < n)
        prefix_unlink(x, b);
    else if (kind != PREFIX_NONE)
        return;
    struct prefix_parent parent = block_table_parent(t, x, j);
    const int32_t *tail = ids + (int64_t)j * x->block_size;
    int32_t cover = prefix_find_cover(x, parent, tail, n, b);
    if (cover >= 0) {
        if (!PLANTED(COVER_UNUSED))
            touch(c, t, cover);
        return;
    }
    prefix_drop_tails(x, parent, tail, n);
    if (PLANTED(TAIL_LONG) && n + 1 < x->block_size)
        n++;
    prefix_link(x, b, parent, tail, n, PREFIX_TAIL, NULL);
}

void cache_share(struct cache *c, const struct block_table *from, struct block_table *to)
{
    ASSERT(to->is_open && to->n_blocks == 0 && from->root == to->root && from->ahead == 0);
    for (int32_t j = 0; j < from->n_blocks; j++)
        if (PLANTED(SHARE_UNCOUNTED) && j + 1 == from->n_blocks)
            block_table_append_taken(to, from->blocks[j]);
        else
            block_table_append_shared(to, &c->pool, from->blocks[j]);
    to->computed = from->computed;
    to->n_confirmed = from->n_confirmed;
}

void cache_unpromise(struct cache *c, struct cache_owner *owner)
{
    if (!PLANTED(PROMISE_LEFT))
        prefix_drop_promises(&c->prefix, owner);
}

static void unpromise(struct cache *c, struct block_table *t)
{
    for (int32_t j = t->n_blocks - 1; j >= t->n_confirmed; j--) {
        const struct prefix_node *node = &c->prefix.nodes[t->blocks[j]];
        if (node->kind == PREFIX_PROMISED && node->owner == t->owner)
            prefix_unlink(&c->prefix, t->blocks[j]);
    }
}

void cache_release(struct cache *c, struct block_table *t, const int32_t *ids)
{
    if (!PLANTED(PROMISE_LEFT))
        unpromise(c, t);
    cache_publish(c, t, ids);
    if (PLANTED(DOUBLE_DROP) && t->n_blocks > 0)
        pool_drop(&c->pool, t->blocks[t->n_blocks - 1]);
    block_table_drop_all(t, &c->pool);
}

void cache_discard(struct cache *c, struct block_table *t)
{
    unpromise(c, t);
    if (PLANTED(DISCARD_LEAKS) && t->n_blocks > 0)
        t->n_blocks--;
    block_table_drop_all(t, &c->pool);
}

/* ---- conversations -------------------------------------------------------------------------- */

void cache_fork_lineage(struct cache *c, struct lineage **from, struct lineage **child)
{
    lineage_fork(&c->lineages, from, child);
}

static void let_go(void *arg, int32_t block)
{
    struct cache *c = arg;

    if (c->pool.blocks[block].n_tables == 0 && !PLANTED(GONE_KEPT))
        pool_set_unwanted(&c->pool, block);
}

void cache_drop_lineage(struct cache *c, struct lineage *l)
{
    lineage_put(&c->lineages, l, let_go, c);
}

int32_t cache_count_lineage(const struct cache *c, const struct lineage *l, int32_t *n_cached)
{
    int32_t n = 0;

    *n_cached = 0;
    for (int32_t b = l->first; b >= 0; b = c->lineages.links[b].next) {
        n += c->pool.blocks[b].place != POOL_FREE;
        *n_cached += c->pool.blocks[b].place == POOL_LEAF || c->pool.blocks[b].place == POOL_INNER;
    }
    return n;
}
