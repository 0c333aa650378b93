/* generation.h - one GEN inside the engine: its branches, its place in the order, its figures. */
#ifndef ENGINE_GENERATION_H
#define ENGINE_GENERATION_H

#include <stdbool.h>
#include <stdint.h>
#include "base/list.h"
#include "cache/cache.h"
#include "engine/beam.h"
#include "engine/engine.h"
#include "engine/output.h"
#include "engine/prompt.h"
#include "engine/sampler.h"

enum gen_state {
    GEN_QUEUED,  /* holds no block */
    GEN_RUNNING, /* holds blocks for all ids of its live branches */
    GEN_ENDED,   /* no branch is live; ends are still to be told */
    GEN_TOLD,    /* all end callbacks were called */
};

enum seq_state {
    SEQ_LIVE,
    SEQ_ENDED, /* holds nothing; its end is still to be told */
    SEQ_TOLD,  /* the end callback was called; or it was over before it was submitted */
};

/* A branch: the ids that the model sees, and what was computed of them. */
struct seq {
    struct gen *gen; /* borrows; whose array it is in */
    int32_t branch;
    enum seq_state state;
    enum gen_finish finish; /* GEN_NONE until it has ended; set early when resumed ids end it */
    double score;           /* of a beam's answer */
    int64_t ended_us;       /* clock_now_us */
    int32_t *ids;           /* [n_ids of ids_cap] owns; the prompt, then what was generated */
    int32_t n_ids, ids_cap;
    struct block_table table; /* open while it is live; branches of a group without any generated id
                                 hold no block but for the first: they take its table */
    struct sampler sampler;
    struct output output;
    struct chosen *logprobs; /* [ids_cap - n_prompt, 1 + n_best] owns; NULL: nobody asked */
    int32_t n_best;
    int32_t n_rows_told; /* of logprobs */
    int32_t n_planned;   /* rows in the step that is being made or runs */
    bool is_decoding;    /* they are one decode, or none: it sits the step out */
};

/* One generation. The engine owns it from engine_submit until its end callback has returned. Main
 * thread only. */
struct gen {
    struct list in_order;  /* node of sched's queue or running list; alone once ended */
    struct list in_outbox; /* node of the engine's outbox; alone when nothing is to be told */
    struct engine *engine; /* borrows */
    struct cache *cache;   /* borrows */
    enum gen_state state;
    struct seq
        *seqs; /* [n_seqs] owns; the branches: admitted, preempted and cancelled as a whole */
    int32_t n_seqs, n_live;
    int32_t n_common;  /* leading blocks that all live branches name since the last admission, and
                         the first one computes */
    struct beam *beam; /* owns; NULL: branches go their own ways */
    struct prompt_rows prompt_rows;
    struct cache_owner promises;
    struct cache_namespace ns;
    struct gen_events events; /* functions are the submitter's */
    void *owner;              /* borrows; of the events */
    int32_t n_callers;        /* callbacks of it on the stack: it is freed behind the last */
    int32_t n_to_tell;        /* branches that have to be looked at, from tell_at on, round */
    int32_t tell_at;          /* 0 unless a slice of telling has ended inside the group */

    /* place in the order */
    int32_t priority, boost;      /* boost: highest priority of those who wait for its promises */
    uint64_t arrival;             /* kept through preemption */
    int64_t deadline_us;          /* 0: none */
    struct cache_found waits_for; /* the promise it was passed over for; promised_by NULL: none */
    bool was_passed;              /* over, for a promise */
    int32_t n_preempted;

    /* limits and figures */
    int64_t max_tokens;
    int32_t n_prompt, n_cached;
    bool was_admitted, has_token;
    int64_t submitted_us, admitted_us, token_us; /* clock_now_us; of the first of each */
    struct str error;                            /* owns; of GEN_ERROR */
};

struct gen *gen_new(struct cache *c, const struct tokenizer *t, const struct cache_namespace *ns,
                    const int32_t *prompt, int32_t n_prompt, const struct gen_options *options,
                    int32_t n_context);
void gen_free(struct gen *g);
bool gen_is_fresh(const struct gen *g);
bool gen_is_planned(const struct gen *g);
int32_t gen_place_of(const struct gen *g, int32_t branch);
void seq_accept(struct seq *q, int32_t id);
void seq_note_logprobs(struct seq *q, const struct chosen *id, const struct chosen *best);
void seq_finish_with(struct seq *q, enum gen_finish finish, const char *error);
void seq_describe_end(const struct seq *q, struct gen_end *end);
struct gen_times {
    int64_t queued_ms, prefill_ms, decode_ms;
};
struct gen_times seq_times(const struct seq *q);
int32_t seq_n_known(const struct seq *q);
int32_t seq_n_generated(const struct seq *q);

/* The first live branch behind q, of all when q is NULL; NULL: no more. */
static inline struct seq *gen_next_live(const struct gen *g, const struct seq *q)
{
    for (int32_t i = q ? q->branch + 1 : 0; i < g->n_seqs; i++)
        if (g->seqs[i].state == SEQ_LIVE)
            return &g->seqs[i];
    return NULL;
}
/* The body may end q. */
#define GEN_FOREACH_LIVE(g, q)                                                                     \
    for (struct seq *q = gen_next_live(g, NULL); q; q = gen_next_live(g, q))

/* The one order of queue, budget and victims: the higher priority, then who came first. */
static inline int32_t gen_rank(const struct gen *g)
{
    return g->priority > g->boost ? g->priority : g->boost;
}
static inline bool gen_precedes(const struct gen *a, const struct gen *b)
{
    return gen_rank(a) != gen_rank(b) ? gen_rank(a) > gen_rank(b) : a->arrival < b->arrival;
}

#endif
