/* sim_curve.c - latency over rate, and the rate that a policy sustains.
 *
 * Systems are compared by the rate at which their normalised latency passes one limit, as the paper
 * does: below it all are alike, far above it latency only says how long the trace was. The rate is
 * interpolated between the two points around the limit, in the logarithm of the latency. */
#include <math.h>
#include "utils/sim_paper.h"

struct sim_setup sim_setup_of(const char *model)
{
    return (struct sim_setup){.model = sim_model_find(model),
                              .block_size = 16,
                              .max_running = 256, /* as the paper's implementation has it */
                              .max_rows = 2560};
}

static struct sim_load make_load(const struct sim_options *o, const struct sim_curve *c,
                                 enum sim_load_kind kind, double rate)
{
    const struct sim_workload *w = sim_workload_find(c->workload);
    double seconds = c->seconds * o->part;

    if (kind == SIM_LOAD_CHAT || kind == SIM_LOAD_CHAT_KEPT)
        return sim_load_chat(w, rate, seconds, 1024, 1024, kind == SIM_LOAD_CHAT_KEPT, o->seed);
    struct sim_load l =
        sim_load_draw(w, rate, seconds, sim_model_find(c->model)->n_context, o->seed);
    for (int32_t i = 0; kind == SIM_LOAD_UNSHARED && i < l.n; i++)
        l.requests[i].n_shared = 0; /* the same lengths, nothing in common */
    return l;
}

static int one_point(const struct sim_options *o, const struct sim_curve *c, int series,
                     double rate, double *latency_s, struct err *err)
{
    struct sim_setup setup = sim_setup_of(c->model);
    struct sim_load load = make_load(o, c, c->series[series].kind, rate);
    struct sim_result result;
    int rc = sim_run(c->series[series].policy, &setup, &load, &result, err);

    *latency_s = result.latency_s;
    sim_load_free(&load);
    return rc;
}

/* Where the latency passes the limit; the last rate when it never does. */
static double sustained(const double *latencies, double top_rate)
{
    double step = top_rate / SIM_CURVE_POINTS;

    if (latencies[0] > SIM_LATENCY_LIMIT_S)
        return step;
    for (int i = 1; i < SIM_CURVE_POINTS; i++) {
        if (latencies[i] <= SIM_LATENCY_LIMIT_S)
            continue;
        double below = log(latencies[i - 1]), above = log(latencies[i]);
        return step * (i + (log(SIM_LATENCY_LIMIT_S) - below) / (above - below));
    }
    return top_rate;
}

int sim_curve(const struct sim_options *o, const struct sim_curve *c, double *rates,
              struct err *err)
{
    double latencies[SIM_CURVE_SERIES][SIM_CURVE_POINTS];
    struct sim_table t;
    struct str line = {0};

    str_append_str(&line, "requests/s");
    for (int k = 0; k < c->n_series; k++)
        str_printf(&line, "\t%s", c->series[k].name);
    sim_table_begin(&t, c->name, c->title, line.data);
    for (int i = 0; i < SIM_CURVE_POINTS; i++) {
        double rate = c->top_rate * (i + 1) / SIM_CURVE_POINTS;
        str_clear(&line);
        str_printf(&line, "%.3f", rate);
        for (int k = 0; k < c->n_series; k++) {
            if (one_point(o, c, k, rate, &latencies[k][i], err)) {
                str_free(&line);
                (void)sim_table_end(&t, NULL, err);
                return -1;
            }
            str_printf(&line, "\t%.3f", latencies[k][i]);
        }
        sim_table_row(&t, "%s", line.data);
    }
    str_clear(&line);
    for (int k = 0; k < c->n_series; k++) {
        rates[k] = sustained(latencies[k], c->top_rate);
        str_printf(&line, "%s%s %.2f", k ? ", " : "", c->series[k].name, rates[k]);
    }
    sim_table_note(&t, "s/token; requests/s at %.1f s/token: %s", SIM_LATENCY_LIMIT_S, line.data);
    str_free(&line);
    if (sim_table_end(&t, o->folder, err))
        return -1;
    return o->folder ? sim_table_plot(o->folder, c->name, "requests/s", "s/token", c->n_series + 1,
                                      false, err)
                     : 0;
}
