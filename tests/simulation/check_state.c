/* check_state.c - what must be true after every operation.
 *
 *   P1-P3, X1, X2, H1, S0, S1, S4, S6   the engine's and the cache's own audit, and here again where
 *                                       it would have to trust what it audits
 *   S1  ids of a branch are the first of its lone run, those of a beam the rows of its plain search
 *   S2  the K/V of every computed position is what the ids up to it say; so is what host memory holds
 *       of a swapped branch, once the copies are done
 *   X1  and that of every confirmed slot that the index can find
 *   X4  a sequence stands in the tree of its own namespace */
#include <string.h>
#include "cache/prefix.h"
#include "world.h"

/* ---- branches ----------------------------------------------------------------------------------- */

static void check_ids(struct world *w, const struct group *g, const struct seq *q)
{
    const int32_t *ids = g->branches[q->branch].lone.ids;
    int32_t n = g->branches[q->branch].lone.n_ids, row[LONE_MAX_IDS];
    if (g->beam && q->n_ids - g->n_prompt > g->beam->n_steps) {
        n = 0; /* longer than it will ever be */
    } else if (g->beam) {
        n = plain_beam_row(g->beam, q->n_ids - g->n_prompt, q->branch, row);
        ids = row;
    }
    if (q->n_ids > n || memcmp(q->ids, ids, (size_t)q->n_ids * sizeof *q->ids) != 0)
        world_fault(w, "S1 token differs from the lone run: arrival %llu, branch %d, one of %d ids",
                    (unsigned long long)g->arrival, q->branch, q->n_ids);
}

/* slots [LONE_MAX_IDS] <- what the K/V of its first n positions must be; borrowed if there is. */
static const uint64_t *slots_of(const struct group *g, const struct seq *q, int32_t n,
                                uint64_t *slots)
{
    if (!g->beam)
        return g->branches[q->branch].lone.slots;
    for (int32_t p = 0; p < n; p++)
        slots[p] = toy_slot(p > 0 ? slots[p - 1] : 0, q->ids[p]);
    return slots;
}

static void check_kv(struct world *w, const struct group *g, const struct seq *q)
{
    const struct block_table *t = &q->table;
    int32_t size = w->config.block_size;
    uint64_t computed[LONE_MAX_IDS];
    int32_t n = t->computed > t->saved ? t->computed : t->saved;
    const uint64_t *slots = slots_of(g, q, n, computed);
    bool is_copied = !w->toy.plan || w->toy.plan->n_outs == 0;
    for (int32_t p = 0; p < t->computed; p++)
        if (p / size != t->copying &&
            w->toy.slots[t->blocks[p / size] * size + p % size] != slots[p])
            world_fault(w, "S2 K/V of arrival %llu, branch %d, differs at position %d",
                        (unsigned long long)g->arrival, q->branch, p);
    for (int32_t p = 0; p < t->saved && is_copied; p++)
        if (w->toy.host[t->slots[p / size] * size + p % size] != slots[p])
            world_fault(w, "S2 host memory of arrival %llu, branch %d, differs at position %d",
                        (unsigned long long)g->arrival, q->branch, p);
}

static void check_group(struct world *w, const struct group *g)
{
    const struct prefix *x = cache_index(w->cache);
    if (g->gen->arrival != g->arrival)
        world_fault(w, "S4 arrival %llu became %llu", (unsigned long long)g->arrival,
                    (unsigned long long)g->gen->arrival);
    for (int32_t i = 0; i < g->n_branches && !world_is_wrong(w); i++) {
        const struct seq *q = &g->gen->seqs[i];
        if ((q->state == SEQ_TOLD) != (g->branches[i].finish != GEN_NONE))
            world_fault(w, "S3 branch %d of arrival %llu is%s told", i,
                        (unsigned long long)g->arrival, q->state == SEQ_TOLD ? "" : " not");
        if (q->state != SEQ_LIVE)
            continue;
        check_ids(w, g, q);
        if (!cache_namespace_equal(&x->roots[q->table.root].ns, &g->ns))
            world_fault(w, "X4 user %llu stands in the tree of %llu",
                        (unsigned long long)g->ns.user,
                        (unsigned long long)x->roots[q->table.root].ns.user);
        if (!world_is_wrong(w))
            check_kv(w, g, q);
    }
}

/* ---- blocks ------------------------------------------------------------------------------------- */

static void check_contents(struct world *w)
{
    const struct prefix *x = cache_index(w->cache);
    int32_t size = w->config.block_size;
    for (int32_t b = 0; b < w->config.n_blocks; b++) {
        const struct prefix_node *node = &x->nodes[b];
        if (node->kind != PREFIX_FULL && node->kind != PREFIX_TAIL)
            continue;
        uint64_t slot = 0;
        if (node->parent.number >= 0)
            slot = w->toy.slots[node->parent.number * size + size - 1];
        for (int32_t k = 0; k < node->n_ids; k++) {
            slot = toy_slot(slot, prefix_ids(x, b)[k]);
            if (w->toy.slots[b * size + k] != slot)
                world_fault(w, "X1 slot %d of block %d is not what its ids say", k, b);
        }
    }
}

void check_state(struct world *w)
{
    struct engine_stats s;
    struct err err = {""};
    if (w->toy.fault[0])
        world_fault(w, "%s", w->toy.fault);
    if (world_is_wrong(w))
        return;
    if (engine_audit(w->engine, &err) < 0)
        world_fault(w, "%s", err.text);
    engine_stats(w->engine, &s);
    if (s.queued > w->config.max_queue + w->config.max_running)
        world_fault(w, "S6 %d are queued, max-queue is %d", s.queued, w->config.max_queue);
    if (s.free_blocks + s.cached_blocks + s.used_blocks != s.n_blocks)
        world_fault(w, "P3 %d free + %d cached + %d used of %d", s.free_blocks, s.cached_blocks,
                    s.used_blocks, s.n_blocks);
    if (!w->cache || world_is_wrong(w))
        return;
    check_contents(w);
    for (int32_t i = 0; i < w->n_live && !world_is_wrong(w); i++)
        check_group(w, w->live[i]);
}
