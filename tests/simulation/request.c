/* request.c - what is submitted, beside its lone run, and what clients do in callbacks.
 *
 * Beside each branch stands its lone run, computed at submission on plain arrays: whatever the
 * engine does with it (share, preempt, swap, resume, batch), its ids must be a prefix of that. A
 * beam has a plain search instead. Callbacks do what clients' replies do: some cancel, some fork,
 * some submit anew, in the middle of a turn. */
#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "world.h"

enum { ROOT_IDS = 160, CALLBACK_TRIES = 2 };
_Static_assert(WORLD_PROMPT >= 2 * ROOT_IDS, "a root and what is added");

/* ---- prompts and options ------------------------------------------------------------------------ */

/* ids [WORLD_PROMPT] <- the operation's part of the root, one token in twelve changed, some added. */
int32_t world_make_prompt(const struct world *w, int32_t number, const struct op *op, int32_t *ids)
{
    const int32_t *root = w->roots[number % w->config.n_roots];
    int32_t n = op->args[ARG_LENGTH] < ROOT_IDS ? op->args[ARG_LENGTH] : ROOT_IDS;
    struct rng r = rng_from((uint64_t)op->args[ARG_VARIANT]);
    for (int32_t i = 0; i < n; i++) {
        bool changed = op->args[ARG_VARIANT] && rng_below(&r, 12) == 0;
        ids[i] = changed ? 1 + (int32_t)rng_below(&r, 3) : root[i];
    }
    for (int32_t i = 0; i < op->args[ARG_EXTRA] && n < WORLD_PROMPT; i++)
        ids[n++] = 1 + (int32_t)rng_below(&r, 3);
    return n;
}

struct gen_options world_options(const struct op *op)
{
    static const struct bytes stops[] = {{"ab", 2}, {"bb", 2}, {"caac", 4}, {"b", 1}};
    /* All letters but a and b: fewer than the width go on of most beams. */
    static const struct bytes most[] = {{"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}, {"g", 1},
                                        {"h", 1}, {"i", 1}, {"j", 1}, {"k", 1}, {"l", 1},
                                        {"m", 1}, {"n", 1}, {"o", 1}, {"p", 1}, {"q", 1},
                                        {"r", 1}, {"s", 1}, {"t", 1}, {"u", 1}, {"v", 1}};
    static const struct plan_bias ban_a[] = {{.id = 1, .value = -INFINITY}};
    static const float penalties[] = {1, 0, 2.5f, -1};
    struct gen_options o = gen_options_default();
    int32_t flags = op->args[ARG_FLAGS];
    o.max_tokens = op->args[ARG_MAX_TOKENS];
    o.seed = (uint64_t)op->args[ARG_SEED];
    o.priority = op->args[ARG_PRIORITY];
    o.temperature = flags & FLAG_GREEDY ? 0 : 1;
    o.ignore_eos = flags & FLAG_IGNORE_EOS;
    o.repeat = flags & FLAG_REPEAT ? 1.5f : 1;
    o.frequency = flags & FLAG_COUNTS ? 0.5f : 0;
    o.bias = ban_a;
    o.n_bias = (flags & FLAG_BAN_A) != 0 && !o.ignore_eos;
    o.stops = stops;
    o.n_stops = flags & FLAG_STOPS ? 1 + op->args[ARG_SEED] % 4 : 0;
    o.n_branches = op->args[ARG_BRANCHES] > 0 ? op->args[ARG_BRANCHES] : 1;
    o.beam = flags & FLAG_BEAM;
    if (flags & FLAG_MOST_STOP) {
        o.stops = most;
        o.n_stops = sizeof most / sizeof *most;
    }
    o.early_stop = flags & FLAG_EARLY;
    o.length_penalty = penalties[op->args[ARG_SEED] % 4];
    o.logprobs = flags & FLAG_LOGPROBS;
    o.n_logprobs = op->args[ARG_SEED] % 4;
    o.prompt_logprobs = flags & FLAG_PROMPT_LOGPROBS;
    o.n_prompt_logprobs = op->args[ARG_SEED] % 3;
    if (op->args[ARG_DEADLINE] > 0)
        o.deadline_us = clock_now_us() + op->args[ARG_DEADLINE] * (int64_t)1000;
    return o;
}

/* What the rules say about ids [n]: SUBMIT_QUEUE_FULL aside. */
enum submit_error world_expect(const struct world *w, int32_t n, int32_t n_resumed,
                               const struct gen_options *options)
{
    int32_t n_prompt = n - n_resumed, size = w->config.block_size;
    int32_t n_branches = options->n_branches > 1 ? options->n_branches : 1;
    int64_t growth = w->config.n_context - n_prompt;
    if (n_branches > (options->beam ? ENGINE_MAX_BEAM : ENGINE_MAX_BRANCHES))
        return SUBMIT_TOO_LARGE;
    if (n_prompt < 1 || n >= w->config.n_context)
        return SUBMIT_CONTEXT;
    if (n_branches > w->config.max_running)
        return SUBMIT_TOO_LARGE;
    if (options->max_tokens < growth)
        growth = options->max_tokens;
    int64_t blocks = n_prompt / size + n_branches * ((n_prompt % size + growth + size - 1) / size);
    return blocks > w->config.n_blocks ? SUBMIT_TOO_LARGE : SUBMIT_OK;
}

/* ---- submission --------------------------------------------------------------------------------- */

void group_free(struct group *g)
{
    xfree(g->branches);
    xfree(g->beam);
    xfree(g);
}

static void open_branches(struct group *g, const struct request *r)
{
    const struct world_config *c = &g->world->config;
    for (int32_t i = 0; i < g->n_branches; i++) {
        struct branch *b = &g->branches[i];
        lone_run(&b->lone, r->ids, r->n, 0, &g->options, i, c->n_context, c->n_letters);
    }
}

/* A branch that an orphan's end cut off goes on, one that had ended by itself is over. */
static void resume_branches(struct group *g, const struct request *r)
{
    const struct world_config *c = &g->world->config;
    const struct group *from = r->resumed;
    for (int32_t i = 0; i < g->n_branches; i++) {
        struct branch *b = &g->branches[i];
        const struct branch *old = &from->branches[i];
        b->was_over = old->finish != GEN_ORPHANED;
        b->n_resumed = !b->was_over && r->forgotten >> i & 1 ? 0 : old->n_final;
        b->n_delivered = b->n_resumed;
        if (!b->was_over) {
            lone_run(&b->lone, old->lone.ids, g->n_prompt + b->n_resumed, b->n_resumed, &g->options,
                     i, c->n_context, c->n_letters);
            continue;
        }
        b->lone = old->lone;
        b->finish = old->finish;
        b->n_final = old->n_final;
    }
}

/* Its answer comes from a search; the ids that children are cut from are those of the prompt. */
static void open_beam(struct group *g, const struct request *r)
{
    g->beam = xcalloc(1, sizeof *g->beam);
    plain_beam_run(g->beam, r->ids, r->n, &g->options, g->world->config.n_context, LONE_MAX_IDS);
    for (int32_t i = 0; i < g->n_branches; i++)
        lone_open(&g->branches[i].lone, r->ids, r->n, 0);
}

static struct group *new_group(struct world *w, const struct request *r)
{
    struct group *g = xcalloc(1, sizeof *g);
    *g = (struct group){.world = w,
                        .options = r->options,
                        .react = r->react,
                        .n_branches = r->options.n_branches,
                        .n_prompt = r->resumed ? r->resumed->n_prompt : r->n,
                        .ns = {.model_digest = 7, .user = (uint64_t)r->user}};
    g->branches = xcalloc((size_t)g->n_branches, sizeof *g->branches);
    if (r->resumed)
        resume_branches(g, r);
    else if (g->options.beam)
        open_beam(g, r);
    else
        open_branches(g, r);
    for (int32_t i = 0; i < g->n_branches; i++)
        g->n_due += !g->branches[i].was_over;
    return g;
}

/* Steps in which it advances, when it is the first in order and stays so: blocks of its prompt and,
 * once it was preempted, of what each of its branches has made; then its tokens one by one; and a
 * few to be admitted, sit out, land and be told. Twice the blocks: it may be the first, lose that to
 * one of higher rank, and be preempted by that. A prompt that is told goes on by one row at least. */
int32_t world_turns_for(const struct world *w, const struct group *g)
{
    int64_t room = w->config.n_context - g->n_prompt, longest = g->n_prompt + room;
    if (g->options.max_tokens < room)
        longest = g->n_prompt + g->options.max_tokens;
    int32_t n_rows = g->options.prompt_logprobs ? g->n_prompt : 0;
    return (int32_t)(2 * g->n_branches * (longest / w->config.block_size + 1) +
                     g->options.max_tokens + 12 + n_rows);
}

static void check_refusal(struct world *w, enum submit_error got, enum submit_error expected)
{
    struct engine_stats stats;
    engine_stats(w->engine, &stats);
    if (got == SUBMIT_QUEUE_FULL && expected == SUBMIT_OK && stats.queued >= w->config.max_queue)
        return;
    if (got != expected)
        world_fault(w, "S6 submission gave %d, the rules say %d", got, expected);
}

static void accept(struct world *w, struct group *g, struct gen *gen)
{
    g->gen = gen;
    g->arrival = gen->arrival;
    w->cache = gen->cache;
    w->live[w->n_live++] = g;
    w->n_accepted++;
    w->n_branches += (uint64_t)g->n_due;
    w->turns_allowed += world_turns_for(w, g);
}

static void on_output(void *owner, const struct gen_output *output);
static void on_end(void *owner, const struct gen_end *end);

static enum submit_error try_submit(struct world *w, struct group *g, const struct request *r,
                                    struct gen **gen)
{
    static const struct gen_events events = {.output = on_output, .end = on_end};
    struct gen_start starts[ENGINE_MAX_BRANCHES];
    struct gen_options options = g->options;
    const int32_t *ids = r->resumed ? r->resumed->branches[0].lone.ids : r->ids;
    struct err err = {""};
    for (int32_t i = 0; r->resumed && i < g->n_branches; i++)
        starts[i] = (struct gen_start){.ids = g->branches[i].lone.ids + g->n_prompt,
                                       .n = g->branches[i].n_resumed,
                                       .is_over = g->branches[i].was_over};
    options.starts = r->resumed ? starts : NULL;
    return engine_submit(w->engine, &g->ns, ids, g->n_prompt, &options, &events, g, gen, &err);
}

void world_submit(struct world *w, const struct request *r)
{
    int32_t n = r->resumed ? r->resumed->n_prompt : r->n;
    enum submit_error expected = world_expect(w, n, 0, &r->options), got;
    struct err err = {""};
    struct gen *gen;
    if (w->n_live == WORLD_MAX_LIVE)
        return;
    if (expected == SUBMIT_OK) {
        struct group *g = new_group(w, r);
        got = try_submit(w, g, r, &gen);
        check_refusal(w, got, expected);
        if (got == SUBMIT_OK)
            accept(w, g, gen);
        else
            group_free(g);
        return;
    }
    static const struct gen_events nobody = {.end = NULL}; /* nobody may be accepted */
    const struct cache_namespace ns = {.model_digest = 7, .user = (uint64_t)r->user};
    got = engine_submit(w->engine, &ns, r->ids, r->n, &r->options, &nobody, NULL, &gen, &err);
    check_refusal(w, got, expected);
}

/* ---- callbacks ---------------------------------------------------------------------------------- */

/* What has ended keeps its own finish. */
void world_cancel(struct group *g, enum gen_finish finish)
{
    if (g->gen->n_live > 0)
        g->asked = finish;
    engine_cancel(g->world->engine, g->gen, finish);
}

/* What a client may do at once with what it reads. Those it makes react no more. */
static void submit_again(const struct group *g, int32_t branch, int32_t n_generated)
{
    int32_t ids[LONE_MAX_IDS + 1], n = g->n_prompt + n_generated;
    struct request r = {.ids = ids, .n = n + 1, .options = g->options, .user = (int32_t)g->ns.user};
    memcpy(ids, g->branches[branch].lone.ids, (size_t)n * sizeof *ids);
    ids[n] = 1 + n % 3;
    r.options.deadline_us = 0;
    world_submit(g->world, &r);
}

static void on_output(void *owner, const struct gen_output *output)
{
    struct group *g = owner;
    struct world *w = g->world;
    check_output(g, output);
    g->n_outputs++;
    if (world_is_wrong(w) || g->gen->seqs[output->branch].state != SEQ_LIVE)
        return;
    if (g->react == REACT_FORK && g->n_outputs == 1) {
        w->has_published = true;
        engine_publish_branch(w->engine, g->gen, output->branch);
        submit_again(g, output->branch, g->branches[output->branch].n_delivered);
    } else if (g->react == REACT_CANCEL && g->n_outputs == CALLBACK_TRIES) {
        w->has_cancelled = w->has_published = true;
        world_cancel(g, GEN_CANCELLED);
    }
}

static void keep_ended(struct world *w, struct group *g)
{
    for (int32_t i = 0; i < w->n_live; i++)
        if (w->live[i] == g) {
            memmove(w->live + i, w->live + i + 1, (size_t)(w->n_live - i - 1) * sizeof *w->live);
            w->n_live--;
            break;
        }
    if (w->n_ended == WORLD_MAX_ENDED) {
        group_free(w->ended[0]);
        memmove(w->ended, w->ended + 1, (size_t)(--w->n_ended) * sizeof *w->ended);
    }
    w->ended[w->n_ended++] = g;
}

/* The answer of a beam is what children go on from. */
static void note_end(struct group *g, const struct gen_end *end)
{
    struct branch *b = &g->branches[end->branch];
    b->finish = end->finish;
    b->n_final = end->n_ids;
    g->n_ends++;
    g->world->n_ends++;
    if (!g->beam)
        return;
    b->lone.n_ids = g->n_prompt + end->n_ids;
    memcpy(b->lone.ids + g->n_prompt, end->ids, (size_t)end->n_ids * sizeof *end->ids);
}

static void on_end(void *owner, const struct gen_end *end)
{
    struct group *g = owner;
    struct world *w = g->world;
    check_end(g, end);
    if (world_is_wrong(w))
        return;
    note_end(g, end);
    if (!end->is_last) {
        if (g->react != REACT_CANCEL || g->n_ends > 1)
            return;
        w->has_cancelled = w->has_published = true;
        world_cancel(g, GEN_CANCELLED);
        return;
    }
    g->gen = NULL;
    keep_ended(w, g);
    if (g->react == REACT_CONTINUE)
        submit_again(g, end->branch, end->n_ids);
}
