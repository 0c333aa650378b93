/* vocab.h - a small vocabulary for tests: every byte is a token by its own number, then the words
 * that a test names, then two ids that end a text and a control token that does not. */
#ifndef TESTS_UNIT_VOCAB_H
#define TESTS_UNIT_VOCAB_H

#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "model/tokenizer.h"

struct vocab {
    struct tokenizer *tokenizer; /* owns */
    int32_t n, end_of_text, end_of_turn, control;
};

/* words: token i is number 256 + i. has_ends: two ids end a text; without, they are
 * control tokens as any. */
static inline struct vocab vocab_with(const struct bytes *words, int32_t n_words, bool has_ends)
{
    int32_t n = 256 + n_words + 3;
    struct vocab v = {.n = n, .end_of_text = n - 3, .end_of_turn = n - 2, .control = n - 1};
    struct bytes *texts = xcalloc((size_t)n, sizeof *texts);
    char *kinds = xcalloc((size_t)n, 1), singles[256];
    struct err err;

    for (int i = 0; i < 256; i++) {
        singles[i] = (char)i;
        texts[i] = (struct bytes){singles + i, 1};
        kinds[i] = 'n';
    }
    for (int32_t i = 0; i < n_words; i++) {
        texts[256 + i] = words[i];
        kinds[256 + i] = 'n';
    }
    texts[v.end_of_text] = BYTES("<|end|>");
    texts[v.end_of_turn] = BYTES("<|turn|>");
    texts[v.control] = BYTES("<|control|>");
    memcpy(kinds + v.end_of_text, has_ends ? "eec" : "ccc", 3);
    v.tokenizer = tokenizer_build(
        &(struct tokenizer_spec){
            .n_vocab = n, .texts = texts, .kinds = kinds, .pre = "gpt-2", .bos = -1},
        &err);
    if (!v.tokenizer)
        fail_msg("%s", err.text);
    xfree(texts);
    xfree(kinds);
    return v;
}

static inline struct vocab vocab_new(const struct bytes *words, int32_t n_words)
{
    return vocab_with(words, n_words, true);
}

#endif
