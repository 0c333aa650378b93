/* figures.c - what the engine tells of itself and of a generation: views, counts, the audit.
 *
 * Main thread only; nothing here changes anything but what is shown of a beam. */
#include "engine/state.h"

#include "base/mem.h"
#include "engine/generation.h"

void gen_view(const struct gen *g, struct gen_view *view)
{
    gen_view_branch(g, 0, view);
}

void gen_view_branch(const struct gen *g, int32_t branch, struct gen_view *view)
{
    const struct seq *q = &g->seqs[gen_place_of(g, branch)];
    const struct output *o = &g->seqs[branch].output;
    bool is_beam = g->beam && g->n_live > 0;
    const struct block_table *t = &q->table;
    struct gen_times times = seq_times(q);

    *view = (struct gen_view){.n_branches = g->n_seqs,
                              .n_live = g->n_live,
                              .finish = q->finish,
                              .n_swapped_blocks = t->n_slots,
                              .running = g->state != GEN_QUEUED,
                              .place = sched_place(&g->engine->sched, g),
                              .text = output_whole(o),
                              .unfinished = output_unfinished(o),
                              .ids = o->ids.data,
                              .n_ids = o->ids.n,
                              .n_prompt = g->n_prompt,
                              .n_cached = g->n_cached,
                              .n_generated = is_beam ? q->n_ids - g->n_prompt : seq_n_generated(q),
                              .queued_ms = times.queued_ms,
                              .prefill_ms = times.prefill_ms,
                              .decode_ms = times.decode_ms};
    if (g->state == GEN_ENDED && g->has_token)
        view->n_computed = q->n_ids - 1; /* still to be told: as it was in its last step */
    if (g->state != GEN_RUNNING)
        return;
    view->n_computed = t->computed;
    view->n_blocks = t->n_blocks;
}

void gen_count_blocks(const struct gen *g, struct gen_blocks *blocks)
{
    cache_count_blocks(g->cache, &g->promises, &blocks->n, &blocks->n_shared, &blocks->n_swapped);
}

void engine_show_beam(struct gen *g, int32_t branch)
{
    ASSERT(branch >= 0 && branch < g->n_seqs);
    if (g->beam && g->n_live > 0)
        beam_show(g, branch);
}

int32_t engine_probe(struct engine *e, const struct cache_namespace *ns, const int32_t *ids,
                     int32_t n)
{
    return n < 1 ? 0 : cache_probe(e->cache, ns, ids, n);
}

void engine_stats(const struct engine *e, struct engine_stats *stats)
{
    struct cache_stats c;

    cache_stats(e->cache, &c);
    *stats = (struct engine_stats){
        .n_blocks = c.n_blocks,
        .block_size = c.block_size,
        .free_blocks = c.free_blocks,
        .cached_blocks = c.cached_blocks,
        .used_blocks = c.used_blocks,
        .promised_blocks = c.promised_blocks,
        .shared_blocks = c.shared_blocks,
        .unwanted_blocks = c.unwanted_blocks,
        .running = e->sched.n_running,
        .queued = e->sched.n_queued,
        .steps = e->counts.steps,
        .rows = e->counts.rows,
        .prompt_tokens = e->sched.prompt_tokens,
        .cached_tokens = e->sched.cached_tokens,
        .computed_prompt_tokens = e->counts.computed_prompt_tokens,
        .generated_tokens = e->counts.generated_tokens,
        .hits_full = c.hits_full,
        .hits_tail = c.hits_tail,
        .copies = c.copies,
        .evictions = c.evictions,
        .preemptions = e->sched.preemptions,
        .dropped_tokens = e->sched.dropped_tokens,
        .n_slots = c.n_slots,
        .free_slots = c.free_slots,
        .swapped_out_blocks = c.swapped_out,
        .swapped_in_blocks = c.swapped_in,
        .swap_full = c.swap_full,
        .merged = c.merged,
        .rejected_matches = c.rejected_matches,
        .last_step_us = e->counts.last_step_us,
        .max_step_us = e->counts.max_step_us,
    };
    for (int i = 0; i < GEN_N_FINISHES; i++)
        stats->ends[i] = e->ends[i];
}

static int32_t list_tables(const struct list *list, const struct block_table **tables)
{
    int32_t n = 0;

    for (const struct list *node = list->next; node != list; node = node->next)
        GEN_FOREACH_LIVE(LIST_ITEM(node, const struct gen, in_order), q)
            tables[n++] = &q->table;
    return n;
}

static size_t count_live(const struct list *list)
{
    size_t n = 0;

    for (const struct list *node = list->next; node != list; node = node->next)
        n += (size_t)LIST_ITEM(node, const struct gen, in_order)->n_live;
    return n;
}

int engine_audit(struct engine *e, struct err *err)
{
    const struct sched *s = &e->sched;
    size_t n = count_live(&s->queued) + count_live(&s->running);

    if (sched_audit(s, &e->step, err) || step_audit(&e->step, e->cache, err))
        return -1;
    const struct block_table **tables = xcalloc(n + 1, sizeof *tables);
    struct cache_holders holders = {.tables = tables,
                                    .pins = e->step.pins,
                                    .n_pins = e->step.n_copies,
                                    .moves = e->step.moves,
                                    .n_moves = e->step.n_outs + e->step.n_ins,
                                    .n_outs = e->step.n_outs};
    holders.n_tables = list_tables(&s->running, tables);
    holders.n_tables += list_tables(&s->queued, tables + holders.n_tables);
    int rc = cache_audit(e->cache, &holders, err);
    xfree((void *)tables);
    return rc;
}
