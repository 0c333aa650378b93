/* cpu_pool.h - persistent compute threads: one parallel region an operation. */
#ifndef CPU_POOL_H
#define CPU_POOL_H

#include <stdint.h>
#include "base/err.h"

struct cpu_pool;
/* thread 0 .. n_threads - 1; thread 0 is the caller of cpu_pool_run. */
typedef void (*cpu_work)(void *arg, int thread, int n_threads);

/* affinity: list of CPUs such as "0,2-5", thread i on the i-th of them (wrapping); NULL: unpinned.
 * The caller's own thread is never pinned here. */
struct cpu_pool *cpu_pool_open(int n_threads, const char *affinity, struct err *err);
void cpu_pool_close(struct cpu_pool *pool); /* accepts NULL */
/* Runs work on the first n_threads threads and returns when all have ended. */
void cpu_pool_run(struct cpu_pool *pool, int n_threads, cpu_work work, void *arg);
/* How long the caller has waited at the ends of regions since the last call. */
int64_t cpu_pool_waited_ns(struct cpu_pool *pool);

/* The part [*first, *end) of n items that thread `thread` of n_threads takes: even, in order. */
static inline void cpu_share(int n, int thread, int n_threads, int *first, int *end)
{
    *first = (int)((long long)n * thread / n_threads);
    *end = (int)((long long)n * (thread + 1) / n_threads);
}

#endif
