/* sim_load.c - what arrives: lengths and arrival times from one seed.
 *
 * Lengths are log-normal with the paper's means, and one sigma a workload for prompts, outputs and
 * all policies. Each sigma follows from one published figure, since at a random moment a request is
 * as long as E[o^2] says, not E[o]:
 *
 *     ShareGPT  reserving the maximum, 13.3 % of 15.7 k slots were reserved for what 7 requests had
 *               still to make: 299 tokens each = E[o^2] / 2 E[o], so sigma = 0.755
 *     Alpaca    the oracle had 72.75 requests in the slots that it can use by its buddy allocator,
 *               63.4 % of them: 137 tokens each = 19 + E[o^2] / E[o], so sigma = 0.84
 *
 * No figure is known that would say it of the sentences of WMT: as ShareGPT.
 *
 * The mean of a log-normal that is cut at c is exp(mu + s^2/2) F((ln c - mu - s^2) / s) over
 * F((ln c - mu) / s); mu is found by bisection, so that the cut changes no mean. */
#include "utils/sim_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* WMT16 En-De: sentences of 27 words, 30 to 35 tokens; the prefixes are the paper's. */
const struct sim_workload sim_workloads[] = {
    {"sharegpt", 161, 338, 0.75, 0},
    {"alpaca", 19, 58, 0.85, 0},
    {"wmt-1shot", 30, 35, 0.75, 80},
    {"wmt-5shot", 30, 35, 0.75, 341},
    {0},
};

const struct sim_workload *sim_workload_find(const char *name)
{
    for (const struct sim_workload *w = sim_workloads; w->name; w++)
        if (strcmp(w->name, name) == 0)
            return w;
    return NULL;
}

/* The finaliser of SplitMix64 (Steele et al., OOPSLA 2014); only has to spread well. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int32_t token_of(uint64_t stream, uint64_t at)
{
    return 1 + (int32_t)(mix(mix(stream + 0x9e3779b97f4a7c15u) + at) % (SIM_VOCAB - 1));
}

int32_t sim_token(const struct sim_request *r, int32_t branch, int32_t position)
{
    if (position < r->n_shared)
        return token_of(SIM_SHARED_STREAM, (uint64_t)position);
    if (r->blocks && position < r->n_prompt)
        return token_of(1ull << 40 | (uint64_t)r->blocks[position / 16], (uint64_t)(position % 16));
    uint64_t stream = r->stream + (position < r->n_prompt ? 0 : (uint64_t)branch << 48);
    return token_of(stream, (uint64_t)r->offset + (uint64_t)position);
}

void sim_load_free(struct sim_load *l)
{
    xfree(l->requests);
    xfree(l->blocks);
    *l = (struct sim_load){0};
}

double sim_load_mean(const struct sim_load *l, bool of_outputs)
{
    double sum = 0;

    for (int32_t i = 0; i < l->n; i++)
        sum += of_outputs ? l->requests[i].n_output : l->requests[i].n_prompt;
    return l->n > 0 ? sum / l->n : 0;
}

/* ---- lengths -------------------------------------------------------------------------------- */

static double normal_below(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

static double mean_below_cut(double mu, double s, double cut)
{
    double end = log(cut);
    return exp(mu + s * s / 2) * normal_below((end - mu - s * s) / s) /
           normal_below((end - mu) / s);
}

void sim_lengths_fit(struct sim_lengths *d)
{
    double low = log(d->mean) - 20, high = log(d->cut);

    ASSERT(d->mean > 0 && d->mean < d->cut / 2. && d->sigma > 0);
    for (int i = 0; i < 80; i++) {
        double middle = (low + high) / 2;
        if (mean_below_cut(middle, d->sigma, d->cut) < d->mean)
            low = middle;
        else
            high = middle;
    }
    d->mu = low;
}

static double unit(struct rng *r)
{
    return ((double)(rng_next(r) >> 11) + 0.5) * 0x1p-53; /* never 0 or 1 */
}

/* Box and Muller's; the second number is thrown away, so that draws do not depend on parity. */
static double normal(struct rng *r)
{
    double radius = sqrt(-2 * log(unit(r)));
    return radius * cos(2 * M_PI * unit(r));
}

/* At least 1; what falls behind the cut is drawn again. */
int32_t sim_lengths_draw(const struct sim_lengths *d, struct rng *r)
{
    for (;;) {
        double x = exp(d->mu + d->sigma * normal(r));
        if (x < d->cut)
            return x < 1 ? 1 : (int32_t)(x + 0.5);
    }
}

/* ---- drawn loads ---------------------------------------------------------------------------- */

static struct sim_request *add(struct sim_load *l, int32_t *cap)
{
    if (l->n == *cap) {
        *cap = *cap ? 2 * *cap : 256;
        l->requests = xrealloc(l->requests, (size_t)*cap * sizeof *l->requests);
    }
    l->requests[l->n] = (struct sim_request){.stream = SIM_FIRST_STREAM + (uint64_t)l->n};
    return &l->requests[l->n++];
}

static struct sim_lengths fitted(double mean, double sigma, int32_t cut)
{
    struct sim_lengths d = {.mean = mean, .sigma = sigma, .cut = cut};
    sim_lengths_fit(&d);
    return d;
}

struct sim_load sim_load_draw(const struct sim_workload *w, double rate, double seconds,
                              int32_t n_context, uint64_t seed)
{
    struct sim_load l = {0};
    struct sim_lengths in = fitted(w->prompt_mean, w->sigma, n_context);
    struct sim_lengths out = fitted(w->output_mean, w->sigma, n_context);
    struct rng lengths = rng_from(seed), arrivals = rng_from(~seed);
    int32_t cap = 0;

    for (double at = -log(unit(&arrivals)) / rate; at < seconds;
         at -= log(unit(&arrivals)) / rate) {
        struct sim_request *r = add(&l, &cap);
        do {
            r->n_prompt = w->n_shared + sim_lengths_draw(&in, &lengths);
            r->n_output = sim_lengths_draw(&out, &lengths);
        } while (r->n_prompt + r->n_output > n_context);
        r->n_shared = w->n_shared;
        r->arrival_us = (int64_t)(at * 1e6);
    }
    return l;
}

static int by_arrival(const void *a, const void *b)
{
    const struct sim_request *x = a, *y = b;

    if (x->arrival_us != y->arrival_us)
        return x->arrival_us < y->arrival_us ? -1 : 1;
    return x->stream != y->stream ? (x->stream < y->stream ? -1 : 1) : x->offset - y->offset;
}

/* Turns of a conversation: mean of a geometric number, and of the pause between two. */
#define TURNS_MEAN 6.
#define PAUSE_MEAN_S 60.

struct sim_load sim_load_chat(const struct sim_workload *w, double rate, double seconds,
                              int32_t max_prompt, int32_t max_output, bool is_kept, uint64_t seed)
{
    struct sim_load l = {0};
    struct sim_lengths in = fitted(w->prompt_mean, w->sigma, 2048);
    struct sim_lengths out = fitted(w->output_mean, w->sigma, 2048);
    struct rng random = rng_from(seed);
    uint64_t stream = SIM_FIRST_STREAM;
    int32_t cap = 0;
    double warm_s = TURNS_MEAN * PAUSE_MEAN_S; /* conversations are under way at time 0 */

    for (double start = -warm_s; start < seconds;
         start -= log(unit(&random)) * TURNS_MEAN / rate, stream++) {
        int32_t history = 0;
        double at = start;
        do {
            int32_t n = history + sim_lengths_draw(&in, &random);
            int32_t n_output = sim_lengths_draw(&out, &random);
            n_output = n_output < max_output ? n_output : max_output;
            if (at >= 0 && at < seconds) {
                struct sim_request *r = add(&l, &cap);
                r->arrival_us = (int64_t)(at * 1e6);
                r->n_prompt = n < max_prompt ? n : max_prompt;
                r->n_output = n_output;
                r->offset = n - r->n_prompt;
                r->stream = is_kept ? stream : stream << 20 | (uint64_t)(l.n & 0xfffff);
            }
            history = n + n_output;
            at -= log(unit(&random)) * PAUSE_MEAN_S;
        } while (unit(&random) < 1 - 1 / TURNS_MEAN);
    }
    if (l.n > 0)
        qsort(l.requests, (size_t)l.n, sizeof *l.requests, by_arrival);
    return l;
}
