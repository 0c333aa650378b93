/* rng.h - counter-based random numbers, keyed: the same key gives the same number whenever it is
 * asked for, on every machine. Philox4x32-10 (Salmon et al., SC 2011). */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

/* The draw for one token: seed of the generation, branch, position of the token. */
uint64_t rng_at(uint64_t seed, uint32_t branch, uint32_t position);
/* [0, 1) with 24 bits, exact in a float. */
static inline float rng_unit(uint64_t r)
{
    return (float)(r >> 40) * 0x1p-24f;
}

/* A plain stream for everything else (tests, simulation). */
struct rng {
    uint64_t key, counter;
};
struct rng rng_from(uint64_t seed);
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n);  /* 0 .. n-1, unbiased; n > 0 */
uint64_t rng_entropy(void);                     /* from the operating system */
/* Test seam: from now on it is drawn from this; 0: from the system again. */
void rng_fix_entropy(uint64_t seed);

#endif
