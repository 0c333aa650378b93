/* test_logprobs_ref.c - log-probabilities out of the engine against one plain forward pass over the
 * whole sequence: no cache, no scheduler, no sampling, softmax by hand. Bit for bit, on `ref`. */
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "runner/forward.h"
#include "runner/rank.h"
#include "tests/kernels/tiny.h"

enum { BLOCK = 16, CONTEXT = 256, BEST = 4, RUNNING = 8, MAX_N = 8 };

static const struct mkmodel_options shape = {.architecture = "llama",
                                             .type = TENSOR_F32,
                                             .layers = 2,
                                             .width = 32,
                                             .heads = 2,
                                             .kv_heads = 1,
                                             .head_dim = 16,
                                             .inner = 48,
                                             .context = CONTEXT,
                                             .seed = 11};

struct bench {
    struct model *model;
    struct tokenizer *tokenizer;
    struct runner *runner;
    struct engine *engine;
};

static struct bench bench_open(int32_t chunk, int32_t n_blocks, uint64_t swap_bytes)
{
    struct err err = {""};
    struct runner_config c = runner_config_default();
    struct bench b = {.model = tiny_model(&shape)};
    int32_t n_ends;

    log_threshold = LOG_WARNING + 1;
    if (!(b.tokenizer = tokenizer_load(b.model->gguf, &err)))
        fail_msg("%s", err.text);
    (void)tokenizer_end_ids(b.tokenizer, &n_ends);
    c.backend = "ref";
    c.n_threads = 1;
    c.n_context = CONTEXT;
    c.n_blocks = n_blocks;
    c.max_rows = chunk + RUNNING + BLOCK;
    c.max_seqs = RUNNING;
    c.max_bias = ENGINE_MAX_BIAS + n_ends;
    c.swap_bytes = swap_bytes;
    if (!(b.runner = runner_open(b.model, &c, &err)))
        fail_msg("%s", err.text);
    b.engine = engine_new(&(struct engine_config){.runner = b.runner,
                                                  .tokenizer = b.tokenizer,
                                                  .max_batch_tokens = c.max_rows,
                                                  .max_chunk = chunk,
                                                  .max_running = RUNNING,
                                                  .max_queue = 32,
                                                  .swap = swap_bytes > 0},
                          &err);
    if (!b.engine)
        fail_msg("%s", err.text);
    return b;
}

static void bench_close(struct bench *b)
{
    b->runner->close(b->runner);
    engine_free(b->engine);
    tokenizer_free(b->tokenizer);
    model_close(b->model);
}

static void bench_drain(struct bench *b)
{
    struct err err;

    while (!engine_is_idle(b->engine)) {
        struct pollfd fd = {.fd = b->runner->fd, .events = POLLIN};
        clock_tick();
        engine_turn(b->engine);
        if (engine_audit(b->engine, &err))
            fail_msg("%s", err.text);
        (void)poll(&fd, 1, 20);
    }
}

/* ---- the plain pass ------------------------------------------------------------------------- */

/* Logits [n, V] of ids [n], in one step over blocks of its own; the caller frees them. */
static float *plain_pass(struct bench *b, const int32_t *ids, int32_t n)
{
    struct err err = {""};
    int32_t table[CONTEXT / BLOCK];
    struct backend_config device = {
        .n_threads = 1,
        .n_context = CONTEXT,
        .limits = {.max_rows = n,
                   .max_seqs = n,
                   .max_table_blocks = CONTEXT / BLOCK,
                   .max_copies = 1,
                   .block_size = BLOCK},
    };
    const struct backend_ops *ops = backend_find("ref", &err);
    struct forward *f = forward_open(b->model, ops, &device, &err);
    if (!f || forward_pool_open(f, CONTEXT / BLOCK, &err))
        fail_msg("%s", err.text);
    struct plan *plan = plan_new(&device.limits);
    float *logits = xcalloc((size_t)n * (size_t)b->model->n_vocab, sizeof *logits);
    struct chosen *chosen = xcalloc((size_t)n, sizeof *chosen);
    for (int32_t i = 0; i < CONTEXT / BLOCK; i++)
        table[i] = i;
    plan_add_seq(plan, 0, ids, n, table, CONTEXT / BLOCK);
    for (int32_t i = 0; i < n; i++)
        plan_add_sample(plan, &(struct plan_sample){.row = i, .top_p = 1, .repeat = 1}, NULL, 0,
                        NULL, 0, NULL, 0);
    plan_finish(plan);
    if (forward_run(f, plan, chosen, logits, &err))
        fail_msg("%s", err.text);
    forward_close(f);
    plan_free(plan);
    xfree(chosen);
    return logits;
}

/* Of one row: the log-probability of an id. */
static float log_softmax(const float *row, int32_t n, int32_t id)
{
    float max = row[0];
    double sum = 0;

    for (int32_t i = 1; i < n; i++)
        max = row[i] > max ? row[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)row[i] - max);
    return (float)((double)row[id] - max - log(sum));
}

/* A row that was told is (id, then the BEST best) of these logits. */
static void check_row(const struct chosen *told, const float *row, int32_t n_vocab, int32_t id)
{
    bool is_taken[1024] = {false};

    assert_true(n_vocab <= 1024);
    assert_int_equal(told[0].id, id);
    assert_true(told[0].logprob == log_softmax(row, n_vocab, id));
    for (int32_t k = 1; k <= BEST; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n_vocab; i++)
            if (!is_taken[i] && (best < 0 || row[i] > row[best]))
                best = i;
        is_taken[best] = true;
        assert_int_equal(told[k].id, best);
        assert_true(told[k].logprob == log_softmax(row, n_vocab, best));
    }
}

/* ---- whoever asks --------------------------------------------------------------------------- */

struct asked {
    struct bench *b;
    struct gen *gen;
    int32_t prompt[CONTEXT], n_prompt, n_ends, n_cached;
};

static void no_output(void *owner, const struct gen_output *output)
{
    (void)owner;
    (void)output;
}

/* All that branch 0 told of its prompt, and every branch of what it generated. */
static void check_end(void *owner, const struct gen_end *end)
{
    struct asked *a = owner;
    int32_t n = a->n_prompt, n_vocab = a->b->model->n_vocab, ids[CONTEXT];

    a->n_ends++;
    a->n_cached = end->n_cached;
    assert_true(end->finish == GEN_LENGTH || end->finish == GEN_STOP);
    memcpy(ids, a->prompt, (size_t)n * sizeof *ids);
    if (end->n_ids > 0)
        memcpy(ids + n, end->ids, (size_t)end->n_ids * sizeof *ids);
    float *logits = plain_pass(a->b, ids, n + end->n_ids);
    for (int32_t i = 1; end->branch == 0 && i < n; i++)
        check_row(end->prompt_logprobs + (ptrdiff_t)i * (BEST + 1),
                  logits + (ptrdiff_t)(i - 1) * n_vocab, n_vocab, ids[i]);
    if (end->branch == 0)
        assert_int_equal(end->n_prompt_known, n);
    for (int32_t i = 0; i < end->n_ids; i++)
        check_row(end->logprobs + (ptrdiff_t)i * (BEST + 1),
                  logits + (ptrdiff_t)(n + i - 1) * n_vocab, n_vocab, ids[n + i]);
    xfree(logits);
    if (end->is_last)
        a->gen = NULL;
}

static const struct gen_events events = {.output = no_output, .end = check_end};

static void ask(struct asked *a, struct bench *b, int32_t n_prompt, int32_t kind,
                int32_t n_branches, bool beam)
{
    struct cache_namespace ns = {0};
    struct gen_options o = gen_options_default();
    struct err err = {""};

    *a = (struct asked){.b = b, .n_prompt = n_prompt};
    for (int32_t i = 0; i < n_prompt; i++)
        a->prompt[i] = (kind * 37 + i * i * 7 + i) % b->model->n_vocab;
    o.seed = (uint64_t)kind;
    o.max_tokens = 40;
    o.n_branches = n_branches;
    o.beam = beam;
    o.logprobs = o.prompt_logprobs = true;
    o.n_logprobs = o.n_prompt_logprobs = BEST;
    if (engine_submit(b->engine, &ns, a->prompt, n_prompt, &o, &events, a, &a->gen, &err) !=
        SUBMIT_OK)
        fail_msg("%s", err.text);
}

static void test_they_equal_a_plain_pass_cold_warm_and_in_chunks(void **state)
{
    (void)state;
    static const int32_t chunks[] = {16, 64, 512};

    for (int32_t i = 0; i < 3; i++) {
        static struct asked seen[3];
        struct bench b = bench_open(chunks[i], 80, 0);
        for (int32_t again = 0; again < 2; again++) {
            ask(&seen[0], &b, 100, 1, 1, false);
            ask(&seen[1], &b, 33, 2, 3, false);
            ask(&seen[2], &b, 50, 3, 3, true);
            bench_drain(&b);
            for (int32_t k = 0; k < 3; k++) {
                assert_null(seen[k].gen);
                assert_int_equal(seen[k].n_ends, k == 0 ? 1 : 3);
            }
        }
        bench_close(&b);
    }
}

static void test_they_equal_a_plain_pass_when_preempted_in_both_modes(void **state)
{
    (void)state;
    for (int32_t swap = 0; swap < 2; swap++) {
        static struct asked seen[MAX_N];
        struct bench b = bench_open(64, 14, swap ? 1 << 20 : 0);
        struct engine_stats stats;
        for (int32_t k = 0; k < MAX_N; k++)
            ask(&seen[k], &b, 31 + k / 2, k, 1 + k % 2 * 2, k % 4 == 3);
        bench_drain(&b);
        for (int32_t k = 0; k < MAX_N; k++)
            assert_null(seen[k].gen);
        engine_stats(b.engine, &stats);
        assert_true(stats.preemptions > 0);
        assert_true(!swap || stats.swapped_in_blocks > 0);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_they_equal_a_plain_pass_cold_warm_and_in_chunks),
        cmocka_unit_test(test_they_equal_a_plain_pass_when_preempted_in_both_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
