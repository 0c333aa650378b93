/* runner.h - what the engine sees of the devices: launch a plan, learn that it is done.
 *
 * One step at a time. `launch` returns at once (the real runner hands the plan to its rank threads;
 * the toy of tests/simulation computes when asked). The plan stays untouched until `poll` has
 * returned true. All members belong to the main thread. */
#ifndef RUNNER_RUNNER_H
#define RUNNER_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "kernels/backend.h"
#include "kernels/plan.h"

struct runner_info {
    int32_t n_vocab;
    int32_t n_context; /* positions are below this */
    int32_t block_size, n_blocks;
    int32_t n_slots;           /* blocks that host memory holds for swapped groups; 0: no swap */
    struct plan_limits limits; /* of a plan */
    uint64_t model_digest;     /* names the weights in cache namespaces */
    int32_t kv_type;           /* names backend and K/V format in cache namespaces */
    const char *kv_type_name;  /* of the format: "bf16"; static */
    char description[160];     /* one line for INFO: backend, path, threads */
    size_t block_bytes;        /* of one block in all layers */
};

/* Outcome of one step. */
struct runner_done {
    bool failed; /* a device failed: no sample is valid, K/V of the step is not */
    char error[200];
    int32_t n_samples;
    const struct chosen
        *samples; /* [R] in the order of the plan's samples, then the best ids [n_best] that some of
                     them want; borrowed until launch */
    int64_t duration_us;
};

struct runner {
    struct runner_info info;
    int fd; /* readable when a step is done; -1: poll without waiting */
    void (*launch)(struct runner *r, const struct plan *plan);
    bool (*poll)(struct runner *r, struct runner_done *done); /* false: still running, or none */
    void (*close)(struct runner *r);                          /* waits for a running step */
};

#endif
