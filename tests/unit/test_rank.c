/* test_rank.c - the real runner keeps runner.h's contract. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "runner/rank.h"
#include "tests/kernels/tiny.h"

static const struct mkmodel_options shape = {.architecture = "llama",
                                             .type = TENSOR_Q8_0,
                                             .layers = 2,
                                             .width = 64,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 16,
                                             .inner = 96,
                                             .context = 256,
                                             .seed = 5};

static struct runner_config small_config(void)
{
    struct runner_config c = runner_config_default();
    c.backend = "ref";
    c.n_threads = 2;
    c.n_blocks = 20;
    c.max_rows = 64;
    c.max_seqs = 8;
    return c;
}

static struct plan *prompt_plan(const struct runner *r)
{
    static const int32_t ids[] = {5, 9, 2, 44, 7}, table[] = {3};
    struct plan *p = plan_new(&r->info.limits);
    struct plan_sample s = {.row = 4, .position = 5, .top_p = 1, .repeat = 1};
    plan_add_seq(p, 0, ids, 5, table, 1);
    plan_add_sample(p, &s, NULL, 0, NULL, 0, NULL, 0);
    plan_finish(p);
    return p;
}

/* Waits for the fd as the loop would, then polls. */
static struct runner_done wait_done(struct runner *r)
{
    struct pollfd fd = {.fd = r->fd, .events = POLLIN};
    struct runner_done done = {0};
    assert_int_equal(poll(&fd, 1, 300000), 1); /* a bound for a hang, not for a slow machine */
    assert_true(r->poll(r, &done));
    return done;
}

static void test_a_launched_plan_rings_the_fd_and_gives_its_samples(void **state)
{
    (void)state;
    struct err err = {""};
    struct runner_done done;
    struct model *m = tiny_model(&shape);
    struct runner_config c = small_config();
    struct runner *r = runner_open(m, &c, &err);
    if (r == NULL)
        fail_msg("%s", err.text);
    struct plan *p = prompt_plan(r);
    int32_t first = -1;

    assert_false(r->poll(r, &done)); /* nothing launched */
    for (int i = 0; i < 20; i++) {
        r->launch(r, p);
        done = wait_done(r);
        assert_false(done.failed);
        assert_int_equal(done.n_samples, 1);
        assert_in_range(done.samples[0].id, 0, m->n_vocab - 1);
        assert_true(done.samples[0].logprob < 0);
        assert_true(done.duration_us >= 0);
        if (i == 0)
            first = done.samples[0].id;
        assert_int_equal(done.samples[0].id, first);
        assert_false(r->poll(r, &done)); /* told once */
        struct pollfd fd = {.fd = r->fd, .events = POLLIN};
        assert_int_equal(poll(&fd, 1, 0), 0); /* and silent again */
    }
    r->close(r);
    plan_free(p);
    model_close(m);
}

static void test_info_tells_what_was_opened(void **state)
{
    (void)state;
    struct err err = {""};
    struct model *m = tiny_model(&shape);
    struct runner_config c = small_config();
    struct runner *r = runner_open(m, &c, &err);
    assert_non_null(r);
    assert_int_equal(r->info.n_vocab, m->n_vocab);
    assert_int_equal(r->info.n_context, 256);
    assert_int_equal(r->info.n_blocks, 20);
    assert_int_equal(r->info.block_size, 16);
    assert_int_equal(r->info.limits.max_rows, 64);
    assert_true(r->info.limits.max_table_blocks >= 8 * 16);
    assert_true(r->info.model_digest == m->digest);
    assert_non_null(strstr(r->info.description, "ref"));
    /* 2 layers, K and V, 2 heads of 16, 16 tokens, floats */
    assert_int_equal(r->info.block_bytes, 2 * 2 * 2 * 16 * 16 * 4);
    r->close(r);

    c.n_blocks = 0; /* as many as fit */
    c.kv_cache_bytes = 100 * 2 * 2 * 2 * 16 * 16 * 4 + 5;
    r = runner_open(m, &c, &err);
    assert_non_null(r);
    assert_int_equal(r->info.n_blocks, 100);
    r->close(r);
    model_close(m);
}

static int no_host(struct backend *b, int32_t n_slots, struct err *err)
{
    (void)b;
    return err_set(err, "no host memory for %d blocks", n_slots);
}

/* Swap is a matter of speed: what lacks for it costs a warning. */
static void test_swap_space_that_cannot_be_had_is_none(void **state)
{
    (void)state;
    struct err err = {""};
    struct model *m = tiny_model(&shape);
    struct runner_config c = small_config();
    struct backend_ops ops = *backend_find("ref", &err);
    static const uint64_t sizes[] = {UINT64_C(1) << 62, 100, 1 << 20};

    ops.host_open = no_host;
    for (int i = 0; i < 3; i++) {
        c.swap_bytes = sizes[i];
        c.ops = i == 2 ? &ops : NULL;
        struct runner *r = runner_open(m, &c, &err);
        if (r == NULL)
            fail_msg("%s", err.text);
        assert_int_equal(r->info.n_slots, 0);
        r->close(r);
    }
    c.ops = NULL;
    struct runner *r = runner_open(m, &c, &err);
    assert_non_null(r);
    assert_int_equal(r->info.n_slots, (1 << 20) / (2 * 2 * 2 * 16 * 16 * 4));
    r->close(r);
    model_close(m);
}

static void test_open_refuses_what_cannot_be_with_numbers(void **state)
{
    (void)state;
    struct model *m = tiny_model(&shape);
    static const struct {
        const char *backend;
        int32_t n_context, block_size, max_rows;
        uint64_t kv_bytes;
        const char *limit, *value; /* both in the text */
    } cases[] = {
        {"ref", 0, 12, 64, 1 << 20, "16", "12"},       {"ref", 300, 16, 64, 1 << 20, "256", "300"},
        {"ref", 0, 16, 7, 1 << 20, "8", "7"},          {"ref", 0, 16, 64, 9000, "9000", "8192"},
        {"ref", 0, 16, 64, 1ull << 50, "free", "K/V"}, {"tpu", 0, 16, 64, 1 << 20, "tpu", "ref"},
        {"ref", 0, 4000, 64, 1 << 20, "1024", "4000"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {""};
        struct runner_config c = small_config();
        c.backend = cases[i].backend;
        c.n_context = cases[i].n_context;
        c.block_size = cases[i].block_size;
        c.max_rows = cases[i].max_rows;
        c.n_blocks = 0;
        c.kv_cache_bytes = cases[i].kv_bytes;
        if (runner_open(m, &c, &err) != NULL)
            fail_msg("case %zu was opened", i);
        if (strstr(err.text, cases[i].limit) == NULL || strstr(err.text, cases[i].value) == NULL)
            fail_msg("case %zu: \"%s\" lacks %s or %s", i, err.text, cases[i].limit,
                     cases[i].value);
    }
    model_close(m);
}

/* ---- a failing device ----------------------------------------------------------------------- */

/* Syncs left before one fails; 0: none does. The rank thread counts, the test sets it in between
 * steps, when only one of them runs. */
static int armed;
static int failing_sync(struct backend *b, struct err *err)
{
    if (armed > 0 && --armed == 0)
        return err_set(err, "the device burns");
    return b->ops->sync(b, err);
}

static void test_a_failed_step_is_reported_and_the_runner_goes_on(void **state)
{
    (void)state;
    struct err err = {""};
    struct model *m = tiny_model(&shape);
    struct backend_ops ops = *backend_find("ref", NULL);
    struct runner_config c = small_config();
    ops.sync = failing_sync;
    c.ops = &ops;
    armed = 0;
    struct runner *r = runner_open(m, &c, &err);
    assert_non_null(r);
    struct plan *p = prompt_plan(r);

    armed = 1;
    r->launch(r, p);
    struct runner_done done = wait_done(r);
    assert_true(done.failed);
    assert_int_equal(done.n_samples, 0);
    assert_string_equal(done.error, "the device burns");
    r->launch(r, p);
    done = wait_done(r);
    assert_false(done.failed);
    assert_string_equal(done.error, "");
    assert_int_equal(done.n_samples, 1);
    r->close(r);

    armed = 1; /* while loading */
    assert_null(runner_open(m, &c, &err));
    assert_string_equal(err.text, "the device burns");
    plan_free(p);
    model_close(m);
}

/* Blocks of one format must never be taken for another's: the id is part of the cache's namespaces. */
static void test_every_backend_and_kv_type_has_a_name_of_its_own(void **state)
{
    (void)state;
    static const struct {
        const char *backend;
        enum kv_type asked;
        const char *name;
    } cases[] = {{"cpu", KV_AUTO, "bf16"},
                 {"cpu", KV_INT8, "int8"},
                 {"ref", KV_AUTO, "f32"},
                 {"ref", KV_BF16, "bf16"},
                 {"ref", KV_INT8, "int8"}};
    enum { N = sizeof cases / sizeof *cases };
    struct model *m = tiny_model(&shape);
    int32_t ids[N];
    for (int i = 0; i < N; i++) {
        struct err err = {""};
        struct runner_config c = small_config();
        c.backend = cases[i].backend;
        c.kv_type = cases[i].asked;
        struct runner *r = runner_open(m, &c, &err);
        if (r == NULL)
            fail_msg("%s", err.text);
        assert_string_equal(r->info.kv_type_name, cases[i].name);
        ids[i] = r->info.kv_type;
        for (int k = 0; k < i; k++)
            assert_int_not_equal(ids[k], ids[i]);
        r->close(r);
    }
    model_close(m);
}

static void test_close_waits_for_a_running_step(void **state)
{
    (void)state;
    struct err err = {""};
    struct model *m = tiny_model(&shape);
    struct runner_config c = small_config();
    struct runner *r = runner_open(m, &c, &err);
    assert_non_null(r);
    struct plan *p = prompt_plan(r);
    r->launch(r, p);
    r->close(r); /* a sanitizer would see a plan that is read after this */
    plan_free(p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_launched_plan_rings_the_fd_and_gives_its_samples),
        cmocka_unit_test(test_info_tells_what_was_opened),
        cmocka_unit_test(test_swap_space_that_cannot_be_had_is_none),
        cmocka_unit_test(test_open_refuses_what_cannot_be_with_numbers),
        cmocka_unit_test(test_a_failed_step_is_reported_and_the_runner_goes_on),
        cmocka_unit_test(test_every_backend_and_kv_type_has_a_name_of_its_own),
        cmocka_unit_test(test_close_waits_for_a_running_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
