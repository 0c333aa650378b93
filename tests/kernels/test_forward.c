/* test_forward.c - sameness of the whole model: the same ids and positions give the same bits,
 * whatever else the step holds and however the prompt was cut, stored, copied or threaded.
 *
 * Logits are taken at every row of a prompt, not only at its end: a row whose K or V came out
 * otherwise would show in all that follow. */
#include <math.h>
#include <stdio.h>
#include "harness.h"
#include "runner/forward.h"
#include "tests/kernels/tiny.h"

enum { N = 90, BLOCK = 16, N_BLOCKS = 64, CONTEXT = 256, MAX_ROWS = 192 };

static struct subject subjects[8];
static int n_subjects;
static enum kv_type kv_type; /* of the runs that start; KV_AUTO: the backend's */
// clang-format off
static const struct mkmodel_options shapes[] = {
    {.architecture = "llama", .type = TENSOR_Q4_1, .layers = 3, .width = 64, .heads = 4,
     .kv_heads = 2, .head_dim = 32, .inner = 96, .context = CONTEXT, .seed = 5},
    {.architecture = "qwen2", .type = TENSOR_Q4_K, .layers = 2, .width = 256, .heads = 4,
     .kv_heads = 1, .head_dim = 64, .inner = 512, .context = CONTEXT, .seed = 6,
     .untied = true, .qkv_bias = true},
    {.architecture = "llama", .type = TENSOR_BF16, .layers = 2, .width = 96, .heads = 6,
     .kv_heads = 3, .head_dim = 16, .inner = 160, .context = CONTEXT, .seed = 7,
     .untied = true, .rope_factors = true},
};
// clang-format on

static struct plan_limits limits(void)
{
    return (struct plan_limits){.max_rows = MAX_ROWS,
                                .max_seqs = MAX_ROWS,
                                .max_table_blocks = 1024,
                                .max_copies = 8,
                                .max_outs = N_BLOCKS,
                                .max_ins = N_BLOCKS,
                                .max_bias = 8,
                                .max_counts = 8,
                                .block_size = BLOCK};
}

/* How a prompt is computed; all of these must give the same. */
struct way {
    const char *name;
    int32_t chunk;
    int n_threads;
    int32_t order;   /* odd: block i of the sequence is (i * order) % N_BLOCKS */
    int32_t others;  /* sequences beside it in every step */
    int32_t copy_at; /* > 0: continue in a copied block once this many tokens are there */
    int32_t swap_at; /* > 0: through host slots into other blocks once this many are there */
};
static const struct way ways[] = {
    {"in chunks of 16", 16, 1, 1, 0, 0, 0},
    {"token by token", 1, 1, 1, 0, 0, 0},
    {"in chunks of 7, two threads", 7, 2, 1, 0, 0, 0},
    {"in chunks of 64", 64, 1, 1, 0, 0, 0},
    {"at once, blocks scattered, two threads", N, 2, 23, 0, 0, 0},
    {"beside others", 16, 2, 1, 3, 0, 0},
    {"token by token beside others, blocks scattered", 1, 2, 37, 2, 0, 0},
    {"continued in a copied block", 20, 1, 1, 0, 40, 0},
    {"by way of host memory", 20, 1, 1, 0, 0, 60},
    {"by way of host memory, two threads, beside others", 9, 2, 23, 1, 0, 27},
};

struct run {
    struct forward *f;
    struct plan *plan;
    const struct way *way;
    int32_t ids[N], table[N_BLOCKS];
    int32_t n_vocab;
    float *logits;         /* [N, V] owns */
    struct chosen *chosen; /* [N] owns */
};

/* Other sequences: their own blocks, from the end of the pool; one row each at a moving position. */
static void add_others(struct run *r, int32_t at)
{
    for (int32_t i = 0; i < r->way->others; i++) {
        int32_t blocks[6], id = (at + i) % r->n_vocab;
        for (int32_t k = 0; k < 6; k++)
            blocks[k] = N_BLOCKS - 1 - (i * 6 + k);
        plan_add_seq(r->plan, at, &id, 1, blocks, 6);
    }
}

/* Moves the rest of the sequence to another block: its first tokens come as a copy. */
static void copy_tail(struct run *r, int32_t at)
{
    int32_t old = r->table[at / BLOCK], fresh = N_BLOCKS - 1;
    plan_add_copy(r->plan, old, fresh, at % BLOCK);
    r->table[at / BLOCK] = fresh;
}

/* All that is there goes out in a step without rows, and comes back with the step that is being
 * made, slots and blocks in another order. */
static void swap_table(struct run *r, int32_t at)
{
    struct err err = {""};
    int32_t n = (at + BLOCK - 1) / BLOCK;
    for (int32_t i = 0; i < n; i++)
        plan_add_out(r->plan, r->table[i], n - 1 - i);
    plan_finish(r->plan);
    if (forward_run(r->f, r->plan, r->chosen, NULL, &err) != 0)
        fail_msg("%s", err.text);
    plan_clear(r->plan);
    for (int32_t i = 0; i < N_BLOCKS / 4; i++)
        r->table[i] = N_BLOCKS / 2 - 1 - i;
    for (int32_t i = 0; i < n; i++)
        plan_add_in(r->plan, n - 1 - i, r->table[i]);
}

/* One step: rows [at, at + rows) with a sample at each. */
static void step(struct run *r, int32_t at, int32_t rows)
{
    struct err err = {""};
    plan_clear(r->plan);
    if (r->way->copy_at > 0 && at == r->way->copy_at)
        copy_tail(r, at);
    if (r->way->swap_at > 0 && at == r->way->swap_at)
        swap_table(r, at);
    if (at % 2 == 1) /* not always the first of its step */
        add_others(r, at);
    int32_t seq = plan_add_seq(r->plan, at, r->ids + at, rows, r->table, N_BLOCKS / 4);
    if (at % 2 == 0)
        add_others(r, at);
    for (int32_t i = 0; i < rows; i++) {
        struct plan_sample s = {.row = r->plan->seqs[seq].first_row + i,
                                .position = at + i + 1,
                                .seed = 3,
                                .temperature = i % 2 ? 0.0f : 0.8f,
                                .top_p = 1,
                                .repeat = 1};
        plan_add_sample(r->plan, &s, NULL, 0, NULL, 0, NULL, 0);
    }
    plan_finish(r->plan);
    if (forward_run(r->f, r->plan, r->chosen + at, r->logits + (size_t)at * (size_t)r->n_vocab,
                    &err) != 0)
        fail_msg("%s", err.text);
}

static struct run start(struct model *m, const struct subject *s, const struct way *way)
{
    struct err err = {""};
    struct plan_limits l = limits();
    struct backend_config device = {.n_threads = way->n_threads,
                                    .isa = s->isa,
                                    .limits = l,
                                    .n_context = CONTEXT,
                                    .kv_type = kv_type};
    struct run r = {.plan = plan_new(&l), .way = way, .n_vocab = m->n_vocab};
    struct rng random = rng_from(77);

    r.f = forward_open(m, s->ops, &device, &err);
    if (r.f == NULL || forward_pool_open(r.f, N_BLOCKS, &err) != 0 ||
        forward_host_open(r.f, N_BLOCKS, &err) != 0)
        fail_msg("%s: %s", harness_name(s), err.text);
    for (int32_t i = 0; i < N; i++)
        r.ids[i] = (int32_t)rng_below(&random, (uint64_t)m->n_vocab);
    for (int32_t i = 0; i < N_BLOCKS / 4; i++)
        r.table[i] = i * way->order % N_BLOCKS;
    r.logits = xcalloc((size_t)N * (size_t)m->n_vocab, sizeof(*r.logits));
    r.chosen = xcalloc(N, sizeof(*r.chosen));
    return r;
}

static void end(struct run *r)
{
    forward_close(r->f);
    plan_free(r->plan);
    xfree(r->logits);
    xfree(r->chosen);
}

static struct run run_way(struct model *m, const struct subject *s, const struct way *way)
{
    struct run r = start(m, s, way);
    for (int32_t at = 0, rows; at < N; at += rows) {
        rows = N - at < way->chunk ? N - at : way->chunk;
        step(&r, at, rows);
    }
    return r;
}

static void check_same(const struct run *a, const struct run *b, const char *who)
{
    for (int32_t t = 0; t < N; t++) {
        size_t at = (size_t)t * (size_t)a->n_vocab;
        for (int32_t i = 0; i < a->n_vocab; i++)
            if (memcmp(&a->logits[at + (size_t)i], &b->logits[at + (size_t)i], sizeof(float)) != 0)
                fail_msg("%s, %s: logit %d of row %d is %.9g, not %.9g", who, a->way->name, i, t,
                         a->logits[at + (size_t)i], b->logits[at + (size_t)i]);
    }
}

/* Ids and log-probabilities where both were drawn with the same options: the chunk decides which
 * row is greedy, so only equal chunks are compared. */
static void check_same_choice(const struct run *a, const struct run *b, const char *who)
{
    for (int32_t t = 0; a->way->chunk == b->way->chunk && t < N; t++)
        if (memcmp(&a->chosen[t], &b->chosen[t], sizeof(a->chosen[t])) != 0)
            fail_msg("%s, %s: row %d chose %d, not %d", who, a->way->name, t, a->chosen[t].id,
                     b->chosen[t].id);
}

static void check_ways(struct model *m, const struct subject *s)
{
    struct run want = run_way(m, s, &ways[0]);
    for (int i = 1; i < COUNT(ways); i++) {
        struct run got = run_way(m, s, &ways[i]);
        check_same(&got, &want, harness_name(s));
        check_same_choice(&got, &want, harness_name(s));
        end(&got);
    }
    end(&want);
}

static void test_logits_are_the_same_bits_whichever_way_they_are_computed(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(shapes); k++) {
        struct model *m = tiny_model(&shapes[k]);
        for (int s = 0; s < n_subjects; s++) {
            for (int i = 0; subjects[s].ops->kv_types[i] != KV_AUTO; i++) {
                kv_type = subjects[s].ops->kv_types[i];
                check_ways(m, &subjects[s]);
            }
        }
        model_close(m);
    }
    kv_type = KV_AUTO;
}

/* Not only with itself: code paths of one backend agree in every bit, and no backend strays far
 * from ref. With random weights every int8 rounding of a few layers adds up: 1 % of the power. */
static void check_paths(struct model *m)
{
    struct subject ref = {backend_find("ref", NULL), NULL};
    struct run want = run_way(m, &ref, &ways[3]), first = {0};
    const struct backend_ops *ops = NULL;
    for (int s = 0; s < n_subjects; s++) {
        struct err err;
        enum kv_type type;
        if (backend_kv_type(subjects[s].ops, kv_type, &type, &err) != 0)
            continue;
        struct run got = run_way(m, &subjects[s], &ways[3]);
        double error = harness_nmse(got.logits, want.logits, (size_t)N * (size_t)m->n_vocab);
        if (!(error < 0.01))
            fail_msg("%s: error %g against ref", harness_name(&subjects[s]), error);
        if (subjects[s].ops == ops) {
            check_same(&got, &first, harness_name(&subjects[s]));
            end(&got);
        } else {
            end(&first);
            first = got;
        }
        ops = subjects[s].ops;
    }
    end(&first);
    end(&want);
}

static void test_paths_agree_and_backends_stay_near_ref(void **state)
{
    (void)state;
    for (int k = 0; k < COUNT(shapes); k++) {
        struct model *m = tiny_model(&shapes[k]);
        for (int type = KV_AUTO; type < KV_N_TYPES; type++) {
            kv_type = (enum kv_type)type;
            check_paths(m);
        }
        model_close(m);
    }
    kv_type = KV_AUTO;
}

static void test_a_type_that_the_pool_cannot_hold_is_refused_with_those_it_can(void **state)
{
    (void)state;
    struct model *m = tiny_model(&shapes[0]);
    struct backend_config device = {
        .n_threads = 1, .limits = limits(), .n_context = CONTEXT, .kv_type = KV_F32};
    struct err err = {""};
    assert_null(forward_open(m, backend_find("cpu", NULL), &device, &err));
    assert_string_equal(err.text, "cpu: K/V of type f32 is not possible; it has bf16, int8");
    model_close(m);
}

static void test_int8_holds_nearly_twice_the_tokens_of_bf16(void **state)
{
    (void)state;
    struct model *m = tiny_model(&shapes[1]); /* heads of 64, as the real models have */
    size_t bytes[KV_N_TYPES] = {0};
    for (int type = KV_BF16; type <= KV_INT8; type++) {
        struct backend_config device = {.n_threads = 1,
                                        .limits = limits(),
                                        .n_context = CONTEXT,
                                        .kv_type = (enum kv_type)type};
        struct err err = {""};
        struct forward *f = forward_open(m, backend_find("cpu", NULL), &device, &err);
        assert_non_null(f);
        assert_int_equal(forward_kv_type(f), type);
        bytes[type] = forward_block_bytes(f);
        forward_close(f);
    }
    assert_int_equal(bytes[KV_BF16], 2 * 2 * BLOCK * 64 * 2); /* layers, K and V, one K/V head */
    assert_int_equal(bytes[KV_INT8], 2 * 2 * BLOCK * (64 + 2));
    model_close(m);
}

/* ---- a failing device ----------------------------------------------------------------------- */

/* ref with a sync that fails when `armed` says so: state of the test, reset by it. */
static int armed;
static int failing_sync(struct backend *b, struct err *err)
{
    if (armed > 0 && --armed == 0)
        return err_set(err, "the device burns");
    return b->ops->sync(b, err);
}

static void test_a_failed_step_carries_its_error_and_the_next_one_works(void **state)
{
    (void)state;
    struct model *m = tiny_model(&shapes[0]);
    struct backend_ops ops = *backend_find("ref", NULL);
    struct subject s = {&ops, NULL};
    struct err err = {""};
    ops.sync = failing_sync;
    armed = 0;
    struct run want = run_way(m, &s, &ways[0]), got = start(m, &s, &ways[0]);

    step(&got, 0, 16);
    plan_clear(got.plan);
    plan_add_seq(got.plan, 16, got.ids + 16, 16, got.table, 4);
    plan_finish(got.plan);
    armed = 1;
    assert_int_equal(forward_run(got.f, got.plan, got.chosen, NULL, &err), -1);
    assert_string_equal(err.text, "the device burns");
    for (int32_t at = 16, rows; at < N; at += rows) {
        rows = N - at < 16 ? N - at : 16;
        step(&got, at, rows);
    }
    check_same(&got, &want, "after a failure");
    end(&want);
    end(&got);
    model_close(m);
}

static void test_opening_reports_what_the_device_said(void **state)
{
    (void)state;
    struct model *m = tiny_model(&shapes[0]);
    struct backend_ops ops = *backend_find("ref", NULL);
    struct backend_config device = {.n_threads = 1, .limits = limits(), .n_context = CONTEXT};
    struct err err = {""};
    ops.sync = failing_sync;
    armed = 1; /* the end of loading */
    assert_null(forward_open(m, &ops, &device, &err));
    assert_string_equal(err.text, "the device burns");
    armed = 2; /* the buffers */
    assert_null(forward_open(m, &ops, &device, &err));
    armed = 0;
    device.n_threads = 0;
    assert_null(forward_open(m, &ops, &device, &err));
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_are_the_same_bits_whichever_way_they_are_computed),
        cmocka_unit_test(test_paths_agree_and_backends_stay_near_ref),
        cmocka_unit_test(test_a_type_that_the_pool_cannot_hold_is_refused_with_those_it_can),
        cmocka_unit_test(test_int8_holds_nearly_twice_the_tokens_of_bf16),
        cmocka_unit_test(test_a_failed_step_carries_its_error_and_the_next_one_works),
        cmocka_unit_test(test_opening_reports_what_the_device_said),
    };
    n_subjects = harness_subjects(subjects, COUNT(subjects));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
