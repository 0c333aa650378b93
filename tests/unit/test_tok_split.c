/* test_tok_split.c - where text is cut before merging, rule by rule.
 *
 * Expected cuts follow from the ids of tokenizer-vectors (a cut is where a token must end) and from
 * the published expressions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/err.h"
#include "base/str.h"
#include "model/tok_split.h"

struct cut {
    const char *pre, *text;
    const char *pieces; /* joined by | */
};

/* The pieces of text, joined by |. */
static void join_pieces(const char *pre, struct bytes text, unsigned match_limit, struct str *out,
                        int *n_failed)
{
    struct err err;
    struct split_walk walk;
    struct bytes piece;
    struct split *split = split_open(pre, &err);
    assert_non_null(split);
    split_walk_open(&walk, split, match_limit);
    split_walk_start(&walk, text);
    for (int i = 0; split_walk_next(&walk, &piece); i++) {
        assert_true(piece.len > 0);
        str_printf(out, "%s", i > 0 ? "|" : "");
        str_append(out, piece.data, piece.len);
    }
    if (n_failed)
        *n_failed = walk.n_failed;
    split_walk_close(&walk);
    split_free(split);
}

static void check_cuts(const struct cut *cuts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct str got = {0};
        join_pieces(cuts[i].pre, bytes_from(cuts[i].text), 0, &got, NULL);
        if (strcmp(bytes_of(&got).data, cuts[i].pieces) != 0)
            fail_msg("%s: '%s' is cut '%s', expected '%s'", cuts[i].pre, cuts[i].text,
                     bytes_of(&got).data, cuts[i].pieces);
        str_free(&got);
    }
}
#define CHECK_CUTS(cuts) check_cuts(cuts, sizeof(cuts) / sizeof *(cuts))

static void test_digits_are_cut_off_alone_by_the_smollm_rule(void **state)
{
    (void)state;
    static const struct cut cuts[] = {
        {"smollm", "a  3", "a|  |3"},
        {"starcoder", "a  3", "a|  |3"},
        {"gpt-2", "a  3", "a| | 3"},
        {"smollm", "x 12 34", "x| |1|2| |3|4"},
        {"gpt-2", "x 12 34", "x| 12| 34"},
        {"smollm", "10.5%  off", "1|0|.|5|%| | off"},
        {"smollm", "year2024s", "year|2|0|2|4|s"},
        {"smollm", "4 \xc2\xbd", "4| |\xc2\xbd"}, /* one half is of class N */
        {"smollm", "a \n\t3", "a| \n\t|3"},
        {"smollm", "a   b", "a|  | b"},
    };
    CHECK_CUTS(cuts);
}

static void test_digit_groups_follow_the_rule(void **state)
{
    (void)state;
    static const struct cut cuts[] = {
        {"gpt-2", "333333333", "333333333"}, {"llama-bpe", "333333333", "333|333|333"},
        {"llama-bpe", "3333", "333|3"},      {"qwen2", "3333", "3|3|3|3"},
        {"smollm", "3333", "3|3|3|3"},       {"llama-bpe", "a 12", "a| |12"},
    };
    CHECK_CUTS(cuts);
}

static void test_contractions_know_case_only_in_gpt2(void **state)
{
    (void)state;
    static const struct cut cuts[] = {
        {"gpt-2", "he's", "he|'s"},
        {"gpt-2", " 'RE you", " '|RE| you"},
        {"gpt-2", "We'Ve", "We|'|Ve"},
        {"gpt-2", " a'lL", " a|'|lL"},
        {"llama-bpe", " a'lL", " a|'lL"},
        {"qwen2", "We'Ve", "We|'Ve"},
        {"smollm", "We'Ve we've", "We|'|Ve| we|'ve"},
        {"gpt-2", "''''s", "''''|s"},
    };
    CHECK_CUTS(cuts);
}

static void test_blanks_and_line_ends(void **state)
{
    (void)state;
    static const struct cut cuts[] = {
        {"gpt-2", "a \n \n\n b", "a| \n \n\n| b"},
        {"llama-bpe", "a \n \n\n b", "a| \n \n\n| b"},
        {"llama-bpe", "x();\n\n y", "x|();\n\n| y"},
        {"gpt-2", "x();\n\n y", "x|();|\n\n| y"},
        {"llama-bpe", "a   ", "a|   "},
        {"llama-bpe", "\tif(", "\tif|("},
        {"gpt-2", "\tif(", "\t|if|("},
        {"qwen2", "a\r\nb", "a|\r\n|b"},
        {"gpt-2", "\xc2\xa0\xe3\x80\x80x", "\xc2\xa0|\xe3\x80\x80|x"}, /* wide blanks are blanks */
        {"gpt-2", "", ""},
    };
    CHECK_CUTS(cuts);
}

static void test_unknown_rule_is_refused_by_name(void **state)
{
    (void)state;
    struct err err;
    assert_null(split_open("gpt-5", &err));
    assert_non_null(strstr(err.text, "gpt-5"));
    assert_non_null(strstr(err.text, "llama-bpe"));
}

/* A match that gives up loses nothing: what follows is cut by hand. */
static void test_a_match_that_gives_up_loses_no_byte(void **state)
{
    (void)state;
    struct str got = {0}, back = {0};
    int n_failed = 0;
    const char *text = "\xd0\xbd\xd0\xb5 so many words\n and   blanks 123";
    join_pieces("llama-bpe", bytes_from(text), 1, &got, &n_failed);
    assert_true(n_failed > 0);
    for (size_t i = 0; i < got.len; i++)
        if (got.data[i] != '|')
            str_append_char(&back, got.data[i]);
    assert_string_equal(back.data, text);
    str_free(&back);
    str_free(&got);
}

/* Longer than the window, each rule's worst cases: every byte comes out, and no match gives up. */
static void test_long_runs_give_every_byte_and_never_give_up(void **state)
{
    (void)state;
    static const char *const RULES[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    static const char *const UNITS[] = {"a", " ", "7",       "\n", " \t", "\xf0\x9f\xa6\x99",
                                        "'", "<", "\xc2\xa0"};
    struct err err;
    for (size_t r = 0; r < 4; r++) {
        for (size_t u = 0; u < sizeof UNITS / sizeof *UNITS; u++) {
            struct split *split = split_open(RULES[r], &err);
            struct str text = {0};
            struct split_walk walk;
            struct bytes piece;
            size_t total = 0;
            while (text.len < (size_t)(3 << 19)) /* 1.5 windows */
                str_append_str(&text, UNITS[u]);
            split_walk_open(&walk, split, 0);
            split_walk_start(&walk, bytes_of(&text));
            while (split_walk_next(&walk, &piece)) {
                assert_ptr_equal(piece.data, text.data + total);
                assert_true(utf8_is_valid(piece.data, piece.len));
                total += piece.len;
            }
            assert_int_equal(total, text.len);
            assert_int_equal(walk.n_failed, 0);
            split_walk_close(&walk);
            str_free(&text);
            split_free(split);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digits_are_cut_off_alone_by_the_smollm_rule),
        cmocka_unit_test(test_digit_groups_follow_the_rule),
        cmocka_unit_test(test_contractions_know_case_only_in_gpt2),
        cmocka_unit_test(test_blanks_and_line_ends),
        cmocka_unit_test(test_unknown_rule_is_refused_by_name),
        cmocka_unit_test(test_a_match_that_gives_up_loses_no_byte),
        cmocka_unit_test(test_long_runs_give_every_byte_and_never_give_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
