/* sim_load.h - what arrives: lengths, arrival times, token ids; drawn from a seed or recorded. */
#ifndef UTILS_SIM_LOAD_H
#define UTILS_SIM_LOAD_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/rng.h"

/* Every token id is below this; 0 ends a text and is never made. Large, so that prompts that have
 * nothing in common do not look alike. */
enum { SIM_VOCAB = 4096, SIM_SHARED_STREAM = 1, SIM_FIRST_STREAM = 2 };

/* One request. Its ids are a piece of an endless stream of tokens; prompts that share a beginning
 * take it from a common stream. Whatever is generated is the stream's next token: so a prompt that
 * is the history of a conversation can be known before anything runs. */
struct sim_request {
    int64_t arrival_us, end_us; /* end_us: filled by the policy; 0 until then */
    int32_t n_prompt, n_output;
    int32_t n_branches; /* answers, each of n_output tokens; 0: one */
    bool is_beam;       /* they are found by beam search; else each is a sample */
    int32_t n_shared;   /* leading tokens that come from SIM_SHARED_STREAM */
    int32_t offset;     /* of the first token in its stream */
    uint64_t stream;
    const int32_t *blocks; /* [ceil(n_prompt / 16)] borrows from the load: recorded ids of the
                              prompt's blocks; NULL when the stream gives them */
};
int32_t sim_token(const struct sim_request *r, int32_t branch, int32_t position);

struct sim_load {
    struct sim_request *requests; /* [n] owns; in order of arrival */
    int32_t n;
    int32_t *blocks; /* owns; of all requests */
};
void sim_load_free(struct sim_load *l);
double sim_load_mean(const struct sim_load *l, bool of_outputs);

/* Log-normal lengths, cut at `cut`, with this mean after the cut. */
struct sim_lengths {
    double mean, sigma;
    int32_t cut;
    double mu; /* filled by sim_lengths_fit */
};
void sim_lengths_fit(struct sim_lengths *d);
int32_t sim_lengths_draw(const struct sim_lengths *d, struct rng *r);

/* A workload as the paper names it. */
struct sim_workload {
    const char *name;
    double prompt_mean, output_mean, sigma;
    int32_t n_shared; /* tokens before each prompt that all have in common */
};
extern const struct sim_workload sim_workloads[]; /* ends with name NULL */
const struct sim_workload *sim_workload_find(const char *name);

/* Poisson arrivals at `rate` a second for `seconds`. */
struct sim_load sim_load_draw(const struct sim_workload *w, double rate, double seconds,
                              int32_t n_context, uint64_t seed);
/* Turns of conversations: prompts are the last max_prompt tokens of the history. is_kept: they
 * really are the history's ids; otherwise nothing is ever found again. */
struct sim_load sim_load_chat(const struct sim_workload *w, double rate, double seconds,
                              int32_t max_prompt, int32_t max_output, bool is_kept, uint64_t seed);
/* A recorded trace: columns t_ms, in_tok, out_tok and perhaps blocks512. Lengths are divided by
 * `scale` and cut to the context; at most `limit` requests; time runs `speed` times as fast. */
int sim_load_read(const char *path, int32_t scale, double speed, int32_t limit, int32_t n_context,
                  struct sim_load *load, struct err *err);

#endif
