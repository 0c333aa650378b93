/* rng.c - Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random
 * Numbers: As Easy as 1, 2, 3", SC 2011. The constants are the paper's; the unit test holds its
 * known answers. A counter-based generator has no state to save: the draw for a token is a function
 * of (seed, branch, position) alone, so preemption, batching and resuming cannot move it. */
#include "base/rng.h"

#include <stdatomic.h>
#include <sys/random.h>
#include <time.h>
#include "base/err.h"

static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0};
        for (int i = 0; i < 4; i++)
            c[i] = next[i];
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

uint64_t rng_at(uint64_t seed, uint32_t branch, uint32_t position)
{
    uint32_t c[4] = {position, branch, 0, 0};
    philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (uint64_t)c[1] << 32 | c[0];
}

struct rng rng_from(uint64_t seed)
{
    return (struct rng){.key = seed};
}

uint64_t rng_next(struct rng *r)
{
    /* The last two words set streams apart from the draws of rng_at with the same seed. */
    uint32_t c[4] = {(uint32_t)r->counter, (uint32_t)(r->counter >> 32), 1, 0};
    r->counter++;
    philox(c, (uint32_t)r->key, (uint32_t)(r->key >> 32));
    return (uint64_t)c[1] << 32 | c[0];
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    ASSERT(n > 0);
    uint64_t limit = UINT64_MAX - UINT64_MAX % n, value;
    do
        value = rng_next(r);
    while (value >= limit);
    return value % n;
}

/* Test state of this file only; job threads may draw too. */
static atomic_uint_fast64_t fixed_entropy;

void rng_fix_entropy(uint64_t seed)
{
    atomic_store(&fixed_entropy, seed);
}

uint64_t rng_entropy(void)
{
    uint64_t value = atomic_load(&fixed_entropy) ? atomic_fetch_add(&fixed_entropy, 1) : 0;
    if (value)
        return rng_at(value, 0, 0);
    if (getrandom(&value, sizeof value, 0) == sizeof value)
        return value;
    struct timespec t; /* a kernel without getrandom: seeds then differ, but can be guessed */
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_nsec << 32 ^ (uint64_t)t.tv_sec;
}
