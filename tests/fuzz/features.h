/* features.h - which kinds of behaviour inputs have shown so far. */
#ifndef TESTS_FUZZ_FEATURES_H
#define TESTS_FUZZ_FEATURES_H

#include <stddef.h>
#include <stdint.h>
#include "engine/engine.h"
#include "server/resp.h"

enum { FEATURES_BITS = 1 << 16 };

/* Zero-initialise. */
struct features {
    uint64_t seen[FEATURES_BITS / 64];
    uint64_t n; /* bits that are set */
};

struct table;

/* The command of a request by its name: what its answer is noted under. */
uint32_t features_name(const struct table *commands, const struct request *q);
/* An answer [at, end) to the command. */
void features_note_answer(struct features *f, uint32_t name, const char *at, const char *end);
/* What the engine did between two looks at it. */
void features_note_engine(struct features *f, const struct engine_stats *before,
                          const struct engine_stats *after);

#endif
