/* cpu_pool.c - persistent compute threads: one parallel region an operation.
 *
 * A decode step is some 240 regions of 5 to 500 us. Waking a sleeping thread for each would cost more
 * than the work, so a worker spins on its own mailbox for about 50 us before it parks, which outlasts
 * the gaps inside a step but not those between requests. The caller works too, as thread 0, and then
 * spins for the others. A region may use fewer threads than there are; those left out stay parked.
 *
 * The split of the work is static. Handing out chunks by a counter and yielding inside a region were
 * both slower when another process takes a core: the thread that lost it still holds up the end.
 *
 * Every compute thread flushes denormals, the caller for the time of the region: VDPBF16PS always
 * does, and one path that keeps them would give other bits than the rest. */
#include "kernels/cpu/cpu_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define CPU_RELAX() _mm_pause()
static unsigned denormals_flush(void)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* FTZ and DAZ */
    return before;
}
static void denormals_restore(unsigned before)
{
    _mm_setcsr(before);
}
#else
/* One path only here, the scalar one: it agrees with itself without flushing. */
#define CPU_RELAX() ((void)0)
static unsigned denormals_flush(void)
{
    return 0;
}
static void denormals_restore(unsigned before)
{
    (void)before;
}
#endif

#define SPIN_NS                                                                                    \
    50000 /* outlasts the caller's work between two regions, not a pause between steps */
#define SPIN_LOOKS 64 /* looks at the mailbox between two looks at the clock */
#define PATIENCE_NS                                                                                \
    2000000 /* the caller yields after this: more threads than CPUs, or one taken away */

struct worker {
    struct cpu_pool *pool;
    int index;
    pthread_t thread;
    pthread_mutex_t lock; /* with `wake`: only for parking */
    pthread_cond_t wake;
    atomic_uint posted; /* number of the last region given to it; partner: worker_main */
    atomic_bool parked; /* partner: worker_post. Both orders are sequentially consistent, so that
                              either the worker sees the post or the poster sees it parked */
} __attribute__((aligned(128)));

struct cpu_pool {
    int n_threads;
    struct worker *workers; /* [n_threads] owns; 0 is the caller and unused */
    int n_started;
    cpu_work work; /* of the region under way; written before it is posted */
    void *arg;
    int n_working;
    atomic_bool closing;
    unsigned region;
    int64_t waited_ns; /* of the caller, for others, since cpu_pool_waited_ns was last asked */
    atomic_int n_left __attribute__((aligned(128))); /* workers not done; partner: cpu_pool_run */
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void worker_park(struct worker *w, unsigned seen)
{
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->parked, true);
    while (atomic_load(&w->posted) == seen)
        pthread_cond_wait(&w->wake, &w->lock);
    atomic_store(&w->parked, false);
    pthread_mutex_unlock(&w->lock);
}

static void worker_wait(struct worker *w, unsigned seen)
{
    int64_t until = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            if (atomic_load_explicit(&w->posted, memory_order_acquire) != seen)
                return;
            CPU_RELAX();
        }
    } while (now_ns() < until);
    worker_park(w, seen);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct cpu_pool *pool = w->pool;
    (void)denormals_flush();
    for (unsigned seen = 0;;) {
        worker_wait(w, seen);
        seen = atomic_load(&w->posted);
        if (atomic_load(&pool->closing))
            return NULL;
        pool->work(pool->arg, w->index, pool->n_working);
        atomic_fetch_sub(&pool->n_left, 1);
    }
}

static void worker_post(struct worker *w, unsigned region)
{
    atomic_store(&w->posted, region);
    if (!atomic_load(&w->parked))
        return;
    pthread_mutex_lock(&w->lock);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void cpu_pool_run(struct cpu_pool *pool, int n_threads, cpu_work work, void *arg)
{
    ASSERT(n_threads >= 1 && n_threads <= pool->n_threads);
    pool->work = work;
    pool->arg = arg;
    pool->n_working = n_threads;
    pool->region++;
    atomic_store(&pool->n_left, n_threads - 1);
    for (int i = 1; i < n_threads; i++)
        worker_post(&pool->workers[i], pool->region);
    unsigned before = denormals_flush();
    work(arg, 0, n_threads);
    denormals_restore(before);
    if (atomic_load(&pool->n_left) == 0)
        return;
    int64_t began = now_ns(), until = began + PATIENCE_NS;
    for (unsigned looks = 1; atomic_load_explicit(&pool->n_left, memory_order_acquire) > 0;
         looks++) {
        CPU_RELAX();
        if (looks % SPIN_LOOKS == 0 && now_ns() > until)
            sched_yield();
    }
    pool->waited_ns += now_ns() - began;
}

int64_t cpu_pool_waited_ns(struct cpu_pool *pool)
{
    int64_t waited = pool->waited_ns;
    pool->waited_ns = 0;
    return waited;
}

/* ---- life ---------------------------------------------------------------------------------------- */

/* "0,2-5" -> the set; -1 when the text is anything else. */
static int affinity_parse(const char *text, int *cpus, int cap, struct err *err)
{
    int n = 0;
    for (const char *s = text; *s;) {
        char *end;
        long first = strtol(s, &end, 10), last = first;
        if (end == s || first < 0)
            return err_set(err, "affinity '%s': expected a list of CPUs such as 0,2-5", text);
        if (*end == '-') {
            s = end + 1;
            last = strtol(s, &end, 10);
            if (end == s)
                return err_set(err, "affinity '%s': '-' without a last CPU", text);
        }
        if (last < first || last >= CPU_SETSIZE || n + (last - first) >= cap)
            return err_set(err, "affinity '%s': range %ld-%ld is not within 0-%d", text, first,
                           last, CPU_SETSIZE - 1);
        for (long cpu = first; cpu <= last; cpu++)
            cpus[n++] = (int)cpu;
        if (*end && *end != ',')
            return err_set(err, "affinity '%s': unexpected '%c'", text, *end);
        s = *end ? end + 1 : end;
    }
    return n ? n : err_set(err, "affinity is empty");
}

static int worker_start(struct worker *w, int cpu, struct err *err)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    if (cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        pthread_attr_setaffinity_np(&attr, sizeof set, &set);
    }
    int rc = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    if (rc != 0)
        return err_set(err, "compute thread %d on CPU %d: %s", w->index, cpu, strerror(rc));
    return 0;
}

struct cpu_pool *cpu_pool_open(int n_threads, const char *affinity, struct err *err)
{
    ASSERT(n_threads >= 1);
    int cpus[CPU_SETSIZE], n_cpus = 0;
    if (affinity && (n_cpus = affinity_parse(affinity, cpus, CPU_SETSIZE, err)) < 0)
        return NULL;
    struct cpu_pool *pool = xaligned(128, sizeof *pool);
    pool->n_threads = n_threads;
    pool->workers = xaligned(128, sizeof(struct worker) * (size_t)n_threads);
    pool->n_started = 1;
    for (int i = 1; i < n_threads; i++) {
        struct worker *w = &pool->workers[i];
        w->pool = pool;
        w->index = i;
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->wake, NULL);
        if (worker_start(w, n_cpus ? cpus[i % n_cpus] : -1, err) < 0) {
            cpu_pool_close(pool);
            return NULL;
        }
        pool->n_started++;
    }
    return pool;
}

void cpu_pool_close(struct cpu_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->closing, true);
    for (int i = 1; i < pool->n_started; i++) {
        struct worker *w = &pool->workers[i];
        worker_post(w, pool->region + 1);
        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->wake);
        pthread_mutex_destroy(&w->lock);
    }
    xfree(pool->workers);
    xfree(pool);
}
