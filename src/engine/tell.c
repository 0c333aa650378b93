/* tell.c - the outbox: what came out of generations, told behind the launch in slices.
 *
 * A step brings tokens and ends for hundreds of branches at once, and what is made of them above
 * (pieces, a line of log-probabilities a token, end entries) may take many times as long as the main
 * thread may be away. So a turn tells for a slice of time and the next turn goes on. The outbox is a
 * queue of generations; one in which a slice has ended goes to its end, so that the token of another
 * does not wait for all of it. Inside one the branches are looked at round, from where that was:
 *
 *     branch      0    1    2    3    4    5
 *     to tell     .    .    x    x    .    .        n_to_tell 2, tell_at 2
 *     new of 1    x    x    x    x    x    x        n_to_tell 6, tell_at 2: each is met again
 *
 * Between two slices a branch that has ended and is not told looks like one that goes on. Whoever
 * must have the end now (CANCEL, a key that goes) gets all that is left at once, through the same
 * function, and it keeps the finish that it has.
 *
 * A callback may do anything but turn the engine: each generation is taken out of the outbox before
 * it is called, and lives until the last callback on the stack has returned. Main thread only. */
#include "engine/tell.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/plant.h"
#include "engine/generation.h"

#define ROWS_AT_ONCE 64 /* of up to 21 log-probabilities: printed in 0.05 ms */

/* Something of g is to be told. */
void tell_note(struct engine *e, struct gen *g)
{
    g->n_to_tell = g->n_seqs;
    if (list_is_empty(&g->in_outbox))
        list_push_back(&e->outbox, &g->in_outbox);
}

static void tell_end(struct seq *q)
{
    struct gen *g = q->gen;
    struct gen_end end;

    seq_describe_end(q, &end);
    q->state = SEQ_TOLD;
    end.is_last = g->state == GEN_ENDED;
    for (int32_t i = 0; i < g->n_seqs && !PLANTED(LAST_EARLY); i++)
        end.is_last &= g->seqs[i].state == SEQ_TOLD;
    if (end.is_last)
        g->state = GEN_TOLD;
    g->events.end(g->owner, &end);
    if (PLANTED(END_TWICE) && q->finish == GEN_LENGTH)
        g->events.end(g->owner, &end);
}

/* Rows [n_known] of which *n_told were told: some more of them. False: none is left. */
static bool tell_rows(struct seq *q, bool of_prompt, const struct chosen *rows, int32_t n_known,
                      int32_t n_best, int32_t *n_told)
{
    int32_t n = n_known - *n_told;
    struct gen_rows portion = {.branch = q->branch,
                               .of_prompt = of_prompt,
                               .rows = rows + (size_t)*n_told * ((size_t)n_best + 1),
                               .n = n < ROWS_AT_ONCE ? n : ROWS_AT_ONCE,
                               .n_best = n_best};

    if (n == 0)
        return false;
    *n_told += portion.n;
    q->gen->events.rows(q->gen->owner, &portion);
    return true;
}

/* Those of the prompt with branch 0, as the end tells them. */
static bool tell_prompt_rows(struct seq *q)
{
    struct prompt_rows *p = &q->gen->prompt_rows;

    return p->rows && q->branch == 0 &&
           tell_rows(q, true, p->rows, p->n_known, p->n_best, &p->n_told);
}

/* Those of a beam go from branch to branch until it has ended. */
static bool tell_own_rows(struct seq *q)
{
    bool are_settled = !q->gen->beam || q->state == SEQ_ENDED;

    return q->logprobs && are_settled &&
           tell_rows(q, false, q->logprobs, seq_n_generated(q), q->n_best, &q->n_rows_told);
}

static bool is_time(int64_t until_us)
{
    return until_us != INT64_MAX && clock_mono_us() >= until_us;
}

/* False: time was over before all of it was told. A callback may have cancelled it: then it is. */
static bool tell_branch(struct seq *q, int64_t until_us)
{
    struct gen *g = q->gen;
    struct gen_output portion;

    if (!g->beam && output_take(&q->output, q->state == SEQ_ENDED, &portion)) {
        portion.branch = q->branch;
        g->events.output(g->owner, &portion);
    }
    while (g->events.rows && q->state != SEQ_TOLD && (tell_prompt_rows(q) || tell_own_rows(q)))
        if (is_time(until_us))
            return false;
    if (q->state == SEQ_ENDED)
        tell_end(q);
    return true;
}

/* False: time was over before all of them were looked at. */
static bool tell_branches(struct gen *g, int64_t until_us)
{
    while (g->n_to_tell > 0) {
        struct seq *q = &g->seqs[g->tell_at];
        if (q->state != SEQ_TOLD && !tell_branch(q, until_us))
            return false;
        if (g->n_to_tell == 0)
            break; /* a callback has cancelled it */
        g->n_to_tell--;
        g->tell_at = (g->tell_at + 1) % g->n_seqs;
        if (g->n_to_tell > 0 && is_time(until_us))
            return false;
    }
    g->tell_at = 0;
    return true;
}

/* Calls what is to be called for g. It may be gone afterwards. */
static void tell(struct gen *g, int64_t until_us)
{
    list_remove(&g->in_outbox);
    g->n_callers++;
    if (!tell_branches(g, until_us) && g->state != GEN_TOLD)
        list_push_back(&g->engine->outbox, &g->in_outbox);
    if (--g->n_callers == 0 && g->state == GEN_TOLD)
        gen_free(g);
}

/* All of it now, whatever time it takes. g may be gone afterwards. */
void tell_whole(struct gen *g)
{
    g->n_to_tell = g->n_seqs;
    tell(g, INT64_MAX);
}

/* Of all generations as much as the time of a turn allows, at least one branch; false when there was
 * nothing to tell. */
bool tell_slice(struct engine *e)
{
    int64_t until_us = e->tell_us > 0 ? clock_mono_us() + e->tell_us : INT64_MAX;
    bool did = !list_is_empty(&e->outbox);

    while (!list_is_empty(&e->outbox)) {
        tell(LIST_FIRST(&e->outbox, struct gen, in_outbox), until_us);
        if (is_time(until_us))
            break;
    }
    return did;
}
