/* bench_attention.c - attention over scattered blocks against the same over contiguous memory.
 *
 * The question is what paging costs the kernel (the PagedAttention paper says 20 to 26 %). Two
 * backends hold the same K and V of the same sequences:
 *
 *     paged        blocks of 16 tokens, in random places of the pool
 *     contiguous   blocks of 128 tokens, the largest there are, one run for each sequence
 *
 * The arithmetic is the same, and so is every bit of the result, which is checked: what differs is
 * where the bytes lie. Both are timed in
 * turns, run by run, because a machine's speed drifts; a run walks all layers, as a step does, so that
 * the caches hold what they would hold then. Layers are left out where the pools would get too large. */
#include "utils/bench_attention.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

enum {
    PAGED_BLOCK = 16,
    LARGE_BLOCK = 128,
    FILL_ROWS = 256,
    POOL_BYTES = 512 << 20,
};

static const int32_t contexts[] = {512, 2048};
enum { N_CONTEXTS = sizeof contexts / sizeof *contexts };

/* One line of the table. */
struct point {
    const struct attention_bench *bench;
    int32_t context, batch;         /* tokens that each of the sequences attends to */
    double paged_us, contiguous_us; /* of one layer, medians */
    double ratio;                   /* median of paged / contiguous of neighbouring runs */
};

struct side {
    struct backend *b;
    const struct backend_ops *ops;
    struct attention_shape shape;
    struct plan *plan;
    int32_t block_size, per_sequence; /* blocks */
    int32_t *tables;                  /* [batch, per_sequence] owns */
    float *qkv;                       /* device [FILL_ROWS, (H + 2G) D] */
    void *q, *act;                    /* device, of `rows` rows */
    bool has_pool;
};

/* Blocks of all sequences: in order, or anywhere. */
static void make_tables(struct side *s, int32_t batch, bool scattered)
{
    int32_t n = batch * s->per_sequence;
    struct rng r = rng_from(7);
    s->tables = xcalloc((size_t)n, sizeof(*s->tables));
    for (int32_t i = 0; i < n; i++)
        s->tables[i] = i;
    for (int32_t i = n - 1; scattered && i > 0; i--) {
        int32_t other = (int32_t)rng_below(&r, (uint64_t)i + 1), was = s->tables[i];
        s->tables[i] = s->tables[other];
        s->tables[other] = was;
    }
}

static void fill_shape(struct side *s, const struct model *m, enum kv_type type, int32_t n_blocks)
{
    s->shape = (struct attention_shape){
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .head_dim = m->head_dim,
        .rope_dim = m->rope_dim,
        .rope_neox = m->rope_neox,
        .scale = 1.0f / sqrtf((float)m->head_dim),
        .n_layers = 1,
        .n_blocks = n_blocks,
        .block_size = s->block_size,
        .kv_type = type,
    };
    size_t layer_bytes = s->ops->block_bytes(s->b, &s->shape) * (size_t)n_blocks;
    size_t fit = POOL_BYTES / layer_bytes;
    s->shape.n_layers = fit < 1 ? 1 : fit < (size_t)m->n_layers ? (int32_t)fit : m->n_layers;
}

static size_t qkv_width(const struct side *s)
{
    return (size_t)(s->shape.n_heads + 2 * s->shape.n_kv_heads) * (size_t)s->shape.head_dim;
}

/* Everything but what the pool holds; rope: [context, rope_dim / 2] cosines, then sines. */
static int open_side(struct side *s, const struct point *p, int32_t block_size, const float *rope,
                     struct err *err)
{
    struct backend_config config = p->bench->device;
    s->ops = p->bench->ops;
    s->block_size = block_size;
    s->per_sequence = (p->context + block_size - 1) / block_size;
    int32_t n_blocks = p->batch * s->per_sequence;
    int32_t rows = p->batch > FILL_ROWS ? p->batch : FILL_ROWS;
    config.limits = (struct plan_limits){.max_rows = rows,
                                         .max_seqs = p->batch,
                                         .max_table_blocks = n_blocks,
                                         .max_copies = n_blocks,
                                         .block_size = block_size};
    config.n_context = p->context;
    config.n_vocab = 1;
    make_tables(s, p->batch, block_size == PAGED_BLOCK);
    s->plan = plan_new(&config.limits);
    if ((s->b = s->ops->open(&config, err)) == NULL)
        return -1;
    fill_shape(s, p->bench->model, config.kv_type, n_blocks);
    s->shape.rope_cos = rope;
    s->shape.rope_sin = rope + (size_t)p->context * (size_t)(s->shape.rope_dim / 2);
    if (s->ops->pool_open(s->b, &s->shape, err) != 0)
        return -1;
    s->has_pool = true;
    s->qkv = s->ops->alloc(s->b, (size_t)rows * qkv_width(s) * sizeof(*s->qkv));
    s->q = s->ops->alloc(s->b, s->ops->q_bytes(s->b, rows));
    s->act =
        s->ops->alloc(s->b, s->ops->act_bytes(s->b, rows, s->shape.n_heads * s->shape.head_dim));
    return s->ops->sync(s->b, err);
}

static void close_side(struct side *s)
{
    if (s->b != NULL) {
        void *const buffers[] = {s->qkv, s->q, s->act};
        for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
            s->ops->free(s->b, buffers[i]);
        if (s->has_pool)
            s->ops->pool_close(s->b);
        s->ops->close(s->b);
    }
    plan_free(s->plan);
    xfree(s->tables);
}

/* K and V of the rows in the plan, in every layer; random, the same on both sides. */
static void write_rows(struct side *s, int32_t position)
{
    size_t n = (size_t)s->plan->n_rows * qkv_width(s);
    float *host = xmalloc(n * sizeof(*host));
    struct rng r = rng_from(100 + (uint64_t)position);
    for (size_t i = 0; i < n; i++)
        host[i] = 2 * rng_unit(rng_next(&r)) - 1;
    s->ops->upload(s->b, s->qkv, host, n * sizeof(*host));
    xfree(host);
    for (int32_t layer = 0; layer < s->shape.n_layers; layer++)
        s->ops->rope_kv_write(s->b, layer, s->qkv, NULL, s->q);
}

/* The first sequence is written, the others are copies of it. */
static void fill(struct side *s, const struct point *p)
{
    static const int32_t ids[FILL_ROWS];
    for (int32_t at = 0, n; at < p->context; at += n) {
        n = p->context - at < FILL_ROWS ? p->context - at : FILL_ROWS;
        plan_clear(s->plan);
        plan_add_seq(s->plan, at, ids, n, s->tables, s->per_sequence);
        plan_finish(s->plan);
        s->ops->step_begin(s->b, s->plan);
        write_rows(s, at);
        s->ops->step_end(s->b);
    }
    plan_clear(s->plan);
    for (int32_t i = 1; i < p->batch; i++)
        for (int32_t k = 0; k < s->per_sequence; k++)
            plan_add_copy(s->plan, s->tables[k], s->tables[i * s->per_sequence + k], s->block_size);
    plan_finish(s->plan);
    s->ops->step_begin(s->b, s->plan);
    s->ops->copy(s->b);
    s->ops->step_end(s->b);
}

/* The plan of a decode step whose row sees `context` tokens; it stays begun, and all runs are its. */
static void begin_decode(struct side *s, const struct point *p)
{
    const int32_t id = 0;
    plan_clear(s->plan);
    for (int32_t i = 0; i < p->batch; i++)
        plan_add_seq(s->plan, p->context - 1, &id, 1, s->tables + i * s->per_sequence,
                     s->per_sequence);
    plan_finish(s->plan);
    s->ops->step_begin(s->b, s->plan);
    write_rows(s, p->context);
}

static int time_layers(struct side *s, double *us, struct err *err)
{
    int64_t start_us = clock_mono_us();
    for (int32_t layer = 0; layer < s->shape.n_layers; layer++)
        s->ops->attention(s->b, layer, s->q, s->act);
    if (s->ops->sync(s->b, err) != 0)
        return -1;
    *us = (double)(clock_mono_us() - start_us) / s->shape.n_layers;
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int32_t n)
{
    qsort(values, (size_t)n, sizeof(*values), by_value);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/* values [3, n_runs]: scratch. Which side goes first alternates. */
static int time_both(struct side sides[2], struct point *p, double *values, struct err *err)
{
    int32_t n = p->bench->n_runs;
    double *paged = values, *contiguous = values + n, *ratio = values + 2 * n, once;
    for (int i = 0; i < 2; i++) /* pages, caches, threads */
        if (time_layers(&sides[i], &once, err) != 0)
            return -1;
    for (int32_t i = 0; i < n; i++) {
        double *of[2] = {&paged[i], &contiguous[i]};
        for (int k = 0; k < 2; k++)
            if (time_layers(&sides[(i + k) % 2], of[(i + k) % 2], err) != 0)
                return -1;
        ratio[i] = paged[i] / contiguous[i];
    }
    p->paged_us = median(paged, n);
    p->contiguous_us = median(contiguous, n);
    p->ratio = median(ratio, n);
    return 0;
}

/* What the last layer gave, on both sides. */
static int compare(struct side sides[2], const struct point *p, struct err *err)
{
    const struct side *s = &sides[0];
    size_t size = s->ops->act_bytes(s->b, p->batch, s->shape.n_heads * s->shape.head_dim);
    uint8_t *a = xmalloc(size), *b = xmalloc(size);
    sides[0].ops->download(sides[0].b, a, sides[0].act, size);
    sides[1].ops->download(sides[1].b, b, sides[1].act, size);
    bool is_same = memcmp(a, b, size) == 0;
    xfree(a);
    xfree(b);
    return is_same ? 0
                   : err_set(err, "attention of %d x %d tokens depends on where the blocks lie",
                             p->batch, p->context);
}

static int run_point(struct point *p, struct err *err)
{
    struct side sides[2] = {{0}};
    const struct model *m = p->bench->model;
    size_t half = (size_t)p->context * (size_t)(m->rope_dim / 2);
    float *rope = xcalloc(2 * half + 1, sizeof(*rope));
    double *values = xcalloc(3 * (size_t)p->bench->n_runs, sizeof(*values));
    int result = -1;
    model_rope_table(m, p->context, rope, rope + half);
    if (open_side(&sides[0], p, PAGED_BLOCK, rope, err) != 0 ||
        open_side(&sides[1], p, LARGE_BLOCK, rope, err) != 0)
        goto out;
    for (int i = 0; i < 2; i++) {
        fill(&sides[i], p);
        begin_decode(&sides[i], p);
    }
    result = time_both(sides, p, values, err);
    if (result == 0)
        result = compare(sides, p, err);
    for (int i = 0; i < 2; i++)
        sides[i].ops->step_end(sides[i].b);
out:
    close_side(&sides[1]);
    close_side(&sides[0]);
    xfree(values);
    xfree(rope);
    return result;
}

/* ---- output --------------------------------------------------------------------------------- */

static void print_point(const struct point *p)
{
    printf("%8d %8d %14.1f %18.1f %8.3f\n", p->context, p->batch, p->paged_us, p->contiguous_us,
           p->ratio);
    (void)fflush(stdout); /* a line at a time; what is lost with the reader is lost */
}

static json_t *json_of(const struct point *p)
{
    return json_pack("{s:i, s:i, s:f, s:f, s:f}", "context", p->context, "batch", p->batch,
                     "paged_us", p->paged_us, "contiguous_us", p->contiguous_us, "ratio", p->ratio);
}

int attention_bench(const struct attention_bench *bench, const int32_t *batches, int32_t n_batches,
                    bool as_json, struct err *err)
{
    json_t *points = json_array();
    int result = 0;
    if (!as_json)
        printf("attention of one layer, %s, us\n%8s %8s %14s %18s %8s\n", bench->ops->name,
               "context", "batch", "blocks of 16", "contiguous", "ratio");
    for (int32_t i = 0; i < N_CONTEXTS * n_batches && result == 0; i++) {
        struct point p = {bench, contexts[i / n_batches], batches[i % n_batches], 0, 0, 0};
        result = run_point(&p, err);
        if (result == 0 && as_json)
            json_array_append_new(points, json_of(&p));
        else if (result == 0)
            print_point(&p);
    }
    json_t *all = json_pack("{s:o}", "attention", points);
    char *line = json_dumps(all, JSON_COMPACT);
    if (as_json && result == 0)
        puts(line);
    free(line);
    json_decref(all);
    return result;
}
