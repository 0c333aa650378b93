/* check_turn.c - what must be true after a turn of the engine.
 *
 *   S3  nobody is past its deadline
 *   S4  nobody is admitted in a step that preempted, nor past one that stands before it; nobody waits
 *       for a leader that stands behind its own rank
 *   S5  the engine is never without a step while there is work; the first in order advances in every
 *       step, but for one in which its blocks are still being copied out; so does every branch that
 *       has nothing but its next token to compute; nobody is preempted before one that stands behind;
 *       a step keeps to its budget, a group to its chunk, a chunk ends with a block
 *   P4  what a step writes is in no other group's table, findable by nobody, and written once; what
 *       it copies out is not written */
#include <string.h>
#include "base/clock.h"
#include "cache/prefix.h"
#include "world.h"

void check_note(struct world *w)
{
    struct cache_stats stats = {0};
    if (w->cache)
        cache_stats(w->cache, &stats);
    w->n_given_up = stats.copies_given_up;
    for (int32_t i = 0; i < w->n_live; i++) {
        struct group *g = w->live[i];
        g->was_there = true;
        g->was_running = g->gen->state == GEN_RUNNING;
        g->rank_before = gen_rank(g->gen);
        g->n_preempted_before = g->gen->n_preempted;
        for (int32_t k = 0; k < g->n_branches; k++)
            g->branches[k].n_saved = g->gen->seqs[k].table.saved;
    }
}

/* ---- S5: everybody advances --------------------------------------------------------------------- */

/* Rows of this step, or blocks that come from the host. */
static bool is_advancing(const struct gen *g)
{
    GEN_FOREACH_LIVE(g, q)
        if (q->n_planned > 0 || q->table.ahead > 0)
            return true;
    return false;
}

/* It came back in this step, and all that its beams have to compute was found: their next tokens are
 * for the step behind this. */
static bool has_all_but_last(const struct group *g)
{
    return g->beam && group_was_admitted(g);
}

/* Whoever preempts by copying waits for the copies in that step, and for no other. */
static void check_first(struct world *w)
{
    struct group *top = NULL;
    for (int32_t i = 0; i < w->n_live; i++) {
        struct group *g = w->live[i];
        if (g->gen->state == GEN_RUNNING && (!top || gen_precedes(g->gen, top->gen)))
            top = g;
    }
    for (int32_t i = 0; i < w->n_live; i++)
        if (w->live[i] != top)
            w->live[i]->n_passed = 0;
    if (!top)
        return;
    if (is_advancing(top->gen) || w->has_cancelled || has_all_but_last(top))
        top->n_passed = 0;
    else if (w->toy.plan->n_outs == 0 || ++top->n_passed > 1)
        world_fault(w, "S5 arrival %llu is the first in order and got no row",
                    (unsigned long long)top->arrival);
}

static bool wants_one_token(const struct seq *q)
{
    return q->n_ids > q->gen->n_prompt && q->table.computed == q->n_ids - 1;
}

static void check_decodes(struct world *w, const struct group *g)
{
    bool all = true;
    if (!g->was_running || g->gen->state != GEN_RUNNING || w->toy.plan->n_outs > 0)
        return;
    GEN_FOREACH_LIVE(g->gen, q)
        all &= wants_one_token(q);
    GEN_FOREACH_LIVE(g->gen, q)
        if (wants_one_token(q) && q->n_planned == 0 && (all || !g->beam))
            world_fault(w, "S5 branch %d of arrival %llu got no row for its next token", q->branch,
                        (unsigned long long)g->arrival);
    GEN_FOREACH_LIVE(g->gen, q)
        if (g->beam && !all && wants_one_token(q) && q->n_planned > 0)
            world_fault(w, "S5 a beam of arrival %llu goes on without the others",
                        (unsigned long long)g->arrival);
}

/* ---- S4, S5: order ------------------------------------------------------------------------------ */

static void check_victims(struct world *w)
{
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct group *victim = w->live[i];
        if (!group_was_preempted(victim))
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

/* Promises aside: whoever waits for one is passed over. */
static void check_passed(struct world *w, const struct group *admitted)
{
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct group *g = w->live[i];
        if (g->was_there && g->gen->state == GEN_QUEUED && !group_waits_for_promise(g) &&
            group_stood_before(g, admitted) && !w->has_cancelled)
            world_fault(w, "S4 arrival %llu was admitted, %llu before it waits",
                        (unsigned long long)admitted->arrival, (unsigned long long)g->arrival);
        if (group_was_preempted(g))
            world_fault(w, "S4 arrival %llu was admitted in the step that preempted %llu",
                        (unsigned long long)admitted->arrival, (unsigned long long)g->arrival);
    }
}

/* Nobody waits for a leader that stands behind its own rank. */
static void check_leader_rank(struct world *w, const struct group *g)
{
    if (g->gen->state != GEN_QUEUED || !group_waits_for_promise(g))
        return;
    const struct gen *leader = g->gen->waits_for.promised_by->who;
    if (gen_rank(leader) < g->gen->priority)
        world_fault(w, "S5 arrival %llu of priority %d waits for a leader of %d",
                    (unsigned long long)g->arrival, g->gen->priority, gen_rank(leader));
}

/* ---- S5: the budget ----------------------------------------------------------------------------- */

struct planned {
    int32_t n_rows, n_samples;
};

/* Cut at the end of a block, unless all is done: for a beam, all but the token that all its rows take
 * at once. Rows that tell of the prompt end where the samples of a step do. */
static void check_rows(struct world *w, const struct group *g, const struct seq *q)
{
    bool tells = g->gen->prompt_rows.rows != NULL;
    int32_t end = q->table.computed + q->table.ahead + q->n_planned;
    int32_t last = g->beam && q->n_ids > g->n_prompt ? q->n_ids - 1 : q->n_ids;
    if (end != q->n_ids && end != last && end % w->config.block_size != 0 && !tells)
        world_fault(w, "S5 a chunk ends at %d, inside a block", end);
}

/* Log-probabilities of the prompt's ids that it asks for with these rows: row p tells id p + 1. */
static int32_t n_told(const struct group *g, const struct seq *q)
{
    const struct prompt_rows *p = &g->gen->prompt_rows;
    int32_t at = q->table.computed + q->table.ahead, n = 0;
    if (!p->rows || q != gen_next_live(g->gen, NULL))
        return 0;
    for (int32_t row = at; row < at + q->n_planned; row++)
        n += row + 1 >= p->n_known && row + 1 < g->n_prompt;
    return n;
}

static void add_planned(struct world *w, const struct group *g, struct planned *all)
{
    int32_t n_chunk = 0;
    bool is_fresh = group_is_fresh(g);
    GEN_FOREACH_LIVE(g->gen, q) {
        if (q->n_planned == 0)
            continue;
        bool is_last = q->table.computed + q->table.ahead + q->n_planned == q->n_ids;
        check_rows(w, g, q);
        all->n_rows += q->n_planned;
        all->n_samples += !is_last ? 0 : is_fresh && !g->beam ? g->gen->n_live : 1;
        all->n_samples += n_told(g, q);
        n_chunk += q->is_decoding ? 0 : q->n_planned;
    }
    if (n_chunk > w->config.chunk)
        world_fault(w, "S5 a chunk of %d rows, max-chunk is %d", n_chunk, w->config.chunk);
}

static void check_budget(struct world *w)
{
    const struct plan *plan = w->toy.plan;
    struct planned all = {0};
    for (int32_t i = 0; i < w->n_live; i++)
        if (w->live[i]->gen->state == GEN_RUNNING)
            add_planned(w, w->live[i], &all);
    if (plan->n_rows > w->config.budget)
        world_fault(w, "S5 a step of %d rows, the budget is %d", plan->n_rows, w->config.budget);
    if (w->n_live > 0 && !w->has_cancelled &&
        (all.n_rows != plan->n_rows || all.n_samples != plan->n_samples))
        world_fault(w, "S5 a step of %d rows and %d samples, planned were %d and %d", plan->n_rows,
                    plan->n_samples, all.n_rows, all.n_samples);
}

/* Rows that a branch could have in this step, those it got included. */
static int32_t n_wanted(const struct world *w, const struct group *g, const struct seq *q)
{
    const struct block_table *t = &q->table;
    int32_t last = g->beam && q->n_ids > g->n_prompt ? q->n_ids - 1 : q->n_ids;
    bool is_lead = q == gen_next_live(g->gen, NULL);
    if (q->is_decoding || t->n_blocks == 0)
        return 0;
    if (!is_lead && t->computed + t->ahead < g->gen->n_common * w->config.block_size)
        return 0;
    return last - t->computed - t->ahead;
}

/* What is left of the budget, once everybody had a share: less than a block, or nobody who runs could
 * use it. */
static void check_leftover(struct world *w)
{
    int32_t size = w->config.block_size;
    if (w->config.budget - w->toy.plan->n_rows < size)
        return;
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct group *g = w->live[i];
        int32_t n_lacking = 0, n_planned = 0;
        if (g->gen->state != GEN_RUNNING || g->gen->prompt_rows.rows)
            continue;
        GEN_FOREACH_LIVE(g->gen, q) {
            int32_t n = n_wanted(w, g, q);
            n_lacking += n > 0 ? n - q->n_planned : 0;
            n_planned += q->is_decoding ? 0 : q->n_planned;
        }
        if (n_lacking > 0 && n_planned + size <= w->config.chunk)
            world_fault(w, "S5 a step of %d rows of %d, arrival %llu lacks %d", w->toy.plan->n_rows,
                        w->config.budget, (unsigned long long)g->arrival, n_lacking);
    }
}

/* Where two blocks or more are left behind the decodes, the prompt with the fewest tokens left is one
 * of those that get some. */
static void check_shortest(struct world *w)
{
    const struct group *shortest = NULL;
    int32_t least = 0, n_got = 0, n_prompts = 0, left = w->config.budget;
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct group *g = w->live[i];
        int32_t n = 0;
        GEN_FOREACH_LIVE(g->gen, q) {
            left -= q->is_decoding ? q->n_planned : 0;
            n += g->gen->state == GEN_RUNNING ? n_wanted(w, g, q) : 0;
        }
        n_prompts += n > 0;
        if (n > 0 &&
            (!shortest || n < least || (n == least && gen_precedes(g->gen, shortest->gen)))) {
            shortest = g;
            least = n;
        }
    }
    if (n_prompts < 2 || left < 2 * w->config.block_size || w->has_cancelled ||
        shortest->gen->prompt_rows.rows)
        return;
    GEN_FOREACH_LIVE(shortest->gen, q)
        n_got += q->is_decoding ? 0 : q->n_planned;
    if (n_got == 0)
        world_fault(w, "S5 arrival %llu lacks %d rows only and got none",
                    (unsigned long long)shortest->arrival, least);
}

/* ---- P4: what a step writes --------------------------------------------------------------------- */

/* All entries that name the block are of one group, of what its first branch computes for all. */
static bool is_common(const struct world *w, int32_t block)
{
    const struct gen *owner = NULL;
    int32_t n_tables = 0;
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct gen *g = w->live[i]->gen;
        for (int32_t k = 0; k < g->n_seqs && g->state == GEN_RUNNING; k++)
            for (int32_t j = 0; j < g->seqs[k].table.n_blocks && j < g->n_common; j++)
                if (g->seqs[k].table.blocks[j] == block && (!owner || owner == g)) {
                    owner = g;
                    n_tables++;
                }
    }
    return n_tables == cache_blocks(w->cache)->blocks[block].n_tables;
}

static void check_target(struct world *w, int32_t block, const char *what)
{
    int32_t n_tables = cache_blocks(w->cache)->blocks[block].n_tables;
    if (n_tables > 1 && !is_common(w, block))
        world_fault(w, "P4 block %d is %s, %d tables name it", block, what, n_tables);
}

/* A whole block arrives: nobody finds it yet, and nothing else of the step touches it. */
static void check_arriving(struct world *w, int32_t block, const char *what)
{
    const struct plan *plan = w->toy.plan;
    uint8_t kind = cache_index(w->cache)->nodes[block].kind;
    int32_t n = 0;
    check_target(w, block, what);
    if (kind == PREFIX_FULL || kind == PREFIX_TAIL)
        world_fault(w, "P4 block %d is %s, and is findable", block, what);
    for (int32_t i = 0; i < plan->n_ins; i++)
        n += plan->ins[i].block == block;
    for (int32_t i = 0; i < plan->n_copies; i++)
        n += plan->copies[i].dst == block;
    for (int32_t i = 0; i < plan->n_outs; i++)
        n += plan->outs[i].block == block;
    if (n > 1)
        world_fault(w, "P4 block %d is %s, and copied otherwise", block, what);
}

static void check_targets(struct world *w)
{
    const struct plan *plan = w->toy.plan;
    for (int32_t i = 0; i < plan->n_ins; i++)
        check_arriving(w, plan->ins[i].block, "swapped in");
    for (int32_t i = 0; i < plan->n_copies; i++)
        check_arriving(w, plan->copies[i].dst, "copied into");
    for (int32_t row = 0; row < plan->n_rows; row++) {
        int32_t block = plan->slots[row] / w->config.block_size;
        check_target(w, block, "written");
        for (int32_t other = 0; other < row; other++)
            if (plan->slots[other] == plan->slots[row])
                world_fault(w, "P4 slot %d is written twice in a step", plan->slots[row]);
        for (int32_t i = 0; i < plan->n_outs; i++)
            if (plan->outs[i].block == block)
                world_fault(w, "P5 block %d is written while it is copied out", block);
    }
    for (int32_t i = 0; i < plan->n_outs; i++)
        for (int32_t k = 0; k < i; k++)
            if (plan->outs[i].slot == plan->outs[k].slot)
                world_fault(w, "P4 host slot %d gets two blocks", plan->outs[i].slot);
}

/* ---- the turn ----------------------------------------------------------------------------------- */

static void check_launched(struct world *w)
{
    struct cache_stats stats;
    cache_stats(w->cache, &stats);
    for (int32_t i = 0; i < w->n_live && !world_is_wrong(w); i++) {
        const struct group *g = w->live[i];
        check_decodes(w, g);
        check_leader_rank(w, g);
        if (!group_was_admitted(g))
            continue;
        check_passed(w, g);
        check_admitted(w, g, stats.copies_given_up > w->n_given_up);
    }
    check_budget(w);
    if (w->n_live == 0)
        return;
    check_first(w);
    check_leftover(w);
    check_shortest(w);
    check_victims(w);
    check_queue(w);
    check_targets(w);
}

/* A step may be empty when all that it would do is to let beams back in. */
static bool is_only_beams(const struct world *w)
{
    for (int32_t i = 0; i < w->n_live; i++)
        if (has_all_but_last(w->live[i]))
            return true;
    return false;
}

void check_turn(struct world *w, uint64_t n_steps_before)
{
    bool may_rest = is_only_beams(w);
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct group *g = w->live[i];
        if (g->was_there && !w->toy.plan && !may_rest)
            world_fault(w, "S5 no step runs, and arrival %llu waits",
                        (unsigned long long)g->arrival);
        if (g->options.deadline_us > 0 && g->options.deadline_us <= clock_now_us())
            world_fault(w, "S3 arrival %llu is past its deadline", (unsigned long long)g->arrival);
    }
    if (w->cache && w->toy.n_steps > n_steps_before)
        check_launched(w);
}
