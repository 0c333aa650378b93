/* logprobs.h - log-probabilities as the text of a field of an end entry. */
#ifndef KEYSPACE_LOGPROBS_H
#define KEYSPACE_LOGPROBS_H

#include "base/str.h"
#include "kernels/backend.h"

void logprobs_print(const struct chosen *rows, int32_t n, int32_t n_best, struct bytes *before,
                    struct str *out);
bool logprobs_are_of(struct bytes text, const int32_t *ids, int32_t n);

#endif
