/* world.h - a real engine and cache over the toy runner, and what must be true of them. */
#ifndef TESTS_SIMULATION_WORLD_H
#define TESTS_SIMULATION_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/generation.h"
#include "lone.h"
#include "script.h"
#include "toy.h"

enum { WORLD_MAX_LIVE = 24, WORLD_MAX_ENDED = 8, WORLD_PROMPT = 320 };

/* A generation as the model sees it. Owned by the world: live, then kept among the ended. */
struct branch {
    struct world *world;
    struct gen *gen; /* NULL once it has ended */
    struct gen_options options;
    struct cache_namespace ns;
    struct lone lone;    /* all that it will ever sample */
    int32_t n_resumed;   /* generated ids it was submitted with */
    int32_t n_delivered; /* letters that output has brought, resumed ones included */
    int32_t n_outputs;
    int32_t n_final;       /* ids of the end */
    enum gen_finish asked; /* what a cancel asked for; GEN_NONE: nobody did */
    enum gen_finish finish;
    enum op_react react;
    uint64_t arrival;
    /* before the turn that is made */
    bool was_there, was_running;
    int32_t n_preempted_before;
};

struct world {
    struct world_config config;
    const struct tokenizer *tokenizer; /* borrows */
    struct toy toy;
    struct engine *engine; /* owns */
    struct cache *cache;   /* borrows the engine's; NULL before the first submission */
    int32_t *roots[5];     /* [n_roots] owns; texts that prompts are cut from */
    struct branch *live[WORLD_MAX_LIVE];   /* [n_live] owns */
    struct branch *ended[WORLD_MAX_ENDED]; /* [n_ended] owns; newest last */
    int32_t n_live, n_ended;
    int32_t turns_allowed; /* turns that a drain may take: grows with each submission */
    bool is_failing;       /* the step that ends in this turn fails */
    bool has_cancelled;    /* a callback has, in this turn */
    bool has_published;    /* the same */
    uint64_t n_given_up;   /* copies, before the turn that is made */
    uint64_t n_accepted, n_ends;
    char fault[400]; /* the first thing that was wrong; empty when nothing was */
};

/* What a script runs in: the engine alone, or keys above it. */
struct rig {
    void *(*make)(const struct world_config *config, const struct tokenizer *tokenizer);
    void (*apply)(void *rig, const struct op *op); /* and checks everything */
    void (*drain)(void *rig); /* nothing arrives any more: all must end, all blocks be back */
    void (*free)(void *rig);
    struct world *(*world)(void *rig);
};
extern const struct rig engine_rig, keys_rig;

/* tokenizer: world_tokenizer(), borrowed. */
void *world_new(const struct world_config *config, const struct tokenizer *tokenizer);
void world_free(void *rig);
struct tokenizer *world_tokenizer(void);
void world_apply(void *rig, const struct op *op);
void world_drain(void *rig);
void world_print(const struct world *w, FILE *out); /* one line */

/* For the rig of keys too. */
struct gen_options world_options(const struct op *op);
int32_t world_make_prompt(const struct world *w, int32_t root, const struct op *op, int32_t *ids);
enum submit_error world_expect(const struct world *w, int32_t n, int32_t n_resumed,
                               const struct gen_options *options);

void world_fault(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline bool world_is_wrong(const struct world *w)
{
    return w->fault[0] != '\0';
}

/* check.c */
void check_note(struct world *w);                          /* before a turn */
void check_turn(struct world *w, uint64_t n_steps_before); /* after it */
void check_state(struct world *w);                         /* after every operation */
void check_output(struct branch *b, const struct gen_output *output);
void check_end(struct branch *b, const struct gen_end *end);

#endif
