/* test_prompt.c - log-probabilities of the ids of a prompt: each is told once, in order, with those
 * that a plain walk over the ids gives, whatever the cache holds and the blocks go through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/rng.h"
#include "tests/unit/group_world.h"

enum { MAX_PROMPT = 400 };

/* Whoever asked, and what was told with branch 0. */
struct asked {
    struct world *w;
    struct gen *gen;
    int32_t prompt[MAX_PROMPT], n_prompt, n_best;
    int32_t n_ends, n_told, n_known, n_cached;
};

static void no_output(void *owner, const struct gen_output *output)
{
    (void)owner;
    (void)output;
}

/* Compares all rows with the chain of hashes over the ids. */
static void check_rows(const struct asked *a, const struct gen_end *end)
{
    struct chosen want[ENGINE_MAX_LOGPROBS];
    uint64_t slot = 1, all = 0;

    for (int32_t i = 0; i < end->n_prompt_known; i++) {
        const struct chosen *row = end->prompt_logprobs + (size_t)i * (size_t)(a->n_best + 1);
        assert_int_equal(row[0].id, a->prompt[i]);
        if (i == 0) {
            assert_true(isnan(row[0].logprob));
            for (int32_t k = 1; k <= a->n_best; k++)
                assert_int_equal(row[k].id, -1);
        } else {
            fake_best(a->w->runner, all, a->n_best, want);
            assert_true(row[0].logprob == fake_logprob(all, a->prompt[i] - 'a'));
            for (int32_t k = 0; k < a->n_best; k++) {
                assert_int_equal(row[1 + k].id, want[k].id);
                assert_true(row[1 + k].logprob == want[k].logprob);
            }
        }
        slot = fake_mix(slot ^ (uint64_t)(uint32_t)a->prompt[i]);
        all = fake_mix(all ^ slot);
    }
}

static void take_end(void *owner, const struct gen_end *end)
{
    struct asked *a = owner;

    a->n_ends++;
    if (end->is_last)
        a->gen = NULL;
    if (end->branch != 0) {
        assert_null(end->prompt_logprobs);
        return;
    }
    assert_non_null(end->prompt_logprobs);
    assert_int_equal(end->n_prompt, a->n_prompt);
    assert_int_equal(end->n_prompt_best, a->n_best);
    a->n_told++;
    a->n_known = end->n_prompt_known;
    a->n_cached = end->n_cached;
    if (end->finish == GEN_STOP || end->finish == GEN_LENGTH)
        assert_int_equal(end->n_prompt_known, end->n_prompt);
    check_rows(a, end);
}

static const struct gen_events asked_events = {.output = no_output, .end = take_end};

static void ask_with(struct asked *a, struct world *w, int32_t n_prompt, int32_t kind,
                     struct gen_options o, int32_t n_best)
{
    struct err err = {0};

    assert_true(n_prompt <= MAX_PROMPT);
    *a = (struct asked){.w = w, .n_prompt = n_prompt, .n_best = n_best};
    o.prompt_logprobs = true;
    o.n_prompt_logprobs = n_best;
    fill_prompt(a->prompt, n_prompt, kind);
    if (engine_submit(w->engine, &w->ns, a->prompt, n_prompt, &o, &asked_events, a, &a->gen,
                      &err) != SUBMIT_OK)
        fail_msg("%s", err.text);
    world_audit(w);
}

static void ask(struct asked *a, struct world *w, int32_t n_prompt, int32_t kind,
                int32_t n_branches, int32_t n_best)
{
    struct gen_options o = options_of((uint64_t)kind + 5, 20);

    o.n_branches = n_branches;
    ask_with(a, w, n_prompt, kind, o, n_best);
}

static void is_told(const struct asked *a)
{
    assert_null(a->gen);
    assert_int_equal(a->n_told, 1);
    assert_int_equal(a->n_known, a->n_prompt);
}

/* Block borders, one id, and a prompt that ends on a border. */
static const int32_t lengths[] = {1, 2, 15, 16, 17, 32, 33, 90, 260};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void test_every_id_of_the_prompt_has_its_row_cold_and_warm(void **state)
{
    (void)state;
    static struct asked a;
    static const int32_t bests[] = {0, 5, 20};

    for (int32_t i = 0; i < N_LENGTHS; i++)
        for (int32_t k = 0; k < 3; k++) {
            struct world *w = world_new(small_shape);
            ask(&a, w, lengths[i], i, 1, bests[k]);
            drain(w);
            is_told(&a);
            uint64_t cached = (uint64_t)stats_of(w).cached_blocks;
            ask(&a, w, lengths[i], i, 1, bests[k]);
            drain(w);
            is_told(&a);
            assert_int_equal(a.n_cached, 0);
            assert_int_equal(stats_of(w).cached_blocks, cached); /* they merged */
            world_free(w);
        }
}

static void test_a_group_and_a_beam_tell_them_with_branch_0(void **state)
{
    (void)state;
    static struct asked a;

    for (int beam = 0; beam < 2; beam++) {
        struct world *w = world_new(small_shape);
        struct gen_options o = options_of(3, 20);
        o.n_branches = 4;
        o.beam = beam;
        ask_with(&a, w, 90, 1, o, 3);
        drain(w);
        is_told(&a);
        assert_int_equal(a.n_ends, 4);
        world_free(w);
    }
}

/* Chunks of one block to all, batches that leave little, and one place to run: the rows of a step
 * that owe have the samples that nobody needs, the runner's plan asserts it. */
static void test_chunks_and_few_samples_give_the_same(void **state)
{
    (void)state;
    static const struct {
        int32_t block, batch, chunk, running;
    } cases[] = {
        {16, 64, 16, 8}, {16, 64, 64, 40}, {16, 512, 512, 64}, {16, 64, 64, 1}, {1, 64, 64, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct asked seen[4];
        struct world *w = world_new((struct shape){.pool = 200,
                                                   .block = cases[i].block,
                                                   .context = 500,
                                                   .batch = cases[i].batch,
                                                   .chunk = cases[i].chunk,
                                                   .running = cases[i].running,
                                                   .queue = 9});
        for (int32_t k = 0; k < 4; k++)
            ask(&seen[k], w, 150 - k, k, cases[i].running >= 8 ? 2 : 1, 2);
        drain(w);
        for (int32_t k = 0; k < 4; k++)
            is_told(&seen[k]);
        world_free(w);
    }
}

/* All places decode but its own: it goes on by a row a step, and not past its own draw. */
static void test_a_full_house_leaves_one_row_a_step(void **state)
{
    (void)state;
    static struct asked a;
    struct shape shape = small_shape;
    shape.running = 4;
    struct world *w = world_new(shape);
    int32_t ids[20], n_turns = 0;

    for (int32_t k = 0; k < 3; k++) {
        fill_prompt(ids, 20, 50 + k);
        submit(w, ids, 20, (uint64_t)k, 60);
    }
    turn(w);
    turn(w);
    ask(&a, w, 40, 1, 1, 2);
    for (; a.gen && stats_of(w).running == 4 - (n_turns == 0); n_turns++)
        turn(w);
    assert_in_range(n_turns, 40 + 15, 40 + 25); /* 39 rows that owe, one that draws, 20 ids */
    drain(w);
    is_told(&a);
    world_free(w);
}

/* Two that decode before them in the order need the blocks of prompts that go on row by row. */
static void test_preempted_prompts_go_on_behind_what_they_told(void **state)
{
    (void)state;
    for (int32_t slots = 0; slots <= 100; slots += 100)
        for (int32_t running = 3; running <= 5; running++) {
            enum { N = 4 };
            static struct asked seen[N];
            struct shape shape = small_shape;
            int32_t ids[20];
            shape.pool = 22;
            shape.slots = slots;
            shape.running = running;
            struct world *w = world_new(shape);
            for (int32_t k = 0; k < 2; k++) {
                fill_prompt(ids, 20, 50 + k);
                submit(w, ids, 20, (uint64_t)k, 130);
            }
            for (int32_t i = 0; i < N; i++)
                ask(&seen[i], w, 120, i / 2, 1, 3);
            drain(w);
            for (int32_t i = 0; i < N; i++)
                is_told(&seen[i]);
            assert_true(stats_of(w).preemptions > 0);
            assert_true(slots == 0 || stats_of(w).swapped_in_blocks > 0);
            world_free(w);
        }
}

/* It goes on by a row a step: nobody waits for that, nor does it wait for anybody. */
static void test_they_neither_wait_for_equal_prompts_nor_hold_them_up(void **state)
{
    (void)state;
    static struct asked first, second;
    struct shape shape = small_shape;
    shape.running = 3;
    struct world *w = world_new(shape);
    int32_t ids[120];

    fill_prompt(ids, 120, 1);
    ask(&first, w, 120, 1, 1, 1);
    turn(w);
    struct client *plain = submit(w, ids, 120, 1, 5);
    ask(&second, w, 120, 1, 1, 1);
    turn(w);
    turn(w);
    assert_int_equal(stats_of(w).running, 3);
    while (plain->n_ends == 0)
        turn(w);
    assert_non_null(first.gen); /* it is far from its end */
    drain(w);
    is_told(&first);
    is_told(&second);
    assert_int_equal(stats_of(w).promised_blocks, 0);
    world_free(w);
}

/* What was told until then, and no more. */
static void test_one_that_ends_early_tells_what_is_known(void **state)
{
    (void)state;
    for (int32_t n_turns = 0; n_turns < 9; n_turns++) {
        static struct asked a;
        struct shape shape = small_shape;
        shape.running = 8;
        struct world *w = world_new(shape);
        ask(&a, w, 60, 1, 1, 2);
        for (int32_t i = 0; i < n_turns; i++)
            turn(w);
        engine_cancel(w->engine, a.gen, GEN_CANCELLED);
        assert_int_equal(a.n_told, 1);
        assert_int_equal(a.n_known,
                         n_turns < 2 ? 1 : 1 + 7 * (n_turns - 1)); /* 8 places, its own */
        drain(w);
        world_free(w);
    }
}

/* A resumed group tells them anew; with branch 0 over, nobody asks any more. */
static void test_a_resumed_group_collects_them_again(void **state)
{
    (void)state;
    for (int over = 0; over < 2; over++) {
        static struct asked a;
        static int32_t made[3][20];
        struct world *w = world_new(small_shape);
        struct gen_options o = options_of(9, 20);
        struct gen_start starts[3];
        int32_t ids[MAX_PROMPT];
        fill_prompt(ids, 90, 4);
        for (int32_t i = 0; i < 3; i++) {
            plain_run(w->runner, ids, 90, &o, i, made[i], 20);
            starts[i] = (struct gen_start){.ids = made[i], .n = 3 * i};
        }
        starts[0].is_over = over;
        o.n_branches = 3;
        o.starts = starts;
        ask_with(&a, w, 90, 4, o, 2);
        drain(w);
        assert_int_equal(a.n_ends, 3 - over);
        assert_null(a.gen);
        if (over)
            assert_int_equal(a.n_told, 0);
        else
            is_told(&a);
        world_free(w);
    }
}

/* Any of their allocations may fail: it is refused, and nothing is left of it. */
static void test_without_memory_they_are_refused(void **state)
{
    (void)state;
    static struct asked a;
    struct world *w = world_new(small_shape);

    for (uint64_t n = 1; n <= 4; n++) {
        struct gen_options o = options_of(1, 20);
        struct gen *gen;
        struct err err = {""};
        o.n_branches = 3;
        o.logprobs = o.prompt_logprobs = true;
        fill_prompt(a.prompt, 90, 1);
        mem_fail_at(n, false);
        assert_int_equal(
            engine_submit(w->engine, &w->ns, a.prompt, 90, &o, &asked_events, &a, &gen, &err),
            SUBMIT_TOO_LARGE);
        mem_fail_at(0, false);
        assert_null(gen);
        assert_non_null(strstr(err.text, "90"));
        world_audit(w);
    }
    ask(&a, w, 90, 1, 3, 2);
    drain(w);
    is_told(&a);
    world_free(w);
}

/* One that asks, at random: some prompts are equal, some groups, some beams. */
static void ask_at_random(struct asked *a, struct world *w, int32_t running, uint64_t seed,
                          uint32_t step)
{
    struct gen_options o =
        options_of(rng_at(seed, 3, step), 1 + (int64_t)(rng_at(seed, 4, step) % 30));
    int32_t most = (int32_t)(rng_at(seed, 5, step) % 4) + 1;

    o.n_branches = most < running ? most : running;
    o.beam = rng_at(seed, 6, step) % 4 == 0;
    o.priority = (int32_t)(rng_at(seed, 7, step) % 3);
    ask_with(a, w, 1 + (int32_t)(rng_at(seed, 8, step) % 90), (int32_t)(rng_at(seed, 9, step) % 3),
             o, (int32_t)(rng_at(seed, 10, step) % 6));
}

/* Whatever comes together: what is told is right, and all of it unless it was cancelled. */
static void test_random_loads_tell_every_prompt_once(void **state)
{
    (void)state;
    enum { AT_ONCE = 8 };
    static struct asked seen[AT_ONCE];
    uint64_t preemptions = 0, cut = 0;

    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct shape shape = {.context = 200, .queue = 20};
        shape.block = 1 + (int32_t)(rng_at(seed, 0, 0) % 20); /* any will do */
        shape.running = 1 + (int32_t)(rng_at(seed, 0, 1) % 9);
        shape.chunk = shape.block * (1 + (int32_t)(rng_at(seed, 0, 2) % 4));
        shape.batch = shape.running + shape.block * (1 + (int32_t)(rng_at(seed, 0, 3) % 4));
        shape.slots = seed % 3 ? 0 : 60;
        shape.pool = 90 / shape.block + 4 * ((2 * shape.block + 28) / shape.block);
        struct world *w = world_new(shape);
        memset(seen, 0, sizeof seen);
        print_message("# seed %d\n", (int)seed);
        for (uint32_t step = 0; step < 400; step++) {
            struct asked *a = &seen[rng_at(seed, 1, step) % AT_ONCE];
            if (!a->gen) {
                ask_at_random(a, w, shape.running, seed, step);
            } else if (rng_at(seed, 2, step) % 97 == 0) {
                engine_cancel(w->engine, a->gen, GEN_CANCELLED);
                cut += a->n_known < a->n_prompt;
            }
            turn(w);
        }
        drain(w);
        for (int32_t i = 0; i < AT_ONCE; i++)
            assert_true(seen[i].w == NULL || seen[i].n_told == 1);
        preemptions += stats_of(w).preemptions;
        world_free(w);
    }
    print_message("# %d preemptions, %d cut short\n", (int)preemptions, (int)cut);
    assert_true(preemptions > 20);
    assert_true(cut > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_id_of_the_prompt_has_its_row_cold_and_warm),
        cmocka_unit_test(test_a_group_and_a_beam_tell_them_with_branch_0),
        cmocka_unit_test(test_chunks_and_few_samples_give_the_same),
        cmocka_unit_test(test_a_full_house_leaves_one_row_a_step),
        cmocka_unit_test(test_preempted_prompts_go_on_behind_what_they_told),
        cmocka_unit_test(test_they_neither_wait_for_equal_prompts_nor_hold_them_up),
        cmocka_unit_test(test_one_that_ends_early_tells_what_is_known),
        cmocka_unit_test(test_a_resumed_group_collects_them_again),
        cmocka_unit_test(test_without_memory_they_are_refused),
        cmocka_unit_test(test_random_loads_tell_every_prompt_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
