/* latency.c - how long the calls of a command took: a histogram for INFO latencystats and LATENCY.
 *
 * Calls take from none to millions of microseconds, and what is asked for are percentiles, where an
 * error of a few percent does not matter: so buckets grow with what they hold. Below 32 each number
 * has its own; above, each octave is cut into 32:
 *
 *     0 1 2 ... 31 | 32 33 ... 63 | 64-65 66-67 ... 126-127 | 128-131 ... | ... 1,048,575
 *
 * 4 KiB for a command that was called, one addition a call. Main thread only. */
#include "server/latency.h"

#include <math.h>

enum { STEP_BITS = 5 };
_Static_assert(1 << STEP_BITS == LATENCY_STEPS, "32 buckets an octave");

static int bucket_of(int64_t us)
{
    int shift = 0;
    us = us < 0 ? 0 : us > LATENCY_MAX_US ? LATENCY_MAX_US : us;
    while (us >> shift >= 2 * LATENCY_STEPS)
        shift++;
    return shift * LATENCY_STEPS + (int)(us >> shift);
}

/* The greatest number of microseconds that falls into it. */
static int64_t bucket_end(int bucket)
{
    int shift = bucket < 2 * LATENCY_STEPS ? 0 : bucket / LATENCY_STEPS - 1;
    return ((int64_t)(bucket - shift * LATENCY_STEPS + 1) << shift) - 1;
}

void latency_add(struct latency *l, int64_t us)
{
    l->n++;
    l->counts[bucket_of(us)]++;
}

int64_t latency_percentile(const struct latency *l, double percent)
{
    uint64_t wanted = (uint64_t)ceil((double)l->n * percent / 100), seen = 0;
    for (int i = 0; i < LATENCY_BUCKETS && l->n > 0; i++) {
        seen += l->counts[i];
        if (seen >= wanted && seen > 0)
            return bucket_end(i);
    }
    return 0;
}

uint64_t latency_count_up_to(const struct latency *l, int64_t us)
{
    uint64_t n = 0;
    for (int i = 0, last = bucket_of(us); i <= last; i++)
        n += l->counts[i];
    return n;
}
