/* token_checks.h - what the tokenizer tests compare: ids of a text, and a text that comes back. */
#ifndef TESTS_UNIT_TOKEN_CHECKS_H
#define TESTS_UNIT_TOKEN_CHECKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "model/tokenizer.h"

static inline void check_ids(const struct tokenizer *t, struct bytes text, bool special,
                             const int32_t *expected, int32_t n)
{
    struct ids ids = {0};
    tokenizer_encode(t, text, special, &ids);
    assert_int_equal(ids.n, n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(ids.data[i], expected[i]);
    ids_free(&ids);
}
#define CHECK_IDS(t, text, special, ...)                                                           \
    check_ids(t, BYTES(text), special, (const int32_t[]){__VA_ARGS__},                             \
              sizeof((const int32_t[]){__VA_ARGS__}) / 4)

/* Encoded without control tokens and decoded again. */
static inline void check_round_trip(const struct tokenizer *t, struct bytes text,
                                    struct bytes expected)
{
    struct ids ids = {0};
    struct str back = {0};
    tokenizer_encode(t, text, false, &ids);
    tokenizer_decode(t, ids.data, ids.n, false, &back);
    assert_int_equal(back.len, expected.len);
    assert_memory_equal(bytes_of(&back).data, expected.data, expected.len);
    str_free(&back);
    ids_free(&ids);
}

#endif
