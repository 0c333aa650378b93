/* fuzz.h - what a fuzz target defines, and what driver.c calls. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Must survive any bytes, and give back what it takes. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Optional: seeds that the target makes itself, beside those in its folder. */
typedef void (*fuzz_add)(void *arg, const char *name, const void *data, size_t len);
void fuzz_more_seeds(fuzz_add add, void *arg) __attribute__((weak));

/* Optional: mutations in a run without --mutate; slow targets take fewer than the driver's. */
extern const uint64_t fuzz_rounds __attribute__((weak));

/* Optional: the target's inputs are decisions, any bytes make a good one: half of the rounds take new
 * ones, of so many bytes at most. */
extern const size_t fuzz_drawn_bytes __attribute__((weak));

/* Optional: how many kinds of behaviour all inputs so far have shown: --keep keeps inputs that add. */
uint64_t fuzz_features(void) __attribute__((weak));

/* Optional: what a long run reports beside rounds. */
uint64_t fuzz_requests(void) __attribute__((weak));

#endif
