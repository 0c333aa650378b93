/* sim_cost.c - models as shapes, and how long a step of one takes.
 *
 *     step = host + per sequence + max(weights / bandwidth, flops / rate) + K/V read / bandwidth
 *            + two sums over the cards a layer, where there are several
 *            + blocks that come from the host, and beside all of it those that go there
 *
 * A decode reads all weights for a few rows and is bound by memory; a prompt is bound by
 * arithmetic. Both overlap inside a product, hence the maximum; attention is a pass of its own.
 *
 * The host's two figures are set once, from two published points of the paged system on OPT-13B: a
 * mean batch of 30.42 at 2 requests/s of 338 tokens, and of 132.44 at 30 requests/s of 58 tokens.
 * By Little's law a step took 45 ms and 76 ms there. Weights and K/V explain 32 and 30 ms of that;
 * the rest is two equations for two figures. They hold for every policy, and the policies against
 * which the paper compares had no part in them. SmolLM2 is this project's own server on two cores.
 */
#include "utils/sim_cost.h"

#include <stddef.h>
#include <string.h>

#define A100_40 1555e9, 312e12
#define A100_80 2039e9, 312e12

/* Slots: bytes that the paper leaves to K/V over bytes of a token; OPT-66B as the paper says. */
const struct sim_model sim_models[] = {
    {"opt-13b", 40, 5120, 13e9, 26e9, 1, A100_40, 15728, 2048, 4200, 320},
    {"opt-66b", 64, 9216, 66e9, 132e9, 4, A100_40, 9700, 2048, 4200, 320},
    {"opt-175b", 96, 12288, 173e9, 346e9, 8, A100_80, 60075, 2048, 4200, 320},
    {"llama-13b", 40, 5120, 13e9, 26e9, 1, A100_40, 15728, 2048, 4200, 320},
    {"smollm2-135m", 30, 192, 135e6, 92e6, 1, 20e9, 200e9, 46603, 8192, 200, 5},
    {0},
};

const struct sim_model *sim_model_find(const char *name)
{
    for (const struct sim_model *m = sim_models; m->name; m++)
        if (strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

/* K and V, two bytes a number. */
double sim_kv_token_bytes(const struct sim_model *m)
{
    return 2. * 2. * m->n_layers * m->kv_width;
}

/* The device's part: weights and arithmetic, attention, sums between cards. */
static double compute_us(const struct sim_model *m, const struct sim_work *work)
{
    double bytes_per_us = SIM_BANDWIDTH_PART * m->card_bytes_per_s * m->n_cards / 1e6;
    double flops_per_us = SIM_FLOPS_PART * m->card_flops * m->n_cards / 1e6;
    double memory = m->weight_bytes / bytes_per_us;
    double arithmetic = 2 * m->params * work->n_rows / flops_per_us;
    double indirect = work->block_size > 0 ? 1 + (double)SIM_BLOCK_TOKENS / work->block_size : 1;
    double kv = (double)work->kv_tokens * sim_kv_token_bytes(m) * indirect / bytes_per_us;
    double sums = m->n_cards > 1 ? 2. * m->n_layers * SIM_REDUCE_US : 0;

    return work->n_rows > 0 ? (memory > arithmetic ? memory : arithmetic) + kv + sums : 0;
}

/* Blocks come in before the rows, which read them; they go out beside the rows. */
int64_t sim_step_us(const struct sim_model *m, const struct sim_work *work)
{
    double out = sim_swap_us(m, work->n_outs, work->block_size);
    double in = sim_swap_us(m, work->n_ins, work->block_size);
    double rows = m->step_us + m->seq_us * work->n_seqs + compute_us(m, work);

    return (int64_t)(in + (out > rows ? out : rows) + 0.5);
}

/* Each layer's K and V of a block by itself, over every card's own link. */
double sim_swap_us(const struct sim_model *m, int32_t n_blocks, int32_t block_size)
{
    double bytes = (double)n_blocks * block_size * sim_kv_token_bytes(m) / m->n_cards;

    return n_blocks * 2. * m->n_layers * SIM_COPY_US + bytes / SIM_LINK_BYTES_PER_S * 1e6;
}
