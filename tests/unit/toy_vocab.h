/* toy_vocab.h - a small vocabulary for tests: all 256 bytes, some merges, some specials. */
#ifndef TESTS_TOY_VOCAB_H
#define TESTS_TOY_VOCAB_H

#include <stdint.h>
#include "base/str.h"
#include "model/tokenizer.h"

/* Ids: byte b is token b; then one token per merge, in order; then the specials, in order. Zero-
 * initialise and fill; lists end with NULL. */
struct toy_vocab {
    const char *pre;             /* NULL: gpt-2 */
    const char *const *merges;   /* "a b" in GPT-2's byte alphabet (blank: \xc4\xa0); may be NULL */
    const char *const *specials; /* a kind letter and the spelling: "c<|im_start|>"; may be NULL */
    const char *missing;         /* bytes that have no token; may be NULL */
    const char *bos;             /* spelling of a special; may be NULL */
    bool add_bos;
};
/* Fails the test when it can not be built. Free with tokenizer_free. */
struct tokenizer *toy_vocab_build(const struct toy_vocab *v);
int32_t toy_vocab_find(const struct tokenizer *t, const char *spelling); /* fails when absent */

#endif
