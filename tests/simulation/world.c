/* world.c - a real engine and cache over the toy runner: operations become calls. */
#include "world.h"

#include <stdarg.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"

enum { ROOT_IDS = 160 };

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
    static char letters[TOY_VOCAB];
    struct bytes texts[TOY_VOCAB] = {{"<end>", 5}};
    char kinds[TOY_VOCAB + 1] = "e";
    for (int32_t id = 1; id < TOY_VOCAB - 1; id++) {
        letters[id] = (char)('a' + id - 1);
        texts[id] = (struct bytes){&letters[id], 1};
    }
    /* The last is never made. It is long, so that long texts are not refused by their length. */
    texts[TOY_VOCAB - 1] = BYTES("QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ"
                                 "QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ");
    memset(kinds + 1, 'n', TOY_VOCAB - 1);
    struct tokenizer_spec spec = {
        .n_vocab = TOY_VOCAB, .texts = texts, .kinds = kinds, .pre = "gpt-2"};
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

static void on_launch(void *owner)
{
    check_lru(owner, LRU_TURN);
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
        .n_slots = config->n_slots,
        .limits = engine_plan_limits(config->budget, config->max_running, config->n_context,
                                     TOY_VOCAB, config->block_size, 1),
        .model_digest = 7,
    };
    info.limits.max_rows += config->max_running; /* room for a planted row too many */
    toy_init(&w->toy, &info, config->n_letters);
    w->toy.launched = on_launch;
    w->toy.owner = w;
    w->lru = lru_new(config);
    struct engine_config engine = {.runner = &w->toy.runner,
                                   .tokenizer = tokenizer,
                                   .max_batch_tokens = config->budget,
                                   .max_chunk = config->chunk,
                                   .max_running = config->max_running,
                                   .max_queue = config->max_queue,
                                   .swap = config->swaps,
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
        group_free(w->live[i]);
    for (int32_t i = 0; i < w->n_ended; i++)
        group_free(w->ended[i]);
    for (int32_t i = 0; i < w->config.n_roots; i++)
        xfree(w->roots[i]);
    lru_free(w->lru);
    xfree(w);
}

/* ---- operations --------------------------------------------------------------------------------- */

static void apply_gen(struct world *w, const struct op *op)
{
    int32_t ids[WORLD_PROMPT];
    struct request r = {.ids = ids,
                        .n = world_make_prompt(w, op->args[ARG_TARGET], op, ids),
                        .options = world_options(op),
                        .user = op->args[ARG_USER],
                        .react = (enum op_react)op->args[ARG_REACT]};
    world_submit(w, &r);
}

static void apply_probe(struct world *w, const struct op *op)
{
    int32_t ids[WORLD_PROMPT], n = world_make_prompt(w, op->args[ARG_TARGET], op, ids);
    struct cache_namespace ns = {.model_digest = 7, .user = (uint64_t)op->args[ARG_USER]};
    int32_t n_held = engine_probe(w->engine, &ns, ids, n);
    if (n_held < 0 || n_held > n - 1)
        world_fault(w, "S1 a probe of %d ids found %d", n, n_held);
}

/* Ids of a branch, at most the operation's length of them, and some behind. */
static void submit_child(struct world *w, const struct group *from, int32_t branch,
                         int32_t n_generated, const struct op *op)
{
    int32_t ids[LONE_MAX_IDS + 8], n = from->n_prompt + n_generated;
    struct rng rng = rng_from((uint64_t)op->args[ARG_VARIANT]);
    if (n > op->args[ARG_LENGTH])
        n = op->args[ARG_LENGTH];
    memcpy(ids, from->branches[branch].lone.ids, (size_t)n * sizeof *ids);
    for (int32_t i = 0; i < op->args[ARG_EXTRA] && i < 8; i++)
        ids[n++] = 1 + (int32_t)rng_below(&rng, 3);
    struct request r = {.ids = ids,
                        .n = n,
                        .options = world_options(op),
                        .user = (int32_t)from->ns.user,
                        .react = (enum op_react)op->args[ARG_REACT]};
    world_submit(w, &r);
}

/* FORK of a branch: its half-filled block becomes findable, the child comes with its ids. */
static void apply_fork(struct world *w, const struct op *op)
{
    struct gen_view view;
    int32_t target = op->args[ARG_TARGET];
    if (w->n_live == 0)
        return;
    struct group *g = w->live[target % w->n_live];
    int32_t branch = target / w->n_live % g->n_branches;
    engine_publish_branch(w->engine, g->gen, branch);
    gen_view_branch(g->gen, branch, &view);
    submit_child(w, g, branch, g->beam ? 0 : view.n_ids, op);
}

static void apply_continue(struct world *w, const struct op *op)
{
    int32_t target = op->args[ARG_TARGET];
    if (w->n_ended == 0)
        return;
    struct group *g = w->ended[target % w->n_ended];
    int32_t branch = target / w->n_ended % g->n_branches;
    submit_child(w, g, branch, g->branches[branch].n_final, op);
}

static bool is_orphaned(const struct group *g)
{
    bool any = false;
    for (int32_t i = 0; i < g->n_branches && !g->beam; i++)
        any |= g->branches[i].finish == GEN_ORPHANED;
    return any;
}

/* Of which branches nothing was kept: some, but for a prompt of full blocks (engine.h), or all. */
static int32_t draw_forgotten(const struct world *w, const struct group *g, const struct op *op)
{
    if (op->args[ARG_EXTRA] > 0)
        return 0;
    return g->n_prompt % w->config.block_size ? op->args[ARG_VARIANT] : -1;
}

/* The same generation once more, from where its orphan ended: it must go on as if it never had. */
static void apply_resume(struct world *w, const struct op *op)
{
    struct gen_options drawn = world_options(op);
    for (int32_t i = 0; i < w->n_ended; i++) {
        const struct group *g = w->ended[(op->args[ARG_TARGET] + i) % w->n_ended];
        if (!is_orphaned(g))
            continue;
        struct request r = {.resumed = g,
                            .forgotten = draw_forgotten(w, g, op),
                            .options = g->options,
                            .user = (int32_t)g->ns.user,
                            .react = (enum op_react)op->args[ARG_REACT]};
        r.options.priority = drawn.priority;
        r.options.deadline_us = drawn.deadline_us;
        world_submit(w, &r);
        return;
    }
}

static void apply_cancel(struct world *w, const struct op *op)
{
    static const enum gen_finish finishes[] = {GEN_CANCELLED, GEN_FORKED, GEN_ORPHANED};
    if (w->n_live == 0)
        return;
    struct group *g = w->live[op->args[ARG_TARGET] % w->n_live];
    world_cancel(g, finishes[op->args[ARG_FINISH] % 3]);
    for (int32_t i = 0; i < w->n_live; i++)
        if (w->live[i] == g)
            world_fault(w, "S3 arrival %llu was cancelled, and lives on",
                        (unsigned long long)g->arrival);
}

static void turn(struct world *w, bool done, bool fail, bool late)
{
    uint64_t n_steps = w->toy.n_steps;
    w->toy.may_finish = done;
    w->toy.must_fail = w->is_failing = w->has_failed = done && fail && w->toy.plan;
    w->toy.is_late = late;
    w->has_cancelled = w->has_published = false;
    check_note(w);
    engine_turn(w->engine);
    w->toy.may_finish = w->is_failing = false;
    if (w->toy.n_steps == n_steps || w->has_published) /* else all is as it was at the launch */
        check_lru(w, w->has_published ? LRU_FORK : LRU_TURN);
    check_turn(w, n_steps);
}

/* ---- draining ----------------------------------------------------------------------------------- */

void world_note_drain(struct world *w, int32_t n_turns, int32_t n_allowed)
{
    int32_t share = (int32_t)(1000 * (int64_t)n_turns / n_allowed);
    w->drains.n++;
    w->drains.n_turns += n_turns;
    w->drains.n_allowed += n_allowed;
    if (share > w->drains.worst)
        w->drains.worst = share;
}

/* No step fails any more, each is done at once: whoever is first in order advances in every turn, so
 * the sum of what each of them takes as the first bounds how long it lasts. */
static void run_until_idle(struct world *w)
{
    int32_t n_turns = 0;
    w->turns_allowed = 4; /* a step that runs is nobody's */
    for (int32_t i = 0; i < w->n_live; i++)
        w->turns_allowed += world_turns_for(w, w->live[i]);
    while (!engine_is_idle(w->engine) && !world_is_wrong(w)) {
        if (n_turns++ >= w->turns_allowed)
            world_fault(w, "S7 it does not drain in %d turns: %d are live", w->turns_allowed,
                        w->n_live);
        turn(w, true, false, n_turns % 2);
        check_state(w);
    }
    if (w->n_live > 0)
        world_fault(w, "S3 the engine is idle and %d never ended", w->n_live);
    world_note_drain(w, n_turns, w->turns_allowed);
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
    if (stats.free_slots != stats.n_slots)
        world_fault(w, "P3 %d of %d host slots are back", stats.free_slots, stats.n_slots);
    if (w->n_branches != w->n_ends)
        world_fault(w, "S3 %llu branches accepted, %llu ended", (unsigned long long)w->n_branches,
                    (unsigned long long)w->n_ends);
}

/* ---- the rig ------------------------------------------------------------------------------------ */

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
    if (op->kind == OP_FORK || op->kind == OP_CANCEL || op->kind == OP_CLEAR)
        check_lru(w, op->kind == OP_FORK ? LRU_FORK : LRU_OPERATION);
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
    if (stats.n_slots > 0)
        fprintf(out, " %d of %d slots;", stats.free_slots, stats.n_slots);
    for (int32_t i = 0; i < w->n_live; i++) {
        const struct gen *g = w->live[i]->gen;
        fprintf(out, " [%llu %s, prompt %d:", (unsigned long long)g->arrival,
                g->state == GEN_RUNNING ? "runs" : "waits", g->n_prompt);
        GEN_FOREACH_LIVE(g, q)
            fprintf(out, " %d+%d of %d", q->table.computed, q->table.ahead, q->n_ids);
        fputc(']', out);
    }
    fputc('\n', out);
}
