/* sim_cost.h - models as shapes, and how long a step of one takes. */
#ifndef UTILS_SIM_COST_H
#define UTILS_SIM_COST_H

#include <stdint.h>

/* A model on its cards. All that a simulation needs to know of it. */
struct sim_model {
    const char *name;
    int32_t n_layers, kv_width; /* of K, and of V, over all K/V heads */
    double params;              /* weights that a token is multiplied with */
    double weight_bytes;
    int32_t n_cards;
    double card_bytes_per_s, card_flops; /* of one card, as its maker says */
    int32_t slots;                       /* tokens whose K/V fit beside the weights */
    int32_t n_context;
    double step_us, seq_us; /* host: of a step, and of each sequence in it */
};

/* Rows of `models`, ends with name NULL. */
extern const struct sim_model sim_models[];
const struct sim_model *sim_model_find(const char *name); /* NULL when there is none */

/* Part of a maker's figure that a well-written kernel gets: of bandwidth, of arithmetic. */
#define SIM_BANDWIDTH_PART 0.8
#define SIM_FLOPS_PART 0.6
/* Reading one block through a table costs as much as reading so many tokens more. Of blocks of 16
 * that is 25 %, in the paper's range for its kernel against a contiguous one (20 to 26 %). */
#define SIM_BLOCK_TOKENS 4
#define SIM_REDUCE_US 30 /* one sum over the cards, two a layer */
/* Swap: the link to the host, and what each of its copies costs besides: a block is one piece of K
 * and one of V in every layer. */
#define SIM_LINK_BYTES_PER_S 12e9
#define SIM_COPY_US 5

/* What a step does. */
struct sim_work {
    int32_t n_rows, n_seqs;
    int64_t kv_tokens;     /* tokens whose K/V are read: over all sequences */
    int32_t block_size;    /* of the table they are read through; 0: contiguous */
    int32_t n_outs, n_ins; /* blocks to and from host memory */
};
double sim_kv_token_bytes(const struct sim_model *m);
int64_t sim_step_us(const struct sim_model *m, const struct sim_work *work);
double sim_swap_us(const struct sim_model *m, int32_t n_blocks, int32_t block_size); /* one way */

#endif
