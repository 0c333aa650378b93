/* ref_backend.c - the reference backend: life, memory, threads, operation table.
 *
 * Every operation in plain loops: the definition of correct, against which the others are tested.
 * Activations and weights are floats (the values that quant.c reads out of the file), every sum is
 * one chain of doubles in ascending order. So a result depends on its
 * own inputs alone, never on the number of rows beside it, on chunks, or on threads.
 *
 * It is plain, not slow on purpose: the sums of eight outputs run side by side in vector lanes
 * (REF_LANES), which changes no bit. An operation that is worth it is dealt out to threads that are
 * started for it and joined at its end: some 30 us each, nothing beside what a reference takes, and
 * no lock, no state and no shutdown to get wrong. */
#include "kernels/ref/ref.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

#define MAX_THREADS 64 /* more than a reference needs, and a bound for the array of thread ids */

/* ---- errors --------------------------------------------------------------------------------- */

/* Keeps the first error until sync. */
__attribute__((format(printf, 2, 3))) static void fail(struct ref *r, const char *format, ...)
{
    if (r->has_error)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(r->error.text, sizeof(r->error.text), format, args);
    va_end(args);
    r->has_error = true;
}

static int sync_errors(struct backend *b, struct err *err)
{
    struct ref *r = (struct ref *)b;
    if (!r->has_error)
        return 0;
    r->has_error = false;
    return err_set(err, "%s", r->error.text);
}

/* ---- threads -------------------------------------------------------------------------------- */

struct share {
    ref_work work;
    void *arg;
    int32_t n;
    _Atomic int32_t
        *next; /* the item that nobody has taken yet; shared by the helpers of one call */
    int thread;
};

static void *run_share(void *arg)
{
    const struct share *s = arg;
    for (;;) {
        int32_t i = atomic_fetch_add_explicit(s->next, 1, memory_order_relaxed);
        if (i >= s->n)
            return NULL;
        s->work(s->arg, i, s->thread);
    }
}

void ref_parallel(const struct ref *r, int32_t n, ref_work work, void *arg)
{
    pthread_t threads[MAX_THREADS];
    struct share shares[MAX_THREADS];
    _Atomic int32_t next = 0;
    int n_threads = r->config.n_threads < n ? r->config.n_threads : n, n_started = 0;

    for (int t = 0; t < n_threads; t++)
        shares[t] = (struct share){work, arg, n, &next, t};
    /* Where the system gives no thread, the ones that run do its share. */
    for (int t = 1; t < n_threads; t++, n_started++)
        if (pthread_create(&threads[t], NULL, run_share, &shares[t]) != 0)
            break;
    if (n > 0)
        run_share(&shares[0]);
    for (int t = 1; t <= n_started; t++)
        pthread_join(threads[t], NULL);
}

/* ---- life and memory ------------------------------------------------------------------------ */

static int probe(struct err *err)
{
    (void)err;
    return 0;
}

static struct backend *open_ref(const struct backend_config *config, struct err *err)
{
    if (config->n_threads < 1)
        return err_null(err, "ref: %d threads; at least 1 is needed", config->n_threads);
    struct ref *r = xcalloc(1, sizeof(*r));
    r->base.ops = &ref_backend_ops;
    r->config = *config;
    if (r->config.n_threads > MAX_THREADS)
        r->config.n_threads = MAX_THREADS;
    snprintf(r->description, sizeof(r->description), "ref: plain C in double, %d thread%s",
             r->config.n_threads, r->config.n_threads == 1 ? "" : "s");
    if (choose_scratch_init(&r->choose, config->n_vocab, err) != 0) {
        xfree(r);
        return NULL;
    }
    return &r->base;
}

static void close_ref(struct backend *b)
{
    struct ref *r = (struct ref *)b;
    ref_pool_close(b);
    choose_scratch_free(&r->choose);
    xfree(r);
}

static const char *describe(struct backend *b)
{
    return ((struct ref *)b)->description;
}

/* calloc and not try_malloc: large sizes come from the kernel as zero pages, mapped on first use.
 */
static void *alloc_memory(struct backend *b, size_t size_bytes)
{
    void *p = calloc(1, size_bytes > 0 ? size_bytes : 1);
    if (p == NULL)
        fail((struct ref *)b, "ref: no memory for a buffer of %zu bytes", size_bytes);
    return p;
}

static void free_memory(struct backend *b, void *p)
{
    (void)b;
    free(p);
}

static void copy_memory(struct backend *b, void *dst, const void *src, size_t size_bytes)
{
    (void)b;
    memcpy(dst, src, size_bytes);
}

static size_t act_bytes(struct backend *b, int32_t rows, int32_t k)
{
    (void)b;
    return (size_t)rows * (size_t)k * sizeof(float);
}

static size_t q_bytes(struct backend *b, int32_t rows)
{
    const struct attention_shape *s = &((struct ref *)b)->shape;
    return (size_t)rows * (size_t)s->n_heads * (size_t)s->head_dim * sizeof(float);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static void step_begin(struct backend *b, const struct plan *plan)
{
    struct ref *r = (struct ref *)b;
    ASSERT(plan->limits.block_size == r->config.limits.block_size);
    r->plan = plan;
}

static void step_end(struct backend *b)
{
    ((struct ref *)b)->plan = NULL;
}

const struct backend_ops ref_backend_ops = {
    .name = "ref",
    .kv_types = {KV_F32, KV_BF16, KV_INT8},
    .probe = probe,
    .open = open_ref,
    .close = close_ref,
    .describe = describe,
    .alloc = alloc_memory,
    .free = free_memory,
    .upload = copy_memory,
    .download = copy_memory,
    .act_bytes = act_bytes,
    .pack = ref_pack,
    .unpack = ref_unpack,
    .block_bytes = ref_block_bytes,
    .pool_open = ref_pool_open,
    .host_open = ref_host_open,
    .pool_close = ref_pool_close,
    .step_begin = step_begin,
    .out = ref_out,
    .in = ref_in,
    .copy = ref_copy,
    .embed = ref_embed,
    .norm = ref_norm,
    .matmul = ref_matmul,
    .rope_kv_write = ref_rope_kv_write,
    .q_bytes = q_bytes,
    .attention = ref_attention,
    .act = ref_act,
    .gather = ref_gather,
    .choose = ref_choose,
    .step_end = step_end,
    .sync = sync_errors,
};
