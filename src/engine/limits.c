/* limits.c - what an engine asks of its configuration, and of the plans of its runner.
 *
 * Nothing is allocated in a step, so every plan must hold the fullest one that the scheduler may make:
 * all places taken, by branches of the longest sequences, each with all that its options may carry.
 * A sample is there for each branch that may run; prompts that owe log-probabilities take those that
 * are left (prompt.c). Main thread only. */
#include "engine/limits.h"

#include <stddef.h>
#include <stdint.h>

struct plan_limits engine_plan_limits(int32_t max_batch_tokens, int32_t max_running,
                                      int32_t n_context, int32_t n_vocab, int32_t block_size,
                                      int32_t n_end_ids)
{
    int64_t blocks = (n_context + (int64_t)block_size - 1) / block_size;
    int32_t counts = n_vocab < n_context ? n_vocab : n_context;

    return (struct plan_limits){
        .max_rows = max_batch_tokens,
        .max_seqs = max_running,
        .max_table_blocks = (int32_t)(blocks * max_running),
        .max_copies = max_running, /* admitted with a tail, or about to write a shared block */
        .max_best = max_running * PLAN_BEST,
        .max_bias = max_running * (ENGINE_MAX_BIAS + n_end_ids),
        .max_counts = max_running * counts,
        .block_size = block_size,
    };
}

/* The runner's plans must hold whatever the scheduler may put into one. */
static int check_limits(const struct engine_config *config, struct err *err)
{
    static const struct {
        const char *name;
        size_t at;
    } fields[] = {
        {"rows", offsetof(struct plan_limits, max_rows)},
        {"sequences", offsetof(struct plan_limits, max_seqs)},
        {"table entries", offsetof(struct plan_limits, max_table_blocks)},
        {"copies", offsetof(struct plan_limits, max_copies)},
        {"best ids", offsetof(struct plan_limits, max_best)},
        {"biases", offsetof(struct plan_limits, max_bias)},
        {"counted ids", offsetof(struct plan_limits, max_counts)},
    };
    const struct runner_info *info = &config->runner->info;
    int32_t n_ends;

    (void)tokenizer_end_ids(config->tokenizer, &n_ends);
    struct plan_limits need =
        engine_plan_limits(config->max_batch_tokens, config->max_running, info->n_context,
                           info->n_vocab, info->block_size, n_ends);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int32_t has = *(const int32_t *)((const char *)&info->limits + fields[i].at);
        int32_t wants = *(const int32_t *)((const char *)&need + fields[i].at);
        if (has < wants)
            return err_set(err, "plans of the runner hold %d %s, %d are needed", has,
                           fields[i].name, wants);
    }
    return 0;
}

/* What engine_new refuses, with limit and value. */
int limits_check(const struct engine_config *config, struct err *err)
{
    const struct runner_info *info = &config->runner->info;
    int32_t block = info->block_size;

    if (config->max_running < 1)
        return err_set(err, "max-running is %d, at least 1 is needed", config->max_running);
    if (config->max_batch_tokens < config->max_running + block)
        return err_set(err,
                       "max-batch-tokens is %d, at least %d are needed: max-running %d and a "
                       "block of %d",
                       config->max_batch_tokens, config->max_running + block, config->max_running,
                       block);
    if (config->max_chunk < block)
        return err_set(err, "max-chunk is %d, at least a block of %d is needed", config->max_chunk,
                       block);
    if (config->max_queue < 1)
        return err_set(err, "max-queue is %d, at least 1 is needed", config->max_queue);
    return check_limits(config, err);
}
