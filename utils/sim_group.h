/* sim_group.h - the blocks of beams, on the real cache. */
#ifndef UTILS_SIM_GROUP_H
#define UTILS_SIM_GROUP_H

#include <stdint.h>
#include "base/rng.h"
#include "utils/sim_load.h"

enum { SIM_MAX_BEAMS = 16 };

/* Of all groups, summed over all steps: blocks that beams would hold if nobody shared, and
 * blocks that are held. */
struct sim_sharing {
    double logical, physical;
    uint64_t copies; /* copy-on-write, blocks */
};

/* Deviation of the logits from which beams draw; candidates that each beam has. Printed. */
#define SIM_BEAM_DEVIATION 8.0
enum { SIM_BEAM_CANDIDATES = 32 };

/* n_groups groups of `width` beams over prompts and outputs of the workload. */
void sim_group_run(const struct sim_workload *w, int32_t width, int32_t n_groups,
                   int32_t block_size, uint64_t seed, struct sim_sharing *sharing);

#endif
