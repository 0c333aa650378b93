/* model-bench.c - kvasir-model-bench: how fast a model runs on this machine, without a server.
 *
 * Runs plans through forward, as a rank thread does: prefill of one prompt (pp), decode of B
 * sequences at once behind a given context (tg), and the mean negative log-likelihood of a text,
 * which tells whether the numbers are still right. It answers the same questions as llama-bench and
 * llama-batched-bench, so that the two can stand side by side.
 *
 *   pp N      one new prompt of N tokens in chunks of at most --chunk, one token chosen at its end
 *   tg N x B  B sequences, each with blocks of its own that hold --context tokens (with --share all
 *             over the same ones); N steps of one token each, greedy, the chosen id fed back
 *
 * Every test runs once to warm up and then --repeat times; the table shows the median and, as a
 * measure of the noise, the slowest and the fastest run. Contexts are made once: one sequence is
 * prefilled and its blocks are copied to the others, which costs nothing beside computing them. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "runner/forward.h"
#include "utils/bench_attention.h"
#include "utils/bench_service.h"

enum {
    BLOCK = 16,
    MAX_LIST = 16, /* sizes in --prompt and --batch */
    MAX_REPEAT = 100,
    MAX_BATCH = 256,
    NLL_CHUNK = 64, /* rows whose logits are looked at together: 12 MB at 49,152 ids */
    TEXT_BYTES = 64 << 20,
};

static const char usage[] =
    "usage: kvasir-model-bench --model FILE [options]\n"
    "Measures prefill (pp) and decode (tg) of a model, without a server.\n"
    "  --model FILE     a GGUF file\n"
    "  --backend NAME   auto, cpu, ref ... (default auto)\n"
    "  --isa NAME       cpu: scalar, avx2 or avx512 (default: the best there is)\n"
    "  --threads N      (default: one per CPU that may be used)\n"
    "  --affinity LIST  cpu: CPUs to pin the threads to\n"
    "  --kv-type NAME   of cached keys and values: f32, bf16 or int8 (default: the backend's)\n"
    "  --prompt LIST    prompt lengths, 0 for none (default 512)\n"
    "  --gen N          tokens to generate, 0 for none (default 64)\n"
    "  --batch LIST     sequences decoded at once (default 1,2,4,8,16,32)\n"
    "  --context N      tokens before the first generated one, in whole blocks (default 0)\n"
    "  --share          the sequences share the blocks of their context\n"
    "  --chunk N        most rows a step of a prompt (default 512)\n"
    "  --repeat N       runs of each test (default 5)\n"
    "  --attention      instead of pp and tg: one layer's attention over scattered blocks of 16\n"
    "                   tokens against contiguous memory, at contexts of 512 and 2048 tokens\n"
    "                   (--batch: default 1,8,32)\n"
    "  --nll FILE       mean negative log-likelihood of the ids of a text, in one context\n"
    "  --nll-ids N      how many of its ids (default 1024)\n"
    "  --service N      instead: N requests like ShareGPT's through the engine, paged and reserved\n"
    "  --trace FILE     of a recorded load (kvasir-sim --help)\n"
    "  --scale N        lengths of the service's load over this (default 4)\n"
    "  --json           one line of JSON instead of the table\n"
    "  --help\n";

struct list {
    int32_t v[MAX_LIST], n;
};

struct arguments {
    const char *model, *backend, *isa, *affinity, *nll, *trace;
    int kv_type; /* enum kv_type */
    struct list prompt, batch;
    int32_t threads, gen, context, chunk, repeat, nll_ids, service, scale;
    int json, attention, share;
};

struct result {
    char name[48];
    double runs[MAX_REPEAT]; /* tokens/s, sorted */
    int32_t n;
};

struct bench {
    struct arguments args;
    struct model *model;
    struct forward *forward;
    struct plan *plan;
    struct rng random;
    int32_t n_context, n_blocks;
    struct result results[2 * MAX_LIST];
    int32_t n_results;
    double nll; /* NAN: not asked for */
    int32_t nll_ids;
};

/* ---- arguments ------------------------------------------------------------------------------ */

enum { OPT_TEXT, OPT_LIST, OPT_NUMBER, OPT_KV_TYPE };
struct option_row {
    const char *name;
    int kind;
    size_t offset;
    int64_t min, max;
};
#define AT(field) offsetof(struct arguments, field)
// clang-format off
static const struct option_row rows[] = {
    {"model",    OPT_TEXT,   AT(model),    0, 0},
    {"backend",  OPT_TEXT,   AT(backend),  0, 0},
    {"isa",      OPT_TEXT,   AT(isa),      0, 0},
    {"affinity", OPT_TEXT,   AT(affinity), 0, 0},
    {"nll",      OPT_TEXT,   AT(nll),      0, 0},
    {"trace",    OPT_TEXT,   AT(trace),    0, 0},
    {"kv-type",  OPT_KV_TYPE, AT(kv_type), 0, 0},
    {"prompt",   OPT_LIST,   AT(prompt),   0, 1 << 20},
    {"batch",    OPT_LIST,   AT(batch),    1, MAX_BATCH},
    {"threads",  OPT_NUMBER, AT(threads),  1, 1024},
    {"gen",      OPT_NUMBER, AT(gen),      0, 1 << 20},
    {"context",  OPT_NUMBER, AT(context),  0, 1 << 20},
    {"chunk",    OPT_NUMBER, AT(chunk),    1, 1 << 14},
    {"repeat",   OPT_NUMBER, AT(repeat),   1, MAX_REPEAT},
    {"nll-ids",  OPT_NUMBER, AT(nll_ids),  2, 1 << 20},
    {"service",  OPT_NUMBER, AT(service),  1, 1 << 16},
    {"scale",    OPT_NUMBER, AT(scale),    1, 32},
};
// clang-format on
#define N_ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

static int parse_number(const struct option_row *o, struct bytes text, int32_t *out,
                        struct err *err)
{
    int64_t value;
    if (!parse_i64(text, &value) || value < o->min || value > o->max)
        return err_set(err, "--%s %.*s: a number from %" PRId64 " to %" PRId64 " is expected",
                       o->name, (int)text.len, text.data, o->min, o->max);
    *out = (int32_t)value;
    return 0;
}

static int parse_list(const struct option_row *o, const char *text, struct list *out,
                      struct err *err)
{
    out->n = 0;
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        if (out->n == MAX_LIST)
            return err_set(err, "--%s: more than %d sizes", o->name, MAX_LIST);
        if (parse_number(o, (struct bytes){at, len}, &out->v[out->n++], err) != 0)
            return -1;
        at += len;
        if (*at == '\0')
            return 0;
    }
}

static int parse_kv_type(const struct option_row *o, const char *text, int *out, struct err *err)
{
    for (int i = 0; kv_type_names[i] != NULL; i++) {
        *out = i;
        if (strcmp(text, kv_type_names[i]) == 0)
            return 0;
    }
    return err_set(err, "--%s %s: auto, f32, bf16 or int8 is expected", o->name, text);
}

static int set_option(struct arguments *a, const struct option_row *o, const char *text,
                      struct err *err)
{
    void *value = (char *)a + o->offset;
    if (o->kind == OPT_LIST)
        return parse_list(o, text, value, err);
    if (o->kind == OPT_KV_TYPE)
        return parse_kv_type(o, text, value, err);
    if (o->kind == OPT_NUMBER)
        return parse_number(o, bytes_from(text), value, err);
    *(const char **)value = text;
    return 0;
}

/* 1: help was asked for. */
static int parse_arguments(int argc, char **argv, struct arguments *a, struct err *err)
{
    enum { HELP = N_ROWS + 1 };
    struct option options[N_ROWS + 5] = {{0}};
    for (int i = 0; i < N_ROWS; i++)
        options[i] = (struct option){rows[i].name, required_argument, NULL, i + 1};
    options[N_ROWS] = (struct option){"json", no_argument, &a->json, 1};
    options[N_ROWS + 1] = (struct option){"help", no_argument, NULL, HELP};
    options[N_ROWS + 2] = (struct option){"attention", no_argument, &a->attention, 1};
    options[N_ROWS + 3] = (struct option){"share", no_argument, &a->share, 1};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == HELP)
            return 1;
        if (c == '?')
            return err_set(err, "see --help");
        if (c > 0 && set_option(a, &rows[c - 1], optarg, err) != 0)
            return -1;
    }
    if (optind < argc)
        return err_set(err, "\"%s\" is not an option; see --help", argv[optind]);
    if (a->batch.n == 0)
        a->batch =
            a->attention ? (struct list){{1, 8, 32}, 3} : (struct list){{1, 2, 4, 8, 16, 32}, 6};
    if (a->trace != NULL && a->service == 0)
        return err_set(err, "--trace is a load of --service, which is missing; see --help");
    return a->model == NULL ? err_set(err, "--model is missing; see --help") : 0;
}

static struct arguments default_arguments(void)
{
    cpu_set_t set;
    return (struct arguments){
        .backend = "auto",
        .prompt = {{512}, 1},
        .threads = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1,
        .gen = 64,
        .chunk = 512,
        .repeat = 5,
        .nll_ids = 1024,
        .scale = 4,
    };
}

/* ---- opening -------------------------------------------------------------------------------- */

static int32_t largest(const struct list *l)
{
    int32_t most = 0;
    for (int32_t i = 0; i < l->n; i++)
        most = l->v[i] > most ? l->v[i] : most;
    return most;
}

static int32_t blocks_for(int32_t n_tokens)
{
    return (n_tokens + BLOCK - 1) / BLOCK;
}

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Sizes everything for the largest test. */
static int plan_sizes(struct bench *b, struct plan_limits *limits, struct err *err)
{
    const struct arguments *a = &b->args;
    int32_t batch = largest(&a->batch);
    int32_t one = most(largest(&a->prompt), a->nll != NULL ? a->nll_ids : 0);
    b->n_context = blocks_for(most(one, a->context + a->gen)) * BLOCK;
    if (b->n_context > b->model->n_context)
        return err_set(err, "%d positions are needed; the model was trained for %d", b->n_context,
                       b->model->n_context);
    b->n_blocks = most(blocks_for(one), batch * blocks_for(a->context + a->gen)) + 1;
    *limits = (struct plan_limits){
        .max_rows = most(a->chunk, most(batch, NLL_CHUNK)),
        .max_seqs = most(batch, NLL_CHUNK),
        .max_table_blocks = most(blocks_for(b->n_context), b->n_blocks),
        .max_copies = b->n_blocks,
        .block_size = BLOCK,
    };
    limits->max_rows = most(limits->max_rows, limits->max_seqs);
    return 0;
}

static struct backend_config device_of(const struct arguments *a)
{
    return (struct backend_config){.n_threads = a->threads,
                                   .isa = a->isa,
                                   .affinity = a->affinity,
                                   .kv_type = (enum kv_type)a->kv_type};
}

static int open_bench(struct bench *b, struct err *err)
{
    const struct arguments *a = &b->args;
    const struct backend_ops *ops = backend_find(a->backend, err);
    struct backend_config device = device_of(a);
    if (ops == NULL || (b->model = model_open(a->model, err)) == NULL ||
        plan_sizes(b, &device.limits, err) != 0)
        return -1;
    device.n_context = b->n_context;
    if ((b->forward = forward_open(b->model, ops, &device, err)) == NULL ||
        forward_pool_open(b->forward, b->n_blocks, err) != 0)
        return -1;
    b->plan = plan_new(&device.limits);
    return 0;
}

/* ---- steps ---------------------------------------------------------------------------------- */

static const struct plan_sample greedy = {.top_p = 1, .repeat = 1};

static int run_step(struct bench *b, struct chosen *chosen, float *logits, struct err *err)
{
    plan_finish(b->plan);
    return forward_run(b->forward, b->plan, chosen, logits, err);
}

/* Fills positions 0 .. n of the sequence in blocks 0, 1, ... with random ids. */
static int prefill(struct bench *b, int32_t n, struct err *err)
{
    int32_t *ids = xcalloc((size_t)n + 1, sizeof(*ids)), *table = NULL, result = 0;
    struct chosen chosen;
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(&b->random, (uint64_t)b->model->n_vocab);
    table = xcalloc((size_t)blocks_for(n) + 1, sizeof(*table));
    for (int32_t i = 0; i < blocks_for(n); i++)
        table[i] = i;
    for (int32_t at = 0, len; at < n && result == 0; at += len) {
        struct plan_sample s = greedy;
        len = n - at < b->args.chunk ? n - at : b->args.chunk;
        plan_clear(b->plan);
        plan_add_seq(b->plan, at, ids + at, len, table, blocks_for(n));
        s.row = len - 1;
        if (at + len == n)
            plan_add_sample(b->plan, &s, NULL, 0, NULL, 0, NULL, 0);
        result = run_step(b, &chosen, NULL, err);
    }
    xfree(table);
    xfree(ids);
    return result;
}

/* Every sequence has the blocks [i * per_sequence, ...); the first one's context goes to all. */
static int copy_context(struct bench *b, int32_t batch, int32_t per_sequence, struct err *err)
{
    int32_t n = b->args.context / BLOCK;
    plan_clear(b->plan);
    for (int32_t i = 1; i < batch; i++)
        for (int32_t k = 0; k < n; k++)
            plan_add_copy(b->plan, k, i * per_sequence + k, BLOCK);
    return run_step(b, NULL, NULL, err);
}

/* `gen` steps of `batch` sequences from the context on. */
static int decode(struct bench *b, int32_t batch, int32_t per_sequence, struct err *err)
{
    struct chosen chosen[MAX_BATCH] = {{0}};
    int32_t start = b->args.context / BLOCK * BLOCK;
    int32_t *tables = xcalloc((size_t)batch * (size_t)per_sequence, sizeof(*tables));
    int result = 0;
    for (int32_t i = 0; i < batch * per_sequence; i++) {
        int32_t k = i % per_sequence;
        tables[i] = b->args.share && k < start / BLOCK ? k : i;
    }
    for (int32_t i = 0; i < batch; i++)
        chosen[i].id = (i * 37 + 11) % b->model->n_vocab;
    for (int32_t step = 0; step < b->args.gen && result == 0; step++) {
        plan_clear(b->plan);
        for (int32_t i = 0; i < batch; i++) {
            struct plan_sample s = greedy;
            plan_add_seq(b->plan, start + step, &chosen[i].id, 1, tables + i * per_sequence,
                         per_sequence);
            s.row = i;
            plan_add_sample(b->plan, &s, NULL, 0, NULL, 0, NULL, 0);
        }
        result = run_step(b, chosen, NULL, err);
    }
    xfree(tables);
    return result;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add_run(struct result *r, int64_t n_tokens, int64_t start_us)
{
    r->runs[r->n++] = (double)n_tokens * 1e6 / (double)(clock_mono_us() - start_us);
    qsort(r->runs, (size_t)r->n, sizeof(r->runs[0]), by_value);
}

static double median(const struct result *r)
{
    return (r->runs[(r->n - 1) / 2] + r->runs[r->n / 2]) / 2;
}

static int test_prefill(struct bench *b, int32_t n, struct err *err)
{
    struct result *r = &b->results[b->n_results++];
    snprintf(r->name, sizeof(r->name), "pp%d", n);
    if (prefill(b, n < 32 ? n : 32, err) != 0) /* warms up: pages, caches, threads */
        return -1;
    for (int32_t i = 0; i < b->args.repeat; i++) {
        int64_t start_us = clock_mono_us();
        if (prefill(b, n, err) != 0)
            return -1;
        add_run(r, n, start_us);
    }
    return 0;
}

static int test_decode(struct bench *b, int32_t batch, struct err *err)
{
    struct result *r = &b->results[b->n_results++];
    int32_t context = b->args.context / BLOCK * BLOCK, gen = b->args.gen;
    int32_t per_sequence = blocks_for(context + gen);
    snprintf(r->name, sizeof(r->name), "tg%d x %d @ %d", gen, batch, context);
    if ((context > 0 && prefill(b, context, err) != 0) ||
        copy_context(b, batch, per_sequence, err) != 0)
        return -1;
    for (int32_t i = 0; i <= b->args.repeat; i++) {
        int64_t start_us = clock_mono_us();
        if (decode(b, batch, per_sequence, err) != 0)
            return -1;
        if (i > 0) /* the first one warms up */
            add_run(r, (int64_t)gen * batch, start_us);
    }
    return 0;
}

/* -log p of id under logits [n] */
static double surprise(const float *logits, int32_t n, int32_t id)
{
    double max = logits[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return max + log(sum) - logits[id];
}

/* Sum of -log p of ids 1 .. n - 1 in one context. */
static int sum_surprise(struct bench *b, const int32_t *ids, int32_t n, double *sum,
                        struct err *err)
{
    size_t n_vocab = (size_t)b->model->n_vocab;
    float *logits = xmalloc(NLL_CHUNK * n_vocab * sizeof(*logits));
    int32_t *table = xcalloc((size_t)blocks_for(n), sizeof(*table));
    struct chosen chosen[NLL_CHUNK];
    int result = 0;
    for (int32_t i = 0; i < blocks_for(n); i++)
        table[i] = i;
    for (int32_t at = 0, len; at + 1 < n && result == 0; at += len) {
        len = n - 1 - at < NLL_CHUNK ? n - 1 - at : NLL_CHUNK;
        plan_clear(b->plan);
        plan_add_seq(b->plan, at, ids + at, len, table, blocks_for(n));
        for (int32_t i = 0; i < len; i++) {
            struct plan_sample s = greedy;
            s.row = i;
            plan_add_sample(b->plan, &s, NULL, 0, NULL, 0, NULL, 0);
        }
        result = run_step(b, chosen, logits, err);
        for (int32_t i = 0; i < len && result == 0; i++)
            *sum += surprise(logits + (size_t)i * n_vocab, b->model->n_vocab, ids[at + i + 1]);
    }
    xfree(table);
    xfree(logits);
    return result;
}

static int test_nll(struct bench *b, struct err *err)
{
    struct str text = {0};
    struct ids ids = {0};
    double sum = 0;
    int result = -1;
    struct tokenizer *t = tokenizer_load(b->model->gguf, err);
    if (t == NULL || file_read(b->args.nll, TEXT_BYTES, &text, err) != 0)
        goto out;
    tokenizer_encode(t, bytes_of(&text), false, &ids);
    b->nll_ids = ids.n < b->args.nll_ids ? ids.n : b->args.nll_ids;
    if (b->nll_ids < 2) {
        result = err_set(err, "%s: %d ids; at least 2 are needed", b->args.nll, ids.n);
        goto out;
    }
    result = sum_surprise(b, ids.data, b->nll_ids, &sum, err);
    b->nll = sum / (b->nll_ids - 1);
out:
    ids_free(&ids);
    str_free(&text);
    tokenizer_free(t);
    return result;
}

static int run_tests(struct bench *b, struct err *err)
{
    const struct arguments *a = &b->args;
    for (int32_t i = 0; i < a->prompt.n; i++)
        if (a->prompt.v[i] > 0 && test_prefill(b, a->prompt.v[i], err) != 0)
            return -1;
    for (int32_t i = 0; i < a->batch.n && a->gen > 0; i++)
        if (test_decode(b, a->batch.v[i], err) != 0)
            return -1;
    return a->nll != NULL ? test_nll(b, err) : 0;
}

/* Needs the model's dimensions alone: no weights are read. */
static int test_attention(struct bench *b, struct err *err)
{
    const struct arguments *a = &b->args;
    struct attention_bench bench = {
        .ops = backend_find(a->backend, err), .device = device_of(a), .n_runs = a->repeat};
    if (bench.ops == NULL || (b->model = model_open(a->model, err)) == NULL)
        return -1;
    bench.model = b->model;
    return attention_bench(&bench, a->batch.v, a->batch.n, a->json != 0, err);
}

/* ---- output --------------------------------------------------------------------------------- */

/* What the system calls its processor; "unknown" where it does not say. */
static void cpu_name(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, size, "unknown");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        snprintf(out, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f != NULL)
        fclose(f);
}

static void print_table(struct bench *b)
{
    char cpu[128];
    cpu_name(cpu, sizeof(cpu));
    printf("model   %s, %s, %d layers, width %d\n", b->model->name, b->model->architecture,
           b->model->n_layers, b->model->width);
    printf("cpu     %s\ndevice  %s\n", cpu, forward_describe(b->forward));
    printf("K/V     %s, %.1f KB a token\n\n", kv_type_names[forward_kv_type(b->forward)],
           (double)forward_block_bytes(b->forward) / BLOCK / 1024);
    printf("%-20s %12s %12s %12s\n", "test", "tokens/s", "slowest", "fastest");
    for (int32_t i = 0; i < b->n_results; i++) {
        const struct result *r = &b->results[i];
        printf("%-20s %12.2f %12.2f %12.2f\n", r->name, median(r), r->runs[0], r->runs[r->n - 1]);
    }
    if (!isnan(b->nll))
        printf("\nmean negative log-likelihood of ids 1..%d: %.6f (perplexity %.4f)\n",
               b->nll_ids - 1, b->nll, exp(b->nll));
}

static void print_json(struct bench *b)
{
    char cpu[128];
    json_t *tests = json_array();
    cpu_name(cpu, sizeof(cpu));
    for (int32_t i = 0; i < b->n_results; i++) {
        const struct result *r = &b->results[i];
        json_array_append_new(tests, json_pack("{s:s, s:f, s:f, s:f, s:i}", "test", r->name,
                                               "tokens_per_s", median(r), "slowest", r->runs[0],
                                               "fastest", r->runs[r->n - 1], "runs", r->n));
    }
    json_t *all = json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:o}", "model", b->model->name, "cpu",
                            cpu, "device", forward_describe(b->forward), "kv_type",
                            kv_type_names[forward_kv_type(b->forward)], "block_bytes",
                            (json_int_t)forward_block_bytes(b->forward), "threads", b->args.threads,
                            "tests", tests);
    if (!isnan(b->nll)) {
        json_object_set_new(all, "nll", json_real(b->nll));
        json_object_set_new(all, "nll_ids", json_integer(b->nll_ids));
    }
    char *line = json_dumps(all, JSON_COMPACT);
    printf("%s\n", line);
    free(line);
    json_decref(all);
}

/* The whole engine instead of plans. */
static int bench_service(const struct arguments *a, struct err *err)
{
    static struct service_report report; /* the runs of every policy */
    struct service_options o = {.model = a->model,
                                .backend = a->backend,
                                .isa = a->isa,
                                .affinity = a->affinity,
                                .kv_type = a->kv_type,
                                .threads = a->threads,
                                .n_requests = a->service,
                                .scale = a->scale,
                                .trace = a->trace,
                                .rounds = a->repeat};
    char cpu[128];

    if (service_measure(&o, &report, err))
        return -1;
    cpu_name(cpu, sizeof cpu);
    printf("cpu     %s\n", cpu);
    service_print(&o, &report);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench b; /* too large for a stack: the runs of every test */
    struct err err = {""};
    b.args = default_arguments();
    b.random = rng_from(1);
    b.nll = NAN;
    log_threshold = LOG_WARNING;

    int parsed = parse_arguments(argc, argv, &b.args, &err);
    if (parsed > 0)
        return fputs(usage, stdout) < 0;
    if (parsed == 0 && b.args.service > 0) {
        if (bench_service(&b.args, &err) == 0)
            return 0;
        fprintf(stderr, "kvasir-model-bench: %s\n", err.text);
        return 1;
    }
    bool is_attention = b.args.attention != 0;
    bool done =
        parsed == 0 && (is_attention ? test_attention(&b, &err) == 0
                                     : open_bench(&b, &err) == 0 && run_tests(&b, &err) == 0);
    if (!done)
        fprintf(stderr, "kvasir-model-bench: %s\n", err.text);
    else if (b.args.json && !is_attention)
        print_json(&b);
    else if (!is_attention)
        print_table(&b);
    forward_close(b.forward);
    model_close(b.model);
    plan_free(b.plan);
    return done ? 0 : 1;
}
