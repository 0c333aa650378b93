/* latency.h - how long the calls of a command took: a histogram. */
#ifndef SERVER_LATENCY_H
#define SERVER_LATENCY_H

#include <stdint.h>

enum {
    LATENCY_STEPS = 32,                   /* buckets an octave */
    LATENCY_MAX_US = (1 << 20) - 1,       /* about a second: what is longer counts as this */
    LATENCY_BUCKETS = 16 * LATENCY_STEPS, /* 0 to 31 one by one, then 15 octaves */
};

/* Zero-initialised is empty. */
struct latency {
    uint64_t n;
    uint64_t counts[LATENCY_BUCKETS];
};

void latency_add(struct latency *l, int64_t us);
/* So many percent of the calls took at most these microseconds, rounded up by 3 % at most; 0 when
 * there were none. */
int64_t latency_percentile(const struct latency *l, double percent);
/* Calls that took at most `us`, or 3 % more. */
uint64_t latency_count_up_to(const struct latency *l, int64_t us);

#endif
