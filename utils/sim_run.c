/* sim_run.c - one load through one policy in virtual time.
 *
 *     arrivals until now -> step: ends the last, launches the next -> now += what it costs
 *
 * Requests that arrive while a step runs wait for its end, as in the server. When there is nothing
 * to do, time jumps to the next arrival. The same load gives the same result. */
#include "utils/sim_run.h"

#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

const struct sim_policy *const sim_policies[SIM_N_POLICIES + 1] = {
    &sim_orca_max, &sim_orca_pow2, &sim_orca_oracle, &sim_paged, NULL};

const struct sim_policy *sim_policy_find(const char *name)
{
    for (const struct sim_policy *const *p = sim_policies; *p; p++)
        if (strcmp((*p)->name, name) == 0)
            return *p;
    return NULL;
}

struct window {
    int64_t begin_us, end_us;
    double time_us, batch_us, shares_us[SIM_N_SHARES], named_us, used_us;
};

/* Adds the part of a step that lies in the window. */
static void window_add(struct window *w, int64_t begin_us, int64_t end_us,
                       const struct sim_step *step)
{
    int64_t from = begin_us > w->begin_us ? begin_us : w->begin_us;
    int64_t to = end_us < w->end_us ? end_us : w->end_us;

    if (from >= to)
        return;
    double t = (double)(to - from);
    w->time_us += t;
    w->batch_us += t * step->n_running;
    w->named_us += t * (double)step->named_blocks;
    w->used_us += t * (double)step->used_blocks;
    for (int i = 0; i < SIM_N_SHARES; i++)
        w->shares_us[i] += t * (double)step->shares[i];
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void summarise(const struct sim_load *load, const struct window *w, int64_t end_us,
                      int32_t slots, struct sim_result *result)
{
    double *latencies = xcalloc((size_t)load->n + 1, sizeof *latencies), sum = 0, n_tokens = 0;

    for (int32_t i = 0; i < load->n; i++) {
        const struct sim_request *r = &load->requests[i];
        ASSERT(r->end_us > r->arrival_us); /* everything has drained */
        latencies[i] = (double)(r->end_us - r->arrival_us) / 1e6 / r->n_output;
        sum += latencies[i];
        n_tokens += (double)r->n_output * (r->n_branches > 1 ? r->n_branches : 1);
    }
    qsort(latencies, (size_t)load->n, sizeof *latencies, by_value);
    result->n_ended = load->n;
    result->latency_s = load->n > 0 ? sum / load->n : 0;
    result->latency_p90_s = load->n > 0 ? latencies[load->n - 1 - load->n / 10] : 0;
    result->tokens_per_s = end_us > 0 ? n_tokens / ((double)end_us / 1e6) : 0;
    double whole = w->time_us > 0 ? w->time_us : 1;
    result->mean_batch = w->batch_us / whole;
    result->saved_part = w->named_us > 0 ? 1 - w->used_us / w->named_us : 0;
    for (int i = 0; i < SIM_N_SHARES; i++)
        result->shares[i] = w->shares_us[i] / whole / slots;
    xfree(latencies);
}

int sim_run(const struct sim_policy *policy, const struct sim_setup *setup, struct sim_load *load,
            struct sim_result *result, struct err *err)
{
    struct sim_batch *batch = policy->open(policy, setup, err);
    int64_t now_us = 0, last_us = load->n > 0 ? load->requests[load->n - 1].arrival_us : 0;
    struct window window = {.begin_us = last_us / 5, .end_us = last_us};
    struct sim_step step;
    int32_t next = 0;
    int rc = -1;

    *result = (struct sim_result){0};
    if (!batch)
        return -1;
    for (int32_t i = 0; i < load->n; i++)
        load->requests[i].end_us = 0;
    for (;;) {
        for (; next < load->n && load->requests[next].arrival_us <= now_us; next++)
            if (policy->submit(batch, &load->requests[next], now_us, err))
                goto out;
        if (policy->step(batch, now_us, &step)) {
            int64_t end_us = now_us + sim_step_us(setup->model, &step.work);
            window_add(&window, now_us, end_us, &step);
            now_us = end_us;
            result->steps++;
        } else if (next < load->n) {
            now_us = load->requests[next].arrival_us;
        } else {
            break;
        }
    }
    policy->totals(batch, &result->totals);
    summarise(load, &window, now_us, setup->model->slots, result);
    rc = 0;
out:
    policy->close(batch);
    return rc;
}
