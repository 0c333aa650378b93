/* tok_bpe.h - byte-level byte-pair encoding of one piece (tok_bpe.c). Internal to the tokenizer. */
#ifndef MODEL_TOK_BPE_H
#define MODEL_TOK_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/str.h"
#include "model/tokenizer.h"

struct bpe;
struct bpe_symbol;
struct bpe_candidate;

/* Work space of one caller. Zero-initialise; bpe_scratch_free at the end. */
struct bpe_scratch {
    struct bpe_symbol *symbols;       /* [symbols_cap] owns */
    struct bpe_candidate *candidates; /* [2 * symbols_cap] owns; a heap */
    size_t symbols_cap;
};
void bpe_scratch_free(struct bpe_scratch *s);

/* byte_ids[b]: the token of the single byte b, or -1. */
struct bpe *bpe_new(const int32_t byte_ids[256], int32_t n_merges);
void bpe_free(struct bpe *b);
/* The next merge in order of rank: left right -> result. A pair given twice keeps its first rank.
 */
void bpe_add(struct bpe *b, int32_t left, int32_t right, int32_t result);
void bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct bytes piece, struct ids *out);

/* GPT-2's byte alphabet, in which vocabularies spell bytes as visible characters. Appends the bytes
 * that text spells; false when a character is not of the alphabet, out is then as before. */
bool bpe_unspell(struct bytes text, struct str *out);

#endif
