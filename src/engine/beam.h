/* beam.h - beam search over the branches of a group: which of the best continuations go on. */
#ifndef ENGINE_BEAM_H
#define ENGINE_BEAM_H

#include <stdbool.h>
#include <stdint.h>
#include "cache/cache.h"
#include "engine/engine.h"
#include "engine/output.h"

struct gen;
struct seq;

/* An answer that is complete. */
struct beam_answer {
    int32_t *ids;            /* [n] owns; generated, without the end-of-text id */
    struct chosen *logprobs; /* [n, 1 + n_logprobs] owns; of those ids; NULL: nobody asked */
    int32_t n;
    double score; /* sum of log-probabilities / length^penalty; the end-of-text id counts in both */
    enum gen_finish finish;
};
struct beam_candidate {
    double sum;
    int32_t branch, rank, id; /* rank: among those of its branch */
    enum gen_finish finish;   /* GEN_NONE, or GEN_LENGTH: it goes no further */
};

/* The search of one generation, which owns it. Main thread only. */
struct beam {
    const struct tokenizer *tokenizer; /* borrows */
    int32_t width, n_candidates;       /* n_candidates: best ids looked at of each branch */
    int32_t n_logprobs;                /* told beside each id; -1: nobody asked */
    double length_penalty;
    bool early_stop, ignore_eos;
    double *sums;                /* [width] owns; of the running branches; -INFINITY: holds a
                                    place only */
    const struct chosen **best;  /* [width] owns; of this step, each [n_candidates] at least; NULL:
                                    none */
    int32_t n_ready;             /* branches whose best have come */
    struct beam_answer *answers; /* [n_answers of width] owns; best first */
    int32_t n_answers;
    struct beam_candidate *candidates, *next; /* [width * n_candidates], [width] own */
    struct output check;                      /* stop strings and limits of every continuation */
    int32_t *matched; /* [width + 1, n_stops] owns; of them what the text of each branch ends with;
                            the last row is for trying */
};

struct beam *beam_new(const struct tokenizer *t, const struct gen_options *options,
                      int32_t n_prompt, int32_t n_context);
void beam_free(struct beam *b);
int32_t beam_n_best(const struct tokenizer *t, const struct gen_options *options);
bool beam_take(struct gen *g, struct seq *q, const struct chosen *best);
bool beam_step(struct gen *g, struct cache *c);
void beam_settle(struct gen *g, enum gen_finish finish);
void beam_show(struct gen *g, int32_t branch);
const struct seq *beam_at(const struct gen *g, int32_t place);

#endif
