/* test_golden_sameness.c - one set of ids on the real model, however it is computed.
 *
 *     way of running it   x   way of choosing       each cell: three prompts, 64 ids each
 *
 * Every cell is compared with a lone run: one thread, an empty cache, one prompt after the other.
 * The engine is the server's, turned from here, so that a cell can prove that it ran what it is
 * named after: that prompts were found, that they were gone, that each of the three was preempted
 * and came back through host memory or was computed again.
 *
 * Pressure, for preemption: a group of 12 branches of higher priority comes with them into a pool
 * that holds its longest life and nothing else. All are admitted, since they are short then; as the
 * group grows it needs every block, and each of the three has to go.
 *
 * The cpu backend, which serves; the tiny model runs more ways through the server itself
 * (tests/integration/test_sameness.py), and through every fault (tests/simulation). */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "model/model.h"
#include "runner/rank.h"
#include "tests/golden/golden.h"

enum {
    BLOCK = 16,
    N_PROMPTS = 3,
    N_TOKENS = 64,
    N_OTHERS = 29, /* with two of the three prompts: 31 */
    MAX_RUNNING = 40,
    MAX_ROWS = 512,
    MAX_CHUNK = 64, /* where a cell does not say */
    POOL = 400,     /* blocks: room for everything */
    CONTEXT = 512,
    /* The group under pressure: floor(20 / 16) + 12 x ceil((4 + 70) / 16) blocks at its end. */
    GROUP_PROMPT = 20,
    GROUP_BRANCHES = 12,
    GROUP_TOKENS = 70,
    GROUP_POOL = 61,
};

/* One generation that is waited for. */
struct answer {
    struct gen *gen; /* borrows; NULL once it has ended */
    int32_t ids[N_TOKENS + 8], n;
    int32_t n_cached, n_preempted;
    int n_live;
};

struct world {
    struct model *model;                 /* owns */
    struct tokenizer *tokenizer;         /* owns */
    struct runner *runners[2];           /* own; of 1 and of 2 threads */
    struct ids text;                     /* owns; what prompts are cut from */
    int32_t at[N_PROMPTS], n[N_PROMPTS]; /* the prompts: pieces of text */
    struct answer lone[2][N_PROMPTS];    /* by way of choosing */
    bool has_lone[2];
    struct engine *engine;        /* owns; of the cell that runs */
    struct runner *runner;        /* borrows; its runner */
    uint64_t dropped, swapped_in; /* by the last engine, when it was closed */
};

/* ---- ways of choosing ----------------------------------------------------------------------- */

enum choice { GREEDY, SAMPLED, N_CHOICES };
static const char *const choice_names[N_CHOICES] = {"greedy", "sampled"};

static struct gen_options options_of(enum choice choice, int32_t n_tokens)
{
    struct gen_options o = gen_options_default();

    o.max_tokens = n_tokens;
    o.ignore_eos = true;
    o.temperature = choice == GREEDY ? 0 : 0.9f;
    o.seed = 77;
    if (choice == SAMPLED) {
        o.top_k = 50;
        o.top_p = 0.95f;
    }
    return o;
}

/* ---- running -------------------------------------------------------------------------------- */

static void on_output(void *owner, const struct gen_output *output)
{
    (void)owner;
    (void)output;
}

static void on_end(void *owner, const struct gen_end *end)
{
    struct answer *a = owner;

    if (end->branch == 0 && end->finish == GEN_LENGTH) {
        a->n = end->n_ids < N_TOKENS ? end->n_ids : N_TOKENS;
        memcpy(a->ids, end->ids, (size_t)a->n * sizeof *a->ids);
    }
    a->n_cached = end->n_cached;
    a->n_preempted = a->gen->n_preempted;
    if (end->is_last)
        a->gen = NULL;
}

static void submit(struct world *w, struct answer *a, const int32_t *ids, int32_t n,
                   const struct gen_options *options)
{
    static const struct gen_events events = {.output = on_output, .end = on_end};
    struct cache_namespace ns = {.user = 1};
    struct err err = {""};

    *a = (struct answer){0};
    if (engine_submit(w->engine, &ns, ids, n, options, &events, a, &a->gen, &err))
        fail_msg("%s", err.text);
}

static void submit_prompt(struct world *w, struct answer *a, int32_t i, enum choice choice)
{
    struct gen_options o = options_of(choice, N_TOKENS);
    submit(w, a, w->text.data + w->at[i], w->n[i], &o);
}

/* Turns until it has something new or nothing is left. */
static void turn(struct world *w)
{
    struct pollfd wait = {.fd = w->runner->fd, .events = POLLIN};
    struct err err = {""};

    (void)engine_turn(w->engine);
    if (engine_audit(w->engine, &err))
        fail_msg("%s", err.text);
    if (!engine_is_idle(w->engine) && poll(&wait, 1, 60000) != 1)
        fail_msg("a step did not end within a minute");
}

static void drain(struct world *w)
{
    while (!engine_is_idle(w->engine))
        turn(w);
}

/* n_blocks of the runner's pool. Host memory is used where swap is true. */
static void open_engine(struct world *w, int threads, int32_t chunk, int32_t n_blocks, bool swap)
{
    struct err err = {""};

    w->runner = w->runners[threads - 1];
    w->runner->info.n_blocks = n_blocks;
    w->engine = engine_new(&(struct engine_config){.runner = w->runner,
                                                   .tokenizer = w->tokenizer,
                                                   .max_batch_tokens = MAX_ROWS,
                                                   .max_chunk = chunk,
                                                   .max_running = MAX_RUNNING,
                                                   .max_queue = 100,
                                                   .swap = swap},
                           &err);
    if (!w->engine)
        fail_msg("%s", err.text);
}

/* All blocks and slots are back. */
static void close_engine(struct world *w)
{
    struct engine_stats stats;

    drain(w);
    engine_stats(w->engine, &stats);
    assert_int_equal(stats.used_blocks, 0);
    assert_int_equal(stats.free_slots, stats.n_slots);
    w->dropped = stats.dropped_tokens;
    w->swapped_in = stats.swapped_in_blocks;
    engine_free(w->engine);
    w->engine = NULL;
}

static void run_one_by_one(struct world *w, enum choice choice, bool is_cold,
                           struct answer *answers)
{
    for (int32_t i = 0; i < N_PROMPTS; i++) {
        if (is_cold)
            (void)engine_cache_clear(w->engine);
        submit_prompt(w, &answers[i], i, choice);
        drain(w);
    }
}

static void run_together(struct world *w, enum choice choice, struct answer *answers)
{
    for (int32_t i = 0; i < N_PROMPTS; i++)
        submit_prompt(w, &answers[i], i, choice);
    drain(w);
}

/* ---- ways of running ------------------------------------------------------------------------ */

static void run_alone(struct world *w, enum choice choice, struct answer *answers)
{
    open_engine(w, 1, MAX_CHUNK, POOL, false);
    run_one_by_one(w, choice, true, answers);
    close_engine(w);
}

static void run_cold(struct world *w, enum choice choice, struct answer *answers)
{
    open_engine(w, 2, MAX_CHUNK, POOL, false);
    run_one_by_one(w, choice, true, answers);
    close_engine(w);
    for (int32_t i = 0; i < N_PROMPTS; i++)
        assert_int_equal(answers[i].n_cached, 0);
}

/* Prompt and answer are there from before. */
static void run_warm(struct world *w, enum choice choice, struct answer *answers)
{
    open_engine(w, 2, MAX_CHUNK, POOL, false);
    run_together(w, choice, answers);
    run_together(w, choice, answers);
    close_engine(w);
    for (int32_t i = 0; i < N_PROMPTS; i++)
        assert_int_equal(answers[i].n_cached, w->n[i] - 1);
}

/* A long prompt takes every block in between. */
static void run_evicted(struct world *w, enum choice choice, struct answer *answers)
{
    enum { BLOCKS = 30 };
    struct gen_options one = options_of(choice, 1);
    struct answer filler;

    open_engine(w, 2, MAX_CHUNK, BLOCKS, false);
    run_together(w, choice, answers);
    submit(w, &filler, w->text.data + 1, BLOCKS * BLOCK - 1, &one);
    drain(w);
    run_together(w, choice, answers);
    close_engine(w);
    for (int32_t i = 0; i < N_PROMPTS; i++)
        assert_int_equal(answers[i].n_cached, 0);
}

/* Others of all lengths come before, between and after, and choose in other ways. */
static void run_among_others(struct world *w, enum choice choice, struct answer *answers)
{
    struct answer others[N_OTHERS];
    int32_t next = 0;

    open_engine(w, 2, MAX_CHUNK, POOL, false);
    for (int32_t i = 0; i < N_OTHERS; i++) {
        struct gen_options o = options_of((enum choice)(i % N_CHOICES), 4 + i);
        o.seed = (uint64_t)i;
        if (i % 10 == 5)
            submit_prompt(w, &answers[next], next, choice), next++;
        submit(w, &others[i], w->text.data + 5 * i, 3 + i * 37 % 90, &o);
        if (i % 10 == 8)
            turn(w);
    }
    assert_int_equal(next, N_PROMPTS);
    close_engine(w);
}

/* Half of the answer; then a child goes on from there while its source still runs. */
static void run_forked(struct world *w, enum choice choice, struct answer *answers)
{
    struct gen_options rest = options_of(choice, N_TOKENS / 2);
    struct answer sources[N_PROMPTS];

    open_engine(w, 2, MAX_CHUNK, POOL, false);
    for (int32_t i = 0; i < N_PROMPTS; i++)
        submit_prompt(w, &sources[i], i, choice);
    for (int32_t i = 0; i < N_PROMPTS; i++) {
        int32_t ids[CONTEXT], n = w->n[i] + N_TOKENS / 2;
        struct gen_view view;
        while (gen_view(sources[i].gen, &view), view.n_ids < N_TOKENS / 2)
            turn(w);
        memcpy(ids, w->text.data + w->at[i], (size_t)w->n[i] * sizeof *ids);
        memcpy(ids + w->n[i], view.ids, (size_t)(N_TOKENS / 2) * sizeof *ids);
        engine_publish(w->engine, sources[i].gen);
        submit(w, &answers[i], ids, n, &rest);
        memcpy(answers[i].ids, ids + w->n[i], (size_t)(N_TOKENS / 2) * sizeof *ids);
    }
    drain(w);
    for (int32_t i = 0; i < N_PROMPTS; i++) { /* the child's half behind the source's */
        struct answer *a = &answers[i];
        assert_int_equal(a->n, N_TOKENS / 2);
        assert_true(a->n_cached >= w->n[i] + N_TOKENS / 2 - BLOCK);
        memmove(a->ids + N_TOKENS / 2, a->ids, (size_t)(N_TOKENS / 2) * sizeof *a->ids);
        memcpy(a->ids, sources[i].ids, (size_t)(N_TOKENS / 2) * sizeof *a->ids);
        a->n = N_TOKENS;
    }
    close_engine(w);
}

static void run_under_pressure(struct world *w, enum choice choice, struct answer *answers,
                               bool swap)
{
    struct gen_options group = options_of(SAMPLED, GROUP_TOKENS);
    struct answer other;

    group.n_branches = GROUP_BRANCHES;
    group.priority = 1;
    open_engine(w, 2, MAX_CHUNK, GROUP_POOL, swap);
    submit(w, &other, w->text.data + 7, GROUP_PROMPT, &group);
    run_together(w, choice, answers);
    close_engine(w);
    for (int32_t i = 0; i < N_PROMPTS; i++)
        assert_true(answers[i].n_preempted > 0);
}

static void run_swapped(struct world *w, enum choice choice, struct answer *answers)
{
    run_under_pressure(w, choice, answers, true);
    assert_int_equal(w->dropped, 0);
    assert_true(w->swapped_in > 0);
}

static void run_recomputed(struct world *w, enum choice choice, struct answer *answers)
{
    run_under_pressure(w, choice, answers, false);
    assert_true(w->dropped > 0);
    assert_int_equal(w->swapped_in, 0);
}

static void run_chunks(struct world *w, enum choice choice, struct answer *answers, int threads,
                       int32_t chunk)
{
    open_engine(w, threads, chunk, POOL, false);
    run_together(w, choice, answers);
    close_engine(w);
}

static void run_chunks_16(struct world *w, enum choice choice, struct answer *answers)
{
    run_chunks(w, choice, answers, 2, 16);
}

static void run_chunks_64(struct world *w, enum choice choice, struct answer *answers)
{
    run_chunks(w, choice, answers, 2, 64);
}

static void run_chunks_512(struct world *w, enum choice choice, struct answer *answers)
{
    run_chunks(w, choice, answers, 2, 512);
}

static void run_one_thread(struct world *w, enum choice choice, struct answer *answers)
{
    run_chunks(w, choice, answers, 1, 512);
}

static const struct way {
    const char *name;
    void (*run)(struct world *w, enum choice choice, struct answer *answers);
} ways[] = {
    {"alone, cold, two threads", run_cold},
    {"warm", run_warm},
    {"evicted between", run_evicted},
    {"among 31 others", run_among_others},
    {"forked half way", run_forked},
    {"preempted by swap", run_swapped},
    {"preempted by recomputation", run_recomputed},
    {"together, chunks of 16", run_chunks_16},
    {"together, chunks of 64", run_chunks_64},
    {"together, chunks of 512", run_chunks_512},
    {"together, 512, one thread", run_one_thread},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* ---- the matrix ----------------------------------------------------------------------------- */

struct cell {
    const struct way *way;
    enum choice choice;
    enum { NOT_RUN, DIFFERS, EQUAL } outcome;
};
static struct cell cells[N_WAYS * N_CHOICES]; /* cmocka hands them to test_cell */
static struct world *world;                   /* NULL: the model is not there */

static const struct answer *lone(struct world *w, enum choice choice)
{
    if (!w->has_lone[choice])
        run_alone(w, choice, w->lone[choice]);
    w->has_lone[choice] = true;
    return w->lone[choice];
}

static void test_cell(void **state)
{
    struct cell *c = *state;
    struct answer answers[N_PROMPTS];

    if (!world)
        skip();
    const struct answer *wanted = lone(world, c->choice);
    c->outcome = DIFFERS;
    c->way->run(world, c->choice, answers);
    for (int32_t i = 0; i < N_PROMPTS; i++) {
        assert_int_equal(wanted[i].n, N_TOKENS);
        assert_int_equal(answers[i].n, N_TOKENS);
        for (int32_t k = 0; k < N_TOKENS; k++)
            if (answers[i].ids[k] != wanted[i].ids[k])
                fail_msg("%s, %s: prompt %d, id %d is %d, alone %d", c->way->name,
                         choice_names[c->choice], i, k, answers[i].ids[k], wanted[i].ids[k]);
    }
    c->outcome = EQUAL;
}

/* A text of its own: the workloads may not be there. */
static const char text[] =
    "The harbour master kept three books. In the first he wrote the ships that came, in the second "
    "the ships that left, and in the third, which nobody had ever seen him open, the ships that "
    "had "
    "been promised. On clear evenings he would carry a lamp up the stairs of the old tower and "
    "look "
    "for a long time at the place where the river meets the sea, because, he said, whoever keeps a "
    "harbour must also keep the water in front of it. His daughter did not believe a word of this. "
    "She had read the third book when she was nine. It was a cookery book: forty soups, eleven "
    "kinds of bread, and a way of salting herring that was forbidden two parishes further north. "
    "What she never found out was why the recipes were dated, and why each of the dates lay in the "
    "future. Years later, when the tower was gone and the harbour had silted up, an engineer from "
    "the capital measured the tides there for a whole winter. He compared them with the dates, "
    "for want of anything better to do, and began to laugh, then to count on his fingers, and at "
    "last he asked for paper. The following table has been printed many times since: it lists the "
    "day, the hour, the height of the water above the lower mark, the wind, and the soup. ";

static struct runner *open_runner(struct model *m, int threads, int n_ends)
{
    struct err err = {""};
    struct runner_config c = runner_config_default();

    c.backend = "cpu";
    c.n_threads = threads;
    c.n_context = CONTEXT;
    c.block_size = BLOCK;
    c.n_blocks = POOL;
    c.swap_bytes = 16 << 20; /* GROUP_POOL blocks of 360 KB and less */
    c.max_rows = MAX_ROWS;
    c.max_seqs = MAX_RUNNING;
    c.max_bias = ENGINE_MAX_BIAS + n_ends;
    struct runner *r = runner_open(m, &c, &err);
    if (!r)
        fail_msg("%s", err.text);
    return r;
}

static int open_world(void **state)
{
    char path[GOLDEN_PATH_MAX];
    struct err err = {""};
    int32_t n_ends;

    (void)state;
    log_threshold = LOG_WARNING;
    if (!golden_find_model(path))
        return 0;
    world = xcalloc(1, sizeof *world);
    world->model = model_open(path, &err);
    world->tokenizer = world->model ? tokenizer_load(world->model->gguf, &err) : NULL;
    if (!world->tokenizer)
        fail_msg("%s", err.text);
    (void)tokenizer_end_ids(world->tokenizer, &n_ends);
    for (int threads = 1; threads <= 2; threads++)
        world->runners[threads - 1] = open_runner(world->model, threads, n_ends);
    for (int i = 0; i < 3; i++)
        tokenizer_encode(world->tokenizer, (struct bytes){text, sizeof text - 1}, false,
                         &world->text);
    static const int32_t at[N_PROMPTS] = {0, 40, 90}, n[N_PROMPTS] = {5, 61, 150};
    memcpy(world->at, at, sizeof at);
    memcpy(world->n, n, sizeof n);
    assert_true(world->text.n > CONTEXT);
    return 0;
}

static void print_cells(void)
{
    static const char *const outcomes[] = {"not run", "DIFFERS", "equal"};

    printf("# %-28s %10s %10s\n", "ids against a lone run", choice_names[0], choice_names[1]);
    for (int i = 0; i < N_WAYS; i++)
        printf("# %-28s %10s %10s\n", ways[i].name, outcomes[cells[N_CHOICES * i].outcome],
               outcomes[cells[N_CHOICES * i + 1].outcome]);
}

static int close_world(void **state)
{
    (void)state;
    print_cells();
    if (!world)
        return 0;
    for (int i = 0; i < 2; i++)
        world->runners[i]->close(world->runners[i]);
    ids_free(&world->text);
    tokenizer_free(world->tokenizer);
    model_close(world->model);
    xfree(world);
    return 0;
}

int main(void)
{
    static char names[N_WAYS * N_CHOICES][64];
    struct CMUnitTest tests[N_WAYS * N_CHOICES];

    for (int i = 0; i < N_WAYS * N_CHOICES; i++) {
        cells[i] =
            (struct cell){.way = &ways[i / N_CHOICES], .choice = (enum choice)(i % N_CHOICES)};
        snprintf(names[i], sizeof names[i], "same ids %s, %s", cells[i].way->name,
                 choice_names[cells[i].choice]);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = test_cell, .initial_state = &cells[i]};
    }
    return cmocka_run_group_tests(tests, open_world, close_world);
}
