/* check_admit.c - who is admitted, and who must wait, by a search through every block.
 *
 *   W2  nobody is admitted to compute what another has promised
 *   W3  what an admission finds is all that there is: full blocks, then the longest run to copy; what
 *       it has in host memory goes on behind the blocks that it finds
 *   W5  the head of the queue waits only when it does not fit by the rules
 *   W6  what is admitted leaves what the rules say: the reserve for those that run, room for the next
 *       token of each of its own branches */
#include <string.h>
#include "cache/prefix.h"
#include "world.h"

/* ---- searching ---------------------------------------------------------------------------------- */

/* What a search finds by tokens and parents alone, without any hash. */
struct search {
    int32_t hits[LONE_MAX_IDS]; /* [n_hits] full blocks */
    int32_t n_hits;
    int32_t n_run;      /* tokens of the longest run behind them */
    int32_t n_siblings; /* looked at for that */
};

static bool is_child(const struct prefix *x, int32_t b, struct prefix_parent parent)
{
    const struct prefix_node *node = &x->nodes[b];
    return (node->kind == PREFIX_FULL || node->kind == PREFIX_TAIL) &&
           node->parent.number == parent.number && node->parent.serial == parent.serial;
}

static int32_t find_full(const struct world *w, struct prefix_parent parent, const int32_t *ids)
{
    const struct prefix *x = cache_index(w->cache);
    for (int32_t b = 0; b < w->config.n_blocks; b++)
        if (is_child(x, b, parent) && x->nodes[b].kind == PREFIX_FULL &&
            memcmp(prefix_ids(x, b), ids, (size_t)x->block_size * sizeof *ids) == 0)
            return b;
    return -1;
}

static void find_run(const struct world *w, struct prefix_parent parent, const int32_t *ids,
                     int32_t n, struct search *found)
{
    const struct prefix *x = cache_index(w->cache);
    for (int32_t b = 0; b < w->config.n_blocks; b++) {
        int32_t run = 0;
        if (!is_child(x, b, parent))
            continue;
        while (run < n && run < x->nodes[b].n_ids && prefix_ids(x, b)[run] == ids[run])
            run++;
        found->n_siblings++;
        if (run > found->n_run)
            found->n_run = run;
    }
}

/* Rows that owe log-probabilities of the prompt must be computed: what is found ends before them. */
static int32_t n_findable(const struct seq *q)
{
    const struct prompt_rows *p = &q->gen->prompt_rows;
    return p->rows && p->n_known < q->gen->n_prompt ? p->n_known : q->n_ids;
}

static void search(const struct world *w, const struct seq *q, struct search *found)
{
    const struct prefix *x = cache_index(w->cache);
    int32_t size = w->config.block_size, at = 0, n = n_findable(q);
    struct prefix_parent parent = prefix_root_parent(x, q->table.root);
    found->n_hits = found->n_run = found->n_siblings = 0;
    for (int32_t b; at + size < n; at += size) {
        if ((b = find_full(w, parent, q->ids + at)) < 0)
            break;
        found->hits[found->n_hits++] = b;
        parent = prefix_block_parent(x, b);
    }
    find_run(w, parent, q->ids + at, n - 1 - at, found);
}

/* ---- what a group takes together ---------------------------------------------------------------- */

/* The branches that hold blocks when it is admitted: as long as none has made a token, the first. */
struct seats {
    const struct seq *seqs[ENGINE_MAX_BRANCHES];
    struct search found[ENGINE_MAX_BRANCHES];
    int32_t n, n_common; /* n_common: leading blocks that all of them name */
};

static void take_seats(const struct world *w, const struct group *g, struct seats *s)
{
    int32_t size = w->config.block_size;
    bool is_fresh = group_is_fresh(g);
    s->n = 0;
    s->n_common = g->n_prompt / size;
    GEN_FOREACH_LIVE(g->gen, q) {
        if (is_fresh && s->n > 0)
            break;
        s->seqs[s->n] = q;
        search(w, q, &s->found[s->n]);
        if (s->n_common > (q->n_ids - 1) / size)
            s->n_common = (q->n_ids - 1) / size;
        s->n++;
    }
    if (s->n == 1)
        s->n_common = 0;
}

static int32_t count_new(const struct world *w, const struct seats *s)
{
    int32_t size = w->config.block_size, n_new = 0;
    for (int32_t i = 0; i < s->n; i++) {
        int32_t from = s->found[i].n_hits;
        if (i > 0 && from < s->n_common)
            from = s->n_common;
        n_new += (s->seqs[i]->n_ids + size - 1) / size - from;
    }
    return n_new;
}

/* Blocks that it finds and that are available to others: each once. */
static int32_t count_idle(const struct world *w, const struct seats *s)
{
    const struct pool *pool = cache_blocks(w->cache);
    int32_t n_idle = 0;
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t j = 0; j < s->found[i].n_hits; j++) {
            bool is_counted = pool_is_held(pool, s->found[i].hits[j]);
            for (int32_t k = 0; k < i && !is_counted; k++)
                is_counted = j < s->found[k].n_hits && s->found[k].hits[j] == s->found[i].hits[j];
            n_idle += !is_counted;
        }
    return n_idle;
}

static int32_t count_running(const struct world *w, const struct gen *but)
{
    int32_t n = 0;
    for (int32_t i = 0; i < w->n_live; i++)
        if (w->live[i]->gen != but && w->live[i]->gen->state == GEN_RUNNING)
            n += w->live[i]->gen->n_live;
    return n;
}

/* Blocks for the next token of each branch, and the reserve for those that run: two each, one where a
 * victim costs copies only; none where it had to wait for a promise. */
static int32_t count_keep(const struct world *w, const struct group *group)
{
    const struct gen *g = group->gen;
    int32_t size = w->config.block_size, n_own = 0;
    int32_t reserve = w->config.swaps && w->config.n_slots > 0 ? 1 : 2;
    bool is_waived = g->was_passed && g->n_preempted == 0;
    GEN_FOREACH_LIVE(g, q)
        n_own += q->n_ids % size == 0;
    if (group_is_fresh(group) && g->n_prompt % size != 0)
        n_own += g->n_live - 1;
    return n_own + (is_waived ? 0 : reserve * count_running(w, g));
}

/* ---- admitted ----------------------------------------------------------------------------------- */

/* Block j of the sequence is promised by another group, and not the one that holds its last token. */
static bool meets_promise(const struct world *w, const struct gen *g, const struct seq *q,
                          int32_t j, struct prefix_parent parent)
{
    const struct prefix *x = cache_index(w->cache);
    int32_t size = w->config.block_size;
    if ((j + 1) * size > n_findable(q) - 1)
        return false;
    for (int32_t c = 0; c < w->config.n_blocks; c++) {
        const struct prefix_node *node = &x->nodes[c];
        if (node->kind == PREFIX_PROMISED && node->owner != &g->promises &&
            node->parent.number == parent.number && node->parent.serial == parent.serial &&
            memcmp(prefix_ids(x, c), q->ids + j * size, (size_t)size * sizeof(int32_t)) == 0)
            return true;
    }
    return false;
}

/* Whoever owes log-probabilities promises nothing: others may do so behind its back. */
static void check_leader(struct world *w, const struct gen *g, const struct seq *q)
{
    int32_t j = q->table.n_confirmed;
    if (n_findable(q) < q->n_ids)
        return;
    if (meets_promise(w, g, q, j, block_table_parent(&q->table, cache_index(w->cache), j)))
        world_fault(w, "W2 arrival %llu computes block %d, which is promised",
                    (unsigned long long)g->arrival, j);
}

/* Callbacks may have published since: then the run may be longer now. A copy may be given up. */
static void check_seat(struct world *w, const struct group *g, const struct seats *s, int32_t i,
                       bool is_copy_given_up)
{
    const struct block_table *t = &s->seqs[i]->table;
    const struct search *found = &s->found[i];
    int32_t n_saved = g->branches[s->seqs[i]->branch].n_saved;
    int32_t n_hit = found->n_hits * w->config.block_size, ahead = found->n_run;
    bool is_known = !w->has_published && !is_copy_given_up && found->n_siblings <= PREFIX_KIN_MAX;
    if (t->n_confirmed != found->n_hits)
        world_fault(w, "W3 arrival %llu found %d blocks, there are %d",
                    (unsigned long long)g->arrival, t->n_confirmed, found->n_hits);
    if (n_saved > 0) {
        ahead = n_saved > n_hit ? n_saved - n_hit : 0;
        is_known = !w->has_failed; /* a step that fails loses what it was copying out */
    } else if (i > 0 && found->n_hits < s->n_common) {
        ahead = 0; /* comes with the first */
    }
    if (t->ahead != ahead && is_known)
        world_fault(w, "W3 arrival %llu copies %d tokens, there are %d",
                    (unsigned long long)g->arrival, t->ahead, ahead);
    if (n_saved == 0)
        check_leader(w, g->gen, s->seqs[i]);
}

void check_admitted(struct world *w, const struct group *g, bool is_copy_given_up)
{
    static struct seats s;
    take_seats(w, g, &s);
    for (int32_t i = 0; i < s.n; i++)
        check_seat(w, g, &s, i, is_copy_given_up);
}

/* ---- the queue ---------------------------------------------------------------------------------- */

/* The last one that was admitted has left what it had to. */
static void check_left(struct world *w, const struct engine_stats *stats)
{
    const struct group *last = NULL;
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct group *g = w->live[i];
        if (group_was_admitted(g) && (!last || group_stood_before(last, g)))
            last = g;
    }
    if (!last)
        return;
    int32_t keep = count_keep(w, last);
    if (stats->free_blocks + stats->cached_blocks < keep)
        world_fault(w, "W6 arrival %llu was admitted and leaves %d blocks of %d",
                    (unsigned long long)last->arrival, stats->free_blocks + stats->cached_blocks,
                    keep);
}

/* The first of the queue, or the one behind `before`. */
static const struct group *next_queued(const struct world *w, const struct group *before)
{
    const struct group *next = NULL;
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct group *g = w->live[i];
        if (g->was_there && g->gen->state == GEN_QUEUED &&
            (!before || gen_precedes(before->gen, g->gen)) &&
            (!next || gen_precedes(g->gen, next->gen)))
            next = g;
    }
    return next;
}

/* It is passed over: the next block of one of its branches is promised. */
static bool must_wait(const struct world *w, const struct seats *s, const struct gen *g)
{
    const struct prefix *x = cache_index(w->cache);
    for (int32_t i = 0; i < s->n; i++) {
        const struct search *found = &s->found[i];
        const struct seq *q = s->seqs[i];
        struct prefix_parent parent = found->n_hits > 0
                                          ? prefix_block_parent(x, found->hits[found->n_hits - 1])
                                          : prefix_root_parent(x, q->table.root);
        if (q->table.n_slots == 0 && meets_promise(w, g, q, found->n_hits, parent))
            return true;
    }
    return false;
}

/* The first in the queue that is not passed over, and what it would take. */
static const struct group *find_head(const struct world *w, struct seats *s)
{
    for (int32_t i = 0; i < w->n_live; i++)
        if (group_was_preempted(w->live[i]))
            return NULL; /* a step that preempted admits nobody */
    const struct group *head = next_queued(w, NULL);
    for (; head; head = next_queued(w, head)) {
        take_seats(w, head, s);
        if (!must_wait(w, s, head->gen))
            return head;
    }
    return NULL;
}

void check_queue(struct world *w)
{
    static struct seats s;
    struct engine_stats stats;
    engine_stats(w->engine, &stats);
    check_left(w, &stats);
    if (w->has_cancelled || count_running(w, NULL) >= w->config.max_running)
        return;
    const struct group *head = find_head(w, &s);
    if (!head || count_running(w, NULL) + head->gen->n_live > w->config.max_running)
        return;
    int32_t n_new = count_new(w, &s), keep = count_keep(w, head);
    int32_t available = stats.free_blocks + stats.cached_blocks - count_idle(w, &s);
    if (n_new + keep <= available)
        world_fault(w, "W5 arrival %llu waits: it needs %d and leaves %d, %d are available",
                    (unsigned long long)head->arrival, n_new, keep, available);
}
