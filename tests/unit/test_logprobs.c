/* test_logprobs.c - log-probabilities of generated ids and of the best ones beside them: every branch
 * has its own, in the order of its ids, through stops, preemption and resuming. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/unit/group_world.h"

enum { BEST = 5, TOKENS = 30, N = 8, PROMPT = 90 };

/* What end told of each branch. */
struct seen {
    struct world *w;
    struct gen *gen;
    int32_t n_prompt, ids[256], n_ids[ENGINE_MAX_BRANCHES], from[ENGINE_MAX_BRANCHES];
    int32_t n_checked;
    struct chosen rows[ENGINE_MAX_BRANCHES][TOKENS * (BEST + 1)]; /* as they came before the end */
    int32_t n_rows[ENGINE_MAX_BRANCHES];
};

static void no_output(void *owner, const struct gen_output *output)
{
    (void)owner;
    (void)output;
}

static void take_rows(void *owner, const struct gen_rows *rows)
{
    struct seen *s = owner;
    int32_t *n = &s->n_rows[rows->branch];

    assert_false(rows->of_prompt);
    assert_int_equal(rows->n_best, BEST);
    assert_in_range(rows->n, 1, TOKENS - *n);
    memcpy(s->rows[rows->branch] + (ptrdiff_t)*n * (BEST + 1), rows->rows,
           (size_t)rows->n * (BEST + 1) * sizeof *rows->rows);
    *n += rows->n;
}

/* Walks the chain of hashes over the prompt and the ids that were told, and compares each row. */
static void check_end(void *owner, const struct gen_end *end)
{
    struct seen *s = owner;
    uint64_t slots[512], all;
    int32_t n = s->n_prompt;
    struct chosen want[BEST];

    s->n_ids[end->branch] = end->n_ids;
    assert_non_null(end->logprobs);
    assert_int_equal(end->n_best, BEST);
    assert_int_equal(s->n_rows[end->branch], end->n_generated);
    assert_memory_equal(s->rows[end->branch], end->logprobs,
                        (size_t)end->n_generated * (BEST + 1) * sizeof *end->logprobs);
    for (int32_t i = 0; i < n + end->n_ids; i++) {
        int32_t id = i < n ? s->ids[i] : end->ids[i - n];
        slots[i] = fake_mix((i ? slots[i - 1] : 1) ^ (uint64_t)(uint32_t)id);
    }
    for (int32_t k = 0; k < end->n_ids; k++) {
        const struct chosen *row = end->logprobs + (size_t)k * (BEST + 1);
        all = 0;
        for (int32_t i = 0; i < n + k; i++)
            all = fake_mix(all ^ slots[i]);
        assert_int_equal(row[0].id, end->ids[k]);
        if (k < s->from[end->branch]) {
            assert_true(isnan(row[0].logprob));
            assert_int_equal(row[1].id, -1);
            continue;
        }
        fake_best(s->w->runner, all, BEST, want);
        assert_true(row[0].logprob == fake_logprob(all, end->ids[k] - 'a'));
        for (int32_t i = 0; i < BEST; i++) {
            assert_int_equal(row[1 + i].id, want[i].id);
            assert_true(row[1 + i].logprob == want[i].logprob);
        }
        s->n_checked++;
    }
}

static const struct gen_events seen_events = {
    .output = no_output, .end = check_end, .rows = take_rows};

static void seen_submit(struct seen *s, struct world *w, int32_t n_branches, int32_t kind)
{
    struct gen_options o = options_of((uint64_t)kind + 5, TOKENS);
    struct err err = {0};

    memset(s, 0, sizeof *s);
    s->w = w;
    s->n_prompt = PROMPT;
    o.n_branches = n_branches;
    o.logprobs = true;
    o.n_logprobs = BEST;
    fill_prompt(s->ids, PROMPT, kind);
    if (engine_submit(w->engine, &w->ns, s->ids, PROMPT, &o, &seen_events, s, &s->gen, &err) !=
        SUBMIT_OK)
        fail_msg("%s", err.text);
}

static void test_each_branch_has_the_log_probabilities_of_its_ids(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct seen s;

    seen_submit(&s, w, 4, 1);
    drain(w);
    assert_int_equal(s.n_checked, 4 * TOKENS);
    world_free(w);
}

static void test_they_survive_preemption_in_both_modes(void **state)
{
    (void)state;
    for (int32_t slots = 0; slots <= 100; slots += 100) {
        struct shape shape = small_shape;
        static struct seen seen[N];
        shape.pool = 20;
        shape.slots = slots;
        struct world *w = world_new(shape);
        for (int32_t i = 0; i < N; i++)
            seen_submit(&seen[i], w, 2, i);
        drain(w);
        for (int32_t i = 0; i < N; i++)
            assert_int_equal(seen[i].n_checked, 2 * TOKENS);
        assert_true(stats_of(w).preemptions > 0);
        world_free(w);
    }
}

static void test_of_resumed_ids_nothing_is_known(void **state)
{
    (void)state;
    struct world *w = world_new(small_shape);
    static struct seen s = {0};
    static int32_t whole[TOKENS];
    struct gen_start start = {.ids = whole, .n = 10};
    struct gen_options o = options_of(9, TOKENS);
    struct err err = {0};

    memset(&s, 0, sizeof s);
    s.w = w;
    s.n_prompt = PROMPT;
    s.from[0] = 10;
    fill_prompt(s.ids, PROMPT, 3);
    plain_run(w->runner, s.ids, PROMPT, &o, 0, whole, TOKENS);
    o.logprobs = true;
    o.n_logprobs = BEST;
    o.starts = &start;
    assert_int_equal(
        engine_submit(w->engine, &w->ns, s.ids, PROMPT, &o, &seen_events, &s, &s.gen, &err),
        SUBMIT_OK);
    drain(w);
    assert_int_equal(s.n_ids[0], TOKENS);
    assert_int_equal(s.n_checked, TOKENS - 10);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_branch_has_the_log_probabilities_of_its_ids),
        cmocka_unit_test(test_they_survive_preemption_in_both_modes),
        cmocka_unit_test(test_of_resumed_ids_nothing_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
