/* sched_audit.c - proves that queue, running list and the generations in them agree.
 *
 * S0 counts and states, S1 ids and blocks of each branch, S4 the one order, S6 nothing that can never
 * fit. Called by tests behind every turn, and by DEBUG AUDIT. Main thread only. */
#include <inttypes.h>
#include "base/err.h"
#include "engine/sched.h"

static int audit_seq(const struct seq *q, enum gen_state state, bool has_table, struct err *err)
{
    const struct gen *g = q->gen;
    const struct output *o = &q->output;

    if (q->finish == GEN_NONE && !g->beam && q->n_ids != g->n_prompt + o->n_sampled)
        return err_set(err, "S1 %d ids, but %d of the prompt and %d generated", q->n_ids,
                       g->n_prompt, o->n_sampled);
    if (state == GEN_QUEUED && q->table.n_blocks > 0)
        return err_set(err, "S1 a queued generation holds %d blocks", q->table.n_blocks);
    if (has_table != (q->table.n_blocks > 0))
        return err_set(err, "S1 branch %d holds %d blocks, generated %d", q->branch,
                       q->table.n_blocks, o->n_sampled);
    if (state == GEN_RUNNING && q->table.computed + q->table.ahead >= q->n_ids)
        return err_set(err, "S1 %d of %d ids are computed, nothing is left",
                       q->table.computed + q->table.ahead, q->n_ids);
    return 0;
}

static int audit_one(const struct sched *s, const struct gen *g, enum gen_state state,
                     struct err *err)
{
    const struct seq *lead = gen_next_live(g, NULL);
    int32_t n_live = 0;

    if (g->state != state)
        return err_set(err, "S0 a generation in the list of state %d has state %d", state,
                       g->state);
    GEN_FOREACH_LIVE(g, q) {
        bool has_table = state == GEN_RUNNING && (q == lead || !gen_is_fresh(g));
        n_live++;
        if (audit_seq(q, state, has_table, err))
            return -1;
    }
    if (state == GEN_RUNNING && prompt_owes(g) &&
        lead->table.computed + lead->table.ahead >= g->prompt_rows.n_known)
        return err_set(err, "S1 %d tokens are computed, the prompt owes id %d",
                       lead->table.computed + lead->table.ahead, g->prompt_rows.n_known);
    if (n_live != g->n_live || n_live == 0)
        return err_set(err, "S0 %d branches live, counted %d", n_live, g->n_live);
    if (sched_blocks_for(s, g->n_prompt, g->max_tokens, g->n_seqs) > s->n_blocks)
        return err_set(err, "S6 a generation of %" PRId64 " blocks in a pool of %d",
                       sched_blocks_for(s, g->n_prompt, g->max_tokens, g->n_seqs), s->n_blocks);
    return 0;
}

static int audit_list(const struct sched *s, const struct list *list, enum gen_state state,
                      int32_t n, struct err *err)
{
    const struct gen *before = NULL;
    int32_t n_found = 0, n_live = 0;

    for (const struct list *node = list->next; node != list; node = node->next, n_found++) {
        const struct gen *g = LIST_ITEM(node, const struct gen, in_order);
        if (before && !gen_precedes(before, g))
            return err_set(err, "S4 arrival %" PRIu64 " stands before %" PRIu64, before->arrival,
                           g->arrival);
        if (audit_one(s, g, state, err))
            return -1;
        before = g;
        n_live += g->n_live;
    }
    if (state == GEN_RUNNING && n_live != s->n_branches)
        return err_set(err, "S0 %d branches run, counted %d", n_live, s->n_branches);
    return n_found == n ? 0 : err_set(err, "S0 %d generations listed, %d counted", n_found, n);
}

/* Nobody was admitted in the running step past one that was there, could have been admitted and
 * came before. Those that were preempted may have stood in the queue by a boost; they are left out.
 */
static int audit_admissions(const struct sched *s, const struct step *step, struct err *err)
{
    for (int32_t i = step->n_written; step->is_running && i < step->n_landing; i++) {
        const struct gen *in = step->landing[i];
        if (!in || in->n_preempted > 0)
            continue;
        for (const struct list *node = s->queued.next; node != &s->queued; node = node->next) {
            const struct gen *out = LIST_ITEM(node, const struct gen, in_order);
            if (out->arrival < s->planned_before && !out->waits_for.promised_by &&
                out->priority == in->priority && out->arrival < in->arrival)
                return err_set(err, "S4 arrival %" PRIu64 " was admitted, %" PRIu64 " waits",
                               in->arrival, out->arrival);
        }
    }
    return 0;
}

/* 0, or -1 and the fault by its name. */
int sched_audit(const struct sched *s, const struct step *step, struct err *err)
{
    if (audit_admissions(s, step, err))
        return -1;
    if (s->n_branches > s->max_running)
        return err_set(err, "S0 %d run, at most %d may", s->n_branches, s->max_running);
    if (audit_list(s, &s->queued, GEN_QUEUED, s->n_queued, err))
        return -1;
    return audit_list(s, &s->running, GEN_RUNNING, s->n_running, err);
}
