/* rank.c - the real runner: one thread owns one device and runs plans on it.
 *
 *     main thread                       rank thread
 *     runner_open ── starts ──────────▶ opens the backend, packs the weights, opens the pool
 *        waits    ◀── LOADED / FAILED ──
 *     launch(plan) ── PLAN ───────────▶ forward_run
 *        serves clients
 *     poll         ◀── DONE, eventfd ── waits for the next plan
 *     close        ── QUIT ───────────▶ frees all of it
 *
 * A backend is only ever called from its rank thread, loading included: it may keep thread-local
 * state (rounding modes, pinned CPUs, a CUDA context). What crosses is `state` and the fields that
 * it hands over, under one mutex; a step takes milliseconds, so two hand-overs by condition
 * variable do not show. The plan and the results are never touched by both at once: the state says
 * whose.
 *
 * A failed step is a result like another. The rank goes on answering: whether that is worth trying
 * is the engine's to decide. */
#include "runner/rank.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "runner/forward.h"

#define MIN_BLOCKS 2    /* one being filled and one to copy into; less cannot run anything */
#define COPIES_A_SEQ 2  /* a copied tail on admission and a copy on write, at most */
#define KV_TYPE_STEP 16 /* kv_type = backend's place * this + type: formats never meet */
_Static_assert(KV_N_TYPES <= KV_TYPE_STEP, "a type must not reach the next backend's");

enum rank_state {
    RANK_LOADING, /* rank: open_device */
    RANK_IDLE,    /* main: may launch */
    RANK_PLAN,    /* rank: runs it */
    RANK_DONE,    /* main: may poll */
    RANK_QUIT,    /* rank: ends */
    RANK_ENDED,   /* loading failed; the thread is gone or going */
};

struct rank {
    struct runner runner; /* first: what the engine holds */
    struct runner_config config;
    struct model *model; /* borrowed */
    const struct backend_ops *ops;
    struct forward *forward; /* owns; rank thread */

    pthread_t thread;
    pthread_mutex_t mutex; /* guards state */
    pthread_cond_t changed;
    enum rank_state state;

    const struct plan *plan; /* handed over with RANK_PLAN */
    struct chosen
        *chosen; /* [max_seqs + max_best] owns; the rank's in RANK_PLAN, else the main thread's */
    struct runner_done done; /* likewise */
    struct err error;        /* of loading */
};

/* ---- the hand-over -------------------------------------------------------------------------- */

static void set_state(struct rank *r, enum rank_state state)
{
    pthread_mutex_lock(&r->mutex);
    r->state = state;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
}

static enum rank_state get_state(struct rank *r)
{
    pthread_mutex_lock(&r->mutex);
    enum rank_state state = r->state;
    pthread_mutex_unlock(&r->mutex);
    return state;
}

/* Waits while the state is a or b. */
static enum rank_state wait_while(struct rank *r, enum rank_state a, enum rank_state b)
{
    pthread_mutex_lock(&r->mutex);
    while (r->state == a || r->state == b)
        pthread_cond_wait(&r->changed, &r->mutex);
    enum rank_state state = r->state;
    pthread_mutex_unlock(&r->mutex);
    return state;
}

/* The counter of an eventfd cannot overflow here: one step, one write, one read. */
static void ring(int fd)
{
    uint64_t one = 1;
    ssize_t n;
    do
        n = write(fd, &one, sizeof(one));
    while (n < 0 && errno == EINTR);
}

static void silence(int fd)
{
    uint64_t count;
    ssize_t n;
    do
        n = read(fd, &count, sizeof(count));
    while (n < 0 && errno == EINTR);
}

/* ---- loading, on the rank thread ------------------------------------------------------------ */

struct runner_config runner_config_default(void)
{
    return (struct runner_config){
        .backend = "auto",
        .block_size = 16,
        .max_rows = 512,
        .max_seqs = 64,
        .max_bias = 1024,
    };
}

/* Half of the smaller of the free memory and what the control group leaves. */
static uint64_t kv_bytes_default(void)
{
    return mem_available_bytes() / 2;
}

static int count_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    return CPU_COUNT(&set);
}

/* Product of two counts as int32, for the sizes of a plan's pools. */
static int32_t count_product(int64_t a, int64_t b)
{
    return a * b < INT32_MAX / 16 ? (int32_t)(a * b) : INT32_MAX / 16;
}

static struct plan_limits plan_limits_of(const struct runner_config *c)
{
    int32_t table = (c->n_context + c->block_size - 1) / c->block_size;
    return (struct plan_limits){
        .max_rows = c->max_rows,
        .max_seqs = c->max_seqs,
        .max_table_blocks = count_product(c->max_seqs, table),
        .max_copies = count_product(c->max_seqs, COPIES_A_SEQ),
        .max_best = count_product(c->max_seqs, PLAN_BEST),
        .max_bias = count_product(c->max_seqs, c->max_bias),
        .max_counts = count_product(c->max_seqs, c->n_context),
        .block_size = c->block_size,
    };
}

static void probe_backend(const struct backend_ops *ops, int n_threads, struct str *out)
{
    /* The smallest plans there are: only what the device says of itself is wanted. */
    struct backend_config config = {
        .n_threads = n_threads,
        .limits = {.max_rows = 1,
                   .max_seqs = 1,
                   .max_table_blocks = 1,
                   .max_copies = 1,
                   .block_size = 16},
        .n_context = 16,
        .n_vocab = 1,
    };
    struct err err = {"no reason given"};
    struct backend *b = ops->probe(&err) == 0 ? ops->open(&config, &err) : NULL;
    if (b == NULL) {
        str_printf(out, "%s: cannot run here: %s\n", ops->name, err.text);
        return;
    }
    str_printf(out, "%s\n", ops->describe(b));
    ops->close(b);
}

void runner_probe(int n_threads, struct str *out)
{
    for (int i = 0; backends[i] != NULL; i++)
        probe_backend(backends[i], n_threads > 0 ? n_threads : count_cpus(), out);
    str_printf(out, "K/V cache by default: %llu MiB\n",
               (unsigned long long)kv_bytes_default() >> 20);
}

/* Fills what the configuration leaves open and refuses what can never work. */
static int complete_config(struct rank *r, struct err *err)
{
    struct runner_config *c = &r->config;
    if (c->n_context == 0)
        c->n_context = r->model->n_context;
    if (c->n_threads == 0)
        c->n_threads = count_cpus();
    if (c->n_context < 1 || c->n_context > r->model->n_context)
        return err_set(err, "context of %d tokens; this model was trained for %d", c->n_context,
                       r->model->n_context);
    if (c->block_size < 1 || c->block_size > 1024)
        return err_set(err, "block size %d; it must be from 1 to 1024 tokens", c->block_size);
    if (c->max_seqs < 1 || c->max_rows < c->max_seqs)
        return err_set(err, "%d tokens a step for %d sequences; each needs one", c->max_rows,
                       c->max_seqs);
    return 0;
}

/* Blocks of the pool: as asked, or as many as fit. */
static int count_blocks(struct rank *r, int32_t *n_blocks, struct err *err)
{
    const struct runner_config *c = &r->config;
    uint64_t available = mem_available_bytes();
    uint64_t room = c->kv_cache_bytes > 0 ? c->kv_cache_bytes : kv_bytes_default();
    uint64_t n = c->n_blocks > 0 ? (uint64_t)c->n_blocks : room / r->runner.info.block_bytes;
    uint64_t most = (uint64_t)INT32_MAX / (uint64_t)c->block_size; /* a slot is an int32 */

    if (n > most)
        n = most;
    if (n < MIN_BLOCKS)
        return err_set(err, "K/V cache of %llu bytes holds %llu blocks of %zu bytes; %d are needed",
                       (unsigned long long)room, (unsigned long long)n, r->runner.info.block_bytes,
                       MIN_BLOCKS);
    if (n * r->runner.info.block_bytes > available)
        return err_set(err, "K/V cache of %llu blocks is %llu bytes; %llu are free",
                       (unsigned long long)n, (unsigned long long)(n * r->runner.info.block_bytes),
                       (unsigned long long)available);
    *n_blocks = (int32_t)n;
    return 0;
}

/* Host slots: as many as asked. Swap is a matter of speed, so that a host without room for it costs
 * a warning and recomputation. */
static int32_t open_host(struct rank *r)
{
    struct err err = {""};
    uint64_t available = mem_available_bytes(), block = r->runner.info.block_bytes;
    uint64_t n = r->config.swap_bytes / block;

    if (r->config.swap_bytes == 0)
        return 0;
    if (n == 0 || n > INT32_MAX / 2 || n * block > available)
        (void)err_set(&err, "%llu bytes for blocks of %llu, %llu are free",
                      (unsigned long long)r->config.swap_bytes, (unsigned long long)block,
                      (unsigned long long)available);
    else if (forward_host_open(r->forward, (int32_t)n, &err) == 0)
        return (int32_t)n;
    log_warning(LOG_DEVICE, "no swap space: %s; preempted generations are recomputed", err.text);
    return 0;
}

static void fill_info(struct rank *r, int32_t n_blocks, const struct plan_limits *limits)
{
    int place = 0;
    while (backends[place] != NULL && backends[place] != r->ops)
        place++;
    r->runner.info = (struct runner_info){
        .n_vocab = r->model->n_vocab,
        .n_context = r->config.n_context,
        .block_size = r->config.block_size,
        .n_blocks = n_blocks,
        .n_slots = open_host(r),
        .limits = *limits,
        .model_digest = r->model->digest,
        .kv_type = place * KV_TYPE_STEP + (int32_t)forward_kv_type(r->forward),
        .kv_type_name = kv_type_names[forward_kv_type(r->forward)],
        .block_bytes = forward_block_bytes(r->forward),
    };
    snprintf(r->runner.info.description, sizeof r->runner.info.description, "%s",
             forward_describe(r->forward));
}

static int open_device(struct rank *r, struct err *err)
{
    int32_t n_blocks = 0;
    int64_t start_us = clock_mono_us();
    if (complete_config(r, err) != 0)
        return -1;
    r->ops = r->config.ops != NULL ? r->config.ops : backend_find(r->config.backend, err);
    if (r->ops == NULL)
        return -1;
    struct backend_config device = {
        .n_threads = r->config.n_threads,
        .isa = r->config.isa,
        .affinity = r->config.affinity,
        .limits = plan_limits_of(&r->config),
        .n_context = r->config.n_context,
        .kv_type = r->config.kv_type,
    };
    if ((r->forward = forward_open(r->model, r->ops, &device, err)) == NULL)
        return -1;
    r->runner.info.block_bytes = forward_block_bytes(r->forward);
    if (count_blocks(r, &n_blocks, err) != 0 || forward_pool_open(r->forward, n_blocks, err) != 0)
        return -1;
    fill_info(r, n_blocks, &device.limits);
    r->chosen =
        xcalloc((size_t)r->config.max_seqs + (size_t)device.limits.max_best, sizeof(*r->chosen));
    log_notice(LOG_DEVICE, "%s: ready after %lld ms; %d blocks of %d tokens as %s, %llu MiB",
               r->runner.info.description, (long long)((clock_mono_us() - start_us) / 1000),
               n_blocks, r->config.block_size, r->runner.info.kv_type_name,
               (unsigned long long)((uint64_t)n_blocks * r->runner.info.block_bytes >> 20));
    return 0;
}

/* ---- the rank thread ------------------------------------------------------------------------ */

static void run_plan(struct rank *r)
{
    struct err err = {""};
    int64_t start_us = clock_mono_us();
    bool failed = forward_run(r->forward, r->plan, r->chosen, NULL, &err) != 0;

    r->done = (struct runner_done){
        .failed = failed,
        .n_samples = failed ? 0 : r->plan->n_samples,
        .samples = r->chosen,
        .duration_us = clock_mono_us() - start_us,
    };
    snprintf(r->done.error, sizeof(r->done.error), "%.*s", (int)sizeof(r->done.error) - 1,
             err.text);
    if (failed)
        log_warning(LOG_DEVICE, "%s: a step of %d rows failed: %s", r->ops->name, r->plan->n_rows,
                    err.text);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    int opened = open_device(r, &r->error);

    set_state(r, opened == 0 ? RANK_IDLE : RANK_ENDED);
    while (opened == 0 && wait_while(r, RANK_IDLE, RANK_DONE) == RANK_PLAN) {
        run_plan(r);
        set_state(r, RANK_DONE);
        ring(r->runner.fd);
    }
    forward_close(r->forward);
    return NULL;
}

/* ---- the main thread ------------------------------------------------------------------------ */

static void launch(struct runner *runner, const struct plan *plan)
{
    struct rank *r = (struct rank *)runner;
    ASSERT(get_state(r) == RANK_IDLE);
    r->plan = plan;
    set_state(r, RANK_PLAN);
}

static bool poll_done(struct runner *runner, struct runner_done *done)
{
    struct rank *r = (struct rank *)runner;
    if (get_state(r) != RANK_DONE)
        return false;
    silence(r->runner.fd);
    *done = r->done;
    r->plan = NULL;
    set_state(r, RANK_IDLE);
    return true;
}

/* The thread is over; gives back the rest. */
static void free_rank(struct rank *r)
{
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    if (r->runner.fd >= 0)
        (void)close(r->runner.fd); /* nothing was promised to a reader of it */
    xfree(r->chosen);
    xfree(r);
}

static void close_runner(struct runner *runner)
{
    struct rank *r = (struct rank *)runner;
    wait_while(r, RANK_PLAN, RANK_PLAN);
    set_state(r, RANK_QUIT);
    pthread_join(r->thread, NULL);
    free_rank(r);
}

struct runner *runner_open(struct model *model, const struct runner_config *config, struct err *err)
{
    struct rank *r = xcalloc(1, sizeof(*r));
    r->config = *config;
    r->model = model;
    r->state = RANK_LOADING;
    r->runner.launch = launch;
    r->runner.poll = poll_done;
    r->runner.close = close_runner;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->runner.fd = eventfd(0, EFD_CLOEXEC);
    if (r->runner.fd < 0) {
        (void)err_set(err, "cannot make an eventfd: %s", strerror(errno));
        goto fail;
    }
    int error = pthread_create(&r->thread, NULL, rank_main, r);
    if (error != 0) {
        (void)err_set(err, "cannot start the rank thread: %s", strerror(error));
        goto fail;
    }
    if (wait_while(r, RANK_LOADING, RANK_LOADING) == RANK_IDLE)
        return &r->runner;
    pthread_join(r->thread, NULL);
    (void)err_set(err, "%s", r->error.text);
fail:
    free_rank(r);
    return NULL;
}
