/* engine_world.h - an engine over the scripted runner, with clients that write down what they are
 * told. Every turn is followed by an audit; time moves only when a test moves it. */
#ifndef TESTS_UNIT_ENGINE_WORLD_H
#define TESTS_UNIT_ENGINE_WORLD_H

#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "tests/unit/fake_runner.h"
#include "tests/unit/vocab.h"

enum { TELL_US = 150 }; /* of telling a turn; without end while time stands still */

struct world {
    struct vocab vocab;
    struct fake_runner *runner;
    struct engine *engine;
    struct cache_namespace ns;
    struct client *clients; /* all that were ever submitted, newest first */
    int32_t n_turns;
};

/* Whoever has submitted a generation. Owned by the world. */
struct client {
    struct client *next;
    struct world *world;
    struct gen *gen;   /* NULL once its end was told */
    struct str pieces; /* portions joined */
    int n_portions, n_ends;
    struct gen_end end; /* its pointers are copies below */
    struct str text, matched, unfinished, error;
    int32_t *ids;
    void (*on_output)(struct client *c); /* run inside the callback; may be NULL */
    void (*on_end)(struct client *c);
    struct client *other; /* for those two */
    int32_t first_at;     /* turn of the first portion */
};

struct shape {
    int32_t pool, block, context, batch, chunk, running, queue;
    int32_t slots;     /* of host memory; preemption swaps when there are some */
    int32_t hash_bits; /* of the prefix index; 0: all */
};

static const struct shape small_shape = {.pool = 64,
                                         .block = 16,
                                         .context = 2048,
                                         .batch = 256,
                                         .chunk = 128,
                                         .running = 32,
                                         .queue = 64};

static inline struct world *world_new(struct shape s)
{
    struct world *w = xcalloc(1, sizeof *w);
    struct err err = {0};

    log_threshold = LOG_WARNING + 1;
    clock_freeze(1700000000000, 1000000);
    clock_tick();
    w->vocab = vocab_new(NULL, 0);
    w->runner = fake_runner_new(s.pool, s.block, s.context, w->vocab.n, s.batch, s.running);
    if (s.slots > 0)
        fake_runner_host(w->runner, s.slots);
    w->engine = engine_new(&(struct engine_config){.runner = &w->runner->base,
                                                   .tokenizer = w->vocab.tokenizer,
                                                   .max_batch_tokens = s.batch,
                                                   .max_chunk = s.chunk,
                                                   .max_running = s.running,
                                                   .max_queue = s.queue,
                                                   .swap = s.slots > 0,
                                                   .hash_bits = s.hash_bits,
                                                   .tell_us = TELL_US},
                           &err);
    if (!w->engine)
        fail_msg("%s", err.text);
    return w;
}

static inline void world_free(struct world *w)
{
    engine_free(w->engine);
    w->runner->base.close(&w->runner->base);
    tokenizer_free(w->vocab.tokenizer);
    for (struct client *c = w->clients, *next; c; c = next) {
        next = c->next;
        str_free(&c->pieces);
        str_free(&c->text);
        str_free(&c->matched);
        str_free(&c->unfinished);
        str_free(&c->error);
        xfree(c->ids);
        xfree(c);
    }
    xfree(w);
}

static inline void world_audit(struct world *w)
{
    struct err err;

    if (engine_audit(w->engine, &err))
        fail_msg("turn %d: %s", w->n_turns, err.text);
}

static inline void on_output(void *owner, const struct gen_output *output)
{
    struct client *c = owner;

    assert_int_equal(c->n_ends, 0);
    assert_true(output->text.len > 0);
    if (c->n_portions++ == 0)
        c->first_at = c->world->n_turns;
    str_append(&c->pieces, output->text.data, output->text.len);
    if (c->on_output)
        c->on_output(c);
}

static inline void on_end(void *owner, const struct gen_end *end)
{
    struct client *c = owner;

    c->n_ends++;
    assert_int_equal(c->n_ends, 1);
    c->end = *end;
    str_append(&c->text, end->text.data, end->text.len);
    str_append(&c->matched, end->matched.data, end->matched.len);
    str_append(&c->unfinished, end->unfinished.data, end->unfinished.len);
    if (end->error)
        str_append_str(&c->error, end->error);
    c->ids = xcalloc((size_t)end->n_ids + 1, sizeof *c->ids);
    if (end->n_ids > 0)
        memcpy(c->ids, end->ids, (size_t)end->n_ids * sizeof *c->ids);
    if (c->on_end)
        c->on_end(c);
    c->gen = NULL;
}

static const struct gen_events client_events = {.output = on_output, .end = on_end};

static inline struct client *client_new(struct world *w)
{
    struct client *c = xcalloc(1, sizeof *c);

    c->world = w;
    c->next = w->clients;
    return w->clients = c;
}

/* A whole submission; the client has no gen when it is refused. */
static inline enum submit_error submit_full(struct client *c, const int32_t *ids, int32_t n,
                                            const struct gen_options *options, struct err *err)
{
    struct world *w = c->world;
    enum submit_error rc =
        engine_submit(w->engine, &w->ns, ids, n, options, &client_events, c, &c->gen, err);

    assert_true((rc == SUBMIT_OK) == (c->gen != NULL));
    world_audit(w);
    return rc;
}

/* ids [n_prompt + n_resumed]: what follows the prompt was generated before. */
static inline enum submit_error submit_resumed(struct client *c, const int32_t *ids,
                                               int32_t n_prompt, int32_t n_resumed,
                                               const struct gen_options *options)
{
    struct gen_start start = {.ids = ids + n_prompt, .n = n_resumed};
    struct gen_options o = *options;

    o.starts = &start;
    return submit_full(c, ids, n_prompt, &o, NULL);
}

/* Options of most tests: drawn by the seed, no end but the limit. */
static inline struct gen_options options_of(uint64_t seed, int64_t max_tokens)
{
    struct gen_options o = gen_options_default();

    o.seed = seed;
    o.max_tokens = max_tokens;
    o.ignore_eos = true;
    return o;
}

static inline struct client *submit(struct world *w, const int32_t *ids, int32_t n, uint64_t seed,
                                    int64_t max_tokens)
{
    struct client *c = client_new(w);
    struct gen_options o = options_of(seed, max_tokens);
    struct err err = {0};

    if (submit_full(c, ids, n, &o, &err) != SUBMIT_OK)
        fail_msg("%s", err.text);
    return c;
}

static inline bool turn(struct world *w)
{
    w->n_turns++;
    bool did = engine_turn(w->engine);
    world_audit(w);
    return did;
}

static inline void drain(struct world *w)
{
    int32_t n = 0;

    while (!engine_is_idle(w->engine)) {
        turn(w);
        assert_true(n++ < 20000);
    }
    struct engine_stats stats;
    engine_stats(w->engine, &stats);
    assert_int_equal(stats.used_blocks, 0);
    assert_int_equal(stats.promised_blocks, 0);
    assert_int_equal(stats.free_slots, stats.n_slots);
    assert_int_equal(stats.free_blocks + stats.cached_blocks, stats.n_blocks);
}

static inline struct engine_stats stats_of(const struct world *w)
{
    struct engine_stats stats;

    engine_stats(w->engine, &stats);
    return stats;
}

/* A prompt of n ids that begins alike for equal `kind`s only. */
static inline void fill_prompt(int32_t *ids, int32_t n, int32_t kind)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(fake_mix((uint64_t)kind * 1000003u + (uint64_t)i) % 200);
}

/* What the prompt gives by itself in a pool of its own. */
static inline void assert_as_alone(const struct client *c, const int32_t *ids, int32_t n,
                                   uint64_t seed, int64_t max_tokens)
{
    struct shape shape = small_shape;
    shape.pool = 256;
    struct world *w = world_new(shape);
    struct client *lone = submit(w, ids, n, seed, max_tokens);

    drain(w);
    assert_int_equal(c->n_ends, 1);
    assert_int_equal(c->end.finish, lone->end.finish);
    assert_int_equal(c->end.n_ids, lone->end.n_ids);
    assert_memory_equal(c->ids, lone->ids, (size_t)lone->end.n_ids * sizeof *c->ids);
    assert_int_equal(c->pieces.len, lone->text.len);
    assert_memory_equal(c->pieces.data, lone->text.data, lone->text.len);
    world_free(w);
}

static inline void assert_str(const struct str *s, const char *want)
{
    assert_int_equal(s->len, strlen(want));
    if (s->len > 0)
        assert_memory_equal(s->data, want, s->len);
}

#endif
