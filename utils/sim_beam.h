/* sim_beam.h - the continuations among which simulated beams choose. */
#ifndef UTILS_SIM_BEAM_H
#define UTILS_SIM_BEAM_H

#include <stdint.h>
#include "kernels/backend.h"
#include "utils/sim_load.h"

/* Continuations that are weighed at every position; more than the best that a beam asks for. */
enum { SIM_BEAM_CANDIDATES = 64 };
/* Deviation of their logits: so much more with every token of the answer; as if so many had been
 * made before the first. */
#define SIM_BEAM_SLOPE 0.1
#define SIM_BEAM_START 5

/* best [n], n <= SIM_BEAM_CANDIDATES: what may follow token last_id, to stand at `position`. */
void sim_beam_continue(const struct sim_request *r, int32_t position, int32_t last_id, int32_t n,
                       struct chosen *best);

#endif
