/* test_sampler.c - options and ids become the sample that a plan carries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <math.h>
#include <cmocka.h>

#include "engine/sampler.h"
#include "tests/unit/vocab.h"

struct bench {
    struct vocab vocab;
    struct sampler sampler;
    struct plan *plan;
};

static struct bench bench_new(struct gen_options options)
{
    struct bench b = {.vocab = vocab_new(NULL, 0)};
    struct plan_limits limits = {.max_rows = 8,
                                 .max_seqs = 8,
                                 .max_table_blocks = 8,
                                 .max_copies = 8,
                                 .max_bias = 4096,
                                 .max_counts = 4096,
                                 .block_size = 16};

    b.plan = plan_new(&limits);
    plan_clear(b.plan);
    sampler_init(&b.sampler, b.vocab.tokenizer, &options, 0, 100);
    return b;
}

static void bench_free(struct bench *b)
{
    sampler_free(&b->sampler);
    plan_free(b->plan);
    tokenizer_free(b->vocab.tokenizer);
}

/* The sample behind ids [n], with a row for it to stand on. */
static const struct plan_sample *plan_it(struct bench *b, const int32_t *ids, int32_t n)
{
    int32_t block = 0;

    plan_add_seq(b->plan, 0, ids, 1, &block, 1);
    sampler_plan(&b->sampler, b->plan, b->plan->n_rows - 1, ids, n);
    return &b->plan->samples[b->plan->n_samples - 1];
}

static void test_options_arrive_in_the_sample(void **state)
{
    (void)state;
    struct gen_options o = {.max_tokens = 5,
                            .temperature = 0.7f,
                            .top_k = 40,
                            .top_p = 0.9f,
                            .min_p = 0.05f,
                            .repeat = 1.1f,
                            .presence = 0.5f,
                            .frequency = 0.25f,
                            .seed = UINT64_MAX - 4};
    struct bench b = bench_new(o);
    int32_t ids[3] = {7, 8, 9};
    const struct plan_sample *s = plan_it(&b, ids, 3);

    assert_true(s->temperature == 0.7f && s->top_p == 0.9f && s->min_p == 0.05f);
    assert_true(s->repeat == 1.1f && s->presence == 0.5f && s->frequency == 0.25f);
    assert_int_equal(s->top_k, 40);
    assert_true(s->seed == UINT64_MAX - 4);
    assert_int_equal(s->position, 3);
    assert_int_equal(s->row, 0);
    assert_int_equal(s->branch, 0);
    bench_free(&b);
}

static void test_the_last_64_ids_are_recent_the_prompt_among_them(void **state)
{
    (void)state;
    struct gen_options o = gen_options_default();
    int32_t ids[100];

    for (int i = 0; i < 100; i++)
        ids[i] = i;
    o.repeat = 1.2f;
    struct bench b = bench_new(o);
    const struct plan_sample *s = plan_it(&b, ids, 100);
    assert_int_equal(s->n_recent, 64);
    assert_int_equal(b.plan->recent[s->recent_at], 36);
    assert_int_equal(b.plan->recent[s->recent_at + 63], 99);
    s = plan_it(&b, ids, 3);
    assert_int_equal(s->n_recent, 3);
    assert_int_equal(b.plan->recent[s->recent_at], 0);
    bench_free(&b);
}

static void test_without_a_penalty_nothing_is_carried(void **state)
{
    (void)state;
    struct bench b = bench_new(gen_options_default());
    int32_t ids[3] = {1, 2, 3};

    sampler_count(&b.sampler, 1);
    const struct plan_sample *s = plan_it(&b, ids, 3);
    assert_int_equal(s->n_recent, 0);
    assert_int_equal(s->n_counts, 0);
    assert_int_equal(s->n_bias, 0);
    bench_free(&b);
}

static void test_generated_ids_are_counted_once_each(void **state)
{
    (void)state;
    static const int32_t generated[] = {9, 3, 9, 200, 3, 9, 0};
    static const struct plan_count want[] = {{0, 1}, {3, 2}, {9, 3}, {200, 1}};
    struct gen_options o = gen_options_default();

    o.frequency = 0.1f;
    struct bench b = bench_new(o);
    for (size_t i = 0; i < sizeof generated / sizeof *generated; i++)
        sampler_count(&b.sampler, generated[i]);
    const struct plan_sample *s = plan_it(&b, generated, 7);
    assert_int_equal(s->n_counts, 4);
    assert_memory_equal(b.plan->counts + s->counts_at, want, sizeof want);
    bench_free(&b);
}

static void test_ignored_ends_are_banned_also_against_a_bias(void **state)
{
    (void)state;
    struct gen_options o = gen_options_default();
    struct vocab v = vocab_new(NULL, 0);
    struct plan_bias bias[] = {{v.end_of_text, 50}, {'a', 2}, {v.n, 1}, {-1, 1}, {'a', -3}};
    int32_t ids[1] = {'x'};

    o.bias = bias;
    o.n_bias = 5;
    o.ignore_eos = true;
    struct bench b = bench_new(o);
    const struct plan_sample *s = plan_it(&b, ids, 1);
    const struct plan_bias *got = b.plan->bias + s->bias_at;
    assert_int_equal(s->n_bias, 3); /* ids outside the vocabulary are left out */
    assert_int_equal(got[0].id, v.end_of_text);
    assert_true(isinf(got[0].value) && got[0].value < 0);
    assert_int_equal(got[1].id, 'a');
    assert_true(got[1].value == -3); /* the last of an id counts */
    assert_int_equal(got[2].id, v.end_of_turn);
    assert_true(isinf(got[2].value) && got[2].value < 0);
    bench_free(&b);
    tokenizer_free(v.tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_arrive_in_the_sample),
        cmocka_unit_test(test_the_last_64_ids_are_recent_the_prompt_among_them),
        cmocka_unit_test(test_without_a_penalty_nothing_is_carried),
        cmocka_unit_test(test_generated_ids_are_counted_once_each),
        cmocka_unit_test(test_ignored_ends_are_banned_also_against_a_bias),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
