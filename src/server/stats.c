/* stats.c - what INFO counts: calls and errors by name, rates of the last seconds.
 *
 * Counters of a command are made at its first call, so that INFO commandstats shows what was used
 * and not the whole table. Errors count by their prefix; all prefixes are ours, so there are few,
 * and a bound holds all the same. A rate is the mean of the last 16 tenths of a second, as in Redis:
 * long enough to be read, short enough to be now. Main thread only. */
#include "server/stats.h"

#include <string.h>
#include "base/mem.h"
#include "base/table.h"
#include "server/command.h"
#include "server/latency.h"

enum {
    N_SAMPLES = 16,
    MAX_ERRORS = 64, /* different prefixes */
    PREFIX_MAX = 32,
};

struct call_stats {
    const struct command *command;
    uint64_t calls, rejected, failed;
    int64_t usec;
    struct latency latency;
};
struct error_stats {
    char prefix[PREFIX_MAX + 1];
    uint64_t n;
};
struct sample {
    uint64_t done[N_RATES]; /* in this interval */
    int64_t us;             /* its length */
};

struct stats {
    struct table *calls;                   /* address of the row -> struct call_stats, owns */
    struct error_stats errors[MAX_ERRORS]; /* [n_errors] in order of appearance */
    int n_errors;
    struct sample samples[N_SAMPLES]; /* ring */
    int next_sample;
    uint64_t totals[N_RATES]; /* at the last sample */
    int64_t sampled_us;       /* 0: never */
};

struct stats *stats_new(void)
{
    struct stats *s = xcalloc(1, sizeof *s);
    s->calls = table_new();
    return s;
}

static void free_calls(void *value)
{
    xfree(value);
}

void stats_free(struct stats *s)
{
    if (!s)
        return;
    table_free(s->calls, free_calls);
    xfree(s);
}

void stats_reset(struct stats *s)
{
    table_free(s->calls, free_calls);
    s->calls = table_new();
    s->n_errors = 0;
    memset(s->samples, 0, sizeof s->samples);
}

/* ---- calls ------------------------------------------------------------------------------------ */

static struct call_stats *calls_of(struct stats *s, const struct command *c)
{
    struct bytes address = {(const char *)&c, sizeof c};
    struct call_stats *calls = table_get(s->calls, address);
    if (!calls) {
        calls = xcalloc(1, sizeof *calls);
        calls->command = c;
        (void)table_put(s->calls, address, calls); /* there was none */
    }
    return calls;
}

void stats_count_call(struct stats *s, const struct command *c, int64_t usec, bool failed)
{
    struct call_stats *calls = calls_of(s, c);
    calls->calls++;
    calls->usec += usec;
    latency_add(&calls->latency, usec);
    calls->failed += failed;
}

void stats_count_failed(struct stats *s, const struct command *c)
{
    calls_of(s, c)->failed++;
}

void stats_count_rejected(struct stats *s, const struct command *c)
{
    calls_of(s, c)->rejected++;
}

/* ---- errors ----------------------------------------------------------------------------------- */

void stats_count_error(struct stats *s, struct bytes reply)
{
    size_t len = 0;
    if (reply.len == 0 || reply.data[0] != '-')
        return;
    reply = (struct bytes){reply.data + 1, reply.len - 1};
    while (len < reply.len && len < PREFIX_MAX && reply.data[len] != ' ' && reply.data[len] != '\r')
        len++;
    for (int i = 0; i < s->n_errors; i++) {
        if (bytes_equal((struct bytes){reply.data, len}, bytes_from(s->errors[i].prefix))) {
            s->errors[i].n++;
            return;
        }
    }
    if (s->n_errors == MAX_ERRORS)
        return;
    struct error_stats *e = &s->errors[s->n_errors++];
    *e = (struct error_stats){.n = 1};
    memcpy(e->prefix, reply.data, len);
}

/* ---- rates ------------------------------------------------------------------------------------ */

void stats_sample(struct stats *s, int64_t now_us, const uint64_t totals[N_RATES])
{
    struct sample *sample = &s->samples[s->next_sample];
    bool is_first = s->sampled_us == 0;
    sample->us = is_first ? 0 : now_us - s->sampled_us;
    for (int i = 0; i < N_RATES; i++) {
        /* a reset has made the totals smaller */
        sample->done[i] = is_first || totals[i] < s->totals[i] ? 0 : totals[i] - s->totals[i];
        s->totals[i] = totals[i];
    }
    s->sampled_us = now_us;
    s->next_sample = (s->next_sample + 1) % N_SAMPLES;
}

uint64_t stats_per_second(const struct stats *s, enum stats_rate rate)
{
    uint64_t done = 0;
    int64_t us = 0;
    for (int i = 0; i < N_SAMPLES; i++) {
        done += s->samples[i].done[rate];
        us += s->samples[i].us;
    }
    return us > 0 ? (uint64_t)((double)done * 1e6 / (double)us) : 0;
}

/* ---- INFO ------------------------------------------------------------------------------------- */

static void print_calls(const struct call_stats *c, struct str *out)
{
    struct str name = {0};
    command_full_name(c->command, &name);
    str_printf(out, "cmdstat_%s:calls=%llu,usec=%lld,usec_per_call=%.2f", name.data,
               (unsigned long long)c->calls, (long long)c->usec,
               c->calls ? (double)c->usec / (double)c->calls : 0.0);
    str_printf(out, ",rejected_calls=%llu,failed_calls=%llu\r\n", (unsigned long long)c->rejected,
               (unsigned long long)c->failed);
    str_free(&name);
}

void stats_print_commands(const struct stats *s, struct str *out)
{
    struct bytes address;
    struct call_stats *calls;
    TABLE_FOREACH(s->calls, address, calls) {
        print_calls(calls, out);
    }
}

/* As Redis prints them: nanoseconds as microseconds, by latency-tracking-info-percentiles' default. */
static void print_latency(const struct call_stats *c, struct str *out)
{
    struct str name = {0};
    command_full_name(c->command, &name);
    str_printf(out, "latency_percentiles_usec_%s:p50=%lld.000,p99=%lld.000,p99.9=%lld.000\r\n",
               name.data, (long long)latency_percentile(&c->latency, 50),
               (long long)latency_percentile(&c->latency, 99),
               (long long)latency_percentile(&c->latency, 99.9));
    str_free(&name);
}

void stats_print_latencies(const struct stats *s, struct str *out)
{
    struct bytes address;
    struct call_stats *calls;
    TABLE_FOREACH(s->calls, address, calls) {
        if (calls->latency.n > 0)
            print_latency(calls, out);
    }
}

const struct latency *stats_latency(const struct stats *s, const struct command *c)
{
    const struct call_stats *calls =
        table_get(s->calls, (struct bytes){(const char *)&c, sizeof c});
    return calls && calls->latency.n > 0 ? &calls->latency : NULL;
}

void stats_print_errors(const struct stats *s, struct str *out)
{
    for (int i = 0; i < s->n_errors; i++)
        str_printf(out, "errorstat_%s:count=%llu\r\n", s->errors[i].prefix,
                   (unsigned long long)s->errors[i].n);
}
