/* bench_attention.h - attention over scattered blocks against the same over contiguous memory. */
#ifndef UTILS_BENCH_ATTENTION_H
#define UTILS_BENCH_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "kernels/backend.h"
#include "model/model.h"

struct attention_bench {
    const struct model *model; /* for its dimensions */
    const struct backend_ops *ops;
    struct backend_config device; /* threads, path, K/V type; limits and context are set here */
    int32_t n_runs;
};

/* Times a decode step's attention at contexts of 512 and 2,048 tokens for each of the batches, and
 * prints a table, or one line of JSON. */
int attention_bench(const struct attention_bench *bench, const int32_t *batches, int32_t n_batches,
                    bool as_json, struct err *err);

#endif
