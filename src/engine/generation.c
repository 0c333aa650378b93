/* generation.c - one GEN inside the engine: its branches, its place in the order, its figures.
 *
 *     queued --admitted--> running --last id, cancel, deadline, failure--> ended --told--> gone
 *        ^                    |
 *        +----- preempted ----+      blocks go back, ids and arrival stay
 *
 * The ids are the truth: blocks, text, counts of the sampler all follow from them. So preemption
 * drops the blocks only, and a generation that a client resumes after its end is built again by
 * putting its ids through the same door that new ones come through (gen_accept): text, held bytes,
 * stop strings and counts are then where they were.
 *
 * Branches begin at one prompt. As long as none has generated an id the generation is fresh: only
 * the first has blocks, and its last row gives every branch its first id, drawn from the stream of
 * each; the others then take its table. From then on each goes its own way to its own end; the last
 * one to end ends the generation. Branches do not move in the array while they live or wait to be
 * told: whoever holds a seq may keep it as long as the gen.
 *
 * Times are those of the first admission and the first token: what a client waited for.
 *
 * Main thread only. */
#include "engine/generation.h"

#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"

const char *gen_finish_name(enum gen_finish f)
{
    static const char *const names[GEN_N_FINISHES] = {
        [GEN_NONE] = "none",         [GEN_STOP] = "stop",           [GEN_LENGTH] = "length",
        [GEN_DEADLINE] = "deadline", [GEN_CANCELLED] = "cancelled", [GEN_FORKED] = "forked",
        [GEN_ORPHANED] = "orphaned", [GEN_ERROR] = "error",
    };

    ASSERT(f >= 0 && f < GEN_N_FINISHES);
    return names[f];
}

/* Puts what was generated before through the door again. It may turn out to be the whole answer
 * (another limit now): then finish is set, and the next turn ends it. */
static void replay(struct seq *q, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n && q->finish == GEN_NONE; i++) {
        seq_accept(q, ids[i]);
        if (q->logprobs && seq_n_generated(q) == i + 1)
            seq_note_logprobs(q, &(struct chosen){ids[i], NAN}, NULL);
    }
    if (!PLANTED(RESUMED_AGAIN))
        output_skip(&q->output);
    if (q->finish == GEN_NONE && n > 0 && n >= q->gen->max_tokens)
        q->finish = GEN_LENGTH;
}

/* One branch over the prompt. False: there is no memory for its log-probabilities. */
static bool open_seq(struct gen *g, int32_t branch, const int32_t *prompt,
                     const struct gen_start *start, const struct tokenizer *t,
                     const struct gen_options *options, int32_t n_context)
{
    struct seq *q = &g->seqs[branch];
    int32_t room = n_context - g->n_prompt, block = cache_block_size(g->cache);
    int32_t growth = options->max_tokens < room ? (int32_t)options->max_tokens : room;

    q->gen = g;
    q->branch = branch;
    q->state = start->is_over ? SEQ_TOLD : SEQ_LIVE;
    if (start->is_over)
        return true; /* it may have filled the context */
    ASSERT(start->n >= 0 && g->n_prompt + start->n < n_context);
    if (growth < start->n)
        growth = start->n;
    g->n_live++;
    q->ids_cap = g->n_prompt + growth + 1;
    q->ids = xmalloc((size_t)q->ids_cap * sizeof *q->ids);
    memcpy(q->ids, prompt, (size_t)g->n_prompt * sizeof *prompt);
    q->n_ids = g->n_prompt;
    cache_open(g->cache, &q->table, &g->ns, &g->promises, q->ids_cap / block + 1);
    sampler_init(&q->sampler, t, options, branch, growth + 1);
    output_init(&q->output, t, options, g->n_prompt, n_context);
    if (options->logprobs) {
        q->n_best = options->n_logprobs;
        q->logprobs = prompt_new_rows(growth + 1, q->n_best);
        if (!q->logprobs)
            return false;
    }
    replay(q, start->ids, start->n);
    return true;
}

/* Queued state over a prompt; each branch begins where options->starts says. Fills everything but
 * engine, events, owner and arrival. n_prompt < n_context. NULL: there is no memory for
 * log-probabilities. */
struct gen *gen_new(struct cache *c, const struct tokenizer *t, const struct cache_namespace *ns,
                    const int32_t *prompt, int32_t n_prompt, const struct gen_options *options,
                    int32_t n_context)
{
    static const struct gen_start at_the_prompt = {0};
    struct gen *g = xcalloc(1, sizeof *g);

    ASSERT(n_prompt >= 0 && n_prompt < n_context);
    g->cache = c;
    g->ns = *ns;
    g->priority = options->priority;
    g->boost = INT32_MIN;
    g->deadline_us = options->deadline_us;
    g->max_tokens = options->max_tokens;
    g->n_prompt = n_prompt;
    g->submitted_us = clock_now_us();
    g->promises.who = g;
    g->promises.lineage = options->lineage;
    list_init(&g->in_order);
    list_init(&g->in_outbox);
    g->n_seqs = options->n_branches > 0 ? options->n_branches : 1;
    g->seqs = xcalloc((size_t)g->n_seqs, sizeof *g->seqs);
    bool fits = true;
    if (!options->starts || !options->starts[0].is_over) /* told with the end of branch 0 */
        fits = prompt_init(&g->prompt_rows, options, prompt, n_prompt);
    if (options->beam)
        g->beam = beam_new(t, options, n_prompt, n_context);
    ASSERT(!g->beam || (!options->starts && g->n_seqs <= ENGINE_MAX_BEAM));
    for (int32_t i = 0; fits && i < g->n_seqs; i++) {
        const struct gen_start *start =
            options->starts ? &options->starts[PLANTED(START_FIRST) ? 0 : i] : &at_the_prompt;
        fits = open_seq(g, i, prompt, start, t, options, n_context);
    }
    if (fits)
        return g;
    gen_free(g);
    return NULL;
}

/* Its tables are released before. */
void gen_free(struct gen *g)
{
    if (!g)
        return;
    ASSERT(list_is_empty(&g->in_order) && list_is_empty(&g->in_outbox));
    for (int32_t i = 0; i < g->n_seqs; i++) {
        cache_close(g->cache, &g->seqs[i].table);
        output_free(&g->seqs[i].output);
        sampler_free(&g->seqs[i].sampler);
        xfree(g->seqs[i].ids);
        try_free(MEM_ENGINE, g->seqs[i].logprobs);
    }
    xfree(g->seqs);
    beam_free(g->beam);
    prompt_free(&g->prompt_rows);
    str_free(&g->error);
    xfree(g);
}

/* No branch has generated anything: the prompt is computed for all of them at once. Ended ones count
 * too: a branch that is resumed without any id may outlive those that had some, in its own blocks. */
bool gen_is_fresh(const struct gen *g)
{
    for (int32_t i = 0; i < g->n_seqs; i++)
        if (g->seqs[i].n_ids > g->n_prompt &&
            !(PLANTED(FRESH_AGAIN) && g->seqs[i].state != SEQ_LIVE))
            return false;
    return true;
}

/* Where a branch stands: of a running beam the branch-th best. */
int32_t gen_place_of(const struct gen *g, int32_t branch)
{
    ASSERT(branch >= 0 && branch < g->n_seqs);
    if (PLANTED(BRANCH_BEST))
        return branch;
    return g->beam && g->n_live > 0 ? beam_at(g, branch)->branch : branch;
}

/* Has rows in the step that is being made. */
bool gen_is_planned(const struct gen *g)
{
    GEN_FOREACH_LIVE(g, q)
        if (q->n_planned > 0)
            return true;
    return false;
}

/* The sampled id becomes the last of the branch, or its end: finish says so. */
void seq_accept(struct seq *q, int32_t id)
{
    int32_t n_before = q->output.n_sampled;

    q->finish = output_accept(&q->output, id);
    if (q->output.n_sampled == n_before)
        return; /* the end-of-text id: part of nothing */
    ASSERT(q->n_ids < q->ids_cap);
    q->ids[q->n_ids++] = id;
    sampler_count(&q->sampler, id);
}

/* What the device said of the id that was just accepted; best NULL: nothing is known. */
void seq_note_logprobs(struct seq *q, const struct chosen *id, const struct chosen *best)
{
    struct chosen *row = q->logprobs + (size_t)(seq_n_generated(q) - 1) * ((size_t)q->n_best + 1);

    if (PLANTED(LOGPROB_SHIFT) && seq_n_generated(q) > 1)
        row -= q->n_best + 1;
    row[0] = *id;
    for (int32_t i = 0; i < q->n_best; i++)
        row[1 + i] = best ? best[i] : (struct chosen){-1, NAN};
}

/* It is over: the reason stands, an error is kept for the callback. With the last live branch the
 * generation is. */
void seq_finish_with(struct seq *q, enum gen_finish finish, const char *error)
{
    struct gen *g = q->gen;

    q->finish = finish;
    q->state = SEQ_ENDED;
    q->ended_us = clock_now_us();
    if (--g->n_live == 0)
        g->state = GEN_ENDED;
    if (error && g->error.len == 0)
        str_append_str(&g->error, error);
}

/* Ids that have to be in the table for the next one to be drawn. */
int32_t seq_n_known(const struct seq *q)
{
    const struct gen *g = q->gen;

    if (PLANTED(RESUME_PROMPT) && g->n_preempted > 0 && g->n_prompt > 0)
        return g->n_prompt;
    return q->n_ids;
}

/* As counted: a token of a cut stop string was generated, the end-of-text id was not. */
int32_t seq_n_generated(const struct seq *q)
{
    return q->output.n_sampled;
}

/* Three stretches that join: waiting, until the first token, after it. */
struct gen_times seq_times(const struct seq *q)
{
    const struct gen *g = q->gen;
    int64_t now = q->state >= SEQ_ENDED ? q->ended_us : clock_now_us();
    int64_t admitted = g->was_admitted ? g->admitted_us : now;
    int64_t token = g->has_token ? g->token_us : now;

    return (struct gen_times){.queued_ms = (admitted - g->submitted_us) / 1000,
                              .prefill_ms = (token - admitted) / 1000,
                              .decode_ms = (now - token) / 1000};
}

/* What the end callback gets; borrowed from the generation. */
void seq_describe_end(const struct seq *q, struct gen_end *end)
{
    const struct gen *g = q->gen;
    const struct output *o = &q->output;
    const struct prompt_rows *p = &g->prompt_rows;
    struct gen_times times = seq_times(q);

    *end = (struct gen_end){.branch = q->branch,
                            .finish = q->finish,
                            .text = output_whole(o),
                            .ids = o->ids.data,
                            .n_ids = o->ids.n,
                            .unfinished = output_unfinished(o),
                            .n_prompt = g->n_prompt,
                            .n_cached = g->n_cached,
                            .n_generated = seq_n_generated(q),
                            .score = q->score,
                            .logprobs = q->logprobs,
                            .n_best = q->n_best,
                            .prompt_logprobs = q->branch == 0 ? p->rows : NULL,
                            .n_prompt_known = p->n_known,
                            .n_prompt_best = p->n_best,
                            .queued_ms = times.queued_ms,
                            .prefill_ms = times.prefill_ms,
                            .decode_ms = times.decode_ms,
                            .error = q->finish == GEN_ERROR ? bytes_of(&g->error).data : NULL};
    if (PLANTED(PROMPT_EACH))
        end->prompt_logprobs = p->rows;
    if (q->finish == GEN_STOP && o->matched)
        end->matched = o->matched->text;
}
