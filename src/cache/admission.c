/* admission.c - what the cache has of a group that wants to run, and the blocks that it lacks.
 *
 * The order of things is what matters here, and every order below was once a fault somewhere:
 *   - all looks come before anything is taken or promised, since taking may evict what was found;
 *   - matched blocks are counted before a copy's source is pinned, and that before new ones are
 *     taken, or eviction would take what was just matched;
 *   - one token is always left to compute: a hit ends before the last one;
 *   - only what a finished step has confirmed is a hit; a promise is found, but never a hit.
 *
 * Main thread only. */
#include "cache/state.h"

#include "base/plant.h"

/* ---- looking --------------------------------------------------------------------------------- */

/* How far the index leads: confirmed full blocks, the parent after them, and a promise met. */
struct walk {
    int32_t n_hits;
    struct prefix_parent parent;
    int32_t promised; /* block that computes what is missing next; -1 for none */
};

/* hits [n / block_size] may be NULL. A promise that holds the last token is not waited for: it
 * could only be copied from, and its leader may be long in coming. */
static struct walk follow(struct cache *c, int32_t root, const int32_t *ids, int32_t n,
                          int32_t *hits)
{
    struct prefix *x = &c->prefix;
    int32_t size = x->block_size;
    int32_t left = PLANTED(NOTHING_LEFT) ? 0 : 1;
    struct walk w = {.parent = prefix_root_parent(x, root), .promised = -1};
    for (int32_t at = 0; at + size <= n - left; at += size) {
        int32_t b = prefix_find(x, w.parent, ids + at);
        if (b < 0 || (PLANTED(LOOK_BLIND) && x->nodes[b].kind == PREFIX_FULL))
            break;
        if (x->nodes[b].kind == PREFIX_PROMISED && !PLANTED(PROMISE_HIT)) {
            w.promised = PLANTED(PROMISE_MISSED) ? -1 : b;
            break;
        }
        if (hits)
            hits[w.n_hits] = b;
        w.n_hits++;
        w.parent = prefix_block_parent(x, b);
    }
    return w;
}

/* The source to copy from after the full hits, leaving one token; -1 when there is none. */
static int32_t find_source(struct cache *c, const struct walk *w, const int32_t *ids, int32_t n,
                           int32_t *n_run)
{
    int32_t at = w->n_hits * c->prefix.block_size;
    int32_t source = prefix_find_run(&c->prefix, w->parent, ids + at, n - 1 - at, n_run);
    if (PLANTED(COPY_LONG) && source >= 0 && at + *n_run + 1 < n &&
        *n_run + 1 < c->prefix.block_size)
        ++*n_run;
    return source;
}

static int32_t count_idle(const struct cache *c, const int32_t *blocks, int32_t n)
{
    int32_t n_idle = 0;
    for (int32_t i = 0; i < n; i++)
        n_idle += !pool_is_held(&c->pool, blocks[i]);
    return n_idle;
}

void cache_look(struct cache *c, struct block_table *t, const int32_t *ids, int32_t n,
                struct cache_found *found)
{
    ASSERT(t->is_open && t->n_blocks == 0 && n > 0 && n / c->prefix.block_size <= t->cap);
    struct walk w = follow(c, t->root, ids, n, t->blocks);
    *found = (struct cache_found){.n_hits = w.n_hits,
                                  .source = -1,
                                  .promised = w.promised,
                                  .n_idle_hits = count_idle(c, t->blocks, w.n_hits)};
    if (w.promised >= 0) {
        found->promised_by = c->prefix.nodes[w.promised].owner;
        found->promised_serial = c->pool.blocks[w.promised].serial;
        return;
    }
    found->source = find_source(c, &w, ids, n, &found->n_run);
    found->is_source_idle = found->source >= 0 && !pool_is_held(&c->pool, found->source);
}

bool cache_is_promised(const struct cache *c, const struct cache_found *found)
{
    return found->promised_by && c->pool.blocks[found->promised].serial == found->promised_serial &&
           c->prefix.nodes[found->promised].kind == PREFIX_PROMISED &&
           c->prefix.nodes[found->promised].owner == found->promised_by;
}

int32_t cache_probe(struct cache *c, const struct cache_namespace *ns, const int32_t *ids,
                    int32_t n)
{
    int32_t root = prefix_root_find(&c->prefix, ns);
    if (root < 0 || n <= 0)
        return 0;
    int32_t n_run;
    struct walk w = follow(c, root, ids, n, NULL);
    find_source(c, &w, ids, n, &n_run);
    return w.n_hits * c->prefix.block_size + n_run;
}

/* ---- reserving ------------------------------------------------------------------------------- */

/* Writes new blocks behind the hits that wait in the table's array, counted or not, up to entry
 * `end`. Entries before n_common are those of `lead`, which has them already. */
static void take_behind(struct cache *c, struct block_table *t, const struct block_table *lead,
                        int32_t n_hits, int32_t n_common, int32_t end)
{
    int32_t j = n_hits;

    for (; t != lead && j < n_common; j++) {
        t->blocks[j] = lead->blocks[j];
        if (!PLANTED(COMMON_UNCOUNTED))
            pool_hold(&c->pool, t->blocks[j]);
    }
    for (; j < end; j++)
        t->blocks[j] = cache_take(c, t, j > 0 ? t->blocks[j - 1] : -1);
}

/* The full blocks that nobody has: from now on others find them as promised. Ends at the first that
 * is in the index already by another's hand, since what hangs below it belongs to another. */
static void promise(struct cache *c, struct block_table *t, const int32_t *ids, int32_t n,
                    int32_t from)
{
    struct prefix *x = &c->prefix;
    for (int32_t j = from; j < n / x->block_size; j++) {
        struct prefix_parent parent = block_table_parent(t, x, j);
        const int32_t *block_ids = ids + (int64_t)j * x->block_size;
        if (x->nodes[t->blocks[j]].kind != PREFIX_NONE)
            continue; /* through the first table of the group */
        if (prefix_find(x, parent, block_ids) >= 0)
            return;
        bool early = PLANTED(PUBLISHED_EARLY);
        prefix_link(x, t->blocks[j], parent, block_ids, x->block_size,
                    early ? PREFIX_FULL : PREFIX_PROMISED, early ? NULL : t->owner);
    }
}

/* Hits of seat i from this one on were found by no seat before it: paths of one tree part once. */
static int32_t first_own_hit(const struct cache_seat *seats, int32_t i)
{
    int32_t j = 0;

    for (int32_t k = 0; k < i; k++)
        while (j < seats[i].found.n_hits && j < seats[k].found.n_hits &&
               seats[k].table->blocks[j] == seats[i].table->blocks[j])
            j++;
    return j;
}

/* The source of seat i is available now and counted nowhere else: neither another's source, nor a
 * hit of another that goes on behind it. */
static bool is_own_idle_source(const struct cache_seat *seats, int32_t n_seats, int32_t i)
{
    const struct cache_found *found = &seats[i].found;

    if (found->source < 0 || !found->is_source_idle)
        return false;
    for (int32_t k = 0; k < n_seats; k++) {
        if (k < i && seats[k].found.source == found->source)
            return false;
        if (seats[k].found.n_hits > found->n_hits &&
            seats[k].table->blocks[found->n_hits] == found->source)
            return false;
    }
    return true;
}

static int32_t blocks_of(const struct cache *c, const struct cache_seat *seat)
{
    return (seat->n + c->prefix.block_size - 1) / c->prefix.block_size;
}

/* Blocks to take for all seats: the common ones once. */
static int32_t count_new(const struct cache *c, const struct cache_seat *seats, int32_t n_seats,
                         int32_t n_common)
{
    int32_t n_new = 0;

    for (int32_t i = 0; i < n_seats; i++) {
        int32_t from = seats[i].found.n_hits;
        if (i > 0 && from < n_common)
            from = n_common;
        n_new += blocks_of(c, &seats[i]) - from;
    }
    return n_new;
}

/* Blocks that lack; the copies are given up first where a pinned source is the one. */
static bool fits(struct cache *c, const struct cache_seat *seats, int32_t n_seats, int32_t n_new,
                 int32_t keep, bool *with_copies)
{
    int32_t n_idle = 0, n_sources = 0, n_idle_sources = 0;

    for (int32_t i = 0; i < n_seats; i++) {
        int32_t own = first_own_hit(seats, i);
        n_idle += i == 0 ? seats[i].found.n_idle_hits
                         : count_idle(c, seats[i].table->blocks + own, seats[i].found.n_hits - own);
        n_sources += seats[i].found.source >= 0;
        n_idle_sources += is_own_idle_source(seats, n_seats, i);
    }
    if (PLANTED(RESERVE_OVERRUN))
        n_idle = 0;
    int32_t lack = n_new + keep - (pool_available(&c->pool) - n_idle);
    *with_copies = n_sources > 0 && lack + n_idle_sources <= 0;
    if (lack <= 0 && !*with_copies)
        c->counted.copies_given_up += (uint64_t)n_sources;
    return lack <= 0;
}

static void hold_hits(struct cache *c, const struct cache_seat *seat)
{
    int32_t n_hits = seat->found.n_hits;

    for (int32_t j = 0; j < n_hits; j++) {
        lineage_use(&c->lineages, seat->table->owner->lineage, seat->table->blocks[j]);
        if (!PLANTED(HIT_UNCOUNTED) || j + 1 < n_hits)
            pool_hold(&c->pool, seat->table->blocks[j]);
    }
}

/* All blocks are in its array: how far it is, and what it promises. */
static void settle_seat(struct cache *c, struct cache_seat *seat, int32_t n_blocks)
{
    struct block_table *t = seat->table;
    int32_t n_hits = seat->found.n_hits;

    t->n_blocks = n_blocks;
    t->n_confirmed = n_hits;
    t->computed = n_hits * c->prefix.block_size;
    t->ahead = seat->copy.n_tokens;
    if (t->ahead > 0)
        seat->copy.dst = t->blocks[n_hits];
    c->counted.hits_full += (uint64_t)n_hits;
    c->counted.hits_tail += (uint64_t)t->ahead;
    if (t->saved > t->computed)
        t->ahead = t->saved - t->computed; /* whoever has slots copies from nobody else */
    if (PLANTED(COPY_LEFT_OUT) && seat->copy.n_tokens > 0) {
        pool_unpin(&c->pool, seat->copy.src);
        seat->copy = (struct cache_copy){0};
    }
}

/* What was found for it, as far as it can be used: nothing is taken yet. */
static void prepare_seat(const struct cache *c, struct cache_seat *seat)
{
    struct cache_found *found = &seat->found;

    seat->copy = (struct cache_copy){0};
    if (seat->table->n_slots > 0) { /* it waits for nobody, and has what it would copy */
        found->promised_by = NULL;
        found->source = PLANTED(SWAP_COPIED) ? found->source : -1;
    }
    ASSERT(seat->table->is_open && seat->table->n_blocks == 0 && !found->promised_by);
    ASSERT(blocks_of(c, seat) <= seat->table->cap);
}

bool cache_reserve_all(struct cache *c, struct cache_seat *seats, int32_t n_seats, int32_t n_common,
                       int32_t keep)
{
    struct block_table *lead = seats[0].table;
    bool with_copies;

    for (int32_t i = 0; i < n_seats; i++) {
        prepare_seat(c, &seats[i]);
        if (i > 0 && seats[i].found.n_hits < n_common)
            seats[i].found.source = -1; /* its next block is the lead's to fill */
    }
    if (!fits(c, seats, n_seats, count_new(c, seats, n_seats, n_common), keep, &with_copies)) {
        if (PLANTED(HITS_KEPT))
            hold_hits(c, &seats[0]);
        return false;
    }
    for (int32_t i = 0; PLANTED(TAKE_FIRST) && i < n_seats; i++)
        take_behind(c, seats[i].table, lead, seats[i].found.n_hits, n_common,
                    blocks_of(c, &seats[i]));
    for (int32_t i = 0; i < n_seats; i++)
        hold_hits(c, &seats[i]);
    for (int32_t i = 0; with_copies && i < n_seats; i++) {
        struct cache_found *found = &seats[i].found;
        if (found->source >= 0)
            seats[i].copy =
                cache_start_copy(c, seats[i].table, found->source, found->n_hits, found->n_run);
    }
    for (int32_t i = 0; !PLANTED(TAKE_FIRST) && i < n_seats; i++)
        take_behind(c, seats[i].table, lead, seats[i].found.n_hits, n_common,
                    blocks_of(c, &seats[i]));
    for (int32_t i = 0; i < n_seats; i++)
        settle_seat(c, &seats[i], blocks_of(c, &seats[i]));
    for (int32_t i = 0; !lead->owner->is_quiet && i < n_seats; i++)
        promise(c, seats[i].table, seats[i].ids, seats[i].n, seats[i].found.n_hits);
    return true;
}

bool cache_reserve(struct cache *c, struct block_table *t, const int32_t *ids, int32_t n,
                   const struct cache_found *found, int32_t keep, struct cache_copy *copy)
{
    struct cache_seat seat = {.table = t, .ids = ids, .n = n, .found = *found};
    bool ok = cache_reserve_all(c, &seat, 1, 0, keep);

    *copy = seat.copy;
    return ok;
}
