/* world.h - a real engine and cache over the toy runner, and what must be true of them. */
#ifndef TESTS_SIMULATION_WORLD_H
#define TESTS_SIMULATION_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/generation.h"
#include "lone.h"
#include "plain_beam.h"
#include "script.h"
#include "toy.h"

enum { WORLD_MAX_LIVE = 24, WORLD_MAX_ENDED = 8, WORLD_PROMPT = 320 };

/* A branch as the model sees it. Owned by its group. */
struct branch {
    struct lone lone;    /* all that it will ever sample; in a beam: its prompt, then its answer */
    int32_t n_resumed;   /* generated ids it was submitted with */
    int32_t n_delivered; /* letters that output has brought, resumed ones included */
    int32_t n_final;     /* ids of the end */
    enum gen_finish finish; /* GEN_NONE while it goes on */
    bool was_over;          /* it had ended before its group was resumed: nothing of it is told */
    int32_t n_saved;        /* tokens in host memory, before the turn that is made */
};

/* A generation as the model sees it. Owned by the world: live, then kept among the ended. */
struct group {
    struct world *world;
    struct gen *gen; /* NULL once its last end was told */
    struct gen_options options;
    struct cache_namespace ns;
    struct branch *branches; /* [n_branches] owns */
    struct plain_beam *beam; /* owns; NULL: branches go their own ways */
    int32_t n_branches, n_prompt;
    int32_t n_ends, n_due; /* ends told, of so many */
    int32_t n_outputs;
    enum gen_finish asked; /* what a cancel asked for; GEN_NONE: nobody did */
    enum op_react react;
    uint64_t arrival;
    int32_t n_passed; /* steps in a row in which it was the first of those that run, and got none */
    /* before the turn that is made */
    bool was_there, was_running;
    int32_t rank_before, n_preempted_before;
};

/* The one order, as it was before the turn. */
static inline bool group_stood_before(const struct group *a, const struct group *b)
{
    return a->rank_before != b->rank_before ? a->rank_before > b->rank_before
                                            : a->arrival < b->arrival;
}
static inline bool group_was_admitted(const struct group *g)
{
    return g->was_there && !g->was_running && g->gen->state == GEN_RUNNING;
}
static inline bool group_was_preempted(const struct group *g)
{
    return g->was_there && g->gen->n_preempted > g->n_preempted_before;
}
/* What it met the last time it was looked at is still promised: it is passed over. */
static inline bool group_waits_for_promise(const struct group *g)
{
    const struct cache_found *found = &g->gen->waits_for;
    return found->promised_by && cache_is_promised(g->gen->cache, found);
}
/* None of its branches has made a token: the prompt is computed for all of them at once. */
static inline bool group_is_fresh(const struct group *g)
{
    bool is_fresh = true;
    for (int32_t i = 0; i < g->n_branches; i++)
        is_fresh &= g->gen->seqs[i].n_ids <= g->n_prompt;
    return is_fresh;
}

/* How long it took until nothing was left, once nothing came and nothing failed any more. */
struct drains {
    int64_t n, n_turns;
    int64_t n_allowed; /* turns, by the bound */
    int32_t worst;     /* thousandths of its bound that one of them took */
};

struct lru; /* check_lru.c */
enum { WORLD_KEYS = 8 };

struct world {
    struct world_config config;
    const struct tokenizer *tokenizer; /* borrows */
    struct toy toy;
    struct engine *engine;              /* owns */
    struct cache *cache;                /* borrows the engine's; NULL before the first submission */
    int32_t *roots[5];                  /* [n_roots] owns; texts that prompts are cut from */
    struct group *live[WORLD_MAX_LIVE]; /* [n_live] owns */
    struct group *ended[WORLD_MAX_ENDED]; /* [n_ended] owns; newest last */
    int32_t n_live, n_ended;
    int32_t turns_allowed; /* turns that a drain may take: grows with each submission */
    struct drains drains;
    struct lru *lru;                         /* owns */
    const struct gen *keys_gens[WORLD_KEYS]; /* [n_keys] borrows; what runs on each key */
    bool is_failing;                         /* the step that ends in this turn fails */
    bool has_cancelled;                      /* a callback has, in this turn */
    bool has_published;                      /* the same */
    bool has_failed;                         /* a step has, in this turn */
    uint64_t n_given_up;                     /* copies, before the turn that is made */
    uint64_t n_accepted, n_ends, n_branches; /* n_branches: whose end is due, or was told */
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
void world_fault(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline bool world_is_wrong(const struct world *w)
{
    return w->fault[0] != '\0';
}
/* For the rig of keys too: turns done of those allowed. */
void world_note_drain(struct world *w, int32_t n_turns, int32_t n_allowed);

/* request.c */
struct gen_options world_options(const struct op *op);
int32_t world_make_prompt(const struct world *w, int32_t root, const struct op *op, int32_t *ids);
enum submit_error world_expect(const struct world *w, int32_t n, int32_t n_resumed,
                               const struct gen_options *options);
/* What an operation or a callback submits. */
struct request {
    const int32_t *ids; /* [n] the prompt; resumed: not looked at */
    int32_t n;
    const struct group *resumed; /* goes on where it ended; or NULL */
    int32_t forgotten;           /* bit i: of branch i nothing was kept */
    struct gen_options options;
    int32_t user;
    enum op_react react;
};
void world_submit(struct world *w, const struct request *r);
void world_cancel(struct group *g, enum gen_finish finish);
int32_t world_turns_for(const struct world *w, const struct group *g);
void group_free(struct group *g);

/* check_turn.c */
void check_note(struct world *w);                          /* before a turn */
void check_turn(struct world *w, uint64_t n_steps_before); /* after it */
/* check_admit.c: after a turn in which it was admitted; after any that has launched a step */
void check_admitted(struct world *w, const struct group *g, bool is_copy_given_up);
void check_queue(struct world *w);
/* check_state.c: after every operation */
void check_state(struct world *w);
/* check_lru.c: behind every operation and every launch of a step */
enum lru_look {
    LRU_OPERATION, /* nothing was computed or taken since the look before */
    LRU_TURN,
    LRU_FORK, /* running sequences may have been published */
};
struct lru *lru_new(const struct world_config *config);
void lru_free(struct lru *l);
void check_lru(struct world *w, enum lru_look look);
/* Keys: one is gone (at_once: the cache knows it already), is the child of another, has another
 * name; what was not known at once is known now. */
void lru_forget(struct lru *l, int32_t key, bool at_once);
void lru_fork(struct lru *l, int32_t source, int32_t child);
void lru_rename(struct lru *l, int32_t from, int32_t to);
void lru_catch_up(struct lru *l);
/* check_end.c: of every output and end */
void check_output(struct group *g, const struct gen_output *output);
void check_end(struct group *g, const struct gen_end *end);

#endif
