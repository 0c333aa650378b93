/* figures.c - what the cache tells of itself: counts, the audit, and what tests compare.
 *
 * Main thread only. */
#include "cache/state.h"

int32_t cache_available(const struct cache *c)
{
    return pool_available(&c->pool);
}

int32_t cache_leaving(const struct cache *c)
{
    return c->pool.n_leaving;
}

int32_t cache_block_size(const struct cache *c)
{
    return c->prefix.block_size;
}

int32_t cache_shared(const struct cache *c, const struct block_table *t)
{
    int32_t n_shared = 0;
    for (int32_t j = 0; j < t->n_blocks; j++)
        n_shared += c->pool.blocks[t->blocks[j]].n_tables > 1;
    return n_shared;
}

/* marks: by block or slot; only those that tables name are looked at. */
static int32_t count_once(int32_t *marks, const struct cache_owner *owner, bool slots,
                          const struct pool *p, int32_t *n_shared)
{
    int32_t n = 0;

    for (int pass = 0; pass < 2; pass++)
        for (const struct block_table *t = owner->tables; t; t = t->next)
            for (int32_t j = 0; j < (slots ? t->n_slots : t->n_blocks); j++) {
                int32_t at = slots ? t->slots[j] : t->blocks[j];
                if (pass == 0) {
                    marks[at] = 0;
                } else if (marks[at]++ == 0) {
                    n++;
                    *n_shared += !slots && p->blocks[at].n_tables > 1;
                }
            }
    return n;
}

void cache_count_blocks(struct cache *c, const struct cache_owner *owner, int32_t *n,
                        int32_t *n_shared, int32_t *n_slots)
{
    *n_shared = 0;
    *n = count_once(c->scratch, owner, false, &c->pool, n_shared);
    *n_slots = count_once(c->scratch, owner, true, &c->pool, n_shared);
}

/* Tokens of entry j that t has computed. */
static int32_t computed_in(const struct block_table *t, int32_t j, int32_t size)
{
    int32_t n = t->computed - j * size;

    return n < 0 ? 0 : n < size ? n : size;
}

int32_t cache_count_computed(struct cache *c, const struct cache_owner *owner)
{
    int32_t *counted = c->scratch, size = c->prefix.block_size, n = 0;

    for (const struct block_table *t = owner->tables; t; t = t->next)
        for (int32_t j = 0; j < t->n_blocks; j++)
            counted[t->blocks[j]] = 0;
    for (const struct block_table *t = owner->tables; t; t = t->next)
        for (int32_t j = 0; j < t->n_blocks; j++) {
            int32_t *most = &counted[t->blocks[j]], here = computed_in(t, j, size);
            n += here > *most ? here - *most : 0;
            *most = here > *most ? here : *most;
        }
    return n;
}

int32_t cache_clear(struct cache *c)
{
    int32_t n_dropped = 0;
    for (int32_t b; (b = pool_oldest_leaf(&c->pool)) >= 0; n_dropped++)
        prefix_unlink(&c->prefix, b);
    return n_dropped;
}

bool cache_is_confirmed(const struct cache *c, int32_t block, int32_t offset)
{
    const struct prefix_node *node = &c->prefix.nodes[block];
    return node->kind == PREFIX_FULL || (node->kind == PREFIX_TAIL && offset < node->n_ids);
}

int cache_audit(struct cache *c, const struct cache_holders *holders, struct err *err)
{
    if (audit_swap(&c->swap, holders, c->scratch + 2 * (int64_t)c->pool.n_blocks, err) < 0)
        return -1;
    if (lineage_audit(&c->lineages, err) < 0)
        return -1;
    return audit_run(&c->pool, &c->prefix, holders, c->scratch, err);
}

const struct pool *cache_blocks(const struct cache *c)
{
    return &c->pool;
}

const struct prefix *cache_index(const struct cache *c)
{
    return &c->prefix;
}

void cache_stats(const struct cache *c, struct cache_stats *stats)
{
    *stats = c->counted;
    stats->n_blocks = c->pool.n_blocks;
    stats->block_size = c->prefix.block_size;
    stats->free_blocks = c->pool.n_in[POOL_FREE];
    stats->cached_blocks = c->pool.n_in[POOL_LEAF] + c->pool.n_in[POOL_INNER];
    stats->used_blocks = c->pool.n_in[POOL_HELD];
    stats->shared_blocks = c->pool.n_shared;
    stats->unwanted_blocks = c->pool.n_unwanted;
    stats->promised_blocks = c->prefix.n_kind[PREFIX_PROMISED];
    stats->namespaces = c->prefix.n_roots;
    stats->n_slots = c->swap.n_slots;
    stats->free_slots = c->swap.n_free;
    stats->rejected_matches = c->prefix.rejected;
}
