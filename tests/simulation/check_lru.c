/* check_lru.c - who is evicted: by a clock of uses of its own, which looks at nothing but who names
 * which block when.
 *
 *   E1  the block that goes is no younger than any that could have gone: unreferenced, findable,
 *       without children, before and behind
 *   E2  blocks that only deleted conversations have used go before all others
 *   E3  release lets the last block go first
 *
 * The world is looked at behind every operation that lets blocks go, and when a step is launched,
 * which is behind all taking of blocks. A look ticks the clock by two: a block that is named (by a
 * table, or as what a copy or a transfer of the running step reads) is used now; one that was named
 * in the look before was let go in between, at the odd tick. The order of those let go in one
 * interval is open, but for what the tree says of it: only leaves go. So E3 cannot be seen in who
 * goes, and is read from the stamps, where nothing but releases can have made them.
 *
 * What is used and let go between two looks leaves no trace in tables: a sequence that ends may
 * before have merged onto equal blocks, or found one that covers its last. All of them hold a
 * beginning of its ids. So whatever unreferenced block does that may have been used up to now: its
 * last use has two ends, `from` and `to`. Where the sequence ended outside of a turn, nothing was
 * computed meanwhile, and a cover that is the only one has been used for certain.
 *
 * Conversations are the keys of the world: who has used a block is a set of them, as long as it is
 * known; forks put the child beside the source; whoever else comes makes it everybody's for good. */
#include <string.h>
#include "base/mem.h"
#include "cache/prefix.h"
#include "engine/generation.h"
#include "engine/state.h"
#include "world.h"

enum { NOBODY = -1, DEPTH_UNKNOWN = -2 };

struct lru_block {
    uint32_t serial;
    uint8_t kind; /* enum prefix_kind */
    int32_t n_ids;
    struct prefix_parent parent;
    bool is_held, is_leaf;
    int64_t from, to; /* its last use was not before, not behind */
    uint32_t users;   /* keys, by bits */
    bool is_shared;   /* one came who was none of them */
    bool is_unknown;  /* perhaps one came: of the set nothing is certain any more */
    bool is_late;     /* its last user is gone, and the cache learns that in the next turn */
    /* of this look */
    bool is_held_now;
    int32_t n_children, user; /* of which key the sequence is that names it; NOBODY */
};

/* A sequence that held blocks. */
struct lru_seq {
    uint64_t arrival;
    int32_t branch, user;
    struct prefix_parent root;
    bool is_many;  /* others may take its table in a turn, and let it go */
    bool is_there; /* in this look too */
    int32_t n_ids, ids[LONE_MAX_IDS + 1];
    /* what its end would publish */
    struct prefix_parent parent;
    int32_t block, n_slots, n_computed; /* block -1: nothing */
};

struct lru {
    struct lru_block *blocks; /* [n_blocks] owns */
    int32_t *depths;          /* [n_blocks] owns; of one sequence: depth_behind */
    struct lru_seq *seqs;     /* [n_seqs of seqs_cap] owns */
    int32_t n_blocks, n_seqs, seqs_cap;
    int64_t clock;
    const struct prefix *index; /* borrows; of the world's cache */
    const struct pool_block *pool;
};

struct lru *lru_new(const struct world_config *c)
{
    struct lru *l = xcalloc(1, sizeof *l);
    l->n_blocks = c->n_blocks;
    l->seqs_cap = c->max_running + 1;
    l->blocks = xcalloc((size_t)c->n_blocks, sizeof *l->blocks);
    l->depths = xcalloc((size_t)c->n_blocks, sizeof *l->depths);
    l->seqs = xcalloc((size_t)l->seqs_cap, sizeof *l->seqs);
    return l;
}

void lru_free(struct lru *l)
{
    xfree(l->blocks);
    xfree(l->depths);
    xfree(l->seqs);
    xfree(l);
}

/* ---- conversations ------------------------------------------------------------------------------ */

void lru_forget(struct lru *l, int32_t key, bool at_once)
{
    for (int32_t b = 0; b < l->n_blocks; b++) {
        struct lru_block *block = &l->blocks[b];
        bool was_there = block->users >> key & 1;
        block->users &= ~(1u << key);
        block->is_late |= was_there && block->users == 0 && !at_once;
    }
}

void lru_fork(struct lru *l, int32_t source, int32_t child)
{
    for (int32_t b = 0; b < l->n_blocks; b++)
        l->blocks[b].users |= (l->blocks[b].users >> source & 1) << child;
}

void lru_rename(struct lru *l, int32_t from, int32_t to)
{
    lru_fork(l, from, to);
    lru_forget(l, from, true);
}

void lru_catch_up(struct lru *l)
{
    for (int32_t b = 0; b < l->n_blocks; b++)
        l->blocks[b].is_late = false;
}

static void use(struct lru_block *block, int32_t user)
{
    block->is_unknown |= block->is_late;
    block->is_late = false;
    if (user == NOBODY)
        block->is_shared = true;
    else if (block->users == 0 && !block->is_shared)
        block->users = 1u << user;
    else if (!(block->users >> user & 1) && !block->is_unknown)
        block->is_shared = true; /* else he may be a fork of whom is not known */
}

static bool is_unwanted(const struct lru_block *block)
{
    return !block->is_shared && !block->is_unknown && !block->is_late && block->users == 0;
}

static bool is_wanted(const struct lru_block *block)
{
    return block->is_shared || (!block->is_unknown && !block->is_late && block->users != 0);
}

/* ---- looking ------------------------------------------------------------------------------------ */

static int32_t key_of(const struct world *w, const struct gen *g)
{
    for (int32_t i = 0; i < w->config.n_keys; i++)
        if (w->keys_gens[i] == g)
            return i;
    return NOBODY;
}

static const struct prefix_node *node_of(const struct world *w, int32_t b)
{
    return &w->lru->index->nodes[b];
}

static bool is_findable(uint8_t kind)
{
    return kind == PREFIX_FULL || kind == PREFIX_TAIL;
}

static bool is_same_parent(struct prefix_parent a, struct prefix_parent b)
{
    return a.number == b.number && a.serial == b.serial;
}

/* Names of blocks, and those that the running step reads. */
static void look_at_holders(struct world *w)
{
    struct lru *l = w->lru;
    for (int32_t b = 0; b < l->n_blocks; b++) {
        l->blocks[b].is_held_now = false;
        l->blocks[b].n_children = 0;
        l->blocks[b].user = NOBODY;
    }
    const struct list *running = &w->engine->sched.running;
    for (const struct list *at = running->next; at != running; at = at->next) {
        const struct gen *g = LIST_ITEM(at, const struct gen, in_order);
        int32_t user = key_of(w, g);
        GEN_FOREACH_LIVE(g, q)
            for (int32_t j = 0; j < q->table.n_blocks; j++) {
                struct lru_block *block = &l->blocks[q->table.blocks[j]];
                block->is_held_now = true;
                block->user = user;
            }
    }
    for (int32_t b = 0; b < l->n_blocks; b++) {
        const struct prefix_node *node = node_of(w, b);
        if (node->kind != PREFIX_NONE && node->parent.number >= 0)
            l->blocks[node->parent.number].n_children++;
    }
    const struct plan *plan = w->toy.plan;
    for (int32_t i = 0; plan && i < plan->n_copies; i++)
        l->blocks[plan->copies[i].src].is_held_now = true;
    for (int32_t i = 0; plan && i < plan->n_outs; i++)
        l->blocks[plan->outs[i].block].is_held_now = true;
}

/* ---- what may have been used between two looks -------------------------------------------------- */

/* The first n ids of the block stand in the sequence, where its ancestors say. */
static bool begins(const struct world *w, const struct lru_seq *q, int32_t b, int32_t depth,
                   int32_t n)
{
    const struct prefix *x = w->lru->index;
    int32_t at = depth * x->block_size;
    return at + n <= q->n_ids &&
           memcmp(prefix_ids(x, b), q->ids + at, (size_t)n * sizeof *q->ids) == 0;
}

/* Depth behind this parent, all of whose ids are a beginning of the sequence; -1: they are not. */
static int32_t depth_behind(const struct world *w, const struct lru_seq *q,
                            struct prefix_parent parent)
{
    struct lru *l = w->lru;
    int32_t b = parent.number;
    if (b < 0)
        return is_same_parent(parent, q->root) ? 0 : -1;
    if (l->depths[b] == DEPTH_UNKNOWN) {
        int32_t depth = depth_behind(w, q, node_of(w, b)->parent);
        bool ok = depth >= 0 && begins(w, q, b, depth, w->lru->index->block_size);
        l->depths[b] = ok ? depth + 1 : -1;
    }
    return l->depths[b];
}

/* It was merged onto, or covered what was computed of the last block: one id at least. */
static bool may_be_used(const struct world *w, const struct lru_seq *q, int32_t b)
{
    int32_t depth = depth_behind(w, q, node_of(w, b)->parent);
    return depth >= 0 && begins(w, q, b, depth, 1);
}

static bool was_taken(const struct world *w, int32_t b)
{
    return w->lru->pool[b].serial != w->lru->blocks[b].serial;
}

static bool is_idle_since(const struct world *w, int32_t b)
{
    const struct lru_block *block = &w->lru->blocks[b];
    return !block->is_held && !block->is_held_now && is_findable(block->kind) && !was_taken(w, b);
}

/* The sequence has ended, or was published. */
static void widen(struct world *w, const struct lru_seq *q)
{
    struct lru *l = w->lru;
    for (int32_t b = 0; b < l->n_blocks; b++)
        l->depths[b] = DEPTH_UNKNOWN;
    for (int32_t b = 0; b < l->n_blocks; b++) {
        struct lru_block *block = &l->blocks[b];
        if (!is_findable(node_of(w, b)->kind) || !may_be_used(w, q, b))
            continue;
        if (is_idle_since(w, b))
            block->to = l->clock - 1;
        block->is_unknown |= q->user >= 0 && !(block->users >> q->user & 1);
    }
}

/* What a sequence that ended outside of a turn would have published is covered by one block, and no
 * other: that has been used. */
static void note_cover(struct world *w, const struct lru_seq *q)
{
    struct lru *l = w->lru;
    const struct prefix *x = w->lru->index;
    const int32_t *ids = q->ids + (q->n_computed - q->n_slots);
    int32_t cover = -1, n_covers = 0;
    if (q->block < 0)
        return;
    for (int32_t b = 0; b < l->n_blocks; b++) {
        const struct prefix_node *node = &x->nodes[b];
        if (b == q->block || !is_findable(node->kind) || node->n_ids < q->n_slots ||
            !is_same_parent(node->parent, q->parent) ||
            memcmp(prefix_ids(x, b), ids, (size_t)q->n_slots * sizeof *ids) != 0)
            continue;
        cover = b;
        n_covers++;
    }
    if (n_covers == 1 && is_idle_since(w, cover))
        l->blocks[cover].from = l->blocks[cover].to = l->clock - 1;
}

/* The number of those that hold nothing any more. */
static int32_t find_gone(struct world *w)
{
    struct lru *l = w->lru;
    const struct list *running = &w->engine->sched.running;
    int32_t n = l->n_seqs;
    for (const struct list *at = running->next; at != running; at = at->next) {
        const struct gen *g = LIST_ITEM(at, const struct gen, in_order);
        for (int32_t i = 0; i < l->n_seqs; i++) {
            const struct seq *q = &g->seqs[l->seqs[i].branch];
            if (l->seqs[i].arrival != g->arrival)
                continue;
            l->seqs[i].is_there = q->state == SEQ_LIVE && q->table.n_blocks > 0;
            n -= l->seqs[i].is_there;
        }
    }
    return n;
}

/* Beams let go in the middle of a turn, and hold others then; branches that take the table of a
 * prompt may end with their first id. */
static void note_gone(struct world *w, enum lru_look look)
{
    int32_t n_gone = find_gone(w);
    for (int32_t i = 0; i < w->lru->n_seqs; i++) {
        const struct lru_seq *q = &w->lru->seqs[i];
        if (!q->is_there || look == LRU_FORK || (look == LRU_TURN && q->is_many))
            widen(w, q);
        if (!q->is_there && look == LRU_OPERATION && n_gone == 1)
            note_cover(w, q);
    }
}

/* ---- who went ----------------------------------------------------------------------------------- */

static bool is_new(const struct world *w, int32_t b)
{
    const struct lru_block *block = &w->lru->blocks[b];
    return block->kind != node_of(w, b)->kind || block->n_ids != node_of(w, b)->n_ids ||
           was_taken(w, b);
}

/* Something appeared behind the same parent, or grew there: a tail may have been dropped since that
 * covers it, instead of evicted. */
static bool has_new_sibling(const struct world *w, int32_t b)
{
    const struct lru *l = w->lru;
    for (int32_t o = 0; o < l->n_blocks; o++)
        if (is_findable(node_of(w, o)->kind) && is_new(w, o) &&
            is_same_parent(node_of(w, o)->parent, l->blocks[b].parent))
            return true;
    return false;
}

/* What was held in the look before may have covered a tail, and be gone itself by now. */
static bool was_held_one_taken(const struct world *w)
{
    for (int32_t b = 0; b < w->lru->n_blocks; b++)
        if (w->lru->blocks[b].is_held && was_taken(w, b))
            return true;
    return false;
}

static bool was_evicted(const struct world *w, int32_t b)
{
    const struct lru_block *block = &w->lru->blocks[b];
    if (!was_taken(w, b))
        return false;
    return block->kind == PREFIX_FULL || (block->kind == PREFIX_TAIL && !block->is_held &&
                                          !has_new_sibling(w, b) && !was_held_one_taken(w));
}

/* Unreferenced, findable and a leaf in both looks: it could have gone. */
static bool has_stayed(const struct world *w, int32_t b)
{
    const struct lru_block *block = &w->lru->blocks[b];
    return block->is_leaf && is_idle_since(w, b) && is_findable(node_of(w, b)->kind) &&
           block->n_children == 0;
}

static void check_evicted(struct world *w)
{
    struct lru *l = w->lru;
    int32_t oldest = -1, unwanted = -1, first = 0;
    while (first < l->n_blocks && !was_taken(w, first))
        first++;
    if (first == l->n_blocks)
        return;
    for (int32_t b = 0; b < l->n_blocks; b++) {
        if (!has_stayed(w, b))
            continue;
        if (oldest < 0 || l->blocks[b].to < l->blocks[oldest].to)
            oldest = b;
        if (is_unwanted(&l->blocks[b]))
            unwanted = b;
    }
    for (int32_t b = first; b < l->n_blocks && oldest >= 0; b++) {
        const struct lru_block *block = &l->blocks[b];
        if (!was_evicted(w, b) || !is_wanted(block))
            continue;
        if (block->from > l->blocks[oldest].to)
            world_fault(w, "E1 block %d, used at %lld, was evicted, %d, used at %lld, was not", b,
                        (long long)block->from, oldest, (long long)l->blocks[oldest].to);
        if (unwanted >= 0)
            world_fault(w, "E2 block %d was evicted, %d is of a conversation that is gone", b,
                        unwanted);
    }
}

static bool was_let_go(const struct world *w, int32_t b)
{
    const struct lru_block *block = &w->lru->blocks[b];
    return block->is_held && !block->is_held_now && !was_taken(w, b) &&
           is_findable(node_of(w, b)->kind) && w->lru->pool[b].stamp > 0;
}

/* Outside of a turn; what nobody wants any more has no stamp. */
static void check_released(struct world *w)
{
    const struct lru *l = w->lru;
    for (int32_t b = 0; b < l->n_blocks; b++) {
        int32_t parent = node_of(w, b)->parent.number;
        if (was_let_go(w, b) && parent >= 0 && was_let_go(w, parent) &&
            l->pool[parent].stamp < l->pool[b].stamp)
            world_fault(w, "E3 block %d was let go before %d, which hangs from it", parent, b);
    }
}

/* ---- noting ------------------------------------------------------------------------------------- */

static void note_block(struct world *w, int32_t b)
{
    struct lru *l = w->lru;
    struct lru_block *block = &l->blocks[b];
    uint32_t serial = l->pool[b].serial;
    if (serial != block->serial) {
        block->users = 0;
        block->is_shared = block->is_late = false;
        block->is_unknown = !block->is_held_now; /* it came and went */
        block->from = block->to = l->clock - 1;
    }
    if (block->is_held && !block->is_held_now)
        block->from = block->to = l->clock - 1;
    if (block->is_held_now)
        block->from = block->to = l->clock;
    block->serial = serial;
    block->kind = node_of(w, b)->kind;
    block->parent = node_of(w, b)->parent;
    block->n_ids = node_of(w, b)->n_ids;
    block->is_held = block->is_held_now;
    block->is_leaf = block->n_children == 0;
}

static void note_users(struct world *w)
{
    struct lru *l = w->lru;
    const struct plan *plan = w->toy.plan;
    const struct list *running = &w->engine->sched.running;
    for (const struct list *at = running->next; at != running; at = at->next) {
        const struct gen *g = LIST_ITEM(at, const struct gen, in_order);
        int32_t user = key_of(w, g);
        GEN_FOREACH_LIVE(g, q)
            for (int32_t j = 0; j < q->table.n_blocks; j++)
                use(&l->blocks[q->table.blocks[j]], user);
    }
    for (int32_t i = 0; plan && i < plan->n_copies; i++) {
        const struct lru_block *copy = &l->blocks[plan->copies[i].dst];
        if (copy->is_held)
            use(&l->blocks[plan->copies[i].src], copy->user);
    }
}

static void note_seq(struct world *w, const struct gen *g, const struct seq *q)
{
    struct lru *l = w->lru;
    const struct prefix *x = w->lru->index;
    const struct block_table *t = &q->table;
    int32_t j = t->computed / x->block_size, n = t->computed % x->block_size;
    if (l->n_seqs == l->seqs_cap)
        return; /* too many run: somebody else says so */
    struct lru_seq *s = &l->seqs[l->n_seqs++];
    *s = (struct lru_seq){.arrival = g->arrival,
                          .branch = q->branch,
                          .user = key_of(w, g),
                          .root = prefix_root_parent(x, t->root),
                          .is_many = g->beam || (g->n_live > 1 && gen_is_fresh(g)),
                          .n_ids = q->n_ids,
                          .block = -1};
    memcpy(s->ids, q->ids, (size_t)q->n_ids * sizeof *s->ids);
    if (n == 0 || j >= t->n_blocks || t->copying == j)
        return;
    const struct prefix_node *node = &x->nodes[t->blocks[j]];
    if (node->kind != PREFIX_NONE && !(node->kind == PREFIX_TAIL && node->n_ids < n))
        return;
    s->parent = block_table_parent(t, x, j);
    s->block = t->blocks[j];
    s->n_slots = n;
    s->n_computed = t->computed;
}

static void note_seqs(struct world *w)
{
    const struct list *running = &w->engine->sched.running;
    w->lru->n_seqs = 0;
    for (const struct list *at = running->next; at != running; at = at->next) {
        const struct gen *g = LIST_ITEM(at, const struct gen, in_order);
        GEN_FOREACH_LIVE(g, q)
            if (q->table.n_blocks > 0)
                note_seq(w, g, q);
    }
}

void check_lru(struct world *w, enum lru_look look)
{
    struct lru *l = w->lru;
    l->index = cache_index(w->engine->cache);
    l->pool = cache_blocks(w->engine->cache)->blocks;
    l->clock += 2;
    look_at_holders(w);
    note_gone(w, look);
    check_evicted(w);
    if (look == LRU_OPERATION)
        check_released(w);
    for (int32_t b = 0; b < l->n_blocks; b++)
        note_block(w, b);
    note_users(w);
    note_seqs(w);
}
