/* world.c - a real engine and cache over the toy runner: operations become calls.
 *
 * Beside each generation stands its lone run, computed at submission on plain arrays: whatever the
 * engine does with it (share, preempt, resume, batch), its ids must be a prefix of that. Callbacks
 * do what clients' replies do: some cancel, some fork, some submit anew, in the middle of a turn. */
#include "world.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"

enum { ROOT_IDS = 160, CALLBACK_TRIES = 2 };
_Static_assert(WORLD_PROMPT >= 2 * ROOT_IDS, "a root and what is added");

void world_fault(struct world *w, const char *format, ...)
{
    if (world_is_wrong(w))
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(w->fault, sizeof w->fault, format, args);
    va_end(args);
}

/* ---- life --------------------------------------------------------------------------------------- */

struct tokenizer *world_tokenizer(void)
{
    /* The last is never made. It is long, so that long texts are not refused by their length. */
    static const struct bytes texts[TOY_VOCAB] = {
        {"<end>", 5},
        {"a", 1},
        {"b", 1},
        {"c", 1},
        {"d", 1},
        {"e", 1},
        BYTES("QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ"
              "QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ")};
    struct tokenizer_spec spec = {
        .n_vocab = TOY_VOCAB, .texts = texts, .kinds = "ennnnnn", .pre = "gpt-2"};
    struct err err = {""};
    struct tokenizer *t = tokenizer_build(&spec, &err);
    if (!t)
        fprintf(stderr, "tokenizer: %s\n", err.text);
    return t;
}

/* The first roots share a head, the later ones stand alone. */
static void make_roots(struct world *w)
{
    struct rng r = rng_from((uint64_t)w->config.roots_seed);
    for (int32_t i = 0; i < w->config.n_roots; i++) {
        w->roots[i] = xcalloc(ROOT_IDS, sizeof **w->roots);
        for (int32_t k = 0; k < ROOT_IDS; k++)
            w->roots[i][k] = 1 + (int32_t)rng_below(&r, 3);
        int32_t head = w->config.block_size * (int32_t)(1 + rng_below(&r, 4)) + 1;
        for (int32_t k = 0; i > 0 && i < 3 && k < head && k < ROOT_IDS; k++)
            w->roots[i][k] = w->roots[0][k];
    }
}

void *world_new(const struct world_config *config, const struct tokenizer *tokenizer)
{
    struct world *w = xcalloc(1, sizeof *w);
    struct err err = {""};
    w->config = *config;
    w->tokenizer = tokenizer;
    struct runner_info info = {
        .n_vocab = TOY_VOCAB,
        .n_context = config->n_context,
        .block_size = config->block_size,
        .n_blocks = config->n_blocks,
        .limits = engine_plan_limits(config->budget, config->max_running, config->n_context,
                                     TOY_VOCAB, config->block_size, 1),
        .model_digest = 7,
    };
    info.limits.max_rows += config->max_running; /* room for a planted row too many */
    toy_init(&w->toy, &info, config->n_letters);
    struct engine_config engine = {.runner = &w->toy.runner,
                                   .tokenizer = tokenizer,
                                   .max_batch_tokens = config->budget,
                                   .max_chunk = config->chunk,
                                   .max_running = config->max_running,
                                   .max_queue = config->max_queue,
                                   .hash_bits = config->hash_bits};
    w->engine = engine_new(&engine, &err);
    if (!w->engine)
        world_fault(w, "engine_new: %s", err.text);
    make_roots(w);
    return w;
}

void world_free(void *rig)
{
    struct world *w = rig;
    w->toy.runner.close(&w->toy.runner);
    engine_free(w->engine);
    toy_done(&w->toy);
    for (int32_t i = 0; i < w->n_live; i++)
        xfree(w->live[i]);
    for (int32_t i = 0; i < w->n_ended; i++)
        xfree(w->ended[i]);
    for (int32_t i = 0; i < w->config.n_roots; i++)
        xfree(w->roots[i]);
    xfree(w);
}

/* ---- submission --------------------------------------------------------------------------------- */

static void keep_ended(struct world *w, struct branch *b)
{
    for (int32_t i = 0; i < w->n_live; i++)
        if (w->live[i] == b) {
            memmove(w->live + i, w->live + i + 1, (size_t)(w->n_live - i - 1) * sizeof *w->live);
            w->n_live--;
            break;
        }
    if (w->n_ended == WORLD_MAX_ENDED) {
        xfree(w->ended[0]);
        memmove(w->ended, w->ended + 1, (size_t)(--w->n_ended) * sizeof *w->ended);
    }
    w->ended[w->n_ended++] = b;
}

/* What the rules say about ids [n]: SUBMIT_QUEUE_FULL aside. */
enum submit_error world_expect(const struct world *w, int32_t n, int32_t n_resumed,
                               const struct gen_options *options)
{
    int32_t n_prompt = n - n_resumed, size = w->config.block_size;
    int64_t growth = w->config.n_context - n_prompt;
    if (n_prompt < 1 || n >= w->config.n_context)
        return SUBMIT_CONTEXT;
    if (options->max_tokens < growth)
        growth = options->max_tokens;
    int64_t blocks = n_prompt / size + (n_prompt % size + growth + size - 1) / size;
    return blocks > w->config.n_blocks ? SUBMIT_TOO_LARGE : SUBMIT_OK;
}

static void on_output(void *owner, const struct gen_output *output);
static void on_end(void *owner, const struct gen_end *end);

static void check_refusal(struct world *w, enum submit_error got, enum submit_error expected)
{
    struct engine_stats stats;
    engine_stats(w->engine, &stats);
    if (got == SUBMIT_QUEUE_FULL && expected == SUBMIT_OK && stats.queued >= w->config.max_queue)
        return;
    if (got != expected)
        world_fault(w, "S6 submission gave %d, the rules say %d", got, expected);
}

static void accept(struct world *w, struct branch *b, struct gen *g, int32_t n, int32_t n_resumed)
{
    b->gen = g;
    b->n_resumed = b->n_delivered = n_resumed;
    b->arrival = g->arrival;
    w->cache = g->cache;
    w->live[w->n_live++] = b;
    w->n_accepted++;
    w->turns_allowed += 2 * (n / w->config.block_size + 1) + (int32_t)b->options.max_tokens + 12;
}

static void submit(struct world *w, const int32_t *ids, int32_t n, int32_t n_resumed,
                   const struct gen_options *options, int32_t user, enum op_react react)
{
    static const struct gen_events events = {on_output, on_end};
    enum submit_error expected = world_expect(w, n, n_resumed, options);
    struct err err = {""};
    struct gen *g;
    if (w->n_live == WORLD_MAX_LIVE)
        return;
    struct branch *b = xcalloc(1, sizeof *b);
    *b = (struct branch){.world = w, .options = *options, .react = react};
    b->ns = (struct cache_namespace){.model_digest = 7, .user = (uint64_t)user};
    if (expected == SUBMIT_OK)
        lone_run(&b->lone, ids, n - n_resumed, 0, options, w->config.n_context,
                 w->config.n_letters);
    enum submit_error got = engine_submit(w->engine, &b->ns, ids, n, n_resumed, BYTES(""), options,
                                          &events, b, &g, &err);
    check_refusal(w, got, expected);
    if (got == SUBMIT_OK && expected == SUBMIT_OK)
        accept(w, b, g, n, n_resumed);
    else if (got != SUBMIT_OK)
        xfree(b); /* accepted against the rules: a fault, nothing is called any more */
}

struct gen_options world_options(const struct op *op)
{
    static const struct bytes stops[] = {{"ab", 2}, {"bb", 2}, {"caac", 4}, {"b", 1}};
    static const struct plan_bias ban_a[] = {{.id = 1, .value = -INFINITY}};
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
    if (op->args[ARG_DEADLINE] > 0)
        o.deadline_us = clock_now_us() + op->args[ARG_DEADLINE] * (int64_t)1000;
    return o;
}

/* ---- callbacks ---------------------------------------------------------------------------------- */

static void cancel(struct branch *b, enum gen_finish finish)
{
    b->asked = finish;
    engine_cancel(b->world->engine, b->gen, finish);
}

/* What a client may do at once with what it reads. Those it makes react no more. */
static void submit_again(struct branch *b, int32_t n_generated)
{
    int32_t ids[LONE_MAX_IDS + 1], n = b->lone.n_prompt + n_generated;
    struct gen_options options = b->options;
    memcpy(ids, b->lone.ids, (size_t)n * sizeof *ids);
    ids[n] = 1 + n % 3;
    options.deadline_us = 0;
    submit(b->world, ids, n + 1, 0, &options, (int32_t)b->ns.user, REACT_NONE);
}

static void on_output(void *owner, const struct gen_output *output)
{
    struct branch *b = owner;
    check_output(b, output);
    b->n_outputs++;
    if (b->gen->state == GEN_ENDED)
        return;
    if (b->react == REACT_FORK && b->n_outputs == 1) {
        b->world->has_published = true;
        engine_publish(b->world->engine, b->gen);
        submit_again(b, b->n_delivered);
    } else if (b->react == REACT_CANCEL && b->n_outputs == CALLBACK_TRIES) {
        b->world->has_cancelled = b->world->has_published = true;
        cancel(b, GEN_CANCELLED);
    }
}

static void on_end(void *owner, const struct gen_end *end)
{
    struct branch *b = owner;
    struct world *w = b->world;
    check_end(b, end);
    if (b->finish != GEN_NONE)
        return;
    b->finish = end->finish;
    b->n_final = end->n_ids;
    b->gen = NULL;
    w->n_ends++;
    keep_ended(w, b);
    if (b->react == REACT_CONTINUE)
        submit_again(b, b->n_final);
}

/* ---- operations --------------------------------------------------------------------------------- */

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

static void apply_gen(struct world *w, const struct op *op)
{
    int32_t ids[WORLD_PROMPT], n = world_make_prompt(w, op->args[ARG_TARGET], op, ids);
    struct gen_options options = world_options(op);
    submit(w, ids, n, 0, &options, op->args[ARG_USER], (enum op_react)op->args[ARG_REACT]);
}

static void apply_probe(struct world *w, const struct op *op)
{
    int32_t ids[WORLD_PROMPT], n = world_make_prompt(w, op->args[ARG_TARGET], op, ids);
    struct cache_namespace ns = {.model_digest = 7, .user = (uint64_t)op->args[ARG_USER]};
    int32_t n_held = engine_probe(w->engine, &ns, ids, n);
    if (n_held < 0 || n_held > n - 1)
        world_fault(w, "S1 a probe of %d ids found %d", n, n_held);
}

/* Ids of `from`, at most the operation's length of them, and some behind. */
static void submit_child(struct world *w, const struct branch *from, int32_t n_generated,
                         const struct op *op)
{
    int32_t ids[LONE_MAX_IDS + 8], n = from->lone.n_prompt + n_generated;
    struct rng r = rng_from((uint64_t)op->args[ARG_VARIANT]);
    struct gen_options options = world_options(op);
    if (n > op->args[ARG_LENGTH])
        n = op->args[ARG_LENGTH];
    memcpy(ids, from->lone.ids, (size_t)n * sizeof *ids);
    for (int32_t i = 0; i < op->args[ARG_EXTRA] && i < 8; i++)
        ids[n++] = 1 + (int32_t)rng_below(&r, 3);
    submit(w, ids, n, 0, &options, (int32_t)from->ns.user, (enum op_react)op->args[ARG_REACT]);
}

static void apply_fork(struct world *w, const struct op *op)
{
    struct gen_view view;
    if (w->n_live == 0)
        return;
    struct branch *b = w->live[op->args[ARG_TARGET] % w->n_live];
    engine_publish(w->engine, b->gen);
    gen_view(b->gen, &view);
    submit_child(w, b, view.n_ids, op);
}

static void apply_continue(struct world *w, const struct op *op)
{
    if (w->n_ended == 0)
        return;
    struct branch *b = w->ended[op->args[ARG_TARGET] % w->n_ended];
    submit_child(w, b, b->n_final, op);
}

/* The same generation once more, from where its orphan ended: it must go on as if it never had. */
static void apply_resume(struct world *w, const struct op *op)
{
    struct branch *b = NULL;
    for (int32_t i = 0; i < w->n_ended && !b; i++) {
        b = w->ended[(op->args[ARG_TARGET] + i) % w->n_ended];
        b = b->finish == GEN_ORPHANED ? b : NULL;
    }
    if (!b)
        return;
    struct gen_options options = b->options, drawn = world_options(op);
    options.priority = drawn.priority;
    options.deadline_us = drawn.deadline_us;
    struct lone lone = b->lone; /* b may go when the child comes */
    submit(w, lone.ids, lone.n_prompt + b->n_final, b->n_final, &options, (int32_t)b->ns.user,
           (enum op_react)op->args[ARG_REACT]);
}

static void apply_cancel(struct world *w, const struct op *op)
{
    static const enum gen_finish finishes[] = {GEN_CANCELLED, GEN_FORKED, GEN_ORPHANED};
    if (w->n_live > 0)
        cancel(w->live[op->args[ARG_TARGET] % w->n_live], finishes[op->args[ARG_FINISH] % 3]);
}

static void turn(struct world *w, bool done, bool fail, bool late)
{
    uint64_t n_steps = w->toy.n_steps;
    w->toy.may_finish = done;
    w->toy.must_fail = w->is_failing = done && fail && w->toy.plan;
    w->toy.is_late = late;
    w->has_cancelled = w->has_published = false;
    check_note(w);
    engine_turn(w->engine);
    w->toy.may_finish = w->is_failing = false;
    check_turn(w, n_steps);
}

static void run_until_idle(struct world *w)
{
    w->turns_allowed = 20;
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct branch *b = w->live[i];
        w->turns_allowed += 2 * (b->gen->seqs[0].n_ids / w->config.block_size + 1) +
                            (int32_t)b->options.max_tokens + 12;
    }
    while (!engine_is_idle(w->engine) && !world_is_wrong(w)) {
        if (w->turns_allowed-- <= 0)
            world_fault(w, "S7 it does not drain: %d are live", w->n_live);
        turn(w, true, false, w->turns_allowed % 2);
        check_state(w);
    }
    if (w->n_live > 0)
        world_fault(w, "S3 the engine is idle and %d never ended", w->n_live);
}

void world_drain(void *rig)
{
    struct world *w = rig;
    struct engine_stats stats;
    if (world_is_wrong(w))
        return;
    run_until_idle(w);
    engine_cache_clear(w->engine);
    engine_stats(w->engine, &stats);
    if (stats.free_blocks != stats.n_blocks)
        world_fault(w, "P3 %d of %d blocks are back", stats.free_blocks, stats.n_blocks);
    if (w->n_accepted != w->n_ends)
        world_fault(w, "S3 %llu accepted, %llu ended", (unsigned long long)w->n_accepted,
                    (unsigned long long)w->n_ends);
}

void world_apply(void *rig, const struct op *op)
{
    struct world *w = rig;
    switch (op->kind) {
    case OP_GEN:
        apply_gen(w, op);
        break;
    case OP_FORK:
        apply_fork(w, op);
        break;
    case OP_CONTINUE:
        apply_continue(w, op);
        break;
    case OP_RESUME:
        apply_resume(w, op);
        break;
    case OP_CANCEL:
        apply_cancel(w, op);
        break;
    case OP_CLEAR:
        engine_cache_clear(w->engine);
        break;
    case OP_PROBE:
        apply_probe(w, op);
        break;
    case OP_CLOCK:
        clock_advance_ms(op->args[ARG_MS]);
        break;
    case OP_STEP:
        turn(w, op->args[ARG_DONE], op->args[ARG_FAIL], op->args[ARG_LATE]);
        break;
    case OP_IDLE:
        run_until_idle(w);
        break;
    default: /* on keys: another rig */
        break;
    }
    check_state(w);
}

static struct world *itself(void *rig)
{
    return rig;
}

const struct rig engine_rig = {world_new, world_apply, world_drain, world_free, itself};

void world_print(const struct world *w, FILE *out)
{
    struct engine_stats stats;
    engine_stats(w->engine, &stats);
    fprintf(out, "%d live, %d running, %d queued; %d free, %d cached, %d used, %d promised;",
            w->n_live, stats.running, stats.queued, stats.free_blocks, stats.cached_blocks,
            stats.used_blocks, stats.promised_blocks);
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct gen *g = w->live[i]->gen;
        fprintf(out, " [%llu %s %d+%d of %d, prompt %d]", (unsigned long long)g->arrival,
                g->state == GEN_RUNNING ? "runs" : "waits", g->seqs[0].table.computed,
                g->seqs[0].table.ahead, g->seqs[0].n_ids, g->n_prompt);
    }
    fputc('\n', out);
}
