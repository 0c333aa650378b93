/* rank.h - the real runner: a thread per device that runs plans through forward.
 *
 * runner_open does all the loading and may take seconds: it is meant for a job thread, and calls
 * nothing that is bound to the main thread. The runner then belongs to the main thread, as
 * runner.h says. */
#ifndef RUNNER_RANK_H
#define RUNNER_RANK_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "runner/runner.h"

struct runner_config {
    const char *backend;           /* "auto", or a name of backends[] */
    const struct backend_ops *ops; /* a device that a test brings; NULL: found by name */
    int n_threads;                 /* 0: one per CPU that the process may use */
    const char *isa;               /* NULL: best */
    const char *affinity;          /* list of CPUs, or NULL */
    int32_t n_context;             /* 0: what the model was trained for */
    int32_t block_size;            /* tokens a block */
    enum kv_type kv_type;          /* how blocks hold K and V; KV_AUTO: the backend's default */
    uint64_t kv_cache_bytes;       /* 0: half of the free memory, once the weights are packed */
    uint64_t swap_bytes;           /* of host memory for preempted groups; 0: none */
    int32_t n_blocks;              /* of the pool; 0: as many as kv_cache_bytes hold */
    int32_t max_rows;              /* tokens a step (max-batch-tokens) */
    int32_t max_seqs;              /* branches a step (max-running) */
    int32_t max_bias;              /* entries of LOGITBIAS a branch */
};

struct runner_config runner_config_default(void);
/* Appends a line for each backend of this build: what it would run as on this machine with n_threads
 * (0: one per CPU that may be used), or why it cannot; and a line with the memory a pool would get. */
void runner_probe(int n_threads, struct str *out);
/* Loads; the model is borrowed until close. NULL with limit and value in err. */
struct runner *runner_open(struct model *model, const struct runner_config *config,
                           struct err *err);

#endif
