/* check_end.c - what must be true of every output and end.
 *
 *   S1  the ids of an end are those of the lone run, or of the plain search of a beam; so are scores
 *       and log-probabilities
 *   S3  one end for each branch, the last one says so, nothing follows it; portions joined are the
 *       whole text; the reason is the lone run's own, or one that somebody asked for */
#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "world.h"

static bool is_text(const struct lone *l, int32_t from, struct bytes text)
{
    if (from + (int32_t)text.len > l->n_ids - l->n_prompt)
        return false;
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] != 'a' + l->ids[l->n_prompt + from + (int32_t)i] - 1)
            return false;
    return true;
}

void check_output(struct group *g, const struct gen_output *output)
{
    struct world *w = g->world;
    if (output->branch < 0 || output->branch >= g->n_branches) {
        world_fault(w, "S3 output of branch %d of %d", output->branch, g->n_branches);
        return;
    }
    struct branch *b = &g->branches[output->branch];
    bool is_over = g->gen->seqs[output->branch].state != SEQ_LIVE;
    if (b->finish != GEN_NONE)
        world_fault(w, "S3 output after the end");
    if (g->beam)
        world_fault(w, "S3 a beam told something before its end");
    if (output->text.len == 0)
        world_fault(w, "S3 an output of nothing");
    if (!is_text(&b->lone, b->n_delivered, output->text))
        world_fault(w, "S3 the text of arrival %llu, branch %d, differs from the lone run at %d",
                    (unsigned long long)g->arrival, output->branch, b->n_delivered);
    b->n_delivered += (int32_t)output->text.len;
    if (!is_over && b->n_delivered > b->lone.n_text)
        world_fault(w, "S3 a part of a stop string went out");
    if (output->n_ids != b->n_delivered)
        world_fault(w, "S3 %d ids are told for %d letters", output->n_ids, b->n_delivered);
}

/* ---- ends --------------------------------------------------------------------------------------- */

/* Somebody asked for it, or something failed or was late. */
static bool is_asked(const struct group *g, enum gen_finish finish)
{
    if (finish == GEN_ERROR)
        return g->world->is_failing;
    if (finish == GEN_DEADLINE)
        return g->options.deadline_us > 0 && g->options.deadline_us <= clock_now_us();
    return finish == g->asked && finish != GEN_NONE;
}

/* By itself: all of the lone run, the stop string cut. */
static void check_whole(struct world *w, const struct lone *l, const struct gen_end *end)
{
    int32_t n_sampled = l->n_ids - l->n_prompt;
    if (end->n_ids != l->n_text || end->n_generated != n_sampled)
        world_fault(w, "S3 %d ids of %d sampled, the lone run has %d of %d", end->n_ids,
                    end->n_generated, l->n_text, n_sampled);
    if ((end->matched.data != NULL) != (l->n_text < n_sampled))
        world_fault(w, "S3 a stop string matched in one run only");
}

/* A row of log-probabilities: of an id, then of the best behind what `seen` folds. */
static void check_row(struct world *w, const struct chosen *row, int32_t id, uint64_t seen,
                      uint32_t banned, int32_t n_best)
{
    struct chosen best[ENGINE_MAX_LOGPROBS];
    if (row->id != id || row->logprob != toy_logprob(seen, id))
        world_fault(w, "S1 id %d has log-probability %g, told is %d with %g", id,
                    (double)toy_logprob(seen, id), row->id, (double)row->logprob);
    toy_best(seen, banned, n_best, best);
    for (int32_t k = 0; k < n_best; k++)
        if (row[1 + k].id != best[k].id || row[1 + k].logprob != best[k].logprob)
            world_fault(w, "S1 best id %d is %d, told is %d", k, best[k].id, row[1 + k].id);
}

/* Nothing is known but the id. */
static void check_unknown(struct world *w, const struct chosen *row, int32_t id, int32_t n_best)
{
    bool ok = row->id == id && isnan(row->logprob);
    for (int32_t k = 0; k < n_best; k++)
        ok &= row[1 + k].id == -1;
    if (!ok)
        world_fault(w, "S1 something is told of id %d that nobody knows", id);
}

/* Raw ones, of each id as sampled; of resumed ids nothing but the id is known. */
static void check_logprobs(struct world *w, const struct group *g, const struct branch *b,
                           const struct gen_end *end)
{
    const struct lone *l = &b->lone;
    int32_t n_best = g->options.n_logprobs;
    if (end->n_best != n_best)
        world_fault(w, "S1 %d best ids, %d were asked for", end->n_best, n_best);
    for (int32_t i = 0; i < end->n_generated && !world_is_wrong(w); i++) {
        const struct chosen *row = end->logprobs + (ptrdiff_t)i * (n_best + 1);
        int32_t at = l->n_prompt + i;
        if (i < b->n_resumed)
            check_unknown(w, row, l->ids[at], n_best);
        else
            check_row(w, row, l->ids[at], l->folds[at - 1], 0, n_best);
    }
}

/* With the end of branch 0, as far as they are known; all when it had a token. */
static void check_prompt(struct world *w, const struct group *g, const struct gen_end *end)
{
    const struct lone *l = &g->branches[end->branch].lone;
    int32_t n_best = g->options.n_prompt_logprobs;
    if ((end->prompt_logprobs != NULL) != (g->options.prompt_logprobs && end->branch == 0)) {
        world_fault(w, "S1 what is told of the prompt comes with branch %d", end->branch);
        return;
    }
    if (!end->prompt_logprobs)
        return;
    if (end->n_prompt_best != n_best || end->n_prompt_known < 1 ||
        end->n_prompt_known > g->n_prompt ||
        (end->n_generated > g->branches[0].n_resumed && end->n_prompt_known < g->n_prompt))
        world_fault(w, "S1 %d of %d ids of the prompt are told", end->n_prompt_known, g->n_prompt);
    for (int32_t i = 0; i < end->n_prompt_known && !world_is_wrong(w); i++) {
        const struct chosen *row = end->prompt_logprobs + (ptrdiff_t)i * (n_best + 1);
        if (i == 0)
            check_unknown(w, row, l->ids[0], n_best);
        else
            check_row(w, row, l->ids[i], l->folds[i - 1], 0, n_best);
    }
}

static void check_sampled(struct world *w, const struct group *g, struct branch *b,
                          const struct gen_end *end)
{
    const struct lone *l = &b->lone;
    bool by_itself = end->finish == GEN_STOP || end->finish == GEN_LENGTH;
    if (by_itself ? end->finish != l->finish : !is_asked(g, end->finish))
        world_fault(w, "S3 ended by %s, asked %s, the lone run by %s", gen_finish_name(end->finish),
                    gen_finish_name(g->asked), gen_finish_name(l->finish));
    if (end->n_ids > l->n_ids - l->n_prompt ||
        memcmp(end->ids, l->ids + l->n_prompt, (size_t)end->n_ids * sizeof *end->ids) != 0)
        world_fault(w, "S1 the ids of the end differ from the lone run");
    if ((int32_t)end->text.len != end->n_ids || !is_text(l, 0, end->text))
        world_fault(w, "S3 the text of the end differs from its ids");
    if (by_itself)
        check_whole(w, l, end);
    if (b->n_delivered != (end->n_ids > b->n_resumed ? end->n_ids : b->n_resumed))
        world_fault(w, "S3 %d letters went out, the end has %d", b->n_delivered, end->n_ids);
    if ((end->logprobs != NULL) != g->options.logprobs)
        world_fault(w, "S1 log-probabilities %s", end->logprobs ? "unasked" : "are missing");
    else if (end->logprobs && !world_is_wrong(w))
        check_logprobs(w, g, b, end);
}

/* ---- beams -------------------------------------------------------------------------------------- */

/* A beam that was cut off answers with what stood behind so many steps. */
static void rerun_to(struct group *g, int32_t n_steps)
{
    int32_t prompt[LONE_MAX_IDS];
    struct plain_beam *b = g->beam;
    memcpy(prompt, b->prompt, sizeof prompt);
    plain_beam_run(b, prompt, b->n_prompt, &g->options, b->n_context, n_steps);
}

static void check_answer(struct world *w, const struct group *g, const struct gen_end *end)
{
    const struct plain_beam *beam = g->beam;
    bool has_one = end->branch < beam->n_answers;
    const struct plain_answer *a = &beam->answers[end->branch];
    int32_t n = has_one ? a->n : 0, n_stop = has_one ? lone_stop_length(a->ids, n, &g->options) : 0;
    enum gen_finish own = has_one ? a->finish : GEN_LENGTH;
    if (beam->is_over ? end->finish != own : !is_asked(g, end->finish))
        world_fault(w, "S3 answer %d of a beam ended by %s, asked %s, the plain one by %s",
                    end->branch, gen_finish_name(end->finish), gen_finish_name(g->asked),
                    gen_finish_name(own));
    if (end->n_generated != n || end->n_ids != n - n_stop ||
        memcmp(end->ids, a->ids, (size_t)end->n_ids * sizeof *end->ids) != 0)
        world_fault(w, "S1 answer %d of a beam has %d ids, the plain one %d, or others",
                    end->branch, end->n_generated, n);
    if (end->score != (has_one ? a->score : -INFINITY))
        world_fault(w, "S1 answer %d of a beam scores %g, the plain one %g", end->branch,
                    end->score, has_one ? a->score : -INFINITY);
}

/* What a beam adds up: with bans and penalties. */
static void check_answer_logprobs(struct world *w, const struct group *g,
                                  const struct plain_answer *a, const struct gen_end *end)
{
    int32_t ids[LONE_MAX_IDS + 1], n_best = g->options.n_logprobs;
    memcpy(ids, g->beam->prompt, (size_t)g->n_prompt * sizeof *ids);
    memcpy(ids + g->n_prompt, a->ids, (size_t)a->n * sizeof *ids);
    for (int32_t i = 0; i < a->n && !world_is_wrong(w); i++)
        check_row(w, end->logprobs + (ptrdiff_t)i * (n_best + 1), a->ids[i],
                  plain_beam_seen(g->beam, ids, g->n_prompt + i), toy_banned(&g->options), n_best);
}

static void check_beam(struct world *w, struct group *g, const struct gen_end *end)
{
    bool by_itself = end->finish == GEN_STOP || end->finish == GEN_LENGTH;
    int32_t n_steps = g->gen->seqs[0].n_ids - g->n_prompt;
    if (!by_itself && g->n_ends == 0)
        rerun_to(g, n_steps);
    if (by_itself != g->beam->is_over)
        world_fault(w, "S3 a beam ended by %s behind %d steps", gen_finish_name(end->finish),
                    n_steps);
    check_answer(w, g, end);
    if ((end->logprobs != NULL) != g->options.logprobs)
        world_fault(w, "S1 log-probabilities %s", end->logprobs ? "unasked" : "are missing");
    else if (end->logprobs && end->branch < g->beam->n_answers && !world_is_wrong(w))
        check_answer_logprobs(w, g, &g->beam->answers[end->branch], end);
}

void check_end(struct group *g, const struct gen_end *end)
{
    struct world *w = g->world;
    if (end->branch < 0 || end->branch >= g->n_branches) {
        world_fault(w, "S3 an end of branch %d of %d", end->branch, g->n_branches);
        return;
    }
    struct branch *b = &g->branches[end->branch];
    if (b->finish != GEN_NONE) {
        world_fault(w, "S3 a second end");
        return;
    }
    if (end->is_last != (g->n_ends + 1 == g->n_due))
        world_fault(w, "S3 end %d of %d says that it is%s the last", g->n_ends + 1, g->n_due,
                    end->is_last ? "" : " not");
    if (end->n_prompt != g->n_prompt || end->n_cached > g->n_prompt || end->unfinished.len > 0)
        world_fault(w, "S3 the end counts %d cached of %d", end->n_cached, end->n_prompt);
    check_prompt(w, g, end);
    if (g->beam)
        check_beam(w, g, end);
    else
        check_sampled(w, g, b, end);
}
