/* cpu_backend.c - the CPU backend: life, memory, operation table.
 *
 * Weights are re-laid at load into panels (cpu_pack.c), activations are int8 with a scale for each 32
 * values, K and V are bf16 or int8; the loops exist for several instruction sets and give the same bits on
 * all (cpu_kernel.h). Operations run at once, each as one parallel region over persistent threads
 * (cpu_pool.c); nothing in a step allocates. How many threads an operation gets depends on its rows
 * and changes no bit: every output element is one thread's, in one order of sums. */
#include "kernels/cpu/cpu_backend.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "base/mem.h"
#include "kernels/cpu/cpu_isa.h"

#define MAX_THREADS 1024

/* The threads of a region are worth nothing while one of their cores belongs to somebody else: each
 * region then ends when the scheduler gives the core back. A step that spent more than half its time
 * waiting sends the next few to one thread, and more of them each time that a retry finds no better;
 * one thread beside a busy process was 1.2 to 2.1 times as fast as two. */
enum { ALONE_FIRST = 4, ALONE_MOST = 256 };

/* ---- errors ---------------------------------------------------------------------------------------- */

/* Keeps the first error until sync. */
__attribute__((format(printf, 2, 3))) static void fail(struct cpu *c, const char *format, ...)
{
    if (c->has_error)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(c->error.text, sizeof c->error.text, format, args);
    va_end(args);
    c->has_error = true;
}

static int sync_errors(struct backend *b, struct err *err)
{
    struct cpu *c = (struct cpu *)b;
    if (!c->has_error)
        return 0;
    c->has_error = false;
    return err_set(err, "%s", c->error.text);
}

/* ---- memory ---------------------------------------------------------------------------------------- */

/* A page before the memory keeps its size. Large pieces ask for huge pages: panels are streams and
 * blocks of the pool lie anywhere, both are hard on the TLB. */
#define MAP_HEAD 4096
#define HUGE_BYTES ((size_t)4 << 20)

void *cpu_map(size_t size_bytes)
{
    size_t total;
    if (!add_ok(size_bytes, MAP_HEAD, &total))
        return NULL;
    uint8_t *p = mmap(NULL, total, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (total >= HUGE_BYTES)
        (void)madvise(p, total, MADV_HUGEPAGE); /* a wish: without it everything works, slower */
    memcpy(p, &total, sizeof total);
    return p + MAP_HEAD;
}

void cpu_unmap(void *p)
{
    if (!p)
        return;
    uint8_t *start = (uint8_t *)p - MAP_HEAD;
    size_t total;
    memcpy(&total, start, sizeof total);
    munmap(start, total);
}

static void *alloc_memory(struct backend *b, size_t size_bytes)
{
    void *p = cpu_map(size_bytes);
    if (!p)
        fail((struct cpu *)b, "cpu: no memory for a buffer of %zu bytes", size_bytes);
    return p;
}

static void free_memory(struct backend *b, void *p)
{
    (void)b;
    cpu_unmap(p);
}

static void copy_memory(struct backend *b, void *dst, const void *src, size_t size_bytes)
{
    (void)b;
    memcpy(dst, src, size_bytes);
}

void cpu_row_reserve(struct cpu *c, int32_t n)
{
    if (n <= c->row_cap)
        return;
    for (int i = 0; i < c->config.n_threads; i++) {
        xfree(c->threads[i].row);
        c->threads[i].row = xaligned(64, (size_t)n * sizeof(float));
    }
    c->row_cap = n;
}

/* ---- life ------------------------------------------------------------------------------------------ */

static int probe(struct err *err)
{
    (void)err; /* the scalar path runs everywhere */
    return 0;
}

static void close_cpu(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    cpu_pool_close_kv(b);
    cpu_pool_close(c->pool);
    for (int i = 0; c->threads && i < c->config.n_threads; i++) {
        xfree(c->threads[i].row);
        choose_scratch_free(&c->threads[i].choose);
    }
    xfree(c->threads);
    xfree(c);
}

static int open_threads(struct cpu *c, struct err *err)
{
    c->threads = xaligned(128, (size_t)c->config.n_threads * sizeof *c->threads);
    for (int i = 0; i < c->config.n_threads; i++) {
        if (choose_scratch_init(&c->threads[i].choose, c->config.n_vocab, err) < 0)
            return -1;
    }
    c->pool = cpu_pool_open(c->config.n_threads, c->config.affinity, err);
    return c->pool ? 0 : -1;
}

static struct backend *open_cpu(const struct backend_config *config, struct err *err)
{
    if (config->n_threads < 1 || config->n_threads > MAX_THREADS)
        return err_null(err, "cpu: %d threads; from 1 to %d are possible", config->n_threads,
                        MAX_THREADS);
    const struct cpu_kernel *kernel = cpu_isa_find(config->isa, err);
    if (!kernel)
        return NULL;
    struct cpu *c = xcalloc(1, sizeof *c);
    c->base.ops = &cpu_backend_ops;
    c->config = *config;
    c->kernel = kernel;
    c->alone_next = ALONE_FIRST;
    snprintf(c->description, sizeof c->description, "cpu: %s, %d thread%s%s%s", kernel->isa,
             config->n_threads, config->n_threads == 1 ? "" : "s",
             config->affinity ? ", pinned to " : "", config->affinity ? config->affinity : "");
    if (open_threads(c, err) < 0) {
        close_cpu(&c->base);
        return NULL;
    }
    return &c->base;
}

static const char *describe(struct backend *b)
{
    return ((struct cpu *)b)->description;
}

/* ---- steps ----------------------------------------------------------------------------------------- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void judge_step(struct cpu *c)
{
    int64_t waited = cpu_pool_waited_ns(c->pool), took = now_ns() - c->step_began_ns;
    if (c->step_threads == 1)
        return;
    if (waited <= took / 2) {
        c->alone_next = ALONE_FIRST;
        return;
    }
    c->alone_left = c->alone_next;
    c->alone_next = c->alone_next * 2 < ALONE_MOST ? c->alone_next * 2 : ALONE_MOST;
}

int cpu_threads_for(const struct cpu *c, int32_t rows)
{
    (void)rows; /* one row is bound by memory, but two streams still read faster than one */
    return c->plan ? c->step_threads : c->config.n_threads;
}

static void step_begin(struct backend *b, const struct plan *plan)
{
    struct cpu *c = (struct cpu *)b;
    ASSERT(plan->limits.block_size == c->config.limits.block_size);
    c->plan = plan;
    c->step_threads = c->alone_left > 0 ? 1 : c->config.n_threads;
    c->alone_left -= c->alone_left > 0;
    c->step_began_ns = now_ns();
    (void)cpu_pool_waited_ns(c->pool); /* what loading waited is nobody's */
    if (c->kv)
        cpu_attention_plan(c);
}

static void step_end(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    judge_step(c);
    c->plan = NULL;
}

const struct backend_ops cpu_backend_ops = {
    .name = "cpu",
    .kv_types = {KV_BF16, KV_INT8},
    .probe = probe,
    .open = open_cpu,
    .close = close_cpu,
    .describe = describe,
    .alloc = alloc_memory,
    .free = free_memory,
    .upload = copy_memory,
    .download = copy_memory,
    .act_bytes = cpu_act_bytes,
    .pack = cpu_pack,
    .unpack = cpu_unpack,
    .block_bytes = cpu_block_bytes,
    .pool_open = cpu_pool_open_kv,
    .host_open = cpu_host_open,
    .pool_close = cpu_pool_close_kv,
    .step_begin = step_begin,
    .out = cpu_out,
    .in = cpu_in,
    .copy = cpu_copy,
    .embed = cpu_embed,
    .norm = cpu_norm,
    .matmul = cpu_matmul_run,
    .rope_kv_write = cpu_rope_kv_write,
    .q_bytes = cpu_q_bytes,
    .attention = cpu_attention,
    .act = cpu_act,
    .gather = cpu_gather,
    .choose = cpu_choose,
    .step_end = step_end,
    .sync = sync_errors,
};
