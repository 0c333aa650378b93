/* grammar.h - requests drawn from the server's own command table. */
#ifndef TESTS_FUZZ_GRAMMAR_H
#define TESTS_FUZZ_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>
#include "base/str.h"

/* A string of decisions: each byte chooses among what may come next; behind its end all are 0. */
struct input {
    const uint8_t *data; /* [len] borrowed */
    size_t len, at;
};
static inline unsigned draw(struct input *in, unsigned n)
{
    return in->at < in->len ? in->data[in->at++] % n : 0;
}

enum { FACTS_IDS = 8, FACTS_CLIENTS = 4, FACTS_ID_BYTES = 48 };

/* What a client may know of the conversation so far, so that its requests can meet something. */
struct facts {
    int64_t now_ms;                          /* of the server's wall clock */
    uint64_t clients[FACTS_CLIENTS];         /* ids of connections; 0: none */
    char entries[FACTS_IDS][FACTS_ID_BYTES]; /* ids of entries that replies held; "": none */
    unsigned n_entries; /* ever noted: the next goes to n_entries % FACTS_IDS */
};

struct grammar;

struct grammar *grammar_new(void);
void grammar_free(struct grammar *g); /* accepts NULL */

/* Appends one request to out: of the table or a favourite, valid or nearly so, in RESP or inline. */
void grammar_put(const struct grammar *g, struct input *in, const struct facts *facts,
                 struct str *out);
/* Changes a few of the bytes [from, len) of out, length included. */
void grammar_damage(struct input *in, struct str *out, size_t from);

#endif
