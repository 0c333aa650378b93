/* draw.h - what worlds and operations are drawn with, for draw.c and draw_keys.c only. */
#ifndef TESTS_SIMULATION_DRAW_H
#define TESTS_SIMULATION_DRAW_H

#include "script.h"

static inline int32_t below(struct rng *r, int32_t n)
{
    return (int32_t)rng_below(r, (uint64_t)n);
}
static inline int32_t pick(struct rng *r, const int32_t *from, int32_t n)
{
    return from[below(r, n)];
}
#define PICK(r, ...)                                                                               \
    pick(r, (const int32_t[]){__VA_ARGS__},                                                        \
         sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* What is likely in this world. */
struct swarm {
    int32_t weights[OP_N_KINDS];
    int32_t many;     /* one in so many submissions repeats the last prompt */
    bool is_hot;      /* long answers, prompts that fit: the pool is pressed */
    bool is_growing;  /* and prompts are short: it fills after all were admitted */
    int32_t not_done; /* of 16 turns find the step still running */
    int32_t fail;     /* of 4096 steps fail */
    int32_t urgent, deadlines, reacts, flags; /* of 16 submissions have some */
    int32_t ids;                              /* of 16 GENs on keys have one */
    int32_t stories;                          /* of 64 operations begin one */
    int32_t groups, beams;                    /* of 16 are some; of 16 of those are beams */
    int32_t last_root, last_length, last_variant, last_extra;
};

/* draw.c */
void draw_prompt(struct rng *r, const struct world_config *c, struct swarm *s, struct op *op);
void draw_options(struct rng *r, const struct swarm *s, struct op *op);
struct op draw_step(struct rng *r, const struct swarm *s);

/* draw_keys.c */
void draw_key_weights(struct rng *r, struct swarm *s);
void draw_key_args(struct rng *r, const struct world_config *c, struct swarm *s, struct op *op);
/* A few operations that belong together, with others among them. */
void draw_key_story(struct rng *r, struct swarm *swarm, struct script *s);

#endif
