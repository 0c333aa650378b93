/* test_choose.c - the id that is chosen from one row of logits, case by case and against a plain
 * sort of the whole vocabulary. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "harness.h"
#include "kernels/choose.h"

static const struct plan_sample plain = {.temperature = 0, .top_p = 1, .repeat = 1};

/* Chooses from logits [n] with the arrays that a test needs. */
struct arrays {
    const int32_t *recent;
    int32_t n_recent;
    const struct plan_count *counts;
    int32_t n_counts;
    const struct plan_bias *bias;
    int32_t n_bias;
};

static struct chosen choose(const float *logits, int32_t n, struct plan_sample s,
                            const struct arrays *a)
{
    static const struct arrays none;
    struct plan_limits limits = harness_limits(16);
    struct plan *p = plan_new(&limits);
    struct choose_scratch scratch;
    struct chosen out;

    if (a == NULL)
        a = &none;
    assert_int_equal(choose_scratch_init(&scratch, n, NULL), 0);
    plan_add_sample(p, &s, a->recent, a->n_recent, a->counts, a->n_counts, a->bias, a->n_bias);
    choose_row(p, &p->samples[0], logits, &choose_passes_plain, &scratch, &out);
    choose_scratch_free(&scratch);
    plan_free(p);
    return out;
}

static void test_greedy_takes_the_lowest_of_equal_ids(void **state)
{
    (void)state;
    const float logits[] = {1, 7, 3, 7, 7, -1};
    assert_int_equal(choose(logits, 6, plain, NULL).id, 1);
}

static void test_logprob_is_of_the_raw_logits(void **state)
{
    (void)state;
    const float logits[] = {0.5f, 2, -1};
    const struct plan_bias bias[] = {{1, -INFINITY}};
    struct arrays a = {.bias = bias, .n_bias = 1};
    struct chosen c = choose(logits, 3, plain, &a);
    assert_int_equal(c.id, 0);
    double sum = exp(0.5) + exp(2.0) + exp(-1.0);
    assert_float_equal(c.logprob, 0.5 - log(sum), 1e-6);
}

static void test_a_given_id_is_told_and_not_drawn(void **state)
{
    (void)state;
    const float logits[] = {0.5f, 2, -1};
    const struct plan_bias bias[] = {{2, -INFINITY}};
    struct arrays a = {.bias = bias, .n_bias = 1};
    struct plan_sample s = plain;
    double sum = exp(0.5) + exp(2.0) + exp(-1.0);

    s.is_given = true;
    s.id = 2;
    struct chosen c = choose(logits, 3, s, &a);
    assert_int_equal(c.id, 2);
    assert_float_equal(c.logprob, -1 - log(sum), 1e-6);
}

static void test_repeat_divides_positive_and_multiplies_negative_logits_once(void **state)
{
    (void)state;
    const int32_t recent[] = {1, 2, 1, 1};
    struct arrays a = {.recent = recent, .n_recent = 4};
    struct plan_sample s = plain;
    s.repeat = 2;
    const float positive[] = {2.1f, 4.0f, 1.0f}; /* 4 / 2 = 2; thrice would still lose, so: */
    assert_int_equal(choose(positive, 3, s, &a).id, 0);
    const float once[] = {1.9f, 4.0f, 1.0f}; /* 2 wins, 1 or 0.5 would not */
    assert_int_equal(choose(once, 3, s, &a).id, 1);
    const float negative[] = {-3.0f, -1.6f, -9.0f}; /* -3.2 loses */
    assert_int_equal(choose(negative, 3, s, &a).id, 0);
}

static void test_presence_and_frequency_count_generated_ids(void **state)
{
    (void)state;
    const float logits[] = {1.0f, 2.0f, 1.75f};
    const struct plan_count counts[] = {{1, 3}, {2, 0}};
    struct arrays a = {.counts = counts, .n_counts = 2};
    struct plan_sample s = plain;
    s.presence = 0.5f; /* 1.5: id 2 wins, and its count of 0 costs nothing */
    assert_int_equal(choose(logits, 3, s, &a).id, 2);
    s.presence = 0;
    s.frequency = 0.05f; /* 1.85 */
    assert_int_equal(choose(logits, 3, s, &a).id, 1);
    s.frequency = 0.1f; /* 1.7 */
    assert_int_equal(choose(logits, 3, s, &a).id, 2);
}

static void test_banning_everything_or_nan_gives_id_0(void **state)
{
    (void)state;
    const float logits[] = {NAN, NAN, NAN};
    struct plan_sample s = plain;
    assert_int_equal(choose(logits, 3, s, NULL).id, 0);
    s.temperature = 1;
    assert_int_equal(choose(logits, 3, s, NULL).id, 0);
    const float one[] = {NAN, -INFINITY, -70, NAN};
    assert_int_equal(choose(one, 4, s, NULL).id, 2);
    s.temperature = 0;
    assert_int_equal(choose(one, 4, s, NULL).id, 2);
}

/* Shares of 4,000 draws at as many positions. */
static void draw_shares(const float *logits, int32_t n, struct plan_sample s, double *shares)
{
    for (int32_t i = 0; i < n; i++)
        shares[i] = 0;
    for (int32_t i = 0; i < 4000; i++) {
        s.position = i;
        shares[choose(logits, n, s, NULL).id] += 1 / 4000.0;
    }
}

static void test_draws_follow_the_probabilities(void **state)
{
    (void)state;
    /* probabilities 1/2, 1/4, 1/8, 1/8 at temperature 2 */
    const float logits[] = {0, 2 * 0.6931472f, 2 * 2 * 0.6931472f, 0};
    struct plan_sample s = plain;
    double shares[4];
    s.temperature = 2;
    s.seed = 5;
    draw_shares(logits, 4, s, shares);
    /* four standard deviations of a share are at most 4 * sqrt(0.25 / 4000) = 0.032 */
    assert_float_equal(shares[2], 0.5, 0.032);
    assert_float_equal(shares[1], 0.25, 0.032);
    assert_float_equal(shares[0], 0.125, 0.032);
    assert_float_equal(shares[3], 0.125, 0.032);
}

static void test_filters_keep_a_prefix(void **state)
{
    (void)state;
    const float logits[] = {0, 0.6931472f, 2 * 0.6931472f, 0}; /* 1/8 1/4 1/2 1/8 */
    const struct {
        int32_t top_k;
        float top_p, min_p;
        bool kept[4];
    } cases[] = {
        {1, 1, 0, {false, false, true, false}},     {2, 1, 0, {false, true, true, false}},
        {3, 1, 0, {true, true, true, false}}, /* of two equals the lower id */
        {0, 0.45f, 0, {false, false, true, false}}, {0, 0.6f, 0, {false, true, true, false}},
        {0, 0.8f, 0, {true, true, true, false}},    {0, 0, 0, {false, false, true, false}},
        {0, 1, 0.3f, {false, true, true, false}},   {0, 1, 0.6f, {false, false, true, false}},
        {2, 0.6f, 0, {false, false, true, false}}, /* 1/2 of 3/4 is more than 0.6 */
        {0, 1, 1, {false, false, true, false}},     {9, 1, 0.2f, {true, true, true, true}},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct plan_sample s = plain;
        double shares[4];
        s.temperature = 1;
        s.top_k = cases[i].top_k;
        s.top_p = cases[i].top_p;
        s.min_p = cases[i].min_p;
        draw_shares(logits, 4, s, shares);
        for (int id = 0; id < 4; id++)
            if ((shares[id] > 0) != cases[i].kept[id])
                fail_msg("case %d: id %d was drawn with share %g", i, id, shares[id]);
    }
}

static void test_seed_branch_and_position_key_the_draw(void **state)
{
    (void)state;
    float logits[1000] = {0};
    struct plan_sample s = plain;
    s.temperature = 1;
    s.seed = 7;
    s.position = 3;
    int32_t first = choose(logits, 1000, s, NULL).id;
    assert_int_equal(choose(logits, 1000, s, NULL).id, first);
    s.branch = 1;
    assert_int_not_equal(choose(logits, 1000, s, NULL).id, first);
    s.branch = 0;
    s.position = 4;
    assert_int_not_equal(choose(logits, 1000, s, NULL).id, first);
}

/* ---- against a sort of everything ----------------------------------------------------------- */

static const float *sorted_by;
static int by_logit(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    if (sorted_by[i] != sorted_by[k])
        return sorted_by[i] > sorted_by[k] ? -1 : 1;
    return i < k ? -1 : 1;
}

static int32_t draw_plainly(const float *x, int32_t n, const struct plan_sample *s)
{
    int32_t *order = xcalloc((size_t)n, sizeof(*order));
    double *weight = xcalloc((size_t)n, sizeof(*weight)), mass = 0, sum = 0;
    int32_t kept = s->top_k > 0 && s->top_k < n ? s->top_k : n, i;

    for (i = 0; i < n; i++)
        order[i] = i;
    sorted_by = x;
    qsort(order, (size_t)n, sizeof(*order), by_logit);
    for (i = 0; i < n; i++)
        weight[i] = exp(((double)x[order[i]] - x[order[0]]) * (1.0 / s->temperature));
    if (kept < n)
        for (i = 0; i < kept; i++)
            mass += weight[i];
    else
        mass = choose_passes_plain.sum_exp(x, n, x[order[0]], 1.0 / s->temperature);
    if (s->top_p < 1) {
        for (i = 0, sum = 0; i < kept && sum < s->top_p * mass; i++)
            sum += weight[i];
        kept = i > 0 ? i : 1;
    }
    for (i = 0; s->min_p > 0 && i < kept; i++)
        if (weight[i] < s->min_p)
            kept = i;
    if (s->top_p < 1 || s->min_p > 0)
        for (i = 0, mass = 0; i < kept; i++)
            mass += weight[i];
    double u = rng_unit(rng_at(s->seed, (uint32_t)s->branch, (uint32_t)s->position));
    for (i = 0, sum = 0; i < kept - 1; i++)
        if ((sum += weight[i]) > u * mass)
            break;
    int32_t id = order[i];
    xfree(order);
    xfree(weight);
    return id;
}

static void test_choice_equals_a_sort_of_the_whole_vocabulary(void **state)
{
    (void)state;
    enum { N = 3000 };
    struct rng r = rng_from(11);
    float *x = xmalloc(N * sizeof(*x));
    int deep = 0;

    for (int round = 0; round < 400; round++) {
        struct plan_sample s = plain;
        harness_fill(&r, x, N);
        for (int i = 0; i < N; i++)
            x[i] = roundf(x[i] * 64) / 16; /* many ties */
        s.temperature = (float)(1 + rng_below(&r, 200)) / 10;
        s.top_k = rng_below(&r, 2) ? (int32_t)rng_below(&r, 200) : 0;
        s.top_p = rng_below(&r, 2) ? rng_unit(rng_next(&r)) : 1;
        s.min_p = rng_below(&r, 3) == 0 ? rng_unit(rng_next(&r)) / 4 : 0;
        s.seed = rng_next(&r);
        int32_t want = draw_plainly(x, N, &s), got = choose(x, N, s, NULL).id, before = 0;
        for (int i = 0; i < N; i++)
            before += x[i] > x[want];
        deep += before > 1024;
        if (got != want)
            fail_msg("round %d (seed 11): id %d, a sort gives %d", round, got, want);
    }
    assert_true(deep > 20); /* draws beyond the second cut happened */
    xfree(x);
}

/* The best ids against a sort, raw and adjusted, with ties, bans, NaN and fewer than are wanted. */
static void test_best_ids_are_those_of_a_sort(void **state)
{
    (void)state;
    const float logits[] = {1, 5, NAN, 5, -2, 4, -INFINITY};
    const struct plan_bias bias[] = {{1, -INFINITY}, {4, 10}};
    static const int32_t raw[] = {1, 3, 5, 0, 4, -1}, adjusted[] = {4, 3, 5, 0, -1, -1};
    struct plan_limits limits = harness_limits(16);
    struct choose_scratch scratch;
    struct chosen out[6];

    limits.max_best = 12;
    assert_int_equal(choose_scratch_init(&scratch, 7, NULL), 0);
    for (int with_bias = 0; with_bias < 2; with_bias++) {
        struct plan *p = plan_new(&limits);
        struct plan_sample s = plain;
        s.n_best = 6;
        s.best_adjusted = with_bias;
        plan_add_sample(p, &s, NULL, 0, NULL, 0, bias, 2);
        choose_best(p, &p->samples[0], logits, &choose_passes_plain, &scratch, out);
        double sum = 0;
        for (int i = 0; i < 6; i++) {
            int32_t id = (with_bias ? adjusted : raw)[i];
            assert_int_equal(out[i].id, id);
            sum += exp(out[i].logprob);
            if (id == 5)
                assert_float_equal(out[i].logprob - out[1].logprob, -1, 1e-6);
            if (id < 0)
                assert_true(isinf(out[i].logprob));
        }
        assert_float_equal(sum, 1, 1e-6);
        plan_free(p);
    }
    choose_scratch_free(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_ids_are_those_of_a_sort),
        cmocka_unit_test(test_greedy_takes_the_lowest_of_equal_ids),
        cmocka_unit_test(test_logprob_is_of_the_raw_logits),
        cmocka_unit_test(test_a_given_id_is_told_and_not_drawn),
        cmocka_unit_test(test_repeat_divides_positive_and_multiplies_negative_logits_once),
        cmocka_unit_test(test_presence_and_frequency_count_generated_ids),
        cmocka_unit_test(test_banning_everything_or_nan_gives_id_0),
        cmocka_unit_test(test_draws_follow_the_probabilities),
        cmocka_unit_test(test_filters_keep_a_prefix),
        cmocka_unit_test(test_seed_branch_and_position_key_the_draw),
        cmocka_unit_test(test_choice_equals_a_sort_of_the_whole_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
