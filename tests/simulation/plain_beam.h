/* plain_beam.h - what a beam must answer: a search over the toy on plain arrays, no blocks. */
#ifndef TESTS_SIMULATION_PLAIN_BEAM_H
#define TESTS_SIMULATION_PLAIN_BEAM_H

#include "lone.h"

struct plain_answer {
    int32_t ids[LONE_MAX_IDS], n; /* generated ones, a stop string at their end included */
    double score;
    enum gen_finish finish;
};

/* One search from its beginning to its end, or for as many steps as it was told to. */
struct plain_beam {
    struct gen_options options;
    int32_t prompt[LONE_MAX_IDS], n_prompt, n_context;
    struct plain_row {
        int32_t from, id; /* the row of the step before, and what it was given */
        double sum;
    } rows[LONE_MAX_IDS][ENGINE_MAX_BEAM]; /* [n_steps][width] what goes on behind each step */
    int32_t n_steps;
    struct plain_answer answers[ENGINE_MAX_BEAM + 1]; /* [n_answers] best first */
    int32_t n_answers;
    bool is_over; /* by itself */
};

/* n_steps: those it is allowed; what goes on behind them fills the places without an answer, as a
 * cancel at that time does. */
void plain_beam_run(struct plain_beam *b, const int32_t *prompt, int32_t n_prompt,
                    const struct gen_options *options, int32_t n_context, int32_t n_steps);
/* ids [returned] <- prompt and ids of a row behind `step` steps. */
int32_t plain_beam_row(const struct plain_beam *b, int32_t step, int32_t row, int32_t *ids);
/* What the likeliest ids behind ids [n] follow from: slots and penalties. */
uint64_t plain_beam_seen(const struct plain_beam *b, const int32_t *ids, int32_t n);

#endif
