/* test_sim.c - the simulator's parts: allocator, lengths, costs, policies, sharing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include "base/mem.h"
#include "utils/sim_buddy.h"
#include "utils/sim_beam.h"
#include "utils/sim_run.h"

static void assert_near(double value, double want, double part)
{
    if (fabs(value - want) > part * fabs(want))
        fail_msg("%g, expected %g within %g of it", value, want, part);
}

/* ---- buddy allocator ------------------------------------------------------------------------ */

static void test_order_is_of_the_smallest_power_that_holds_it(void **state)
{
    assert_int_equal(sim_buddy_order(1), 0);
    assert_int_equal(sim_buddy_order(2), 1);
    assert_int_equal(sim_buddy_order(3), 2);
    assert_int_equal(sim_buddy_order(512), 9);
    assert_int_equal(sim_buddy_order(513), 10);
}

static void test_seven_of_2048_fit_into_15728(void **state)
{
    struct sim_buddy b;
    int32_t at[8];

    sim_buddy_init(&b, 15728);
    for (int i = 0; i < 7; i++) {
        at[i] = sim_buddy_take(&b, 11);
        assert_int_equal(at[i] % 2048, 0);
        for (int k = 0; k < i; k++)
            assert_int_not_equal(at[i], at[k]);
    }
    assert_int_equal(sim_buddy_take(&b, 11), -1);
    assert_int_equal(b.n_free, 15728 - 7 * 2048);
    sim_buddy_put(&b, at[3], 11);
    assert_int_equal(sim_buddy_take(&b, 11), at[3]);
    sim_buddy_done(&b);
}

static void test_halves_join_again(void **state)
{
    struct sim_buddy b;

    sim_buddy_init(&b, 64);
    int32_t x = sim_buddy_take(&b, 4), y = sim_buddy_take(&b, 4), z = sim_buddy_take(&b, 5);
    assert_int_equal(sim_buddy_take(&b, 0), -1);
    sim_buddy_put(&b, y, 4);
    assert_int_equal(sim_buddy_take(&b, 5), -1); /* its other half is still taken */
    sim_buddy_put(&b, x, 4);
    sim_buddy_put(&b, z, 5);
    assert_int_equal(sim_buddy_take(&b, 6), 0);
    sim_buddy_done(&b);
}

/* Random takes and puts: no two chunks overlap, and in the end all is one again. */
static void test_random_chunks_never_overlap(void **state)
{
    enum { N = 1000, STEPS = 20000 };
    struct {
        int32_t at, order;
    } taken[N];
    uint8_t used[N] = {0};
    struct rng r = rng_from(7);
    struct sim_buddy b;
    int32_t n = 0, n_used = 0;

    sim_buddy_init(&b, N);
    for (int step = 0; step < STEPS; step++) {
        int32_t order = (int32_t)rng_below(&r, 7), at = -1;
        if (rng_below(&r, 2) && (at = sim_buddy_take(&b, order)) >= 0) {
            for (int32_t i = at; i < at + (1 << order); i++)
                assert_int_equal(used[i]++, 0);
            taken[n].at = at;
            taken[n++].order = order;
            n_used += 1 << order;
        } else if (n > 0) {
            int32_t i = (int32_t)rng_below(&r, (uint64_t)n);
            for (int32_t k = taken[i].at; k < taken[i].at + (1 << taken[i].order); k++)
                used[k]--;
            sim_buddy_put(&b, taken[i].at, taken[i].order);
            n_used -= 1 << taken[i].order;
            taken[i] = taken[--n];
        }
        assert_int_equal(b.n_free, N - n_used);
    }
    while (n > 0) {
        n--;
        sim_buddy_put(&b, taken[n].at, taken[n].order);
    }
    assert_int_equal(sim_buddy_take(&b, 9), 0); /* 1000 = 512 + 256 + ... */
    assert_int_equal(sim_buddy_take(&b, 8), 512);
    sim_buddy_done(&b);
}

/* ---- loads ---------------------------------------------------------------------------------- */

/* A mean of n draws lies within 4 standard errors of the wanted one; sigma 0.85 is 1.0 of spread,
 * so 40,000 draws give 2 %. */
static void test_lengths_have_their_mean_after_the_cut(void **state)
{
    static const struct {
        double mean, sigma;
        int32_t cut;
    } cases[] = {{161, 0.75, 2048}, {338, 0.75, 2048}, {58, 0.85, 2048}, {338, 1.2, 1024}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sim_lengths d = {
            .mean = cases[i].mean, .sigma = cases[i].sigma, .cut = cases[i].cut};
        struct rng r = rng_from(i);
        double sum = 0;
        sim_lengths_fit(&d);
        for (int k = 0; k < 40000; k++) {
            int32_t n = sim_lengths_draw(&d, &r);
            assert_true(n >= 1 && n <= cases[i].cut);
            sum += n;
        }
        assert_near(sum / 40000, cases[i].mean, 0.02);
    }
}

static void test_poisson_load_has_rate_means_and_fits_the_context(void **state)
{
    const struct sim_workload *w = sim_workload_find("sharegpt");
    struct sim_load l = sim_load_draw(w, 20, 1000, 2048, 3);

    assert_near(l.n, 20000, 0.03);
    assert_near(sim_load_mean(&l, false), 161, 0.03);
    assert_near(sim_load_mean(&l, true), 338, 0.03);
    for (int32_t i = 0; i < l.n; i++) {
        assert_true(l.requests[i].n_prompt + l.requests[i].n_output <= 2048);
        assert_true(i == 0 || l.requests[i - 1].arrival_us <= l.requests[i].arrival_us);
    }
    sim_load_free(&l);
}

static void test_same_seed_same_load_other_seed_another(void **state)
{
    const struct sim_workload *w = sim_workload_find("alpaca");
    struct sim_load a = sim_load_draw(w, 5, 20, 2048, 1), b = sim_load_draw(w, 5, 20, 2048, 1),
                    c = sim_load_draw(w, 5, 20, 2048, 2);

    assert_int_equal(a.n, b.n);
    for (int32_t i = 0; i < a.n; i++) {
        assert_int_equal(a.requests[i].arrival_us, b.requests[i].arrival_us);
        assert_int_equal(a.requests[i].n_output, b.requests[i].n_output);
        assert_int_equal(sim_token(&a.requests[i], 0, 5), sim_token(&b.requests[i], 0, 5));
    }
    assert_int_not_equal(a.requests[0].arrival_us, c.requests[0].arrival_us);
    sim_load_free(&a);
    sim_load_free(&b);
    sim_load_free(&c);
}

static void test_only_the_common_prefix_is_common(void **state)
{
    struct sim_load l = sim_load_draw(sim_workload_find("wmt-1shot"), 10, 10, 2048, 1);
    int32_t n_equal = 0;

    for (int32_t i = 0; i < 80; i++)
        assert_int_equal(sim_token(&l.requests[0], 0, i), sim_token(&l.requests[1], 0, i));
    for (int32_t i = 80; i < 180; i++)
        n_equal += sim_token(&l.requests[0], 0, i) == sim_token(&l.requests[1], 0, i);
    assert_true(n_equal <= 2);
    sim_load_free(&l);
}

/* Turn for turn the history is the same tokens, answers included: what the cache may find. */
static void test_kept_chats_repeat_their_history(void **state)
{
    struct sim_load l = sim_load_chat(sim_workload_find("sharegpt"), 2, 600, 1024, 1024, true, 5);
    int32_t n_later = 0;

    for (int32_t i = 0; i < l.n; i++)
        for (int32_t k = i + 1; k < l.n; k++) {
            const struct sim_request *a = &l.requests[i], *b = &l.requests[k];
            assert_true(b->n_prompt <= 1024 && b->n_output <= 1024);
            if (a->stream != b->stream || b->offset != a->offset)
                continue;
            n_later++;
            assert_true(b->n_prompt > a->n_prompt || a->n_prompt == 1024);
            for (int32_t p = 0; p < a->n_prompt + a->n_output && p < b->n_prompt; p++)
                assert_int_equal(sim_token(a, 0, p), sim_token(b, 0, p));
        }
    assert_true(n_later > 100);
    sim_load_free(&l);
}

static char *write_trace(const char *text)
{
    char *path = xstrdup("/tmp/kvasir-sim-XXXXXX");
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fputs(text, file);
    fclose(file);
    return path;
}

static void test_trace_is_read_with_its_blocks(void **state)
{
    char *path = write_trace("t_ms\tin_tok\tout_tok\tblocks512\n"
                             "0\t1100\t320\t0-2\n"
                             "50\t1300\t64\t0 1 7\n");
    struct sim_load l;
    struct err err;

    assert_int_equal(sim_load_read(path, 32, 2, 10, 2048, &l, &err), 0);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.requests[0].n_prompt, 34);
    assert_int_equal(l.requests[0].n_output, 10);
    assert_int_equal(l.requests[1].arrival_us, 25000);
    for (int32_t i = 0; i < 32; i++)
        assert_int_equal(sim_token(&l.requests[0], 0, i), sim_token(&l.requests[1], 0, i));
    assert_int_not_equal(sim_token(&l.requests[0], 0, 33), sim_token(&l.requests[1], 0, 33));
    sim_load_free(&l);
    unlink(path);
    xfree(path);
}

static void test_bad_traces_are_refused_with_the_line(void **state)
{
    static const struct {
        const char *text, *words;
        int32_t scale;
    } cases[] = {
        {"", "is empty", 1},
        {"a\tb\n", "names no in_tok", 1},
        {"in_tok\tout_tok\n5\tx\n", "line 2: out_tok", 1},
        {"in_tok\tout_tok\n5\t5\n5\n", "line 3: out_tok", 1},
        {"in_tok\tout_tok\n-5\t5\n", "line 2: in_tok", 1},
        {"in_tok\tout_tok\tblocks512\n1100\t5\t0-1\n", "does not list the blocks", 32},
        {"in_tok\tout_tok\tblocks512\n1100\t5\t0-x\n", "does not list the blocks", 32},
        {"in_tok\tout_tok\tblocks512\n1100\t5\t0-2\n", "at scale 32 only", 1},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = write_trace(cases[i].text);
        struct sim_load l;
        struct err err = {""};
        assert_int_equal(sim_load_read(path, cases[i].scale, 1, 10, 2048, &l, &err), -1);
        if (!strstr(err.text, cases[i].words))
            fail_msg("\"%s\", expected \"%s\"", err.text, cases[i].words);
        unlink(path);
        xfree(path);
    }
}

/* ---- costs ---------------------------------------------------------------------------------- */

static void test_decode_costs_weights_and_prompt_costs_arithmetic(void **state)
{
    const struct sim_model *m = sim_model_find("opt-13b");
    double host = m->step_us + m->seq_us;

    struct sim_work decode = {.n_rows = 1, .n_seqs = 1};
    assert_near(sim_step_us(m, &decode) - host, 26e9 / (0.8 * 1555e9) * 1e6, 0.001);
    struct sim_work prompt = {.n_rows = 2000, .n_seqs = 1};
    assert_near(sim_step_us(m, &prompt) - host, 2 * 13e9 * 2000 / (0.6 * 312e12) * 1e6, 0.001);
}

static void test_blocks_are_read_a_quarter_slower_at_16(void **state)
{
    const struct sim_model *m = sim_model_find("opt-13b");
    struct sim_work none = {.n_rows = 1, .n_seqs = 1}, flat = none, paged = none;

    flat.kv_tokens = paged.kv_tokens = 10000;
    paged.block_size = 16;
    double base = (double)sim_step_us(m, &none);
    assert_near(sim_kv_token_bytes(m), 800 * 1024, 0);
    assert_near((double)sim_step_us(m, &flat) - base, 1e4 * 819200 / (0.8 * 1555e9) * 1e6, 0.001);
    assert_near(((double)sim_step_us(m, &paged) - base) / ((double)sim_step_us(m, &flat) - base),
                1.25, 0.001);
}

/* The two points from which the host's figures come: 45 and 76 ms. */
static void test_steps_of_the_paper_take_their_time(void **state)
{
    const struct sim_model *m = sim_model_find("opt-13b");
    struct sim_work sharegpt = {
        .n_rows = 30, .n_seqs = 30, .kv_tokens = 30 * 458, .block_size = 16};
    struct sim_work alpaca = {
        .n_rows = 132, .n_seqs = 132, .kv_tokens = 132 * 78, .block_size = 16};

    assert_near((double)sim_step_us(m, &sharegpt), 45000, 0.03);
    assert_near((double)sim_step_us(m, &alpaca), 76000, 0.03);
}

static void test_swap_is_dear_in_small_blocks(void **state)
{
    const struct sim_model *m = sim_model_find("opt-13b");

    assert_near(sim_swap_us(m, 1, 256), 80 * 5 + 256. * 819200 / 12e9 * 1e6, 1e-9);
    assert_near(sim_swap_us(m, 256, 1), 256 * 80 * 5 + 256. * 819200 / 12e9 * 1e6, 1e-9);
}

static void test_blocks_come_in_before_a_step_and_leave_beside_it(void **state)
{
    const struct sim_model *m = sim_model_find("opt-13b");
    struct sim_work rows = {.n_rows = 1, .n_seqs = 1, .block_size = 16}, in = rows, out = rows,
                    only_out = {.n_outs = 100, .block_size = 16};

    in.n_ins = 10;
    out.n_outs = 1;
    assert_near((double)sim_step_us(m, &in), (double)sim_step_us(m, &rows) + sim_swap_us(m, 10, 16),
                1e-4);
    assert_int_equal(sim_step_us(m, &out), sim_step_us(m, &rows));
    assert_near((double)sim_step_us(m, &only_out), sim_swap_us(m, 100, 16), 1e-4);
}

/* ---- policies on loads made by hand --------------------------------------------------------- */

/* A model of 1,024 slots whose every step takes 1 ms. */
static const struct sim_model small_model = {.name = "small",
                                             .n_layers = 1,
                                             .kv_width = 1,
                                             .n_cards = 1,
                                             .card_bytes_per_s = 1e30,
                                             .card_flops = 1e30,
                                             .slots = 1024,
                                             .n_context = 256,
                                             .step_us = 1000};

static struct sim_load equal_requests(int32_t n, int32_t n_prompt, int32_t n_output)
{
    struct sim_load l = {.n = n};

    l.requests = xcalloc((size_t)n, sizeof *l.requests);
    for (int32_t i = 0; i < n; i++)
        l.requests[i] = (struct sim_request){
            .n_prompt = n_prompt, .n_output = n_output, .stream = 100 + (uint64_t)i};
    return l;
}

static struct sim_result run_small(const struct sim_policy *policy, struct sim_load *load)
{
    struct sim_setup setup = {
        .model = &small_model, .block_size = 16, .max_running = 64, .max_rows = 1024};
    struct sim_result result;
    struct err err = {""};

    if (sim_run(policy, &setup, load, &result, &err))
        fail_msg("%s: %s", policy->name, err.text);
    return result;
}

/* 10 requests of 33 + 31 tokens: the maximum lets 4 in at a time, the exact length all of them. */
static void test_reservation_bounds_the_batch(void **state)
{
    static const struct {
        const struct sim_policy *policy;
        int64_t last_us; /* waves of 31 steps */
    } cases[] = {{&sim_orca_max, 93000}, {&sim_orca_pow2, 62000}, {&sim_orca_oracle, 31000}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sim_load l = equal_requests(10, 33, 31);
        run_small(cases[i].policy, &l);
        assert_int_equal(l.requests[0].end_us, 31000);
        assert_int_equal(l.requests[9].end_us, cases[i].last_us);
        sim_load_free(&l);
    }
}

static void test_paged_serves_all_at_once_where_they_fit(void **state)
{
    struct sim_load l = equal_requests(10, 33, 31);
    struct sim_result r = run_small(&sim_paged, &l);

    for (int32_t i = 0; i < l.n; i++)
        assert_int_equal(l.requests[i].end_us, 31000);
    assert_int_equal(r.steps, 31);
    assert_int_equal(r.totals.preemptions, 0);
    sim_load_free(&l);
}

/* Three chunks of 256 and one of 128 leave 128: the fifth needs 256, the sixth would fit. */
static void test_nobody_passes_a_head_that_does_not_fit(void **state)
{
    struct sim_load l = equal_requests(6, 100, 50);

    l.requests[3].n_output = 20;
    l.requests[5].n_prompt = l.requests[5].n_output = 1;
    struct sim_result r = run_small(&sim_orca_oracle, &l);
    assert_int_equal(l.requests[3].end_us, 20000);
    assert_int_equal(l.requests[4].end_us, 70000); /* in the place of the fourth */
    assert_int_equal(l.requests[5].end_us, 51000); /* when the first three are gone */
    assert_near(r.latency_s, (3 * 0.001 + 0.001 + 0.070 / 50 + 0.051) / 6, 1e-9);
    sim_load_free(&l);
}

static void test_every_policy_ends_every_request(void **state)
{
    struct sim_load l = sim_load_draw(sim_workload_find("alpaca"), 50, 2, 256, 9);

    for (int k = 0; k < SIM_N_POLICIES; k++) {
        assert_int_equal(run_small(sim_policies[k], &l).n_ended, l.n);
        for (int32_t i = 0; i < l.n; i++) /* a step of 1 ms for each token at least */
            assert_true(l.requests[i].end_us - l.requests[i].arrival_us >=
                        1000 * l.requests[i].n_output);
    }
    sim_load_free(&l);
}

static void test_paged_finds_a_common_prefix(void **state)
{
    struct sim_load l = equal_requests(8, 100, 4);

    for (int32_t i = 0; i < l.n; i++) {
        l.requests[i].n_shared = 96;
        l.requests[i].arrival_us = i * 100000;
    }
    struct sim_result r = run_small(&sim_paged, &l);
    assert_int_equal(r.totals.prompt_tokens, 800);
    assert_int_equal(r.totals.cached_tokens, 7 * 96);
    sim_load_free(&l);
}

static void test_what_never_fits_is_refused(void **state)
{
    for (int k = 0; k < SIM_N_POLICIES; k++) {
        struct sim_load l = equal_requests(1, 200, 100);
        struct sim_setup setup = {
            .model = &small_model, .block_size = 16, .max_running = 64, .max_rows = 1024};
        struct sim_model tiny = small_model;
        struct sim_result result;
        struct err err = {""};
        tiny.slots = 128;
        setup.model = &tiny;
        assert_int_equal(sim_run(sim_policies[k], &setup, &l, &result, &err), -1);
        assert_true(err.text[0] != '\0');
        sim_load_free(&l);
    }
}

static void test_shares_of_every_policy_are_the_whole(void **state)
{
    struct sim_load l = sim_load_draw(sim_workload_find("alpaca"), 100, 3, 256, 4);

    for (int k = 0; k < SIM_N_POLICIES; k++) {
        struct sim_result r = run_small(sim_policies[k], &l);
        double sum = 0;
        for (int i = 0; i < SIM_N_SHARES; i++) {
            assert_true(r.shares[i] >= 0 && r.shares[i] <= 1);
            sum += r.shares[i];
        }
        assert_near(sum, 1, 1e-9);
        assert_true(r.mean_batch > 0);
        if (sim_policies[k] == &sim_orca_max)
            assert_near(r.mean_batch, 4, 0.01); /* 1,024 slots, 256 each */
    }
    sim_load_free(&l);
}

/* ---- sharing inside a group ----------------------------------------------------------------- */

/* Part of the blocks saved by `width` answers to each of requests that come one by one. */
static double saved_by(const struct sim_workload *w, int32_t width, bool is_beam)
{
    struct sim_setup setup = {
        .model = sim_model_find("opt-13b"), .block_size = 16, .max_running = 64, .max_rows = 2560};
    struct sim_load l = sim_load_draw(w, 0.5, 200, 2048, 1);
    struct sim_result r;
    struct err err = {""};

    for (int32_t i = 0; i < l.n; i++) {
        l.requests[i].n_branches = width;
        l.requests[i].is_beam = is_beam;
    }
    if (sim_run(&sim_paged, &setup, &l, &r, &err))
        fail_msg("%s", err.text);
    sim_load_free(&l);
    return r.saved_part;
}

/* Prompts of about 500 tokens with few more: N branches name them N times, one copy is there. */
static void test_samples_share_the_prompt(void **state)
{
    struct sim_workload long_prompts = {"prompts", 500, 40, 0.1, 0};

    assert_near(1 + saved_by(&long_prompts, 1, false), 1, 1e-3);
    assert_near(saved_by(&long_prompts, 2, false), 0.5, 0.15);
    assert_near(saved_by(&long_prompts, 4, false), 0.75, 0.15);
}

static void test_reservation_refuses_several_answers(void **state)
{
    struct sim_load l = equal_requests(1, 10, 10);
    struct sim_setup setup = {
        .model = &small_model, .block_size = 16, .max_running = 64, .max_rows = 1024};
    struct sim_result r;
    struct err err = {""};

    l.requests[0].n_branches = 2;
    assert_int_equal(sim_run(&sim_orca_oracle, &setup, &l, &r, &err), -1);
    assert_non_null(strstr(err.text, "one answer"));
    sim_load_free(&l);
}

static void test_one_beam_shares_nothing(void **state)
{
    assert_near(1 + saved_by(sim_workload_find("alpaca"), 1, true), 1, 1e-3);
}

/* What a beam of w can share is less than all but one of its tables. */
static void test_beams_share_more_than_samples(void **state)
{
    const struct sim_workload *w = sim_workload_find("alpaca");

    for (int32_t width = 2; width <= 6; width += 2) {
        double saved = saved_by(w, width, true);
        assert_true(saved > saved_by(w, width, false) && saved < 1 - 1. / width);
    }
}

static void test_continuations_are_a_distribution_of_distinct_ids(void **state)
{
    struct sim_request r = {.n_prompt = 10, .stream = 5};
    struct chosen best[SIM_BEAM_CANDIDATES];

    for (int32_t position = 10; position < 1000; position += 90) {
        double sum = 0;
        sim_beam_continue(&r, position, 17, SIM_BEAM_CANDIDATES, best);
        for (int32_t i = 0; i < SIM_BEAM_CANDIDATES; i++) {
            sum += exp((double)best[i].logprob);
            assert_true(best[i].id > 0 && best[i].id < SIM_VOCAB);
            assert_true(i == 0 || best[i].logprob <= best[i - 1].logprob);
            for (int32_t k = 0; k < i; k++)
                assert_int_not_equal(best[i].id, best[k].id);
        }
        assert_near(sum, 1, 1e-4);
    }
}

/* Mean loss of the best continuation over many histories. */
static double mean_loss(int32_t position)
{
    struct sim_request r = {.n_prompt = 0, .stream = 5};
    double sum = 0;

    for (int32_t id = 1; id <= 2000; id++) {
        struct chosen best;
        sim_beam_continue(&r, position, id, 1, &best);
        sum -= (double)best.logprob / 2000;
    }
    return sum;
}

static void test_answers_get_surer_as_they_grow(void **state)
{
    assert_true(mean_loss(0) > 2);
    assert_near(mean_loss(95) / mean_loss(295), 3, 0.4);
}

/* ---- preemption ----------------------------------------------------------------------------- */

/* 12 requests that grow over the pool, in either mode: all end, and what one throws away the other
 * moves. */
static void test_swap_moves_what_recomputation_drops(void **state)
{
    struct sim_load l = equal_requests(12, 33, 150);
    struct sim_setup setup = {
        .model = &small_model, .block_size = 16, .max_running = 64, .max_rows = 1024};
    struct sim_result again, swap;
    struct err err = {""};

    assert_int_equal(sim_run(&sim_paged, &setup, &l, &again, &err), 0);
    setup.swap = true;
    assert_int_equal(sim_run(&sim_paged, &setup, &l, &swap, &err), 0);
    assert_true(again.totals.preemptions > 0 && again.totals.dropped_tokens > 0);
    assert_int_equal(again.totals.swapped_out, 0);
    assert_true(swap.totals.preemptions > 0 && swap.totals.swapped_in > 0);
    assert_int_equal(swap.totals.dropped_tokens, 0);
    assert_true(swap.totals.swapped_out >= swap.totals.swapped_in);
    sim_load_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_is_of_the_smallest_power_that_holds_it),
        cmocka_unit_test(test_seven_of_2048_fit_into_15728),
        cmocka_unit_test(test_halves_join_again),
        cmocka_unit_test(test_random_chunks_never_overlap),
        cmocka_unit_test(test_lengths_have_their_mean_after_the_cut),
        cmocka_unit_test(test_poisson_load_has_rate_means_and_fits_the_context),
        cmocka_unit_test(test_same_seed_same_load_other_seed_another),
        cmocka_unit_test(test_only_the_common_prefix_is_common),
        cmocka_unit_test(test_kept_chats_repeat_their_history),
        cmocka_unit_test(test_trace_is_read_with_its_blocks),
        cmocka_unit_test(test_bad_traces_are_refused_with_the_line),
        cmocka_unit_test(test_decode_costs_weights_and_prompt_costs_arithmetic),
        cmocka_unit_test(test_blocks_are_read_a_quarter_slower_at_16),
        cmocka_unit_test(test_steps_of_the_paper_take_their_time),
        cmocka_unit_test(test_swap_is_dear_in_small_blocks),
        cmocka_unit_test(test_blocks_come_in_before_a_step_and_leave_beside_it),
        cmocka_unit_test(test_reservation_bounds_the_batch),
        cmocka_unit_test(test_paged_serves_all_at_once_where_they_fit),
        cmocka_unit_test(test_nobody_passes_a_head_that_does_not_fit),
        cmocka_unit_test(test_every_policy_ends_every_request),
        cmocka_unit_test(test_paged_finds_a_common_prefix),
        cmocka_unit_test(test_what_never_fits_is_refused),
        cmocka_unit_test(test_shares_of_every_policy_are_the_whole),
        cmocka_unit_test(test_samples_share_the_prompt),
        cmocka_unit_test(test_reservation_refuses_several_answers),
        cmocka_unit_test(test_one_beam_shares_nothing),
        cmocka_unit_test(test_beams_share_more_than_samples),
        cmocka_unit_test(test_continuations_are_a_distribution_of_distinct_ids),
        cmocka_unit_test(test_answers_get_surer_as_they_grow),
        cmocka_unit_test(test_swap_moves_what_recomputation_drops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
