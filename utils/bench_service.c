/* bench_service.c - throughput of the whole engine under paging and under reservation.
 *
 * How much faster is paging? Two figures are often taken for one: what a kernel loses by reading K/V
 * through block tables, and what a service wins since more requests fit. This is the second, on the
 * real engine with a real model. The kernels are the same for all policies, and so is the memory.
 *
 *     requests, all there ──▶ gate: reserve a run of slots ──▶ engine ──▶ end: give it back
 *                             (sim_reserve.c; paged: open)
 *
 * The gate is the simulator's reservation over as many slots as the pool has. What it lets in never
 * needs more blocks than it has reserved, so behind it the engine's own memory management has
 * nothing left to decide. First come, first served.
 *
 * Measured is the time from when a quarter has ended, since all begin with short contexts at once,
 * until nobody waits: after that a batch only drains, and how long is a matter of the last request.
 *
 * Lengths are ShareGPT's over `scale`, and so are context and slots: the shares of memory are those
 * of the paper's OPT-13B, and a laptop can run it. Blocks stay as large as they are, so the larger
 * the scale the more of the pool is half-filled or left to running requests by admission, and the
 * less paging wins. What a batch is worth is the model's and the machine's: on a CPU less than on
 * the paper's GPU. */
#include "utils/bench_service.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "model/model.h"
#include "runner/rank.h"

enum {
    BLOCK = 16,
    MAX_RUNNING = 64, /* above what fits with paging at any scale */
    MAX_ROWS = 512,
    CONTEXT = 2048, /* of the paper's model, and its slots */
    SLOTS = 15728,
};

struct service {
    const struct service_options *options; /* borrows */
    struct model *model;                   /* owns */
    struct tokenizer *tokenizer;           /* owns */
    struct runner *runner;                 /* owns */
    struct sim_load load;                  /* owns */
    int32_t n_context, n_slots;
    /* of the policy that runs */
    struct engine *engine; /* owns */
    struct sim_reserve reserve;
    struct guest *guests;   /* [load.n] owns */
    int32_t next, n_inside; /* first one that is outside; those that are inside */
};

/* A request inside the gate. */
struct guest {
    struct service *service; /* borrows */
    struct gen *gen;         /* borrows; NULL when it has ended */
    struct sim_place place;
};

/* ---- opening -------------------------------------------------------------------------------- */

static int open_load(struct service *s, struct err *err)
{
    const struct service_options *o = s->options;

    if (o->trace)
        return sim_load_read(o->trace, o->scale, 1, o->n_requests, s->n_context, &s->load, err);
    double n = o->n_requests;
    s->load =
        sim_load_draw(sim_workload_find("sharegpt"), n, 3, CONTEXT, 1); /* three times as many */
    if (s->load.n > o->n_requests)
        s->load.n = o->n_requests;
    for (int32_t i = 0; i < s->load.n; i++) {
        struct sim_request *r = &s->load.requests[i];
        r->n_prompt = (r->n_prompt + o->scale - 1) / o->scale;
        r->n_output = (r->n_output + o->scale - 1) / o->scale;
    }
    return 0;
}

static int open_service(struct service *s, struct err *err)
{
    const struct service_options *o = s->options;
    struct runner_config c = runner_config_default();
    int32_t n_ends;

    s->n_context = CONTEXT / o->scale;
    s->n_slots = SLOTS / o->scale / BLOCK * BLOCK;
    if (open_load(s, err) || !(s->model = model_open(o->model, err)) ||
        !(s->tokenizer = tokenizer_load(s->model->gguf, err)))
        return -1;
    (void)tokenizer_end_ids(s->tokenizer, &n_ends);
    c.backend = o->backend;
    c.n_threads = o->threads;
    c.isa = o->isa;
    c.affinity = o->affinity;
    c.kv_type = o->kv_type;
    c.n_context = s->n_context;
    c.block_size = BLOCK;
    c.n_blocks = s->n_slots / BLOCK;
    c.max_rows = MAX_ROWS;
    c.max_seqs = MAX_RUNNING;
    c.max_bias = ENGINE_MAX_BIAS + n_ends;
    s->runner = runner_open(s->model, &c, err);
    return s->runner ? 0 : -1;
}

static void close_service(struct service *s)
{
    if (s->runner)
        s->runner->close(s->runner);
    tokenizer_free(s->tokenizer);
    model_close(s->model);
    sim_load_free(&s->load);
    xfree(s->guests);
}

/* ---- one policy ----------------------------------------------------------------------------- */

static void on_output(void *owner, const struct gen_output *output)
{
    (void)owner; /* nobody reads it */
    (void)output;
}

static void on_end(void *owner, const struct gen_end *end)
{
    struct guest *g = owner;

    (void)end;
    g->gen = NULL;
    g->service->n_inside--;
    sim_reserve_put(&g->service->reserve, &g->place);
}

static int submit(struct service *s, int32_t i, struct err *err)
{
    static const struct gen_events events = {.output = on_output, .end = on_end};
    const struct sim_request *r = &s->load.requests[i];
    struct cache_namespace ns = {0};
    struct gen_options options = gen_options_default();
    int32_t *ids = xcalloc((size_t)r->n_prompt, sizeof *ids);

    for (int32_t k = 0; k < r->n_prompt; k++)
        ids[k] = sim_token(r, 0, k) % tokenizer_n_vocab(s->tokenizer);
    options.max_tokens = r->n_output;
    options.ignore_eos = true;
    options.temperature = 0;
    enum submit_error refused = engine_submit(s->engine, &ns, ids, r->n_prompt, &options, &events,
                                              &s->guests[i], &s->guests[i].gen, err);
    xfree(ids);
    return refused == SUBMIT_OK ? 0 : -1;
}

/* Lets in whoever is next, as long as there is room. A run shorter than a block takes one. */
static int admit(struct service *s, struct err *err)
{
    for (; s->next < s->load.n; s->next++, s->n_inside++) {
        const struct sim_request *r = &s->load.requests[s->next];
        struct guest *g = &s->guests[s->next];
        int32_t n_output = r->n_prompt + r->n_output < BLOCK ? BLOCK - r->n_prompt : r->n_output;
        *g = (struct guest){.service = s};
        if (!sim_reserve_take(&s->reserve, r->n_prompt, n_output, &g->place)) {
            if (s->n_inside > 0)
                return 0;
            return err_set(err, "%d + %d tokens do not fit into %d slots", r->n_prompt, r->n_output,
                           s->n_slots);
        }
        if (submit(s, s->next, err))
            return -1;
    }
    return 0;
}

/* Tokens in the slots of running requests. */
static int64_t count_tokens(const struct service *s)
{
    int64_t n = 0;

    for (int32_t i = 0; i < s->next; i++) {
        struct gen_view view;
        if (!s->guests[i].gen)
            continue;
        gen_view(s->guests[i].gen, &view);
        n += view.running ? view.n_prompt + view.n_ids : 0;
    }
    return n;
}

static double cpu_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* cannot fail: it is ours */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void turn(struct service *s)
{
    struct pollfd wait = {.fd = s->runner->fd, .events = POLLIN};

    (void)engine_turn(s->engine);
    if (!engine_is_idle(s->engine))
        (void)poll(&wait, 1, 1000);
}

/* The whole load; what is measured of it ends up in the result. */
static int run_load(struct service *s, struct service_result *result, int round, struct err *err)
{
    double us = 0, batch_us = 0, useful_us = 0, cpu_before_us = 0, cpu_made_us = 0;
    uint64_t n_before = 0, n_made = 0;
    struct engine_stats stats;
    bool is_measured = false, is_over = false;

    do {
        int64_t before_us = clock_mono_us();
        if (admit(s, err))
            return -1;
        turn(s);
        engine_stats(s->engine, &stats);
        double step_us = (double)(clock_mono_us() - before_us);
        is_over |= s->next == s->load.n && stats.queued == 0;
        if (is_measured && !is_over) {
            us += step_us;
            batch_us += step_us * stats.running;
            useful_us += step_us * (double)count_tokens(s);
            n_made = stats.generated_tokens - n_before;
            cpu_made_us = cpu_us() - cpu_before_us;
        } else if (!is_measured && s->next - s->n_inside >= s->load.n / 4) {
            is_measured = true;
            n_before = stats.generated_tokens;
            cpu_before_us = cpu_us();
        }
    } while (!engine_is_idle(s->engine) || s->next < s->load.n);
    if (us == 0)
        return err_set(err,
                       "%s: nobody waits behind the first quarter of %d requests; more of "
                       "them are needed (--service)",
                       result->policy, s->load.n);
    result->tokens_per_s[round] = (double)n_made * 1e6 / us;
    result->per_cpu_s[round] = (double)n_made * 1e6 / cpu_made_us;
    result->batch = batch_us / us;
    result->useful = useful_us / us / s->n_slots;
    result->preemptions = (int64_t)stats.preemptions;
    return 0;
}

static int run_policy(struct service *s, const struct sim_policy *policy,
                      struct service_result *result, int round, struct err *err)
{
    result->policy = policy->name;
    s->next = s->n_inside = 0;
    s->engine = engine_new(&(struct engine_config){.runner = s->runner,
                                                   .tokenizer = s->tokenizer,
                                                   .max_batch_tokens = MAX_ROWS,
                                                   .max_chunk = MAX_ROWS,
                                                   .max_running = MAX_RUNNING,
                                                   .max_queue = INT32_MAX},
                           err);
    if (!s->engine)
        return -1;
    sim_reserve_init(&s->reserve, policy->reserve, s->n_slots, s->n_context);
    int rc = run_load(s, result, round, err);
    engine_free(s->engine);
    sim_reserve_done(&s->reserve);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All policies in turn, as often as asked for. Main thread only; minutes. */
int service_measure(const struct service_options *o, struct service_report *report, struct err *err)
{
    struct service s = {.options = o};
    int rc = open_service(&s, err);

    *report = (struct service_report){0};
    if (rc == 0) {
        s.guests = xcalloc((size_t)s.load.n, sizeof *s.guests);
        report->n_requests = s.load.n;
        report->n_slots = s.n_slots;
        report->n_context = s.n_context;
        report->prompt_mean = sim_load_mean(&s.load, false);
        report->output_mean = sim_load_mean(&s.load, true);
        snprintf(report->device, sizeof report->device, "%s", s.runner->info.description);
    }
    for (int round = 0; round < o->rounds && rc == 0; round++)
        for (int k = 0; k < SIM_N_POLICIES && rc == 0; k++)
            rc = run_policy(&s, sim_policies[k], &report->results[k], round, err);
    for (int k = 0; k < SIM_N_POLICIES; k++) {
        qsort(report->results[k].tokens_per_s, (size_t)o->rounds, sizeof(double), by_value);
        qsort(report->results[k].per_cpu_s, (size_t)o->rounds, sizeof(double), by_value);
    }
    close_service(&s);
    return rc;
}

static double median(const double *sorted, int32_t n)
{
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

void service_print(const struct service_options *o, const struct service_report *report)
{
    const struct service_result *paged = &report->results[SIM_N_POLICIES - 1];
    double best = median(paged->tokens_per_s, o->rounds);
    double best_per_cpu = median(paged->per_cpu_s, o->rounds);

    printf("device  %s\nload    %d requests of %.0f + %.0f tokens, %d slots, context %d\n\n",
           report->device, report->n_requests, report->prompt_mean, report->output_mean,
           report->n_slots, report->n_context);
    printf("%-12s %10s %10s %10s %12s %10s %10s %14s %10s\n", "policy", "tokens/s", "slowest",
           "batch", "useful K/V %", "preempted", "paged over", "tokens/CPU s", "paged over");
    for (int k = 0; k < SIM_N_POLICIES; k++) {
        const struct service_result *r = &report->results[k];
        double middle = median(r->tokens_per_s, o->rounds);
        double per_cpu = median(r->per_cpu_s, o->rounds);
        printf("%-12s %10.1f %10.1f %10.2f %12.1f %10lld %10.2f %14.1f %10.2f\n", r->policy, middle,
               r->tokens_per_s[0], r->batch, 100 * r->useful, (long long)r->preemptions,
               best / middle, per_cpu, best_per_cpu / per_cpu);
    }
}
