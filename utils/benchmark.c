/* benchmark.c - kvasir-benchmark: many clients over RESP, one connection each.
 *
 * Every request is what a streaming client does: GEN ... ASYNC, then the reader's loop of XREAD
 * BLOCK until the end entry, then DEL. Measured from outside: time to the first piece, time between
 * tokens, time of the whole answer; read from the end entry: tokens of the prompt, tokens found in
 * the cache, tokens generated, time in the queue. hiredis speaks the protocol, libevent waits.
 *
 *     unique   every prompt differs         shared   all begin with the same --shared tokens
 *     file     a JSONL file of prompts      trace    a recorded trace with its arrival times
 *     fork     one conversation of --prompt tokens; every request is a FORK of it that goes on */
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include <event2/event.h>
#include <hiredis/adapters/libevent.h>
#include <hiredis/async.h>
#include <hiredis/hiredis.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "utils/bench_load.h"
#include "utils/reply_limit.h"

#define BASE_KEY "bench:base" /* what fork's requests are children of */

/* What one request came to. */
struct outcome {
    double ttft_ms, total_ms, between_ms; /* between_ms: mean gap of its tokens after the first */
    int64_t prompt, cached, generated, queued_ms;
};

struct bench;

struct client {
    struct bench *bench; /* borrows */
    redisAsyncContext *redis;
    struct event *timer; /* fires when the next request of a trace is due */
    const struct bench_request *request;
    char key[64], last_id[48];
    int64_t sent_us, first_us;
};

struct bench {
    struct bench_options options;
    struct event_base *loop;
    struct bench_load load;
    struct reply_limit limit; /* of all connections */
    struct client *clients;   /* [n_clients] owns */
    struct outcome *outcomes; /* [load.n] owns */
    int n_next, n_done, n_failed;
    int64_t started_us;
    uint64_t run; /* part of every key, so that two runs never meet */
};

static void client_next(struct client *c);

/* ---- one request ----------------------------------------------------------------------------- */

static void fail(struct client *c, const char *what)
{
    if (c->bench->n_failed++ < 5)
        fprintf(stderr, "request failed: %s\n", what);
    c->bench->n_done++;
    client_next(c);
}

/* The field's value in an entry [id, [name, value, ...]]; NULL when it is absent. */
static const redisReply *entry_field(const redisReply *entry, const char *name)
{
    const redisReply *fields = entry->elements == 2 ? entry->element[1] : NULL;
    for (size_t i = 0; fields && i + 1 < fields->elements; i += 2)
        if (strcmp(fields->element[i]->str, name) == 0)
            return fields->element[i + 1];
    return NULL;
}

static int64_t entry_number(const redisReply *entry, const char *name)
{
    const redisReply *value = entry_field(entry, name);
    return value ? strtoll(value->str, NULL, 10) : 0;
}

static void on_deleted(redisAsyncContext *redis, void *reply, void *arg)
{
    (void)redis;
    (void)reply;
    client_next(arg);
}

static void record(struct client *c, const redisReply *end)
{
    struct bench *b = c->bench;
    int64_t now = clock_mono_us(), first = c->first_us ? c->first_us : now;
    struct outcome *o = &b->outcomes[b->n_done - b->n_failed];
    *o = (struct outcome){
        .ttft_ms = (double)(first - c->sent_us) / 1000,
        .total_ms = (double)(now - c->sent_us) / 1000,
        .prompt = entry_number(end, "prompt"),
        .cached = entry_number(end, "cached"),
        .generated = entry_number(end, "generated"),
        .queued_ms = entry_number(end, "queued-ms"),
    };
    o->between_ms = o->generated > 1 ? (o->total_ms - o->ttft_ms) / (double)(o->generated - 1) : 0;
    b->n_done++;
}

static void read_more(struct client *c);

static void on_entries(redisAsyncContext *redis, void *data, void *arg)
{
    struct client *c = arg;
    const redisReply *reply = data;
    (void)redis;
    if (!reply)
        return;
    if (reply->type == REDIS_REPLY_ERROR) {
        fail(c, reply->str);
        return;
    }
    const redisReply *entries =
        reply->type == REDIS_REPLY_ARRAY && reply->elements == 1 && reply->element[0]->elements == 2
            ? reply->element[0]->element[1]
            : NULL;
    for (size_t i = 0; entries && i < entries->elements; i++) {
        const redisReply *entry = entries->element[i], *finish = entry_field(entry, "finish");
        snprintf(c->last_id, sizeof c->last_id, "%s", entry->element[0]->str);
        if (!c->first_us)
            c->first_us = clock_mono_us();
        if (!finish)
            continue;
        const redisReply *error = entry_field(entry, "error");
        if (error) {
            fail(c, error->str);
            return;
        }
        record(c, entry);
        if (c->bench->options.keep)
            client_next(c);
        else
            redisAsyncCommand(c->redis, on_deleted, c, "DEL %s", c->key);
        return;
    }
    read_more(c);
}

static void read_more(struct client *c)
{
    redisAsyncCommand(c->redis, on_entries, c, "XREAD BLOCK 4000 STREAMS %s %s", c->key,
                      c->last_id);
}

static void on_accepted(redisAsyncContext *redis, void *data, void *arg)
{
    struct client *c = arg;
    const redisReply *reply = data;
    (void)redis;
    if (!reply)
        return;
    if (reply->type == REDIS_REPLY_ERROR) {
        fail(c, reply->str);
        return;
    }
    snprintf(c->last_id, sizeof c->last_id, "%s", reply->str);
    read_more(c);
}

static void send_gen(struct client *c)
{
    const struct bench_options *o = &c->bench->options;
    const struct bench_request *r = c->request;
    char tokens[16], temperature[32];
    snprintf(tokens, sizeof tokens, "%d", r->max_tokens);
    snprintf(temperature, sizeof temperature, "%g", o->temperature);
    const char *argv[12] = {"GEN", c->key, r->prompt.data ? r->prompt.data : ""};
    size_t lengths[12] = {3, strlen(c->key), r->prompt.len};
    int n = 3;
    const char *const words[] = {"ASYNC",
                                 "MAXTOKENS",
                                 tokens,
                                 "TEMP",
                                 temperature,
                                 r->is_ids ? "IDS" : NULL,
                                 o->stop_at_end ? NULL : "IGNOREEOS"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i]) {
            argv[n] = words[i];
            lengths[n++] = strlen(words[i]);
        }
    }
    redisAsyncCommandArgv(c->redis, on_accepted, c, n, argv, lengths);
}

static void on_forked(redisAsyncContext *redis, void *data, void *arg)
{
    struct client *c = arg;
    const redisReply *reply = data;
    (void)redis;
    if (!reply)
        return;
    if (reply->type != REDIS_REPLY_INTEGER || reply->integer != 1)
        fail(c, reply->str ? reply->str : "FORK wrote nothing");
    else
        send_gen(c);
}

static void client_send(struct client *c)
{
    struct bench *b = c->bench;
    c->first_us = 0;
    c->sent_us = clock_mono_us();
    if (b->options.workload == WORKLOAD_FORK)
        redisAsyncCommand(c->redis, on_forked, c, "FORK %s %s", BASE_KEY, c->key);
    else
        send_gen(c);
}

static void on_due(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    client_send(arg);
}

/* Takes the next request of the list; the last client to find it empty ends the loop. */
static void client_next(struct client *c)
{
    struct bench *b = c->bench;
    if (b->n_next == b->load.n) {
        if (b->n_done == b->load.n)
            event_base_loopbreak(b->loop);
        return;
    }
    int i = b->n_next++;
    c->request = &b->load.requests[i];
    snprintf(c->key, sizeof c->key, "bench:%llx:%d", (unsigned long long)b->run, i);
    double wait_s = c->request->at_s - (double)(clock_mono_us() - b->started_us) / 1e6;
    if (wait_s <= 0) {
        client_send(c);
        return;
    }
    struct timeval tv = {(time_t)wait_s, (suseconds_t)((wait_s - floor(wait_s)) * 1e6)};
    event_add(c->timer, &tv);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void on_lost(const redisAsyncContext *redis, int status)
{
    if (status != REDIS_OK) {
        fprintf(stderr, "connection lost: %s\n", redis->errstr);
        exit(1);
    }
}

static redisAsyncContext *connect_one(struct bench *b)
{
    const struct bench_options *o = &b->options;
    redisAsyncContext *redis =
        o->socket ? redisAsyncConnectUnix(o->socket) : redisAsyncConnect(o->host, o->port);
    if (!redis || redis->err) {
        fprintf(stderr, "cannot connect: %s\n", redis ? redis->errstr : "out of memory");
        exit(1);
    }
    reply_limit_set(&b->limit, &redis->c);
    redisLibeventAttach(redis, b->loop);
    redisAsyncSetDisconnectCallback(redis, on_lost);
    if (o->password)
        redisAsyncCommand(redis, NULL, NULL, "AUTH %s", o->password);
    return redis;
}

static redisContext *connect_plain(struct bench *b)
{
    const struct bench_options *o = &b->options;
    redisContext *redis = o->socket ? redisConnectUnix(o->socket) : redisConnect(o->host, o->port);
    if (!redis || redis->err) {
        fprintf(stderr, "cannot connect to %s: %s\n", o->socket ? o->socket : o->host,
                redis ? redis->errstr : "out of memory");
        exit(1);
    }
    reply_limit_set(&b->limit, redis);
    redisReply *reply = o->password ? redisCommand(redis, "AUTH %s", o->password) : NULL;
    if (reply && reply->type == REDIS_REPLY_ERROR) {
        fprintf(stderr, "%s\n", reply->str);
        exit(1);
    }
    freeReplyObject(reply);
    return redis;
}

/* One number of an INFO section; 0 when the server has no such field. */
static int64_t info_number(redisContext *redis, const char *name)
{
    redisReply *reply = redisCommand(redis, "INFO");
    int64_t value = 0;
    struct str needle = {0};
    str_printf(&needle, "\n%s:", name);
    char *at = reply && reply->str ? strstr(reply->str, needle.data) : NULL;
    if (at)
        value = strtoll(at + needle.len, NULL, 10);
    str_free(&needle);
    freeReplyObject(reply);
    return value;
}

/* fork: computes the conversation that all requests will be children of. */
static void make_base(struct bench *b, redisContext *redis)
{
    struct bench_load one;
    struct bench_options o = b->options;
    o.workload = WORKLOAD_UNIQUE;
    o.n_requests = 1;
    struct err err;
    if (bench_load_make(&o, &one, &err) < 0)
        exit(1);
    const char *argv[] = {"GEN", BASE_KEY,   one.requests[0].prompt.data, "IDS", "MAXTOKENS",
                          "1",   "IGNOREEOS"};
    size_t lengths[] = {3, sizeof BASE_KEY - 1, one.requests[0].prompt.len, 3, 9, 1, 9};
    freeReplyObject(redisCommand(redis, "DEL %s", BASE_KEY));
    redisReply *reply = redisCommandArgv(redis, 7, argv, lengths);
    if (!reply || reply->type == REDIS_REPLY_ERROR) {
        fprintf(stderr, "the conversation to fork: %s\n", reply ? reply->str : redis->errstr);
        exit(1);
    }
    freeReplyObject(reply);
    bench_load_free(&one);
    /* Each child adds a few tokens of its own. */
    for (int i = 0; i < b->load.n; i++)
        if (b->load.requests[i].prompt.len > 32)
            b->load.requests[i].prompt.len = 32;
}

/* ---- figures --------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, int n, double p)
{
    int i = (int)ceil(p / 100 * n) - 1;
    return n ? sorted[i < 0 ? 0 : i] : 0;
}

struct column {
    const char *name, *json;
    size_t offset; /* of a double in struct outcome */
};
static const struct column columns[] = {
    {"time to first token", "ttft_ms", offsetof(struct outcome, ttft_ms)},
    {"time between tokens", "between_ms", offsetof(struct outcome, between_ms)},
    {"whole answer", "total_ms", offsetof(struct outcome, total_ms)},
};

static void report(const struct bench *b, double seconds)
{
    int n = b->n_done - b->n_failed;
    int64_t prompt = 0, cached = 0, generated = 0;
    double *values = xcalloc((size_t)n + 1, sizeof *values);
    for (int i = 0; i < n; i++) {
        prompt += b->outcomes[i].prompt;
        cached += b->outcomes[i].cached;
        generated += b->outcomes[i].generated;
    }
    double hit = prompt ? 100.0 * (double)cached / (double)prompt : 0;
    bool json = b->options.json;
    printf(json ? "{\"requests\": %d, \"failed\": %d, \"clients\": %d, \"seconds\": %.3f, "
                  "\"prompt_tokens\": %lld, \"cached_tokens\": %lld, \"generated_tokens\": %lld, "
                  "\"generated_per_s\": %.1f, \"hit_percent\": %.2f"
                : "%d requests, %d failed, %d clients, %.2f s\n"
                  "prompt tokens %lld, of them cached %lld, generated %lld: %.1f a second, "
                  "hit rate %.1f %%\n",
           n, b->n_failed, b->options.n_clients, seconds, (long long)prompt, (long long)cached,
           (long long)generated, (double)generated / seconds, hit);
    if (!json)
        printf("%-22s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "max");
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
        for (int i = 0; i < n; i++)
            values[i] = *(const double *)((const char *)&b->outcomes[i] + columns[c].offset);
        qsort(values, (size_t)n, sizeof *values, by_value);
        printf(json ? ", \"%s\": [%.2f, %.2f, %.2f, %.2f]" : "%-22s %10.2f %10.2f %10.2f %10.2f\n",
               json ? columns[c].json : columns[c].name, percentile(values, n, 50),
               percentile(values, n, 90), percentile(values, n, 99), percentile(values, n, 100));
    }
    if (json)
        printf("}\n");
    xfree(values);
}

/* ---- options --------------------------------------------------------------------------------- */

static const char *const workload_names[] = {"unique", "shared", "file", "trace", "fork", NULL};

static const char usage[] =
    "usage: kvasir-benchmark [options]\n"
    "  -h, --host HOST        server (127.0.0.1)     -p, --port PORT      (6379)\n"
    "  -s, --socket PATH      unix socket            -a, --password TEXT\n"
    "  -c, --clients N        connections (8)        -n, --requests N     (32; trace: all)\n"
    "  -w, --workload NAME    unique, shared, file, trace, fork (unique)\n"
    "      --prompt N         prompt tokens (256)        --shared N   common beginning (192)\n"
    "      --tokens N         MAXTOKENS (64)             --temp T     temperature (0)\n"
    "      --file PATH        JSONL with \"prompt\", or a trace table\n"
    "      --speed X          trace time runs X times faster (1)\n"
    "      --scale N          trace lengths are divided by N (32)\n"
    "      --seed N           of synthetic prompts (1)   --stop       end-of-text ends an answer\n"
    "      --keep             do not delete the keys     --json       one JSON object\n";

enum argument_kind { ARG_TEXT, ARG_INT, ARG_INT64, ARG_REAL, ARG_WORKLOAD, ARG_FLAG, ARG_HELP };

#define AT(field) .offset = offsetof(struct bench_options, field)

/* What usage says. */
static const struct argument {
    const char *name;
    char letter; /* 0: none */
    enum argument_kind kind;
    size_t offset;
    int64_t min, max; /* of whole numbers */
    double least;     /* of others */
} arguments[] = {
    {"host", 'h', ARG_TEXT, AT(host)},
    {"port", 'p', ARG_INT, AT(port), 1, 65535},
    {"socket", 's', ARG_TEXT, AT(socket)},
    {"password", 'a', ARG_TEXT, AT(password)},
    {"clients", 'c', ARG_INT, AT(n_clients), 1, 10000},
    {"requests", 'n', ARG_INT, AT(n_requests), 1, 10000000},
    {"workload", 'w', ARG_WORKLOAD, AT(workload)},
    {"prompt", 0, ARG_INT, AT(prompt_tokens), 1, 1 << 20},
    {"shared", 0, ARG_INT, AT(shared_tokens), 0, 1 << 20},
    {"tokens", 0, ARG_INT, AT(max_tokens), 1, 1 << 20},
    {"temp", 0, ARG_REAL, AT(temperature), .least = 0},
    {"file", 0, ARG_TEXT, AT(file)},
    {"speed", 0, ARG_REAL, AT(speed), .least = 1e-6},
    {"scale", 0, ARG_INT, AT(scale), 1, 1 << 20},
    {"seed", 0, ARG_INT64, AT(seed), 0, INT64_MAX},
    {"stop", 0, ARG_FLAG, AT(stop_at_end)},
    {"keep", 0, ARG_FLAG, AT(keep)},
    {"json", 0, ARG_FLAG, AT(json)},
    {"help", 0, .kind = ARG_HELP},
};
enum { N_ARGUMENTS = sizeof arguments / sizeof *arguments };

static int64_t number(const struct argument *a, const char *text)
{
    int64_t value;
    if (!parse_i64(bytes_from(text), &value) || value < a->min || value > a->max) {
        fprintf(stderr, "--%s must be a whole number between %lld and %lld, not '%s'\n", a->name,
                (long long)a->min, (long long)a->max, text);
        exit(2);
    }
    return value;
}

static double real(const struct argument *a, const char *text)
{
    double value;
    if (!parse_real(bytes_from(text), &value) || value < a->least) {
        fprintf(stderr, "--%s must be a number of at least %g, not '%s'\n", a->name, a->least,
                text);
        exit(2);
    }
    return value;
}

static enum workload workload_by_name(const char *name)
{
    for (int i = 0; workload_names[i]; i++)
        if (strcmp(workload_names[i], name) == 0)
            return (enum workload)i;
    fprintf(stderr, "unknown workload '%s'\n%s", name, usage);
    exit(2);
}

static void set_argument(struct bench_options *o, const struct argument *a, const char *text)
{
    void *at = (char *)o + a->offset;
    switch (a->kind) {
    case ARG_TEXT:
        *(const char **)at = text;
        break;
    case ARG_INT:
        *(int *)at = (int)number(a, text);
        break;
    case ARG_INT64:
        *(int64_t *)at = number(a, text);
        break;
    case ARG_REAL:
        *(double *)at = real(a, text);
        break;
    case ARG_WORKLOAD:
        *(enum workload *)at = workload_by_name(text);
        break;
    case ARG_FLAG:
        *(bool *)at = true;
        break;
    case ARG_HELP:
        fputs(usage, stdout);
        exit(0);
    }
}

/* What getopt_long returned: a letter, or the place in the table; NULL: neither. */
static const struct argument *find_argument(int c)
{
    for (int i = 0; i < N_ARGUMENTS; i++)
        if (c == i || (arguments[i].letter && c == arguments[i].letter))
            return &arguments[i];
    return NULL;
}

static struct bench_options parse_arguments(int argc, char **argv)
{
    struct bench_options o = {.host = "127.0.0.1",
                              .port = 6379,
                              .n_clients = 8,
                              .n_requests = -1,
                              .prompt_tokens = 256,
                              .shared_tokens = 192,
                              .max_tokens = 64,
                              .speed = 1,
                              .scale = 32,
                              .seed = 1};
    struct option options[N_ARGUMENTS + 1] = {{0}};
    int c;
    for (int i = 0; i < N_ARGUMENTS; i++)
        options[i] = (struct option){arguments[i].name, arguments[i].kind < ARG_FLAG, NULL, i};
    while ((c = getopt_long(argc, argv, "h:p:s:a:c:n:w:", options, NULL)) != -1) {
        const struct argument *a = find_argument(c);
        if (!a) {
            fputs(usage, stderr);
            exit(2);
        }
        set_argument(&o, a, optarg);
    }
    if (o.n_requests < 0)
        o.n_requests = o.workload == WORKLOAD_TRACE ? 0 : 32;
    return o;
}

int main(int argc, char **argv)
{
    struct bench b = {.options = parse_arguments(argc, argv)};
    struct err err;
    signal(SIGPIPE, SIG_IGN);
    redisContext *redis = connect_plain(&b);
    b.options.n_vocab = (int)info_number(redis, "model_vocabulary");
    if (b.options.n_vocab < 2) {
        fprintf(stderr, "the server has no model loaded\n");
        return 1;
    }
    if (bench_load_make(&b.options, &b.load, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (b.options.workload == WORKLOAD_FORK)
        make_base(&b, redis);
    int64_t computed_before = info_number(redis, "computed_prompt_tokens");

    b.loop = event_base_new();
    b.outcomes = xcalloc((size_t)b.load.n, sizeof *b.outcomes);
    b.clients = xcalloc((size_t)b.options.n_clients, sizeof *b.clients);
    b.run = rng_entropy() >> 32;
    for (int i = 0; i < b.options.n_clients; i++) {
        b.clients[i] = (struct client){.bench = &b, .redis = connect_one(&b)};
        b.clients[i].timer = evtimer_new(b.loop, on_due, &b.clients[i]);
    }
    b.started_us = clock_mono_us();
    for (int i = 0; i < b.options.n_clients; i++)
        client_next(&b.clients[i]);
    event_base_dispatch(b.loop);
    report(&b, (double)(clock_mono_us() - b.started_us) / 1e6);
    if (!b.options.json)
        printf("prompt tokens computed by the server: %lld\n",
               (long long)(info_number(redis, "computed_prompt_tokens") - computed_before));

    for (int i = 0; i < b.options.n_clients; i++) {
        event_free(b.clients[i].timer);
        redisAsyncFree(b.clients[i].redis);
    }
    event_base_free(b.loop);
    redisFree(redis);
    bench_load_free(&b.load);
    xfree(b.outcomes);
    xfree(b.clients);
    return b.n_failed ? 1 : 0;
}
