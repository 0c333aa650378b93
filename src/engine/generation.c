/* generation.c - one GEN inside the engine: its sequence, its place in the order, its figures.
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
 * Times are those of the first admission and the first token: what a client waited for.
 *
 * Main thread only. */
#include "engine/generation.h"

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
static void replay(struct gen *g, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n && g->finish == GEN_NONE; i++)
        gen_accept(g, ids[i]);
    if (!PLANTED(RESUMED_AGAIN))
        output_skip(&g->seq.output);
    if (g->finish == GEN_NONE && n > 0 && n >= g->max_tokens)
        g->finish = GEN_LENGTH;
}

/* Queued state of ids [n], of which the last n_resumed were generated before. Fills everything but
 * engine, events, owner and arrival. n < n_context. */
struct gen *gen_new(struct cache *c, const struct tokenizer *t, const struct cache_namespace *ns,
                    const int32_t *ids, int32_t n, int32_t n_resumed, struct bytes carry,
                    const struct gen_options *options, int32_t n_context)
{
    struct gen *g = xcalloc(1, sizeof *g);
    struct seq *s = &g->seq;
    int32_t n_prompt = n - n_resumed, room = n_context - n_prompt;
    int32_t growth = options->max_tokens < room ? (int32_t)options->max_tokens : room;

    ASSERT(n_prompt >= 0 && n_resumed >= 0 && n < n_context);
    if (growth < n_resumed)
        growth = n_resumed;

    g->cache = c;
    g->ns = *ns;
    g->priority = options->priority;
    g->boost = INT32_MIN;
    g->deadline_us = options->deadline_us;
    g->max_tokens = options->max_tokens;
    g->n_prompt = n_prompt;
    g->submitted_us = clock_now_us();
    g->promises.who = g;
    list_init(&g->in_order);
    list_init(&g->in_outbox);

    s->ids_cap = n_prompt + growth + 1;
    s->ids = xmalloc((size_t)s->ids_cap * sizeof *s->ids);
    memcpy(s->ids, ids, (size_t)n_prompt * sizeof *ids);
    s->n_ids = n_prompt;
    int32_t block = cache_block_size(c);
    cache_open(c, &s->table, ns, &g->promises, s->ids_cap / block + 1);
    sampler_init(&s->sampler, t, options, 0, growth + 1);
    output_init(&s->output, t, options, carry, n_prompt, n_context);
    replay(g, ids + n_prompt, n_resumed);
    return g;
}

/* Its table is released before. */
void gen_free(struct gen *g)
{
    if (!g)
        return;
    ASSERT(list_is_empty(&g->in_order) && list_is_empty(&g->in_outbox));
    cache_close(g->cache, &g->seq.table);
    output_free(&g->seq.output);
    sampler_free(&g->seq.sampler);
    xfree(g->seq.ids);
    str_free(&g->error);
    xfree(g);
}

/* The sampled id becomes the last of the sequence, or its end: finish says so. */
void gen_accept(struct gen *g, int32_t id)
{
    struct seq *s = &g->seq;
    int32_t n_before = s->output.n_sampled;

    g->finish = output_accept(&s->output, id);
    if (s->output.n_sampled == n_before)
        return; /* the end-of-text id: part of nothing */
    ASSERT(s->n_ids < s->ids_cap);
    s->ids[s->n_ids++] = id;
    sampler_count(&s->sampler, id);
}

/* It is over: the reason stands, an error is kept for the callback. */
void gen_finish_with(struct gen *g, enum gen_finish finish, const char *error)
{
    g->finish = finish;
    g->state = GEN_ENDED;
    g->ended_us = clock_now_us();
    if (error)
        str_append_str(&g->error, error);
}

/* Ids that have to be in the table for the next one to be drawn. */
int32_t gen_n_known(const struct gen *g)
{
    if (PLANTED(RESUME_PROMPT) && g->n_preempted > 0 && g->n_prompt > 0)
        return g->n_prompt;
    return g->seq.n_ids;
}

/* As counted: a token of a cut stop string was generated, the end-of-text id was not. */
int32_t gen_n_generated(const struct gen *g)
{
    return g->seq.output.n_sampled;
}

/* Three stretches that join: waiting, until the first token, after it. */
struct gen_times gen_times(const struct gen *g)
{
    int64_t now = g->state >= GEN_ENDED ? g->ended_us : clock_now_us();
    int64_t admitted = g->was_admitted ? g->admitted_us : now;
    int64_t token = g->has_token ? g->token_us : now;

    return (struct gen_times){.queued_ms = (admitted - g->submitted_us) / 1000,
                              .prefill_ms = (token - admitted) / 1000,
                              .decode_ms = (now - token) / 1000};
}

/* What the end callback gets; borrowed from the generation. */
void gen_describe_end(const struct gen *g, struct gen_end *end)
{
    const struct output *o = &g->seq.output;
    struct gen_times times = gen_times(g);

    *end = (struct gen_end){.finish = g->finish,
                            .text = output_whole(o),
                            .ids = o->ids.data,
                            .n_ids = o->ids.n,
                            .unfinished = output_unfinished(o),
                            .n_prompt = g->n_prompt,
                            .n_cached = g->n_cached,
                            .n_generated = gen_n_generated(g),
                            .queued_ms = times.queued_ms,
                            .prefill_ms = times.prefill_ms,
                            .decode_ms = times.decode_ms,
                            .error = g->finish == GEN_ERROR ? bytes_of(&g->error).data : NULL};
    if (g->finish == GEN_STOP && o->matched)
        end->matched = o->matched->text;
}
