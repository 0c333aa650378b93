/* test_tokenizer.c - text to ids and back over small vocabularies; loading from metadata.
 *
 * What comparable programs got wrong has a test each: control tokens in text, NUL, long runs and small
 * stacks, bytes outside the vocabulary, end ids. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include "base/err.h"
#include "base/rng.h"
#include "model/gguf.h"
#include "model/gguf_write.h"
#include "model/tokenizer.h"
#include "tests/unit/token_checks.h"
#include "tests/unit/toy_vocab.h"

/* Token ids of these merges: 256 ... */
static const char *const MERGES[] = {"l l", "e ll", "h ell", "hell o", "\xc4\xa0 w", "o o", NULL};
static const char *const SPECIALS[] = {
    "c<|im_start|>", "e<|im_end|>", "c<|im_start|>x", "c<|im", "u  wide  ", "m<tool>", NULL};

static struct tokenizer *toy(void)
{
    struct toy_vocab v = {.merges = MERGES, .specials = SPECIALS};
    return toy_vocab_build(&v);
}

/* ---- merging -------------------------------------------------------------------------------- */

static void test_merges_are_taken_best_rank_first_then_leftmost(void **state)
{
    (void)state;
    struct tokenizer *t = toy();
    CHECK_IDS(t, "hello", false, 259);
    CHECK_IDS(t, "hell", false, 258);
    CHECK_IDS(t, "helo", false, 'h', 'e', 'l', 'o');
    CHECK_IDS(t, "lll", false, 256, 'l'); /* the left pair of two equal ones */
    CHECK_IDS(t, "ello", false, 257, 'o');
    CHECK_IDS(t, "hello w", false, 259, 260);
    CHECK_IDS(t, "ooo", false, 261, 'o');
    tokenizer_free(t);
}

/* Merges for every doubling of one letter, tried against the plain quadratic way. */
static void test_merges_equal_the_plain_loop(void **state)
{
    (void)state;
    static const char *const DOUBLES[] = {"a a", "b a",  "aa b", "aa aa", "ba aa",
                                          "a b", "ab a", "b b",  NULL};
    struct toy_vocab v = {.merges = DOUBLES};
    struct tokenizer *t = toy_vocab_build(&v);
    struct rng rng = rng_from(7);
    for (int round = 0; round < 300; round++) {
        struct str text = {0};
        struct bytes parts[64];
        int n = 1 + (int)rng_below(&rng, 60);
        for (int i = 0; i < n; i++)
            str_append_char(&text, rng_below(&rng, 3) ? 'a' : 'b');
        for (int i = 0; i < n; i++)
            parts[i] = (struct bytes){text.data + i, 1};
        for (int best = 0; best >= 0;) { /* the definition: best rank, leftmost, again */
            int at = -1;
            best = -1;
            for (int m = 0; DOUBLES[m] && best < 0; m++)
                for (int i = 0; i + 1 < n && best < 0; i++) {
                    size_t left = strcspn(DOUBLES[m], " ");
                    if (parts[i].len == left && !memcmp(parts[i].data, DOUBLES[m], left) &&
                        bytes_equal(parts[i + 1], bytes_from(DOUBLES[m] + left + 1)))
                        best = m, at = i;
                }
            if (best >= 0) {
                parts[at].len += parts[at + 1].len;
                memmove(&parts[at + 1], &parts[at + 2], (size_t)(--n - at - 1) * sizeof *parts);
            }
        }
        struct ids ids = {0};
        tokenizer_encode(t, bytes_of(&text), false, &ids);
        assert_int_equal(ids.n, n);
        for (int i = 0; i < n; i++)
            assert_true(bytes_equal(tokenizer_token(t, ids.data[i]), parts[i]));
        ids_free(&ids);
        str_free(&text);
    }
    tokenizer_free(t);
}

static void test_a_whole_piece_is_a_token_before_merges_in_llama_bpe(void **state)
{
    (void)state;
    /* "abc" is a token, but no merges lead to it from "a b". */
    static const char *const merges[] = {"a b", "b c", "a bc", NULL};
    struct toy_vocab v = {.merges = merges, .pre = "llama-bpe"};
    struct tokenizer *llama = toy_vocab_build(&v);
    CHECK_IDS(llama, "abc", false, 258);
    tokenizer_free(llama);
    v.pre = "gpt-2";
    struct tokenizer *gpt2 = toy_vocab_build(&v);
    CHECK_IDS(gpt2, "abc", false, 256, 'c');
    tokenizer_free(gpt2);
}

/* ---- any bytes ------------------------------------------------------------------------------ */

static void test_nul_is_a_character(void **state)
{
    (void)state;
    struct tokenizer *t = toy();
    CHECK_IDS(t, "a\0b", false, 'a', 0, 'b');
    check_round_trip(t, BYTES("BANANA\0 If you can read this\0"),
                     BYTES("BANANA\0 If you can read this\0"));
    tokenizer_free(t);
}

static void test_empty_text_has_no_ids(void **state)
{
    (void)state;
    struct tokenizer *t = toy();
    struct ids ids = {0};
    tokenizer_encode(t, BYTES(""), true, &ids);
    tokenizer_encode(t, (struct bytes){NULL, 0}, false, &ids);
    assert_int_equal(ids.n, 0);
    ids_free(&ids);
    tokenizer_free(t);
}

static void test_each_byte_outside_utf8_is_one_mark(void **state)
{
    (void)state;
    struct tokenizer *t = toy();
    check_round_trip(t, BYTES("ok \xc3"), BYTES("ok \xef\xbf\xbd"));
    check_round_trip(t, BYTES("\xe2\x9c|"), BYTES("\xef\xbf\xbd\xef\xbf\xbd|"));
    check_round_trip(t, BYTES("\xc0\xaf"), BYTES("\xef\xbf\xbd\xef\xbf\xbd"));
    check_round_trip(t, BYTES("\xed\xa0\x80z"), BYTES("\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz"));
    check_round_trip(t, BYTES("\xf4\x90\x80\x80"),
                     BYTES("\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"));
    tokenizer_free(t);
}

/* A character of which one byte has no token goes as a whole, and its neighbours do not join.
 */
static void test_characters_without_tokens_are_dropped_whole(void **state)
{
    (void)state;
    struct toy_vocab v = {.merges = MERGES, .missing = "\xf1\x04"};
    struct tokenizer *t = toy_vocab_build(&v);
    check_round_trip(t, BYTES("a\xf1\x80\x80\x80z"), BYTES("az"));
    check_round_trip(t, BYTES("a\xf0\x9f\xa6\x99z"), BYTES("a\xf0\x9f\xa6\x99z"));
    CHECK_IDS(t, "!\x04!", false, '!', '!');
    check_round_trip(t, BYTES("\x04\x04"), BYTES(""));
    tokenizer_free(t);
}

static void test_random_bytes_come_back_as_their_clean_text(void **state)
{
    (void)state;
    uint64_t seed = 20;
    struct rng rng = rng_from(seed);
    struct tokenizer *t = toy();
    for (int round = 0; round < 400; round++) {
        char raw[200];
        struct str clean = {0};
        size_t n = rng_below(&rng, sizeof raw);
        for (size_t i = 0; i < n; i++)
            raw[i] =
                (char)(rng_below(&rng, 4) ? 0x80 + rng_below(&rng, 128) : rng_below(&rng, 128));
        for (size_t i = 0; i < n;) {
            uint32_t cp;
            int bad, len = utf8_decode(raw + i, n - i, &cp, &bad);
            str_append(&clean, len ? raw + i : "\xef\xbf\xbd", len ? (size_t)len : 3);
            i += len ? (size_t)len : 1;
        }
        check_round_trip(t, (struct bytes){raw, n}, bytes_of(&clean));
        str_free(&clean);
    }
    tokenizer_free(t);
}

/* ---- special tokens ------------------------------------------------------------------------- */

static void test_text_never_becomes_a_control_token_unless_asked(void **state)
{
    (void)state;
    struct tokenizer *t = toy();
    struct ids ids = {0};
    tokenizer_encode(t, BYTES("<|im_start|>hello<|im_end|><tool>"), false, &ids);
    for (int32_t i = 0; i < ids.n; i++)
        assert_true(ids.data[i] < 262);
    check_round_trip(t, BYTES("<|im_start|>hello<|im_end|>"), BYTES("<|im_start|>hello<|im_end|>"));
    int32_t start = toy_vocab_find(t, "<|im_start|>"), end = toy_vocab_find(t, "<|im_end|>");
    CHECK_IDS(t, "<|im_start|>hello<|im_end|>", true, start, 259, end);
    CHECK_IDS(t, "<tool>", true, toy_vocab_find(t, "<tool>"));
    ids_free(&ids);
    tokenizer_free(t);
}

static void test_the_longest_spelling_wins(void **state)
{
    (void)state;
    struct tokenizer *t = toy();
    int32_t cut = toy_vocab_find(t, "<|im"), start = toy_vocab_find(t, "<|im_start|>");
    CHECK_IDS(t, "<|im_start|>x", true, toy_vocab_find(t, "<|im_start|>x"));
    CHECK_IDS(t, "<|im_start|>y", true, start, 'y');
    CHECK_IDS(t, "<|im_start|", true, cut, '_', 's', 't', 'a', 'r', 't', '|');
    CHECK_IDS(t, "<<|im", true, '<', cut);
    CHECK_IDS(t, "<|i", true, '<', '|', 'i');
    tokenizer_free(t);
}

static void test_user_defined_words_are_found_in_any_text(void **state)
{
    (void)state;
    struct tokenizer *t = toy();
    int32_t wide = toy_vocab_find(t, "  wide  ");
    CHECK_IDS(t, "a  wide  b", false, 'a', wide, 'b');
    CHECK_IDS(t, "a  wide  b", true, 'a', wide, 'b');
    assert_true(bytes_equal(tokenizer_token(t, wide), BYTES("  wide  ")));
    tokenizer_free(t);
}

static void test_control_tokens_are_spelled_only_where_asked(void **state)
{
    (void)state;
    struct tokenizer *t = toy();
    struct str text = {0};
    int32_t ids[] = {toy_vocab_find(t, "<|im_start|>"), 259, toy_vocab_find(t, "<tool>")};
    tokenizer_decode(t, ids, 3, false, &text);
    assert_string_equal(text.data, "hello<tool>");
    str_clear(&text);
    tokenizer_decode(t, ids, 3, true, &text);
    assert_string_equal(text.data, "<|im_start|>hello<tool>");
    assert_int_equal(tokenizer_token(t, -1).len, 0);
    assert_int_equal(tokenizer_token(t, tokenizer_n_vocab(t)).len, 0);
    assert_int_equal(tokenizer_find(t, BYTES("no such token")), -1);
    assert_int_equal(tokenizer_longest(t), strlen("<|im_start|>x"));
    str_free(&text);
    tokenizer_free(t);
}

/* ---- time and stack ------------------------------------------------------------------------- */

static const char *const LONG_MERGES[] = {"a a",
                                          "aa aa",
                                          "aaaa aaaa",
                                          "\xc4\xa0 \xc4\xa0",
                                          "\xc4\xa0\xc4\xa0 \xc4\xa0\xc4\xa0",
                                          "7 7",
                                          "\xc4\x8a \xc4\x8a",
                                          NULL};

static double seconds_to_encode(const struct tokenizer *t, struct bytes text)
{
    struct timespec from, to;
    struct ids ids = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID,
                  &from); /* of this thread: a busy machine does not count */
    tokenizer_encode(t, text, true, &ids);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    ids_free(&ids);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/* 16 times the text takes 16 to 22 times the time on a machine of its own; quadratic would be
 * 256 times. The bound is between them, since the caches of a busy machine favour the small text. */
static void test_time_of_a_long_run_is_nearly_linear(void **state)
{
    (void)state;
    static const char RUNS[] = "a 7\n<\t";
    struct toy_vocab v = {.merges = LONG_MERGES, .specials = SPECIALS, .pre = "llama-bpe"};
    struct tokenizer *t = toy_vocab_build(&v);
    char *text = malloc(65536);
    for (int run = 0; RUNS[run]; run++) {
        double small = 1, large = 1, seconds;
        memset(text, RUNS[run], 65536);
        for (int i = 0; i < 20; i++)
            small = (seconds = seconds_to_encode(t, (struct bytes){text, 4096})) < small ? seconds
                                                                                         : small;
        for (int i = 0; i < 5; i++)
            large = (seconds = seconds_to_encode(t, (struct bytes){text, 65536})) < large ? seconds
                                                                                          : large;
        if (large > 80 * small + 0.002)
            fail_msg("byte %d: 4 KiB in %.6f s, 64 KiB in %.6f s", RUNS[run], small, large);
    }
    free(text);
    tokenizer_free(t);
}

static void *encode_long_runs(void *arg)
{
    static const char RUNS[] = "a 7\n'";
    const struct tokenizer *t = arg;
    char *text = malloc(65536);
    for (int run = 0; RUNS[run]; run++) {
        struct ids ids = {0};
        memset(text, RUNS[run], 65536);
        tokenizer_encode(t, (struct bytes){text, 65536}, true, &ids);
        ids_free(&ids);
    }
    free(text);
    return NULL;
}

/* The stack does not grow with the text. Sanitizers need more of it for themselves. */
static void test_long_runs_need_little_stack(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    size_t stack = 512 << 10;
#else
    size_t stack = 64 << 10;
#endif
    static const char *const RULES[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    for (size_t i = 0; i < 4; i++) {
        struct toy_vocab v = {.merges = LONG_MERGES, .pre = RULES[i]};
        struct tokenizer *t = toy_vocab_build(&v);
        pthread_attr_t attr;
        pthread_t thread;
        assert_int_equal(pthread_attr_init(&attr), 0);
        assert_int_equal(pthread_attr_setstacksize(&attr, stack), 0);
        assert_int_equal(pthread_create(&thread, &attr, encode_long_runs, t), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        (void)pthread_attr_destroy(&attr);
        tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges_are_taken_best_rank_first_then_leftmost),
        cmocka_unit_test(test_merges_equal_the_plain_loop),
        cmocka_unit_test(test_a_whole_piece_is_a_token_before_merges_in_llama_bpe),
        cmocka_unit_test(test_nul_is_a_character),
        cmocka_unit_test(test_empty_text_has_no_ids),
        cmocka_unit_test(test_each_byte_outside_utf8_is_one_mark),
        cmocka_unit_test(test_characters_without_tokens_are_dropped_whole),
        cmocka_unit_test(test_random_bytes_come_back_as_their_clean_text),
        cmocka_unit_test(test_text_never_becomes_a_control_token_unless_asked),
        cmocka_unit_test(test_the_longest_spelling_wins),
        cmocka_unit_test(test_user_defined_words_are_found_in_any_text),
        cmocka_unit_test(test_control_tokens_are_spelled_only_where_asked),
        cmocka_unit_test(test_time_of_a_long_run_is_nearly_linear),
        cmocka_unit_test(test_long_runs_need_little_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
