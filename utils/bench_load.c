/* bench_load.c - the workloads of kvasir-benchmark.
 *
 * Synthetic prompts are token ids from a keyed generator, so that lengths are exact and equal
 * prefixes are really equal: the ids of a trace's block are drawn with the block's number as the
 * key. A trace is a table with the columns t_ms, in_tok, out_tok and, where the source recorded
 * them, blocks512: numbers of the prompt's blocks in order, `a-b` for a run. Every number is read
 * as one block of 16 tokens here and lengths are divided by `scale` (512 / 16 = 32 keeps the
 * sharing of the source). */
#include "utils/bench_load.h"

#include <jansson.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"

#define FILE_LIMIT ((size_t)256 << 20)
#define BLOCK_TOKENS 16
#define FIRST_ID 100 /* below lie control tokens in the usual vocabularies */

static struct bench_request *add(struct bench_load *load)
{
    load->requests = xrealloc(load->requests, (size_t)(load->n + 1) * sizeof *load->requests);
    struct bench_request *r = &load->requests[load->n++];
    *r = (struct bench_request){0};
    return r;
}

/* Appends n ids drawn from the stream named by key. */
static void append_ids(const struct bench_options *o, struct str *out, uint64_t key, int n)
{
    struct rng rng = rng_from(key * 0x9E3779B97F4A7C15u + (uint64_t)o->seed);
    int first = o->n_vocab > 2 * FIRST_ID ? FIRST_ID : 0;
    for (int i = 0; i < n; i++) {
        uint32_t id = (uint32_t)(first + (int)rng_below(&rng, (uint64_t)(o->n_vocab - first)));
        char bytes[4] = {(char)id, (char)(id >> 8), (char)(id >> 16), (char)(id >> 24)};
        str_append(out, bytes, 4);
    }
}

/* Keys of streams: the common beginning, then one per request. */
static void make_synthetic(const struct bench_options *o, struct bench_load *load)
{
    int shared = o->workload == WORKLOAD_SHARED ? o->shared_tokens : 0;
    for (int i = 0; i < o->n_requests; i++) {
        struct bench_request *r = add(load);
        r->is_ids = true;
        r->max_tokens = o->max_tokens;
        append_ids(o, &r->prompt, 0, shared);
        append_ids(o, &r->prompt, 1 + (uint64_t)i, o->prompt_tokens - shared);
    }
}

static int make_from_file(const struct bench_options *o, struct bench_load *load, struct err *err)
{
    struct str text = {0};
    int rc = file_read(o->file, FILE_LIMIT, &text, err), line = 1;
    for (char *at = text.data, *end; rc == 0 && at && *at; at = end, line++) {
        end = strchr(at, '\n');
        size_t len = end ? (size_t)(end - at) : strlen(at);
        end = at + len + (end != NULL);
        json_t *object = len ? json_loadb(at, len, 0, NULL) : NULL;
        json_t *prompt = json_object_get(object, "prompt");
        if (!json_is_string(prompt)) {
            rc = err_set(err, "%s:%d: expected {\"prompt\": \"...\"}", o->file, line);
        } else {
            struct bench_request *r = add(load);
            r->max_tokens = o->max_tokens;
            str_append(&r->prompt, json_string_value(prompt), json_string_length(prompt));
        }
        json_decref(object);
    }
    str_free(&text);
    if (rc == 0 && load->n == 0)
        rc = err_set(err, "%s holds no prompt", o->file);
    return rc;
}

/* blocks "0 14-27": appends 16 ids a block until n ids are there. */
static void append_blocks(const struct bench_options *o, struct str *out, const char *blocks, int n)
{
    char *at = (char *)blocks;
    while (*at && *at != '\n' && n > 0) {
        unsigned long from = strtoul(at, &at, 10), to = from;
        if (*at == '-')
            to = strtoul(at + 1, &at, 10);
        for (unsigned long b = from; b <= to && n > 0; b++) {
            int take = n < BLOCK_TOKENS ? n : BLOCK_TOKENS;
            append_ids(o, out, 1 + b, take);
            n -= take;
        }
        at += strspn(at, " ");
        if (*at && *at != '\n' && (*at < '0' || *at > '9'))
            break;
    }
}

static int at_least_one(int n)
{
    return n < 1 ? 1 : n;
}

static int make_from_trace(const struct bench_options *o, struct bench_load *load, struct err *err)
{
    struct str text = {0};
    if (file_read(o->file, FILE_LIMIT, &text, err) < 0)
        return -1;
    char *at = text.data ? strchr(text.data, '\n') : NULL; /* past the header */
    while (at && *++at && (o->n_requests == 0 || load->n < o->n_requests)) {
        double t_ms;
        int in, out, used = 0;
        if (sscanf(at, "%lf\t%d\t%d%n", &t_ms, &in, &out, &used) != 3)
            break;
        struct bench_request *r = add(load);
        r->is_ids = true;
        r->at_s = t_ms / 1000 / o->speed;
        r->max_tokens = at_least_one(out / o->scale);
        in = at_least_one(in / o->scale);
        if (at[used] == '\t')
            append_blocks(o, &r->prompt, at + used + 1, in);
        else
            append_ids(o, &r->prompt, (uint64_t)load->n, in);
        at = strchr(at, '\n');
    }
    str_free(&text);
    return load->n ? 0 : err_set(err, "%s holds no request", o->file);
}

int bench_load_make(const struct bench_options *o, struct bench_load *load, struct err *err)
{
    *load = (struct bench_load){0};
    if ((o->workload == WORKLOAD_FILE || o->workload == WORKLOAD_TRACE) && !o->file)
        return err_set(err, "this workload needs --file");
    if (o->workload == WORKLOAD_FILE)
        return make_from_file(o, load, err);
    if (o->workload == WORKLOAD_TRACE)
        return make_from_trace(o, load, err);
    if (o->workload == WORKLOAD_SHARED && o->shared_tokens >= o->prompt_tokens)
        return err_set(err, "--shared %d must be below --prompt %d", o->shared_tokens,
                       o->prompt_tokens);
    make_synthetic(o, load);
    return 0;
}

void bench_load_free(struct bench_load *load)
{
    for (int i = 0; i < load->n; i++)
        str_free(&load->requests[i].prompt);
    xfree(load->requests);
    *load = (struct bench_load){0};
}
