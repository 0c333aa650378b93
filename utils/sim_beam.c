/* sim_beam.c - the continuations among which simulated beams choose.
 *
 * Beams are the engine's own; what lacks without a model is how likely each continuation is. How
 * much beams share hangs on that alone: where the best continuation stands far above the second,
 * every beam goes on by itself and the group shares what it shared when it got sure; where they are
 * close, the continuations of one beam soon take all places, and all but the last blocks are shared.
 *
 * A real model gets surer as its answer grows. SmolLM2-135M, in beams of 6 behind 161 tokens of a
 * novel, through this engine, pays for a token on the best beam, in nats (means of 60 tokens):
 *
 *     tokens    1-60  -120  -180  -240  -300  -360  -420  -480  -540  -600
 *     SmolLM2   0.72  0.21  0.09  0.06  0.04  0.04  0.03  0.03  0.02  0.02
 *     here      0.40  0.07  0.04  0.03  0.02  0.02  0.02  0.01  0.01  0.01
 *
 * It falls like one over the length, and so it does here: the k-th best continuation stands an
 * exponential number / k below the one before it, times a scale that grows linearly. (So stand
 * independent exponential logits in order: A. Renyi, 1953. Probabilities then fall like powers of
 * k, as words do.) The scale is set once, so that groups of the real model save what they do
 * (blocks, %, by beams of 2, 4, 6; means of 8 and 6 texts, single ones from 28 to 48 at 2):
 *
 *     prompt, answer    19, 58            161, 338
 *     SmolLM2           30.4 46.6 52.4    40.2 61.7 66.0
 *     here              30.2 44.4 48.3    43.2 62.6 68.4
 *
 * No published saving had a part in it. Tried: one scale for ever (long answers of wide beams share
 * 78 % then); logits that all beams have in common but for a part (short answers share too little);
 * a real choice now and then among certain tokens (as here, with one figure more). */
#include "utils/sim_beam.h"

#include <math.h>
#include "base/err.h"
#include "base/rng.h"

#define NEGLIGIBLE 30 /* nats below the best: e^-30 changes no sum of 64 */

/* Two beams that differ get other numbers: the last id tells their histories apart. Ids of one call
 * differ from each other. */
void sim_beam_continue(const struct sim_request *r, int32_t position, int32_t last_id, int32_t n,
                       struct chosen *best)
{
    uint64_t history = (r->stream << 20 | (uint64_t)position) << 12 | (uint64_t)last_id;
    double scale = SIM_BEAM_SLOPE * (SIM_BEAM_START + position - r->n_prompt);
    int32_t first = (int32_t)(rng_at(history, 0, 0) % (SIM_VOCAB - 1));
    double below = 0, sum = 0; /* the best one */

    ASSERT(n <= SIM_BEAM_CANDIDATES && position < 1 << 20 && last_id < 1 << 12);
    for (int32_t k = 0; k < SIM_BEAM_CANDIDATES && (k < n || below < NEGLIGIBLE); k++) {
        if (k < n)
            best[k] =
                (struct chosen){.id = 1 + (first + k) % (SIM_VOCAB - 1), .logprob = (float)-below};
        sum += exp(-below);
        double unit = ((double)(rng_at(history, 1, (uint32_t)k) >> 11) + 0.5) * 0x1p-53;
        below -= scale * log(unit) / (k + 1);
    }
    for (int32_t k = 0; k < n; k++)
        best[k].logprob -= (float)log(sum);
}
