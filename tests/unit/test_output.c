/* test_output.c - text out of ids: characters and stop strings across token borders, the order of
 * the end checks, what is held back and what becomes of it.
 *
 * Comparable servers sent parts of stop strings, dropped what they had held back, and broke off at a
 * byte that is no UTF-8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/output.h"
#include "tests/unit/vocab.h"

#define MAX_STOPS 4

/* One answer that is fed by hand, and what came out of it. */
struct answer {
    struct vocab vocab;
    struct output output;
    struct str delivered; /* all portions joined */
    int n_portions;
    int32_t n_ids_told;
    enum gen_finish finish;
};

struct setup {
    const struct bytes *words;
    int32_t n_words;
    struct bytes stops[MAX_STOPS];
    int32_t n_stops;
    int64_t max_tokens;
    int32_t n_before, n_context;
    struct bytes carry;
    bool ignore_eos, no_ends;
};

static struct answer *answer_new(struct setup setup)
{
    struct answer *a = xcalloc(1, sizeof *a);
    struct gen_options options = gen_options_default();

    options.max_tokens = setup.max_tokens ? setup.max_tokens : 100;
    options.stops = setup.stops;
    options.n_stops = setup.n_stops;
    options.ignore_eos = setup.ignore_eos;
    options.carry = setup.carry;
    a->vocab = vocab_with(setup.words, setup.n_words, !setup.no_ends);
    output_init(&a->output, a->vocab.tokenizer, &options, setup.n_before,
                setup.n_context ? setup.n_context : 1000);
    return a;
}

static void answer_free(struct answer *a)
{
    output_free(&a->output);
    tokenizer_free(a->vocab.tokenizer);
    str_free(&a->delivered);
    xfree(a);
}

/* Takes a portion as the engine does after a step; each is whole characters by itself where the
 * text is UTF-8 at all. */
static void take(struct answer *a, bool is_text)
{
    struct gen_output portion;

    if (!output_take(&a->output, a->finish != GEN_NONE, &portion))
        return;
    assert_true(portion.text.len > 0);
    if (is_text)
        assert_true(utf8_is_valid(portion.text.data, portion.text.len));
    str_append(&a->delivered, portion.text.data, portion.text.len);
    assert_true(portion.n_ids >= a->n_ids_told);
    a->n_ids_told = portion.n_ids;
    a->n_portions++;
}

static void feed(struct answer *a, int32_t id)
{
    assert_int_equal(a->finish, GEN_NONE);
    a->finish = output_accept(&a->output, id);
    take(a, true);
}

static void feed_bytes(struct answer *a, const char *bytes)
{
    for (; *bytes && a->finish == GEN_NONE; bytes++)
        feed(a, (unsigned char)*bytes);
}

static void close_answer(struct answer *a, enum gen_finish finish)
{
    a->finish = finish;
    take(a, true);
}

static void assert_bytes(struct bytes got, const char *want)
{
    assert_int_equal(got.len, strlen(want));
    assert_memory_equal(got.data, want, got.len);
}

/* Delivered = whole text = want, and the ids decode to it. */
static void assert_answer(const struct answer *a, const char *want)
{
    struct str decoded = {0};

    assert_bytes(output_whole(&a->output), want);
    assert_bytes(bytes_of(&a->delivered), want);
    tokenizer_decode(a->vocab.tokenizer, a->output.ids.data, a->output.ids.n, false, &decoded);
    assert_bytes(bytes_of(&decoded), want);
    assert_true(a->n_ids_told <= a->output.ids.n);
    str_free(&decoded);
}

/* ---- characters ----------------------------------------------------------------------------- */

static void test_a_character_of_four_tokens_comes_out_whole(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){0});

    feed_bytes(a, "a\xf0\x9f\xa6");
    assert_bytes(bytes_of(&a->delivered), "a");
    assert_int_equal(a->n_ids_told, 1);
    feed_bytes(a, "\x99z");
    close_answer(a, GEN_LENGTH);
    assert_answer(a, "a\xf0\x9f\xa6\x99z");
    assert_int_equal(a->n_portions, 3);
    answer_free(a);
}

static void test_a_malformed_byte_passes_as_it_is_and_nothing_is_lost(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){0});
    const char *text = "\xe2\x9c\x85\x85 then more";

    for (const char *p = text; *p; p++) {
        a->finish = output_accept(&a->output, (unsigned char)*p);
        assert_int_equal(a->finish, GEN_NONE);
        take(a, false);
    }
    a->finish = GEN_LENGTH;
    take(a, false);
    assert_answer(a, text);
    answer_free(a);
}

static void test_a_beginning_that_is_no_character_after_all_passes(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){0});

    for (const char *p = "\xe2\x9c\x41"; *p; p++) {
        a->finish = output_accept(&a->output, (unsigned char)*p);
        take(a, false);
    }
    assert_bytes(bytes_of(&a->delivered), "\xe2\x9c\x41");
    answer_free(a);
}

static void test_bytes_of_an_unfinished_character_stay_in_the_ids(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.max_tokens = 3});

    feed_bytes(a, "a\xe2\x9c");
    assert_int_equal(a->finish, GEN_LENGTH);
    assert_bytes(bytes_of(&a->delivered), "a");
    assert_bytes(output_whole(&a->output), "a");
    assert_bytes(output_unfinished(&a->output), "\xe2\x9c");
    assert_int_equal(a->output.ids.n, 3);
    answer_free(a);
}

static void test_carried_bytes_are_delivered_with_their_rest(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.carry = BYTES("\xe2\x9c")});

    assert_bytes(output_unfinished(&a->output), "\xe2\x9c");
    feed_bytes(a, "\x85!");
    assert_bytes(bytes_of(&a->delivered), "\xe2\x9c\x85!");
    assert_int_equal(a->output.ids.n, 2);
    assert_int_equal(a->n_ids_told, 2);
    answer_free(a);
}

static void test_a_control_token_is_an_id_without_text(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){0});

    feed(a, 'a');
    feed(a, a->vocab.control);
    feed(a, 'b');
    close_answer(a, GEN_LENGTH);
    assert_answer(a, "ab");
    assert_int_equal(a->output.ids.n, 3);
    answer_free(a);
}

/* ---- stop strings --------------------------------------------------------------------------- */

static void test_no_part_of_a_stop_string_is_ever_delivered(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.stops = {BYTES("DEFGHIJ")}, .n_stops = 1});

    feed_bytes(a, "ABC");
    assert_bytes(bytes_of(&a->delivered), "ABC");
    for (const char *p = "DEFGHI"; *p; p++) {
        feed(a, *p);
        assert_bytes(bytes_of(&a->delivered), "ABC");
    }
    feed(a, 'J');
    assert_int_equal(a->finish, GEN_STOP);
    assert_bytes(a->output.matched->text, "DEFGHIJ");
    assert_answer(a, "ABC");
    answer_free(a);
}

static void test_a_stop_string_over_three_tokens_is_seen_in_the_last(void **state)
{
    (void)state;
    static const struct bytes words[] = {BYTES("alpha"), BYTES(" be"), BYTES("ta gam"),
                                         BYTES("ma delta")};
    struct answer *a = answer_new(
        (struct setup){.words = words, .n_words = 4, .stops = {BYTES("beta gamma")}, .n_stops = 1});

    feed(a, 256);
    feed(a, 257);
    assert_bytes(bytes_of(&a->delivered), "alpha ");
    feed(a, 258);
    feed(a, 259);
    assert_int_equal(a->finish, GEN_STOP);
    assert_answer(a, "alpha ");
    assert_int_equal(a->output.n_sampled, 4);
    /* the blank before the cut was a part of a token: it is a token of its own now */
    assert_int_equal(a->output.ids.n, 2);
    assert_int_equal(a->output.ids.data[0], 256);
    assert_int_equal(a->output.ids.data[1], ' ');
    answer_free(a);
}

static void test_held_text_is_delivered_when_the_end_of_text_follows(void **state)
{
    (void)state;
    struct answer *a =
        answer_new((struct setup){.stops = {BYTES("ase"), BYTES("sx")}, .n_stops = 2});

    feed_bytes(a, "pleas");
    assert_bytes(bytes_of(&a->delivered), "ple");
    feed(a, a->vocab.end_of_text);
    assert_int_equal(a->finish, GEN_STOP);
    assert_null(a->output.matched);
    assert_answer(a, "pleas");
    assert_int_equal(a->output.ids.n, 5);
    answer_free(a);
}

static void test_no_more_is_held_back_than_may_begin_a_stop_string(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.stops = {BYTES("aab")}, .n_stops = 1});

    feed_bytes(a, "xaaa");
    assert_bytes(bytes_of(&a->delivered), "xa");
    feed_bytes(a, "c");
    assert_bytes(bytes_of(&a->delivered), "xaaac");
    feed_bytes(a, "aab");
    assert_int_equal(a->finish, GEN_STOP);
    assert_answer(a, "xaaac");
    answer_free(a);
}

static void test_the_stop_string_that_is_complete_first_wins(void **state)
{
    (void)state;
    static const struct bytes words[] = {BYTES("abcdef")};
    struct answer *a = answer_new((struct setup){
        .words = words, .n_words = 1, .stops = {BYTES("bcdef"), BYTES("cd")}, .n_stops = 2});

    feed(a, 256);
    assert_int_equal(a->finish, GEN_STOP);
    assert_bytes(a->output.matched->text, "cd");
    assert_answer(a, "ab");
    answer_free(a);
}

static void test_of_two_complete_at_one_byte_the_longer_wins(void **state)
{
    (void)state;
    struct answer *a =
        answer_new((struct setup){.stops = {BYTES("d"), BYTES("bcd"), BYTES("cd")}, .n_stops = 3});

    feed_bytes(a, "abcd");
    assert_bytes(a->output.matched->text, "bcd");
    assert_answer(a, "a");
    answer_free(a);
}

static void test_a_stop_string_at_the_very_beginning_leaves_nothing(void **state)
{
    (void)state;
    static const struct bytes words[] = {BYTES("stop it")};
    struct answer *a = answer_new(
        (struct setup){.words = words, .n_words = 1, .stops = {BYTES("stop")}, .n_stops = 1});

    feed(a, 256);
    assert_int_equal(a->finish, GEN_STOP);
    assert_answer(a, "");
    assert_int_equal(a->output.ids.n, 0);
    assert_int_equal(a->n_portions, 0);
    answer_free(a);
}

static void test_a_stop_string_may_end_in_a_character_that_tokens_split(void **state)
{
    (void)state;
    static const struct bytes words[] = {BYTES("say \xf0\x9f"), BYTES("\xa6\x99 now")};
    struct answer *a = answer_new((struct setup){
        .words = words, .n_words = 2, .stops = {BYTES("\xf0\x9f\xa6\x99")}, .n_stops = 1});

    feed(a, 256);
    assert_bytes(bytes_of(&a->delivered), "say ");
    feed(a, 257);
    assert_int_equal(a->finish, GEN_STOP);
    assert_answer(a, "say ");
    answer_free(a);
}

static void test_a_cut_token_that_began_inside_a_character_is_replaced_exactly(void **state)
{
    (void)state;
    /* e2 9c | 85 x stop: the rest of the cut token begins with the last byte of a character */
    static const struct bytes words[] = {BYTES("\xe2\x9c"), BYTES("\x85xstop")};
    struct answer *a = answer_new(
        (struct setup){.words = words, .n_words = 2, .stops = {BYTES("stop")}, .n_stops = 1});

    feed(a, 256);
    feed(a, 257);
    assert_int_equal(a->finish, GEN_STOP);
    assert_answer(a, "\xe2\x9c\x85x");
    assert_int_equal(a->output.ids.data[0], 256);
    assert_int_equal(a->output.ids.data[1], 0x85);
    answer_free(a);
}

static void test_a_stop_string_that_begins_in_carried_bytes_cuts_only_ours(void **state)
{
    (void)state;
    struct answer *a = answer_new(
        (struct setup){.carry = BYTES("\xe2\x9c"), .stops = {BYTES("\xe2\x9c\x85")}, .n_stops = 1});

    feed(a, 0x85);
    assert_int_equal(a->finish, GEN_STOP);
    assert_int_equal(a->output.ids.n, 0);
    assert_bytes(output_whole(&a->output), "");
    assert_bytes(bytes_of(&a->delivered), "");
    answer_free(a);
}

static void test_a_stop_string_inside_a_character_takes_all_of_it(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.stops = {BYTES("\x9c\x85")}, .n_stops = 1});

    feed_bytes(a, "a\xe2\x9c\x85");
    assert_int_equal(a->finish, GEN_STOP);
    assert_answer(a, "a");
    assert_int_equal(a->output.ids.n, 1);
    assert_int_equal(output_unfinished(&a->output).len, 0);
    answer_free(a);
}

static void test_a_stop_string_within_carried_bytes_is_past(void **state)
{
    (void)state;
    struct answer *a = answer_new(
        (struct setup){.carry = BYTES("\xe2\x9c"), .stops = {BYTES("\xe2")}, .n_stops = 1});

    feed_bytes(a, "\x85x");
    assert_int_equal(a->finish, GEN_NONE);
    assert_bytes(bytes_of(&a->delivered), "\xe2\x9c\x85x");
    answer_free(a);
}

/* Any cut into tokens gives the same text: the automata see bytes only. Seed is printed. */
static void test_text_does_not_depend_on_token_borders(void **state)
{
    (void)state;
    uint64_t seed = rng_entropy();
    struct rng rng = rng_from(seed);

    print_message("seed %llu\n", (unsigned long long)seed);
    for (int run = 0; run < 300; run++) {
        char text[41] = {0}, stop[5] = {0};
        struct bytes words[40];
        int n = 20 + (int)rng_below(&rng, 20), n_words = 0, n_stop = 1 + (int)rng_below(&rng, 4);
        for (int i = 0; i < n; i++)
            text[i] = (char)('a' + rng_below(&rng, 2));
        for (int i = 0; i < n_stop; i++)
            stop[i] = (char)('a' + rng_below(&rng, 2));
        for (int at = 0; at < n; n_words++) {
            int len = 1 + (int)rng_below(&rng, 5);
            if (len > n - at)
                len = n - at;
            words[n_words] = (struct bytes){text + at, (size_t)len};
            at += len;
        }
        struct answer *a = answer_new((struct setup){
            .words = words, .n_words = n_words, .stops = {{stop, (size_t)n_stop}}, .n_stops = 1});
        const char *found = strstr(text, stop);
        for (int i = 0; i < n_words && a->finish == GEN_NONE; i++)
            feed(a, 256 + i);
        assert_int_equal(a->finish, found ? GEN_STOP : GEN_NONE);
        close_answer(a, GEN_STOP);
        if (found)
            text[found - text] = '\0';
        assert_answer(a, text);
        answer_free(a);
    }
}

/* ---- ends ----------------------------------------------------------------------------------- */

static void test_every_end_of_text_id_ends_and_is_part_of_nothing(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct answer *a = answer_new((struct setup){0});
        feed(a, 'x');
        feed(a, which ? a->vocab.end_of_turn : a->vocab.end_of_text);
        assert_int_equal(a->finish, GEN_STOP);
        assert_answer(a, "x");
        assert_int_equal(a->output.n_sampled, 1);
        answer_free(a);
    }
}

static void test_without_any_end_of_text_id_it_ends_at_its_limits(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.no_ends = true, .max_tokens = 3});
    feed(a, a->vocab.end_of_text);
    feed(a, 'x');
    assert_int_equal(a->finish, GEN_NONE);
    feed(a, a->vocab.end_of_turn);
    assert_int_equal(a->finish, GEN_LENGTH);
    assert_answer(a, "x");
    answer_free(a);

    a = answer_new((struct setup){.no_ends = true, .n_before = 8, .n_context = 10});
    feed_bytes(a, "ab");
    assert_int_equal(a->finish, GEN_LENGTH);
    answer_free(a);
}

static void test_an_ignored_end_of_text_id_does_not_end(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.ignore_eos = true});

    feed(a, a->vocab.end_of_text);
    feed(a, 'x');
    assert_int_equal(a->finish, GEN_NONE);
    answer_free(a);
}

static void test_the_limit_is_exact(void **state)
{
    (void)state;
    static const int limits[] = {1, 5, 20};

    for (int i = 0; i < 3; i++) {
        struct answer *a = answer_new((struct setup){.max_tokens = limits[i]});
        for (int n = 1; n <= limits[i]; n++) {
            feed(a, 'a');
            assert_int_equal(a->finish, n == limits[i] ? GEN_LENGTH : GEN_NONE);
        }
        assert_int_equal(a->output.ids.n, limits[i]);
        assert_int_equal(a->delivered.len, limits[i]);
        answer_free(a);
    }
}

static void test_end_of_text_goes_before_length_and_a_stop_string_too(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.max_tokens = 1});
    feed(a, a->vocab.end_of_text);
    assert_int_equal(a->finish, GEN_STOP);
    answer_free(a);

    a = answer_new((struct setup){.max_tokens = 1, .stops = {BYTES("s")}, .n_stops = 1});
    feed(a, 's');
    assert_int_equal(a->finish, GEN_STOP);
    answer_free(a);
}

static void test_a_full_context_ends_with_length(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.n_before = 97, .n_context = 100});

    feed_bytes(a, "ab");
    assert_int_equal(a->finish, GEN_NONE);
    feed_bytes(a, "c");
    assert_int_equal(a->finish, GEN_LENGTH);
    answer_free(a);
}

static void test_text_that_was_delivered_before_is_not_delivered_again(void **state)
{
    (void)state;
    struct answer *a = answer_new((struct setup){.stops = {BYTES("abcd")}, .n_stops = 1});

    for (const char *p = "xab"; *p; p++)
        assert_int_equal(output_accept(&a->output, *p), GEN_NONE);
    output_skip(&a->output);
    feed_bytes(a, "c");
    assert_bytes(bytes_of(&a->delivered), "");
    feed_bytes(a, "d");
    assert_int_equal(a->finish, GEN_STOP); /* across the border */
    assert_bytes(output_whole(&a->output), "x");
    assert_bytes(bytes_of(&a->delivered), "");
    answer_free(a);

    a = answer_new((struct setup){.stops = {BYTES("abcd")}, .n_stops = 1});
    for (const char *p = "xab"; *p; p++)
        assert_int_equal(output_accept(&a->output, *p), GEN_NONE);
    output_skip(&a->output);
    feed_bytes(a, "yz");
    assert_bytes(bytes_of(&a->delivered), "yz");
    assert_bytes(output_whole(&a->output), "xabyz");
    answer_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_character_of_four_tokens_comes_out_whole),
        cmocka_unit_test(test_a_malformed_byte_passes_as_it_is_and_nothing_is_lost),
        cmocka_unit_test(test_a_beginning_that_is_no_character_after_all_passes),
        cmocka_unit_test(test_bytes_of_an_unfinished_character_stay_in_the_ids),
        cmocka_unit_test(test_carried_bytes_are_delivered_with_their_rest),
        cmocka_unit_test(test_a_control_token_is_an_id_without_text),
        cmocka_unit_test(test_no_part_of_a_stop_string_is_ever_delivered),
        cmocka_unit_test(test_a_stop_string_over_three_tokens_is_seen_in_the_last),
        cmocka_unit_test(test_held_text_is_delivered_when_the_end_of_text_follows),
        cmocka_unit_test(test_no_more_is_held_back_than_may_begin_a_stop_string),
        cmocka_unit_test(test_the_stop_string_that_is_complete_first_wins),
        cmocka_unit_test(test_of_two_complete_at_one_byte_the_longer_wins),
        cmocka_unit_test(test_a_stop_string_at_the_very_beginning_leaves_nothing),
        cmocka_unit_test(test_a_stop_string_may_end_in_a_character_that_tokens_split),
        cmocka_unit_test(test_a_cut_token_that_began_inside_a_character_is_replaced_exactly),
        cmocka_unit_test(test_a_stop_string_that_begins_in_carried_bytes_cuts_only_ours),
        cmocka_unit_test(test_a_stop_string_inside_a_character_takes_all_of_it),
        cmocka_unit_test(test_a_stop_string_within_carried_bytes_is_past),
        cmocka_unit_test(test_text_does_not_depend_on_token_borders),
        cmocka_unit_test(test_every_end_of_text_id_ends_and_is_part_of_nothing),
        cmocka_unit_test(test_without_any_end_of_text_id_it_ends_at_its_limits),
        cmocka_unit_test(test_an_ignored_end_of_text_id_does_not_end),
        cmocka_unit_test(test_the_limit_is_exact),
        cmocka_unit_test(test_end_of_text_goes_before_length_and_a_stop_string_too),
        cmocka_unit_test(test_a_full_context_ends_with_length),
        cmocka_unit_test(test_text_that_was_delivered_before_is_not_delivered_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
