/* step.c - the step that is being made or runs: chosen sequences, their rows, what they owe.
 *
 * The scheduler says who gets how many rows; here that becomes a plan, and the plan's results
 * become computed tokens and ids again. While a step runs, clients go on: a generation that ends
 * meanwhile is forgotten here (its rows are computed in vain) and its blocks go back at once. That
 * needs no fence, because blocks are taken only while no step runs: whoever gets one of them writes
 * behind this step. What does wait for the end of the step are the sources of its copies.
 *
 *     launch                                    done
 *       | copies, rows ... running ...            | copies let go -> landed -> advanced -> sampled
 *       | a gen that ends here: step_forget       |
 *
 * Main thread only; the plan is read by the rank while is_running. */
#include "engine/step.h"

#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"

void step_init(struct step *s, const struct plan_limits *limits)
{
    size_t n = (size_t)limits->max_seqs, n_copies = (size_t)limits->max_copies;

    *s = (struct step){
        .plan = plan_new(limits),
        .parts = xcalloc(n, sizeof *s->parts),
        .landing = xcalloc(n, sizeof(struct gen *)),
        .copies = xcalloc(n_copies, sizeof *s->copies),
        .pins = xcalloc(n_copies, sizeof *s->pins),
        .moves = xcalloc((size_t)limits->max_outs + (size_t)limits->max_ins + 1, sizeof *s->moves),
        .leaving = xcalloc(n, sizeof(struct gen *))};
}

void step_done(struct step *s)
{
    plan_free(s->plan);
    xfree(s->parts);
    xfree((void *)s->landing);
    xfree(s->copies);
    xfree(s->pins);
    xfree(s->moves);
    xfree((void *)s->leaving);
    *s = (struct step){0};
}

void step_begin(struct step *s)
{
    ASSERT(!s->is_running);
    plan_clear(s->plan);
    s->n_parts = s->n_landing = s->n_copies = s->n_decodes = 0;
    s->n_outs = s->n_ins = s->n_leaving = 0;
}

/* The cache asked for it; nothing when n_tokens is 0. */
void step_add_copy(struct step *s, const struct cache_copy *copy)
{
    if (copy->n_tokens == 0)
        return;
    ASSERT(s->n_copies < s->plan->limits.max_copies);
    plan_add_copy(s->plan, copy->src, copy->dst, copy->n_tokens);
    s->pins[s->n_copies] = copy->src;
    s->copies[s->n_copies++] = *copy;
}

/* g was swapped out: the cache has appended its transfers behind the first n_outs_before. */
void step_add_leaving(struct step *s, struct gen *g, int32_t n_outs_before)
{
    for (int32_t i = n_outs_before; i < s->n_outs; i++)
        plan_add_out(s->plan, s->moves[i].block, s->moves[i].slot);
    ASSERT(s->n_leaving < s->plan->limits.max_seqs);
    s->leaving[s->n_leaving++] = g;
}

/* The cache has appended n_ins transfers; nobody is swapped out behind the first of them. */
void step_add_ins(struct step *s, int32_t n_ins)
{
    for (int32_t i = s->n_ins; i < n_ins; i++)
        plan_add_in(s->plan, s->moves[s->n_outs + i].slot, s->moves[s->n_outs + i].block);
    s->n_ins = n_ins;
}

/* It was admitted in this step: its copy, if any, lands with it. */
void step_add_landing(struct step *s, struct gen *g)
{
    ASSERT(s->n_landing < s->plan->limits.max_seqs);
    s->landing[s->n_landing++] = g;
}

void step_add_decode(struct step *s, struct seq *q)
{
    q->n_planned = 1;
    q->is_decoding = true;
    s->n_decodes++;
    step_add_rows(s, q);
}

/* The next token is drawn behind the last row; behind a prompt that a group has just begun, one for
 * each branch from the same row. How many. */
static int32_t add_samples(struct step *s, struct seq *q)
{
    int32_t row = s->plan->n_rows - 1, n = 0;

    if (!gen_is_fresh(q->gen) || q->gen->beam) {
        sampler_plan(&q->sampler, s->plan, row, q->ids, q->n_ids);
        return 1;
    }
    GEN_FOREACH_LIVE(q->gen, o) {
        sampler_plan(&o->sampler, s->plan, row, o->ids, o->n_ids);
        n++;
    }
    return n;
}

/* The planned rows of a branch, from the first token that is not computed. */
void step_add_rows(struct step *s, struct seq *q)
{
    int32_t at = q->table.computed + q->table.ahead, end = at + q->n_planned;
    int32_t block = s->plan->limits.block_size, n_blocks = (end + block - 1) / block;

    ASSERT(q->n_planned > 0 && end <= q->n_ids && n_blocks <= q->table.n_blocks);
    if (PLANTED(BELOW_COUNT) && at > 0 && s->plan->n_rows + end - at < s->plan->limits.max_rows)
        at--;
    plan_add_seq(s->plan, at, q->ids + at, end - at, q->table.blocks, n_blocks);
    int32_t n_given = prompt_plan(q, s->plan, end - q->n_planned, q->n_planned);
    s->parts[s->n_parts++] =
        (struct step_part){.seq = q,
                           .n_rows = q->n_planned,
                           .n_given = n_given,
                           .n_samples = end == seq_n_known(q) ? add_samples(s, q) : 0};
}

/* Hands the plan over, if there is anything in it: copies without rows too (a beam that comes back
 * waits for all of its branches). */
bool step_launch(struct step *s, struct runner *r)
{
    if (s->plan->n_rows + s->n_outs + s->n_ins + s->n_copies == 0)
        return false;
    plan_finish(s->plan);
    s->is_running = true;
    r->launch(r, s->plan);
    return true;
}

/* It has ended as a whole: whatever the running step computes for it is nobody's. */
void step_forget(struct step *s, const struct gen *g)
{
    for (int32_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].seq && s->parts[i].seq->gen == g)
            s->parts[i].seq = NULL;
    for (int32_t i = 0; i < s->n_landing; i++)
        if (s->landing[i] == g)
            s->landing[i] = NULL;
    for (int32_t i = 0; i < s->n_leaving; i++)
        if (s->leaving[i] == g)
            s->leaving[i] = NULL;
}

/* The first branch has computed what is common: the others, which name the same blocks, go on from
 * there. */
static void follow_lead(struct cache *c, const struct seq *lead)
{
    int32_t end = lead->gen->n_common * cache_block_size(c);

    if (lead->table.computed < end || PLANTED(LEAD_LOST))
        return;
    GEN_FOREACH_LIVE(lead->gen, q)
        if (q->table.n_blocks > 0 && q->table.computed < end)
            cache_advance(c, &q->table, q->ids, end - q->table.computed);
}

/* Copies and transfers of g have landed; blocks that came from the host are confirmed. */
static void land(struct cache *c, const struct gen *g)
{
    GEN_FOREACH_LIVE(g, q) {
        bool is_back = q->table.ahead > 0;
        cache_landed(c, &q->table);
        if (is_back)
            cache_advance(c, &q->table, q->ids, 0);
    }
}

/* Transfers are over. Those of a failed step have brought nothing that can be trusted: who was to
 * come back from it is computed again. */
static void settle_moves(struct step *s, struct cache *c, bool failed)
{
    for (int32_t i = 0; i < s->n_outs + s->n_ins; i++)
        cache_move_done(c, &s->moves[i], i < s->n_outs);
    s->n_outs = s->n_ins = 0;
    for (int32_t i = 0; failed && i < s->n_leaving && !PLANTED(SWAP_FAILED_KEPT); i++)
        if (s->leaving[i])
            GEN_FOREACH_LIVE(s->leaving[i], q)
                cache_swap_drop(c, &q->table);
}

/* The step is over: sources of copies are let go; unless it failed, what it computed is confirmed.
 */
void step_settle(struct step *s, struct cache *c, bool failed)
{
    ASSERT(s->is_running);
    s->is_running = false;
    for (int32_t i = 0; i < s->n_copies; i++)
        cache_copy_done(c, &s->copies[i]);
    s->n_copies = 0;
    settle_moves(s, c, failed);
    if (failed && !PLANTED(FAILED_CONFIRMED))
        return;
    for (int32_t i = 0; i < s->n_landing; i++)
        if (s->landing[i])
            land(c, s->landing[i]);
    for (int32_t i = 0; i < s->n_parts; i++) {
        struct seq *q = s->parts[i].seq;
        if (!q)
            continue;
        cache_advance(c, &q->table, q->ids, s->parts[i].n_rows);
        if (q == gen_next_live(q->gen, NULL))
            follow_lead(c, q);
    }
}

/* Adds a finished step to the figures. */
void step_count(const struct step *s, int64_t duration_us, struct step_counts *counts)
{
    counts->steps++;
    counts->rows += (uint64_t)s->plan->n_rows;
    counts->last_step_us = duration_us;
    if (duration_us > counts->max_step_us)
        counts->max_step_us = duration_us;
    for (int32_t i = 0; i < s->n_parts; i++) {
        const struct seq *q = s->parts[i].seq;
        int32_t left = q ? q->gen->n_prompt - s->plan->seqs[i].position : 0;
        int32_t n = s->parts[i].n_rows;
        if (left > 0)
            counts->computed_prompt_tokens += (uint64_t)(left < n ? left : n);
    }
}

/* P4: no row of the running step writes a confirmed slot. 0, or -1 and the fault. */
int step_audit(const struct step *s, const struct cache *c, struct err *err)
{
    int32_t block = s->plan->limits.block_size;

    for (int32_t i = 0; s->is_running && i < s->n_parts; i++) {
        const struct plan_seq *q = &s->plan->seqs[i];
        for (int32_t at = q->position; at < q->position + q->n_rows; at++) {
            int32_t b = s->plan->tables[q->table_at + at / block];
            if (cache_is_confirmed(c, b, at % block))
                return err_set(err, "P4 the running step writes slot %d of block %d, confirmed",
                               at % block, b);
        }
    }
    return 0;
}
