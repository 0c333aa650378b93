/* test_beam.c - beam search inside the engine against a plain one over arrays: the same answers in
 * the same order with the same scores, whatever the blocks go through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/rng.h"
#include "tests/unit/group_world.h"

enum { MAX_IDS = 300, MAX_WIDTH = 16 };

/* ---- the plain search ----------------------------------------------------------------------- */

struct line {
    int32_t ids[MAX_IDS], n;
    double sum, score;
    enum gen_finish finish;
};

/* Hash of all slots behind prompt and ids, as the runner reads it. */
static uint64_t hash_of(const int32_t *prompt, int32_t n_prompt, const struct line *l)
{
    uint64_t slot = 1, all = 0;

    for (int32_t i = 0; i < n_prompt + l->n; i++) {
        int32_t id = i < n_prompt ? prompt[i] : l->ids[i - n_prompt];
        slot = fake_mix(slot ^ (uint64_t)(uint32_t)id);
        all = fake_mix(all ^ slot);
    }
    return all;
}

static void keep(struct line *done, int32_t *n_done, int32_t width, struct line l)
{
    int32_t at = (*n_done)++;

    for (; at > 0 && done[at - 1].score < l.score; at--)
        done[at] = done[at - 1];
    done[at] = l;
    if (*n_done > width)
        --*n_done;
}

/* Bytes, an id each, of the stop string that the line ends with; 0: none. */
static int32_t stop_behind(const struct line *l, const struct gen_options *o)
{
    for (int32_t i = 0; i < o->n_stops; i++) {
        int32_t n = (int32_t)o->stops[i].len, n_equal = 0;
        while (n_equal < n && n_equal < l->n &&
               l->ids[l->n - 1 - n_equal] == o->stops[i].data[n - 1 - n_equal])
            n_equal++;
        if (n_equal == n)
            return n;
    }
    return 0;
}

/* done [returned, at most width], best first. */
static int32_t plain_search(const struct fake_runner *r, const int32_t *prompt, int32_t n_prompt,
                            const struct gen_options *o, struct line *done)
{
    static struct line now[MAX_WIDTH], next[MAX_WIDTH];
    struct {
        double sum;
        int32_t from, rank, id;
    } all[MAX_WIDTH * 40], swap;
    int32_t width = o->n_branches, n_now = 1, n_done = 0;
    int32_t n_best = o->n_stops > 0 ? 40 : 2 * width + 2; /* 40: the whole vocabulary */
    struct chosen best[40];

    now[0] = (struct line){0};
    for (int32_t made = 1;; made++) {
        int32_t n_all = 0, n_next = 0;
        for (int32_t i = 0; i < n_now; i++) {
            fake_best(r, hash_of(prompt, n_prompt, &now[i]), n_best, best);
            for (int32_t k = 0; k < n_best && best[k].id >= 0; k++, n_all++) {
                all[n_all].sum = now[i].sum + (double)best[k].logprob;
                all[n_all].from = i;
                all[n_all].rank = k;
                all[n_all].id = best[k].id;
            }
        }
        for (int32_t i = 1; i < n_all; i++)
            for (int32_t k = i; k > 0 && all[k].sum > all[k - 1].sum; k--) {
                swap = all[k];
                all[k] = all[k - 1];
                all[k - 1] = swap;
            }
        for (int32_t i = 0; i < n_all && n_next < width; i++) {
            struct line l = now[all[i].from];
            l.sum = all[i].sum;
            l.score = l.sum / pow(made, o->length_penalty);
            l.finish = GEN_STOP;
            bool is_end = all[i].id == r->end_id;
            if (!is_end)
                l.ids[l.n++] = all[i].id;
            int32_t n_stop = is_end ? 0 : stop_behind(&l, o);
            l.n -= n_stop; /* cut out */
            if (!is_end && n_stop == 0)
                next[n_next++] = l;
            else if (i < width)
                keep(done, &n_done, width, l);
        }
        for (int32_t i = 0; made == o->max_tokens && i < n_next; i++) {
            next[i].finish = GEN_LENGTH;
            keep(done, &n_done, width, next[i]);
        }
        if (made == o->max_tokens || n_next == 0)
            return n_done;
        if (n_done == width &&
            (o->early_stop || next[0].sum / pow(made, o->length_penalty) <= done[width - 1].score))
            return n_done;
        n_now = n_next;
        memcpy(now, next, sizeof now);
    }
}

/* ---- the engine's --------------------------------------------------------------------------- */

struct search {
    struct world *w;
    struct gen *gen;
    struct line got[MAX_WIDTH];
    int32_t n_ends, n_prompt, prompt[1000];
    struct gen_options options;
};

static void no_output(void *owner, const struct gen_output *output)
{
    (void)owner;
    fail_msg("a beam told %d bytes before its end", (int)output->text.len);
}

/* Every answer tells the chain of ids that it was made of, whichever branches those went through. */
static void check_logprobs(const struct search *s, const struct gen_end *end)
{
    struct line l = {0};
    struct chosen best[ENGINE_MAX_LOGPROBS];

    assert_int_equal(end->logprobs != NULL, s->options.logprobs);
    for (int32_t i = 0; end->logprobs && i < end->n_generated; i++) {
        const struct chosen *row = end->logprobs + (ptrdiff_t)i * (end->n_best + 1);
        uint64_t hash = hash_of(s->prompt, s->n_prompt, &l);
        fake_best(s->w->runner, hash, end->n_best, best);
        if (i < end->n_ids)
            assert_int_equal(row[0].id, end->ids[i]); /* else it is part of a stop string */
        assert_true(row[0].logprob == fake_logprob(hash, row[0].id - 'a'));
        for (int32_t k = 0; k < end->n_best; k++) {
            assert_int_equal(row[1 + k].id, best[k].id);
            assert_true(row[1 + k].logprob == best[k].logprob);
        }
        l.ids[l.n++] = row[0].id;
    }
}

static void search_end(void *owner, const struct gen_end *end)
{
    struct search *s = owner;
    struct line *l = &s->got[end->branch];

    s->n_ends++;
    l->n = end->n_ids;
    l->score = end->score;
    l->finish = end->finish;
    memcpy(l->ids, end->ids, (size_t)end->n_ids * sizeof *end->ids);
    check_logprobs(s, end);
    if (end->is_last)
        s->gen = NULL;
}

static const struct gen_events search_events = {.output = no_output, .end = search_end};

static void search_submit(struct search *s, struct world *w, int32_t n_prompt, int32_t kind,
                          int32_t width, int64_t max_tokens)
{
    struct err err = {0};

    s->w = w;
    s->n_prompt = n_prompt;
    s->n_ends = 0;
    s->options.max_tokens = max_tokens;
    s->options.n_branches = width;
    s->options.beam = true;
    fill_prompt(s->prompt, n_prompt, kind);
    if (engine_submit(w->engine, &w->ns, s->prompt, n_prompt, &s->options, &search_events, s,
                      &s->gen, &err) != SUBMIT_OK)
        fail_msg("%s", err.text);
    world_audit(w);
}

static void check_search(const struct search *s)
{
    static struct line want[MAX_WIDTH + 1];
    int32_t n = plain_search(s->w->runner, s->prompt, s->n_prompt, &s->options, want);

    assert_null(s->gen);
    assert_int_equal(s->n_ends, s->options.n_branches);
    assert_int_equal(n, s->options.n_branches);
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(s->got[i].n, want[i].n);
        assert_memory_equal(s->got[i].ids, want[i].ids, (size_t)want[i].n * sizeof(int32_t));
        assert_true(s->got[i].score == want[i].score);
        assert_int_equal(s->got[i].finish, want[i].finish);
    }
}

static struct world *beam_world(struct shape shape)
{
    struct world *w = world_new(shape);
    w->runner->end_id = w->vocab.end_of_text;
    return w;
}

static void test_equals_a_plain_search_at_every_width_and_penalty(void **state)
{
    (void)state;
    static const float penalties[] = {1, 0, -1, 2.5f};
    struct shape shape = small_shape;

    shape.pool = 200;
    for (int32_t width = 1; width <= 12; width += width < 4 ? 1 : 4)
        for (int32_t p = 0; p < 4; p++)
            for (int early = 0; early < 2; early++) {
                static struct search s;
                struct world *w = beam_world(shape);
                s.options = gen_options_default();
                s.options.length_penalty = penalties[p];
                s.options.early_stop = early;
                s.options.logprobs = early; /* asking for them changes no answer */
                s.options.n_logprobs = 5 * p;
                search_submit(&s, w, 45, width, width, 40);
                drain(w);
                check_search(&s);
                world_free(w);
            }
}

static void test_stop_string_makes_an_answer(void **state)
{
    (void)state;
    static struct search s;
    const struct bytes stop = BYTES("e");
    struct world *w = beam_world(small_shape);

    s.options = gen_options_default();
    s.options.stops = &stop;
    s.options.n_stops = 1;
    s.options.logprobs = true;
    s.options.n_logprobs = 20;
    search_submit(&s, w, 45, 3, 4, 40);
    drain(w);
    check_search(&s);
    world_free(w);
}

/* Most letters end the text, so that fewer than the width can go on, or none: nothing is cut short
 * for that, and every answer is one. The order of the letters is another at every place. */
static void test_search_goes_on_with_fewer_beams_where_stop_strings_end_the_others(void **state)
{
    (void)state;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    int32_t n_narrow = 0;

    for (int32_t width = 1; width <= MAX_WIDTH; width *= 2)
        for (int32_t n_stops = 18; n_stops <= 26; n_stops++)
            for (int32_t length = 1; length <= 9; length += 4) {
                static struct search s;
                struct bytes stops[26];
                struct world *w = beam_world(small_shape);
                for (int32_t i = 0; i < n_stops; i++)
                    stops[i] = (struct bytes){letters + i, 1};
                s.options = gen_options_default();
                s.options.stops = stops;
                s.options.n_stops = n_stops;
                s.options.length_penalty = 3; /* long ones are worth it: none is settled early */
                s.options.logprobs = true;
                s.options.n_logprobs = 3;
                search_submit(&s, w, 45, n_stops, width, length);
                drain(w);
                check_search(&s);
                for (int32_t i = 0; i < width; i++)
                    n_narrow += n_stops > 26 - width && length > 1 && s.got[i].n == length;
                world_free(w);
            }
    assert_true(n_narrow > 5);
}

/* Strings of three ids that some answer has when nothing stops it: a branch carries two of them along
 * into the place of another. */
static void test_stop_strings_are_found_in_beams_that_change_their_places(void **state)
{
    (void)state;
    enum { N_STOPS = 8, FROM = 5 };
    int32_t n_stopped = 0;

    for (int32_t kind = 0; kind < 20; kind++) {
        static struct search s;
        static char texts[N_STOPS][3];
        struct bytes stops[N_STOPS];
        int32_t width = 2 + kind % 5;
        for (int32_t n_stops = 0; n_stops <= N_STOPS; n_stops += N_STOPS) {
            struct world *w = beam_world(small_shape);
            w->runner->end_id = -1;
            s.options = gen_options_default();
            s.options.stops = stops;
            s.options.n_stops = n_stops;
            s.options.length_penalty = 0; /* so that short answers count, too */
            search_submit(&s, w, 45, kind, width, 30);
            drain(w);
            check_search(&s);
            for (int32_t i = 0; n_stops == 0 && i < N_STOPS; i++) {
                for (int32_t k = 0; k < 3; k++)
                    texts[i][k] = (char)s.got[i % width].ids[FROM + 2 * i + k];
                stops[i] = (struct bytes){texts[i], 3};
            }
            for (int32_t i = 0; i < width; i++)
                n_stopped += s.got[i].finish == GEN_STOP;
            world_free(w);
        }
    }
    assert_true(n_stopped > 20);
}

/* The answer goes on inside a character, and with its first id that is a stop string. */
static void test_stop_string_may_begin_with_carried_bytes(void **state)
{
    (void)state;
    enum { WIDTH = 4, N_STOPS = 64 };
    static struct search s;
    static char texts[N_STOPS][2];
    struct bytes stops[N_STOPS];
    struct world *w = beam_world(small_shape);

    for (int32_t i = 0; i < N_STOPS; i++) {
        texts[i][0] = '\xc3';
        texts[i][1] = (char)('@' + i); /* every letter */
        stops[i] = (struct bytes){texts[i], 2};
    }
    s.options = gen_options_default();
    s.options.carry = BYTES("\xc3");
    s.options.stops = stops;
    s.options.n_stops = N_STOPS;
    search_submit(&s, w, 45, 3, WIDTH, 40);
    drain(w);
    assert_int_equal(s.n_ends, WIDTH);
    for (int32_t i = 0; i < WIDTH; i++) {
        assert_int_equal(s.got[i].n, 0);
        assert_int_equal(s.got[i].finish, GEN_STOP);
    }
    world_free(w);
}

/* The prompt is computed once, and beams share what they have in common. */
static void test_dropped_beams_free_what_only_they_used(void **state)
{
    (void)state;
    static struct search s;
    struct world *w = beam_world(small_shape);
    int32_t most = 0;

    w->runner->end_id = -1;
    s.options = gen_options_default();
    search_submit(&s, w, 200, 1, 4, 100);
    while (s.gen) {
        turn(w);
        if (stats_of(w).used_blocks > most)
            most = stats_of(w).used_blocks;
    }
    assert_true(stats_of(w).computed_prompt_tokens == 200);
    assert_true(most < 12 + 4 * 7); /* four sequences would have 4 x 19 */
    print_message("# width 4, 200 + 100 tokens: %d blocks at most; four sequences: %d\n", most,
                  4 * 19);
    drain(w);
    check_search(&s);
    world_free(w);
}

static void test_beams_come_back_from_preemption_in_both_modes(void **state)
{
    (void)state;
    uint64_t preemptions = 0, swapped = 0;

    for (int32_t slots = 0; slots <= 200; slots += 100)
        for (int32_t block = 1; block <= 16; block *= 4) {
            enum { N = 5 };
            static struct search s[N];
            struct shape shape = {.block = block,
                                  .context = 300,
                                  .batch = 16 + 2 * block,
                                  .chunk = block,
                                  .running = 16,
                                  .queue = 32,
                                  .slots = slots};
            shape.pool = 37 / block + 4 * ((37 % block + 40 + block - 1) / block) + 3;
            struct world *w = beam_world(shape);
            for (int32_t i = 0; i < N; i++) {
                s[i].options = gen_options_default();
                s[i].options.logprobs = true;
                s[i].options.n_logprobs = 2;
                search_submit(&s[i], w, 37, i % 3, 2 + i % 3, 40);
            }
            drain(w);
            for (int32_t i = 0; i < N; i++)
                check_search(&s[i]);
            preemptions += stats_of(w).preemptions;
            swapped += stats_of(w).swapped_in_blocks;
            world_free(w);
        }
    assert_true(preemptions > 3);
    assert_true(swapped > 3);
}

static void test_cancel_tells_the_best_so_far_first(void **state)
{
    (void)state;
    for (int32_t n_turns = 0; n_turns < 12; n_turns += 3) {
        static struct search s;
        struct world *w = beam_world(small_shape);
        s.options = gen_options_default();
        s.options.logprobs = true;
        search_submit(&s, w, 60, 2, 3, 60);
        for (int32_t i = 0; i < n_turns; i++)
            turn(w);
        if (s.gen)
            engine_cancel(w->engine, s.gen, GEN_CANCELLED);
        assert_int_equal(s.n_ends, 3);
        for (int32_t i = 1; i < 3; i++)
            assert_true(s.got[i - 1].score >= s.got[i].score);
        drain(w);
        world_free(w);
    }
}

/* Beams that end one by one, over a long prompt, in a pool that others keep full: comparable servers
 * freed a block twice. The audit behind every turn counts each reference. */
static void test_beams_that_end_in_a_full_pool_free_each_block_once(void **state)
{
    (void)state;
    enum { LONG = 1000, WIDTH = 4, MOST = 60, N_BESIDE = 4, SHORT = 20, TOKENS = 150 };
    for (int32_t slots = 0; slots <= 100; slots += 100) {
        static struct search s;
        struct shape shape = small_shape;
        struct client *beside[N_BESIDE];
        int32_t ids[SHORT], n_stopped = 0;
        shape.pool = LONG / 16 + WIDTH * ((LONG % 16 + MOST + 15) / 16); /* its longest life */
        shape.slots = slots;
        struct world *w = beam_world(shape);
        s.options = gen_options_default();
        s.options.length_penalty = 0.8f; /* so that short answers count, too */
        search_submit(&s, w, LONG, 6, WIDTH, MOST);
        for (int32_t i = 0; i < N_BESIDE; i++) {
            fill_prompt(ids, SHORT, i);
            beside[i] = submit(w, ids, SHORT, (uint64_t)i, TOKENS);
        }
        drain(w);
        check_search(&s);
        for (int32_t i = 0; i < WIDTH; i++)
            n_stopped += s.got[i].finish == GEN_STOP;
        assert_in_range(n_stopped, 1, WIDTH - 1);
        assert_true(stats_of(w).preemptions > 0);
        for (int32_t i = 0; i < N_BESIDE; i++) {
            fill_prompt(ids, SHORT, i);
            assert_as_alone(beside[i], ids, SHORT, (uint64_t)i, TOKENS);
        }
        world_free(w);
    }
}

/* A stop string that some beams reach, or none ever: the limit of tokens is one of steps too. */
static void test_stop_string_and_early_stop_end_within_the_limit(void **state)
{
    (void)state;
    enum { LIMIT = 10 };
    static const char *const stops[] = {"###", "e", "q", "ing"};
    for (int32_t width = 1; width <= MAX_WIDTH; width *= 2)
        for (int32_t k = 0; k < 2 * (int32_t)(sizeof stops / sizeof *stops); k++) {
            static struct search s;
            struct world *w = beam_world(small_shape);
            const struct bytes stop = bytes_from(stops[k / 2]);
            s.options = gen_options_default();
            s.options.stops = &stop;
            s.options.n_stops = 1;
            s.options.early_stop = k % 2;
            search_submit(&s, w, 2, k, width, LIMIT);
            for (int32_t i = 0; s.gen; i++) {
                assert_true(i <= LIMIT); /* turns: one more, that launches the first step */
                turn(w);
            }
            assert_int_equal(s.n_ends, width);
            assert_true(w->runner->n_launched <= LIMIT);
            drain(w);
            world_free(w);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_a_plain_search_at_every_width_and_penalty),
        cmocka_unit_test(test_stop_string_makes_an_answer),
        cmocka_unit_test(test_search_goes_on_with_fewer_beams_where_stop_strings_end_the_others),
        cmocka_unit_test(test_stop_strings_are_found_in_beams_that_change_their_places),
        cmocka_unit_test(test_stop_string_may_begin_with_carried_bytes),
        cmocka_unit_test(test_dropped_beams_free_what_only_they_used),
        cmocka_unit_test(test_beams_come_back_from_preemption_in_both_modes),
        cmocka_unit_test(test_cancel_tells_the_best_so_far_first),
        cmocka_unit_test(test_beams_that_end_in_a_full_pool_free_each_block_once),
        cmocka_unit_test(test_stop_string_and_early_stop_end_within_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
