/* check.c - what must be true: after a turn, after every operation, of every output and end.
 *
 *   P1-P4, X1, X2, S0, S1, S4, S6   the engine's and the cache's own audit, and here again where the
 *                                   audit would have to trust what it audits
 *   S2   the K/V of every computed position is what the ids up to it say
 *   X1   so is that of every confirmed slot that the index can find
 *   X4   a sequence stands in the tree of its own namespace
 *   S4   nobody is admitted in a step that preempted; an arrival is kept
 *   S3   one end for each accepted generation; text in portions = text as a whole
 *   S5   the first in order advances in every step; nobody is preempted before one that stands
 *        behind; the engine is never without a step while there is work
 *   W2   nobody is admitted to compute what another has promised
 *   W3   what an admission finds is all that a search through every block finds
 *   W5   the head of the queue waits only when it does not fit by the rules */
#include <string.h>
#include "base/clock.h"
#include "cache/prefix.h"
#include "world.h"

/* ---- outputs and ends --------------------------------------------------------------------------- */

static bool is_text(const struct lone *l, int32_t from, struct bytes text)
{
    if (from + (int32_t)text.len > l->n_ids - l->n_prompt)
        return false;
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] != 'a' + l->ids[l->n_prompt + from + (int32_t)i] - 1)
            return false;
    return true;
}

void check_output(struct branch *b, const struct gen_output *output)
{
    struct world *w = b->world;
    bool is_over = b->gen->state == GEN_ENDED;
    if (b->finish != GEN_NONE)
        world_fault(w, "S3 output after the end");
    if (output->text.len == 0)
        world_fault(w, "S3 an output of nothing");
    if (!is_text(&b->lone, b->n_delivered, output->text))
        world_fault(w, "S3 the text of arrival %llu differs from the lone run at %d",
                    (unsigned long long)b->arrival, b->n_delivered);
    b->n_delivered += (int32_t)output->text.len;
    if (!is_over && b->n_delivered > b->lone.n_text)
        world_fault(w, "S3 a part of a stop string went out");
    if (output->n_ids != b->n_delivered)
        world_fault(w, "S3 %d ids are told for %d letters", output->n_ids, b->n_delivered);
}

/* The finish is one that somebody asked for, or the lone run's own. */
static bool is_due(const struct branch *b, enum gen_finish finish)
{
    if (finish == GEN_ERROR)
        return b->world->is_failing;
    if (finish == GEN_DEADLINE)
        return b->options.deadline_us > 0 && b->options.deadline_us <= clock_now_us();
    if (finish == GEN_STOP || finish == GEN_LENGTH)
        return finish == b->lone.finish;
    return finish == b->asked;
}

static void check_whole(struct branch *b, const struct gen_end *end)
{
    const struct lone *l = &b->lone;
    int32_t n_sampled = l->n_ids - l->n_prompt;
    if (end->n_ids != l->n_text || end->n_generated != n_sampled)
        world_fault(b->world, "S3 %d ids of %d sampled, the lone run has %d of %d", end->n_ids,
                    end->n_generated, l->n_text, n_sampled);
    if ((end->matched.data != NULL) != (l->n_text < n_sampled))
        world_fault(b->world, "S3 a stop string matched in one run only");
}

void check_end(struct branch *b, const struct gen_end *end)
{
    struct world *w = b->world;
    const struct lone *l = &b->lone;
    bool by_itself = end->finish == GEN_STOP || end->finish == GEN_LENGTH;
    if (b->finish != GEN_NONE)
        world_fault(w, "S3 a second end");
    if (!is_due(b, end->finish))
        world_fault(w, "S3 ended by %s, asked %s, the lone run by %s", gen_finish_name(end->finish),
                    gen_finish_name(b->asked), gen_finish_name(l->finish));
    if (end->n_ids > l->n_ids - l->n_prompt ||
        memcmp(end->ids, l->ids + l->n_prompt, (size_t)end->n_ids * sizeof *end->ids) != 0)
        world_fault(w, "S1 the ids of the end differ from the lone run");
    if ((int32_t)end->text.len != end->n_ids || !is_text(l, 0, end->text))
        world_fault(w, "S3 the text of the end differs from its ids");
    if (by_itself)
        check_whole(b, end);
    if (b->n_delivered != (end->n_ids > b->n_resumed ? end->n_ids : b->n_resumed))
        world_fault(w, "S3 %d letters went out, the end has %d", b->n_delivered, end->n_ids);
    if (end->n_prompt != l->n_prompt || end->n_cached > l->n_prompt || end->unfinished.len > 0)
        world_fault(w, "S3 the end counts %d cached of %d", end->n_cached, end->n_prompt);
}

/* ---- after a turn ------------------------------------------------------------------------------- */

void check_note(struct world *w)
{
    struct cache_stats stats = {0};
    if (w->cache)
        cache_stats(w->cache, &stats);
    w->n_given_up = stats.copies_given_up;
    for (int32_t i = 0; i < w->n_live; i++) {
        struct branch *b = w->live[i];
        b->was_there = true;
        b->was_running = b->gen->state == GEN_RUNNING;
        b->n_preempted_before = b->gen->n_preempted;
    }
}

static void check_advance(struct world *w)
{
    const struct gen *top = NULL;
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct gen *g = w->live[i]->gen;
        if (g->state == GEN_RUNNING && (!top || gen_precedes(g, top)))
            top = g;
    }
    if (top && top->seqs[0].n_planned == 0 && !w->has_cancelled)
        world_fault(w, "S5 arrival %llu is the first in order and got no row",
                    (unsigned long long)top->arrival);
}

static void check_victims(struct world *w)
{
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct branch *victim = w->live[i];
        if (!victim->was_there || victim->gen->n_preempted == victim->n_preempted_before)
            continue;
        for (int32_t k = 0; k < w->n_live; k++) {
            const struct gen *other = w->live[k]->gen;
            if (other->state == GEN_RUNNING && gen_precedes(victim->gen, other))
                world_fault(w, "S5 arrival %llu was preempted, %llu behind it runs on",
                            (unsigned long long)victim->arrival,
                            (unsigned long long)other->arrival);
        }
    }
}

/* Nobody comes in while somebody had to go, and nobody waits for a leader behind its own rank. */
static void check_order(struct world *w, bool was_launched)
{
    const struct branch *victim = NULL, *admitted = NULL;
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct branch *b = w->live[i];
        const struct gen *g = b->gen;
        if (b->was_there && g->n_preempted > b->n_preempted_before)
            victim = b;
        if (b->was_there && !b->was_running && g->state == GEN_RUNNING)
            admitted = b;
        if (!was_launched || g->state != GEN_QUEUED || !g->waits_for.promised_by ||
            !cache_is_promised(w->cache, &g->waits_for))
            continue;
        const struct gen *leader = g->waits_for.promised_by->who;
        if (gen_rank(leader) < g->priority)
            world_fault(w, "S5 arrival %llu of priority %d waits for a leader of %d",
                        (unsigned long long)g->arrival, g->priority, gen_rank(leader));
    }
    if (victim && admitted)
        world_fault(w, "S4 arrival %llu was admitted in the step that preempted %llu",
                    (unsigned long long)admitted->arrival, (unsigned long long)victim->arrival);
}

/* Rows of a step: within the budget, chunks within theirs and cut at the ends of blocks. */
static void check_budget(struct world *w)
{
    const struct plan *plan = w->toy.plan;
    int32_t n_samples = 0;
    if (plan->n_rows > w->config.budget)
        world_fault(w, "S5 a step of %d rows, the budget is %d", plan->n_rows, w->config.budget);
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct plan_seq *q = &plan->seqs[i];
        int32_t last = q->first_row + q->n_rows - 1;
        bool is_sampled = n_samples < plan->n_samples && plan->samples[n_samples].row == last;
        n_samples += is_sampled;
        if (q->n_rows > w->config.chunk)
            world_fault(w, "S5 a chunk of %d rows, max-chunk is %d", q->n_rows, w->config.chunk);
        if (!is_sampled && (q->position + q->n_rows) % w->config.block_size != 0)
            world_fault(w, "S5 a chunk ends at %d, inside a block", q->position + q->n_rows);
    }
    if (n_samples != plan->n_samples)
        world_fault(w, "S5 %d samples, %d belong to a sequence", plan->n_samples, n_samples);
}

/* The block that a newly admitted one computes first is promised by nobody else, the last of its
 * prompt aside. */
static void check_leader(struct world *w, const struct branch *b)
{
    const struct gen *g = b->gen;
    const struct prefix *x = cache_index(w->cache);
    int32_t j = g->seqs[0].table.n_confirmed, size = w->config.block_size;
    if ((j + 1) * size > g->seqs[0].n_ids - 1)
        return;
    struct prefix_parent parent = block_table_parent(&g->seqs[0].table, x, j);
    for (int32_t c = 0; c < w->config.n_blocks; c++) {
        const struct prefix_node *node = &x->nodes[c];
        if (node->kind == PREFIX_PROMISED && node->owner != &g->promises &&
            node->parent.number == parent.number && node->parent.serial == parent.serial &&
            memcmp(prefix_ids(x, c), g->seqs[0].ids + j * size, (size_t)size * sizeof(int32_t)) ==
                0)
            world_fault(w, "W2 arrival %llu computes block %d, which is promised",
                        (unsigned long long)g->arrival, j);
    }
}

/* What a search through every block finds: by tokens and parents alone, without any hash. */
struct search {
    int32_t n_hits, n_idle; /* full blocks, of them unreferenced */
    int32_t n_run;          /* tokens of the longest run behind them */
    int32_t n_siblings;     /* looked at for that */
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

static struct search search(const struct world *w, const struct gen *g)
{
    const struct prefix *x = cache_index(w->cache);
    const struct pool *pool = cache_blocks(w->cache);
    const struct seq *q = &g->seqs[0];
    int32_t size = w->config.block_size, at = 0;
    struct search found = {0};
    struct prefix_parent parent = prefix_root_parent(x, q->table.root);
    for (int32_t b; at + size < q->n_ids; at += size) {
        if ((b = find_full(w, parent, q->ids + at)) < 0)
            break;
        found.n_hits++;
        found.n_idle += !pool_is_held(pool, b);
        parent = prefix_block_parent(x, b);
    }
    find_run(w, parent, q->ids + at, q->n_ids - 1 - at, &found);
    return found;
}

/* Callbacks may have published since: then the run may be longer now. A copy may be given up. */
static void check_found(struct world *w, const struct branch *b, bool is_copy_given_up)
{
    const struct block_table *t = &b->gen->seqs[0].table;
    struct search found = search(w, b->gen);
    if (t->n_confirmed != found.n_hits)
        world_fault(w, "W3 arrival %llu found %d blocks, there are %d",
                    (unsigned long long)b->arrival, t->n_confirmed, found.n_hits);
    if (t->ahead != found.n_run && !w->has_published && !is_copy_given_up &&
        found.n_siblings <= PREFIX_KIN_MAX)
        world_fault(w, "W3 arrival %llu copies %d tokens, there are %d",
                    (unsigned long long)b->arrival, t->ahead, found.n_run);
}

static void check_head(struct world *w)
{
    const struct branch *head = NULL;
    struct engine_stats stats;
    int32_t size = w->config.block_size;
    engine_stats(w->engine, &stats);
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct branch *b = w->live[i];
        const struct gen *g = b->gen;
        if (b->was_there && g->n_preempted > b->n_preempted_before)
            return; /* a step that preempted admits nobody */
        if (b->was_there && g->state == GEN_QUEUED && !g->waits_for.promised_by &&
            (!head || gen_precedes(g, head->gen)))
            head = b;
    }
    if (!head || stats.running >= w->config.max_running || w->has_cancelled)
        return;
    const struct gen *g = head->gen;
    struct search found = search(w, g);
    bool is_waived = g->was_passed && g->n_preempted == 0;
    int32_t n_new = (g->seqs[0].n_ids + size - 1) / size - found.n_hits;
    int32_t keep = (is_waived ? 0 : 2 * stats.running) + (g->seqs[0].n_ids % size == 0);
    int32_t available = stats.free_blocks + stats.cached_blocks - found.n_idle;
    if (n_new + keep <= available)
        world_fault(w, "W5 arrival %llu waits: it needs %d and leaves %d, %d are available",
                    (unsigned long long)head->arrival, n_new, keep, available);
}

/* Rows of a step go into blocks that one table names at most, each slot once. */
static void check_targets(struct world *w)
{
    const struct plan *plan = w->toy.plan;
    const struct pool *pool = cache_blocks(w->cache);
    for (int32_t row = 0; row < plan->n_rows; row++) {
        int32_t block = plan->slots[row] / w->config.block_size;
        if (pool->blocks[block].n_tables > 1)
            world_fault(w, "P4 block %d is written, %d tables name it", block,
                        pool->blocks[block].n_tables);
        for (int32_t other = 0; other < row; other++)
            if (plan->slots[other] == plan->slots[row])
                world_fault(w, "P4 slot %d is written twice in a step", plan->slots[row]);
    }
}

void check_turn(struct world *w, uint64_t n_steps_before)
{
    bool was_launched = w->toy.n_steps > n_steps_before;
    struct cache_stats stats = {0};
    if (w->cache)
        cache_stats(w->cache, &stats);
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct branch *b = w->live[i];
        if (b->was_there && !w->toy.plan)
            world_fault(w, "S5 no step runs, and arrival %llu waits",
                        (unsigned long long)b->arrival);
        if (b->options.deadline_us > 0 && b->options.deadline_us <= clock_now_us())
            world_fault(w, "S3 arrival %llu is past its deadline", (unsigned long long)b->arrival);
        if (was_launched && b->was_there && !b->was_running && b->gen->state == GEN_RUNNING) {
            check_leader(w, b);
            check_found(w, b, stats.copies_given_up > w->n_given_up);
        }
    }
    if (w->cache)
        check_order(w, was_launched);
    if (was_launched)
        check_budget(w);
    if (!was_launched || w->n_live == 0)
        return;
    check_advance(w);
    check_victims(w);
    check_head(w);
    check_targets(w);
}

/* ---- after every operation ---------------------------------------------------------------------- */

/* S2, and the rest of S1 that the engine cannot know. */
static void check_branch(struct world *w, const struct branch *b)
{
    const struct seq *q = &b->gen->seqs[0];
    const struct block_table *t = &q->table;
    const struct prefix *x = cache_index(w->cache);
    int32_t size = w->config.block_size;
    if (q->n_ids > b->lone.n_ids ||
        memcmp(q->ids, b->lone.ids, (size_t)q->n_ids * sizeof *q->ids) != 0)
        world_fault(w, "S1 token differs from the lone run: arrival %llu, one of %d ids",
                    (unsigned long long)b->arrival, q->n_ids);
    if (b->gen->arrival != b->arrival)
        world_fault(w, "S4 arrival %llu became %llu", (unsigned long long)b->arrival,
                    (unsigned long long)b->gen->arrival);
    if (!cache_namespace_equal(&x->roots[t->root].ns, &b->ns))
        world_fault(w, "X4 user %llu stands in the tree of %llu", (unsigned long long)b->ns.user,
                    (unsigned long long)x->roots[t->root].ns.user);
    for (int32_t p = 0; p < t->computed && p < b->lone.n_ids; p++)
        if (p / size != t->copying &&
            w->toy.slots[t->blocks[p / size] * size + p % size] != b->lone.slots[p])
            world_fault(w, "S2 K/V of arrival %llu differs at position %d",
                        (unsigned long long)b->arrival, p);
}

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
    for (int32_t i = 0; i < w->n_live; i++)
        check_branch(w, w->live[i]);
}
