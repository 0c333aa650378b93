/* prompt.c - log-probabilities of the ids of a prompt: which rows owe them, what they told.
 *
 * The logits behind the row of one id say how likely the next one was. So the ids of a prompt are
 * asked for as samples whose id is given: the row of id p, for p up to the last but one, tells id
 * p + 1. The first id has nothing before it.
 *
 *      ids       5    9    2    44   7   | 81 ...
 *      row       0    1    2    3    4          the last draws the first generated id, as ever
 *      tells     9    2    44   7
 *      n_known = 3: ids 5, 9 and 2 are told; rows 0 and 1 are not needed again
 *
 * A row that the cache has is no row of a step, so it would tell nothing: what is looked up ends
 * before the first row that still owes. That is the whole prompt at first; after preemption only
 * what had not been computed then. Its own blocks enter the index and merge there as ever, but it
 * promises none: whoever has the same beginning computes it faster than to wait for rows one by one.
 *
 * A plan has a sample for each branch that may run, and those places are what such rows take: the
 * ones that no running branch needs, and its own as long as nothing is drawn behind its rows. So a
 * prompt goes on by one row at least in each step, however many others decode.
 *
 * The first live branch tells them: it has the prompt's rows, alone while the group is fresh. Main
 * thread only. */
#include "engine/prompt.h"

#include <math.h>
#include "base/mem.h"
#include "base/plant.h"
#include "engine/generation.h"

/* Rows [n, 1 + n_best]; NULL: there is no memory for so many. try_free of MEM_ENGINE. */
struct chosen *prompt_new_rows(int64_t n, int32_t n_best)
{
    return try_malloc(MEM_ENGINE, (size_t)n * ((size_t)n_best + 1) * sizeof(struct chosen));
}

/* ids [n_prompt]: copied as far as they stand in the rows. False: there is no memory for them. */
bool prompt_init(struct prompt_rows *p, const struct gen_options *options, const int32_t *ids,
                 int32_t n_prompt)
{
    if (!options->prompt_logprobs)
        return true;
    p->n_best = options->n_prompt_logprobs;
    p->rows = prompt_new_rows(n_prompt, p->n_best);
    if (!p->rows)
        return false;
    p->rows[0] = (struct chosen){ids[0], NAN};
    for (int32_t i = 0; i < p->n_best; i++)
        p->rows[1 + i] = (struct chosen){-1, NAN};
    p->n_known = 1;
    return true;
}

void prompt_free(struct prompt_rows *p)
{
    try_free(MEM_ENGINE, p->rows);
    *p = (struct prompt_rows){0};
}

/* Rows of the prompt, from the first one, that owe nothing more; then n_owing that do. */
static int32_t rows_told(const struct seq *q, int32_t *n_owing)
{
    const struct gen *g = q->gen;
    const struct prompt_rows *p = &g->prompt_rows;

    *n_owing = p->rows && q == gen_next_live(g, NULL) ? g->n_prompt - p->n_known : 0;
    return p->n_known - 1;
}

/* Some ids of its prompt are still to be told: it may go on by a row a step, so nobody waits for what
 * it computes. */
bool prompt_owes(const struct gen *g)
{
    return g->prompt_rows.rows && g->prompt_rows.n_known < g->n_prompt;
}

/* Of the n known ids of a sequence, how many may be looked for in the cache: one is always left to
 * compute, so a hit ends before the first row that owes. */
int32_t prompt_findable(const struct seq *q, int32_t n)
{
    const struct prompt_rows *p = &q->gen->prompt_rows;

    if (PLANTED(TOLD_FOUND))
        return n;
    return prompt_owes(q->gen) && p->n_known < n ? p->n_known : n;
}

/* Samples that n_rows rows from position `at` owe. */
int32_t prompt_n_given(const struct seq *q, int32_t at, int32_t n_rows)
{
    int32_t n_owing, from = rows_told(q, &n_owing), end = from + n_owing;

    if (from < at)
        from = at;
    if (end > at + n_rows)
        end = at + n_rows;
    return end > from ? end - from : 0;
}

/* Rows from the first that is not computed on that fit n_free samples; INT32_MAX: all. */
int32_t prompt_fit_rows(const struct seq *q, int32_t n_free)
{
    int32_t at = q->table.computed + q->table.ahead;
    int32_t n_owing, from = rows_told(q, &n_owing);

    if (n_owing <= n_free)
        return INT32_MAX;
    return from - at + n_free;
}

/* Asks for what rows [n_rows] from position `at` owe: they stand at the end of the plan. How many
 * samples. */
int32_t prompt_plan(const struct seq *q, struct plan *plan, int32_t at, int32_t n_rows)
{
    int32_t n = prompt_n_given(q, at, n_rows);
    int32_t from = q->gen->prompt_rows.n_known - 1;

    for (int32_t i = from; i < from + n; i++) {
        struct plan_sample sample = {.row = plan->n_rows - n_rows + i - at,
                                     .position = i + 1,
                                     .top_p = 1,
                                     .repeat = 1,
                                     .n_best = q->gen->prompt_rows.n_best,
                                     .is_given = true,
                                     .id = q->ids[i + 1]};
        plan_add_sample(plan, &sample, NULL, 0, NULL, 0, NULL, 0);
    }
    return n;
}

/* They have come: n from number `at` of the step's samples on. */
void prompt_take(struct seq *q, const struct chosen *samples, int32_t at, int32_t n,
                 const struct plan *plan)
{
    struct prompt_rows *p = &q->gen->prompt_rows;

    for (int32_t i = at; i < at + n; i++) {
        const struct chosen *best = samples + plan->n_samples + plan->samples[i].best_at;
        struct chosen *row = p->rows + (size_t)p->n_known * ((size_t)p->n_best + 1);
        ASSERT(plan->samples[i].position == p->n_known);
        row[0] = (struct chosen){q->ids[p->n_known++], samples[i].logprob};
        for (int32_t k = 0; k < p->n_best; k++)
            row[1 + k] = best[k];
    }
}
