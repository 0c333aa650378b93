/* sim_paged.c - the real engine and cache over a runner without a model.
 *
 * Nothing of the engine is imitated here: the policy submits generations and turns it. A step of
 * the runner ends when the driver comes back, at the time that the cost model gave. What it
 * "samples" is the next token of the request's stream, whatever the plan says, so lengths are
 * forced and the history of a conversation is known beforehand.
 *
 * The clock is frozen and set before every turn. */
#include <stdio.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "utils/sim_beam.h"
#include "utils/sim_policy.h"

#define WALL_MS 1700000000000 /* any: nothing depends on it */
#define MONO_US 1000000       /* of virtual time 0 */

/* Owns the samples; first member the contract. */
struct sim_runner {
    struct runner base;
    struct chosen *samples;  /* [max_seqs + max_best] owns */
    const struct plan *plan; /* the step that runs; NULL when none does */
};

struct paged {
    struct sim_batch base; /* first: the interface */
    struct sim_setup setup;
    struct sim_runner runner;
    struct tokenizer *tokenizer; /* owns */
    struct engine *engine;       /* owns */
    struct cache *cache;         /* borrows the engine's; NULL before the first submission */
    int64_t now_us;
};

static struct paged *paged_of(struct sim_batch *b)
{
    return (struct paged *)(void *)b;
}

/* ---- a vocabulary of three-letter words ----------------------------------------------------- */

static struct tokenizer *make_tokenizer(struct err *err)
{
    struct bytes *texts = xcalloc(SIM_VOCAB, sizeof *texts);
    char *kinds = xcalloc(SIM_VOCAB, 1), *letters = xcalloc(SIM_VOCAB, 3);

    for (int32_t i = 0; i < SIM_VOCAB; i++) {
        for (int k = 0, rest = i; k < 3; k++, rest /= 16)
            letters[3 * i + k] = (char)('a' + rest % 16);
        texts[i] = (struct bytes){letters + 3 * i, 3};
        kinds[i] = i == 0 ? 'e' : 'n';
    }
    struct tokenizer_spec spec = {
        .n_vocab = SIM_VOCAB, .texts = texts, .kinds = kinds, .pre = "gpt-2", .bos = -1};
    struct tokenizer *t = tokenizer_build(&spec, err);
    xfree(texts);
    xfree(kinds);
    xfree(letters);
    return t;
}

/* ---- the runner ----------------------------------------------------------------------------- */

static struct sim_runner *runner_of(struct runner *r)
{
    return (struct sim_runner *)(void *)r;
}

static void runner_launch(struct runner *r, const struct plan *plan)
{
    struct sim_runner *s = runner_of(r);

    ASSERT(!s->plan);
    s->plan = plan;
    for (int32_t i = 0; i < plan->n_samples; i++) {
        const struct plan_sample *sample = &plan->samples[i];
        const struct sim_request *request = (const void *)(uintptr_t)sample->seed;
        s->samples[i] = (struct chosen){.id = sim_token(request, sample->branch, sample->position)};
        if (sample->n_best > 0)
            sim_beam_continue(request, sample->position, plan->ids[sample->row], sample->n_best,
                              s->samples + plan->n_samples + sample->best_at);
    }
}

/* The driver turns the engine only when the step's time is over. */
static bool runner_poll(struct runner *r, struct runner_done *done)
{
    struct sim_runner *s = runner_of(r);

    if (!s->plan)
        return false;
    *done = (struct runner_done){.n_samples = s->plan->n_samples, .samples = s->samples};
    s->plan = NULL;
    return true;
}

static void runner_close(struct runner *r)
{
    runner_of(r)->plan = NULL;
}

static void open_runner(struct paged *p)
{
    const struct sim_setup *s = &p->setup;
    const struct sim_model *m = s->model;

    p->runner.base = (struct runner){
        .info = {.n_vocab = SIM_VOCAB,
                 .n_context = m->n_context,
                 .block_size = s->block_size,
                 .n_blocks = m->slots / s->block_size,
                 .n_slots = s->swap ? m->slots / s->block_size : 0,
                 .limits = engine_plan_limits(s->max_rows, s->max_running, m->n_context, SIM_VOCAB,
                                              s->block_size, 1)},
        .fd = -1,
        .launch = runner_launch,
        .poll = runner_poll,
        .close = runner_close};
    const struct plan_limits *limits = &p->runner.base.info.limits;
    p->runner.samples =
        xcalloc((size_t)limits->max_seqs + (size_t)limits->max_best, sizeof *p->runner.samples);
}

/* ---- the policy ----------------------------------------------------------------------------- */

static void paged_close(struct sim_batch *b)
{
    struct paged *p = paged_of(b);

    runner_close(&p->runner.base);
    engine_free(p->engine);
    tokenizer_free(p->tokenizer);
    xfree(p->runner.samples);
    xfree(p);
}

static struct sim_batch *paged_open(const struct sim_policy *policy, const struct sim_setup *setup,
                                    struct err *err)
{
    struct paged *p = xcalloc(1, sizeof *p);

    p->base.policy = policy;
    p->setup = *setup;
    clock_freeze(WALL_MS, MONO_US);
    open_runner(p);
    p->tokenizer = make_tokenizer(err);
    if (p->tokenizer)
        p->engine = engine_new(&(struct engine_config){.runner = &p->runner.base,
                                                       .tokenizer = p->tokenizer,
                                                       .max_batch_tokens = setup->max_rows,
                                                       .max_chunk = setup->max_rows,
                                                       .max_running = setup->max_running,
                                                       .max_queue = INT32_MAX,
                                                       .swap = setup->swap},
                               err);
    if (p->engine)
        return &p->base;
    paged_close(&p->base);
    return NULL;
}

static void on_output(void *owner, const struct gen_output *output)
{
    (void)owner; /* nobody reads it */
    (void)output;
}

/* Told behind the launch of the next step, when the clock still stands at the end of the last. */
static void on_end(void *owner, const struct gen_end *end)
{
    struct sim_request *r = owner;

    ASSERT(end->finish == GEN_LENGTH && end->n_generated == r->n_output);
    if (end->is_last)
        r->end_us = clock_now_us() - MONO_US;
}

static int paged_submit(struct sim_batch *b, struct sim_request *r, int64_t now_us, struct err *err)
{
    static const struct gen_events events = {.output = on_output, .end = on_end};
    struct paged *p = paged_of(b);
    struct cache_namespace ns = {0};
    struct gen_options options = gen_options_default();
    int32_t *ids = xmalloc((size_t)r->n_prompt * sizeof *ids);
    struct gen *gen;

    for (int32_t i = 0; i < r->n_prompt; i++)
        ids[i] = sim_token(r, 0, i);
    options.max_tokens = r->n_output;
    options.n_branches = r->n_branches;
    options.beam = r->is_beam;
    options.ignore_eos = true;
    options.seed = (uint64_t)(uintptr_t)r; /* comes back with every sample of it */
    clock_freeze(WALL_MS + now_us / 1000, MONO_US + now_us);
    enum submit_error refused =
        engine_submit(p->engine, &ns, ids, r->n_prompt, &options, &events, r, &gen, err);
    xfree(ids);
    if (refused != SUBMIT_OK)
        return -1;
    p->cache = gen->cache;
    return 0;
}

/* Tokens of unreferenced blocks that can be found. Looks at every block, the dearest part of a step:
 * microseconds all the same. */
static int64_t count_cached(const struct cache *c)
{
    const struct pool *pool = cache_blocks(c);
    const struct prefix *index = cache_index(c);
    int64_t n = 0;

    for (int32_t i = 0; i < pool->n_blocks; i++)
        if (pool->blocks[i].place == POOL_LEAF || pool->blocks[i].place == POOL_INNER)
            n += index->nodes[i].n_ids;
    return n;
}

/* Blocks that several tables name count for each of them: where prompts share, the shares of such a
 * load say nothing, and the tables do not print them. */
static void count_shares(struct paged *p, const struct engine_stats *stats, struct sim_step *step)
{
    const struct plan *plan = p->runner.plan;
    int32_t size = p->setup.block_size;
    int64_t *shares = step->shares, n_covered = 0, used = (int64_t)stats->used_blocks * size;

    for (int32_t i = 0; i < plan->n_seqs; i++) {
        int32_t n = plan->seqs[i].position + plan->seqs[i].n_rows;
        shares[SHARE_RUNNING] += n;
        n_covered += (n + size - 1) / size * size;
    }
    shares[SHARE_CACHED] = count_cached(p->cache);
    shares[SHARE_RESERVED] = used > n_covered ? used - n_covered : 0;
    shares[SHARE_INTERNAL] = n_covered - shares[SHARE_RUNNING];
    shares[SHARE_EXTERNAL] = p->setup.model->slots;
    for (int i = 0; i < SHARE_EXTERNAL; i++)
        shares[SHARE_EXTERNAL] -= shares[i];
    step->work.kv_tokens = shares[SHARE_RUNNING];
    step->named_blocks = n_covered / size;
    step->used_blocks = stats->used_blocks;
}

static bool paged_step(struct sim_batch *b, int64_t now_us, struct sim_step *step)
{
    struct paged *p = paged_of(b);
    struct engine_stats stats;

    clock_freeze(WALL_MS + now_us / 1000, MONO_US + now_us);
    (void)engine_turn(p->engine); /* what it says is known from the runner */
    const struct plan *plan = p->runner.plan;
    if (!plan)
        return false;
    engine_stats(p->engine, &stats);
    *step = (struct sim_step){.n_running = stats.running,
                              .work = {.n_rows = plan->n_rows,
                                       .n_seqs = plan->n_seqs,
                                       .n_outs = plan->n_outs,
                                       .n_ins = plan->n_ins,
                                       .block_size = p->setup.block_size}};
    count_shares(p, &stats, step);
    return true;
}

static void paged_totals(const struct sim_batch *b, struct sim_totals *totals)
{
    struct engine_stats stats;

    engine_stats(((const struct paged *)(const void *)b)->engine, &stats);
    *totals = (struct sim_totals){.prompt_tokens = (int64_t)stats.prompt_tokens,
                                  .cached_tokens = (int64_t)stats.cached_tokens,
                                  .preemptions = (int64_t)stats.preemptions,
                                  .dropped_tokens = (int64_t)stats.dropped_tokens,
                                  .swapped_out = (int64_t)stats.swapped_out_blocks,
                                  .swapped_in = (int64_t)stats.swapped_in_blocks};
}

const struct sim_policy sim_paged = {.name = "paged",
                                     .open = paged_open,
                                     .close = paged_close,
                                     .submit = paged_submit,
                                     .step = paged_step,
                                     .totals = paged_totals};
