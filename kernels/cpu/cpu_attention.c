/* cpu_attention.c - the K/V pool, rotation and writes, and attention dealt out as work items.
 *
 * The pool is bf16. A page holds 16 tokens of one K/V head, laid out so that no sum ever crosses
 * lanes (a block of 64 tokens is four pages in a row):
 *
 *     block   [G heads][pages][K page, V page]
 *     K page  [D/2 pairs of dimensions][16 tokens][2]      lanes are tokens:      scores
 *     V page  [8 pairs of tokens][D dimensions][2]         lanes are dimensions:  outputs
 *
 * All query heads that share a K/V head are rows of one tile, and so are the positions of a prompt.
 * An item is up to 48 such rows (16 positions of 3 heads); it walks the splits of 256 tokens from
 * position 0 on, merging each into the rows' running result. A step with too few items for its
 * threads (decoding one long sequence) makes an item of every split; their partial results are merged
 * afterwards in the same order by the same function, so that it cannot be told which way was taken.
 *
 * Items are made once per step, in plain C, and dealt out by the tokens they read. All K and V of a
 * step are in the pool before anything attends: prefill reads its own rows back like everybody. */
#include <string.h>
#include <math.h>
#include "base/mem.h"
#include "kernels/cpu/cpu_backend.h"

#define ITEM_ROWS 48   /* query rows of an item: 8 full tiles, states within L1 */
#define ITEMS_EACH 4   /* items a thread should have before splits are made items */
#define PARTIAL_ROWS 8 /* sequences at full context whose splits fit the partials */

static int32_t group_of(const struct attention_shape *s)
{
    return s->n_heads / s->n_kv_heads;
}
static int32_t item_positions(const struct attention_shape *s)
{
    int32_t n = ITEM_ROWS / group_of(s);
    return n > 0 ? n : 1;
}

/* ---- the pool -------------------------------------------------------------------------------------- */

size_t cpu_block_bytes(struct backend *b, const struct attention_shape *s)
{
    (void)b;
    return 2 * sizeof(uint16_t) * (size_t)s->block_size * (size_t)s->head_dim *
           (size_t)s->n_kv_heads * (size_t)s->n_layers;
}

static int check_shape(const struct cpu *c, const struct attention_shape *s, struct err *err)
{
    int32_t size = s->block_size;
    if (size < 16 || size > 128 || (size & (size - 1)) != 0)
        return err_set(err, "cpu: block size %d; it takes 16, 32, 64 and 128", size);
    if (size != c->config.limits.block_size)
        return err_set(err, "cpu: block size %d, but plans have %d", size,
                       c->config.limits.block_size);
    if (s->head_dim % 16 != 0 || s->head_dim < 16 || s->head_dim > CPU_MAX_HEAD)
        return err_set(err, "cpu: head size %d; it takes multiples of 16 up to %d", s->head_dim,
                       CPU_MAX_HEAD);
    if (s->n_heads * s->head_dim % CPU_BLOCK != 0)
        return err_set(err, "cpu: %d heads of %d; the product must be a multiple of %d", s->n_heads,
                       s->head_dim, CPU_BLOCK);
    if (s->n_blocks < 1 || s->n_blocks > INT32_MAX / size)
        return err_set(err, "cpu: %d blocks of %d tokens; from 1 to %d fit", s->n_blocks, size,
                       INT32_MAX / size);
    ASSERT(s->n_heads % s->n_kv_heads == 0 && s->rope_dim % 2 == 0 && s->rope_dim <= s->head_dim);
    return 0;
}

static void set_sizes(struct cpu *c, const struct attention_shape *s)
{
    size_t splits = (size_t)c->config.n_context / CPU_SPLIT + 1;
    c->shape = *s;
    c->page_values = (size_t)CPU_PAGE * (size_t)s->head_dim;
    c->head_values = 2 * c->page_values * (size_t)(s->block_size / CPU_PAGE);
    c->block_values = c->head_values * (size_t)s->n_kv_heads;
    c->layer_values = c->block_values * (size_t)s->n_blocks;
    c->partial_cap = (int32_t)(splits * PARTIAL_ROWS * (size_t)s->n_heads);
    c->item_cap = c->config.limits.max_rows * s->n_kv_heads +
                  ITEMS_EACH * c->config.n_threads * (int32_t)splits;
}

int cpu_pool_open_kv(struct backend *b, const struct attention_shape *s, struct err *err)
{
    struct cpu *c = (struct cpu *)b;
    if (check_shape(c, s, err) < 0)
        return -1;
    set_sizes(c, s);
    size_t width = (size_t)s->n_heads * (size_t)s->head_dim;
    int32_t states = group_of(s) > ITEM_ROWS ? group_of(s) : ITEM_ROWS;
    c->kv = cpu_map(c->layer_values * (size_t)s->n_layers * sizeof(uint16_t));
    c->attended = cpu_map((size_t)c->config.limits.max_rows * width * sizeof(float));
    c->partials = cpu_map((size_t)c->partial_cap * (size_t)(s->head_dim + 2) * sizeof(float));
    c->items = cpu_map((size_t)c->item_cap * sizeof *c->items);
    cpu_row_reserve(c, (s->n_heads + 2 * s->n_kv_heads) * s->head_dim);
    cpu_row_reserve(c, states * (s->head_dim + 2));
    if (c->kv && c->attended && c->partials && c->items)
        return 0;
    cpu_pool_close_kv(b);
    return err_set(err, "cpu: no memory for %d blocks of %zu bytes", s->n_blocks,
                   cpu_block_bytes(b, s));
}

void cpu_pool_close_kv(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    cpu_unmap(c->kv);
    cpu_unmap(c->attended);
    cpu_unmap(c->partials);
    cpu_unmap(c->items);
    cpu_unmap(c->host);
    c->kv = c->host = NULL;
    c->attended = c->partials = NULL;
    c->items = NULL;
}

int cpu_host_open(struct backend *b, int32_t n_slots, struct err *err)
{
    struct cpu *c = (struct cpu *)b;
    size_t block = cpu_block_bytes(b, &c->shape);
    c->host = cpu_map((size_t)n_slots * block);
    if (c->host)
        return 0;
    return err_set(err, "cpu: no host memory for %d blocks of %zu bytes", n_slots, block);
}

/* The K page of a token's slot; its V page follows. */
static uint16_t *find_page(const struct cpu *c, int32_t layer, int32_t block, int32_t head,
                           int32_t offset)
{
    return c->kv + (size_t)layer * c->layer_values + (size_t)block * c->block_values +
           (size_t)head * c->head_values + (size_t)(offset / CPU_PAGE) * 2 * c->page_values;
}

size_t cpu_q_bytes(struct backend *b, int32_t rows)
{
    const struct attention_shape *s = &((struct cpu *)b)->shape;
    return (size_t)rows * (size_t)s->n_heads * (size_t)s->head_dim * sizeof(uint16_t);
}

/* ---- host slots ------------------------------------------------------------------------------------ */

static void move_block(const struct cpu *c, const struct plan_move *m, int layer, bool is_out)
{
    size_t index = (size_t)m->slot * (size_t)c->shape.n_layers + (size_t)layer;
    uint16_t *host = c->host + index * c->block_values, *page = find_page(c, layer, m->block, 0, 0);
    memcpy(is_out ? host : page, is_out ? page : host, c->block_values * sizeof(uint16_t));
}

static void out_work(void *arg, int thread, int n_threads)
{
    const struct cpu *c = arg;
    int first, end;
    cpu_share(c->shape.n_layers, thread, n_threads, &first, &end);
    for (int layer = first; layer < end; layer++)
        for (int32_t i = 0; i < c->plan->n_outs; i++)
            move_block(c, &c->plan->outs[i], layer, true);
}

static void in_work(void *arg, int thread, int n_threads)
{
    const struct cpu *c = arg;
    int first, end;
    cpu_share(c->shape.n_layers, thread, n_threads, &first, &end);
    for (int layer = first; layer < end; layer++)
        for (int32_t i = 0; i < c->plan->n_ins; i++)
            move_block(c, &c->plan->ins[i], layer, false);
}

/* Host and pool are one memory here, so there is no other engine to copy beside the step: it begins
 * with it, on all threads. 370 KB a block of SmolLM2: 0.05 ms. */
void cpu_out(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    if (c->plan->n_outs > 0)
        cpu_pool_run(c->pool, c->step_threads, out_work, c);
}

void cpu_in(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    if (c->plan->n_ins > 0)
        cpu_pool_run(c->pool, c->step_threads, in_work, c);
}

/* ---- copies ---------------------------------------------------------------------------------------- */

static void copy_work(void *arg, int thread, int n_threads)
{
    const struct cpu *c = arg;
    int first, end;
    cpu_share(c->shape.n_layers, thread, n_threads, &first, &end);
    for (int layer = first; layer < end; layer++) {
        for (int32_t i = 0; i < c->plan->n_copies; i++) {
            const struct plan_copy *copy = &c->plan->copies[i];
            memcpy(find_page(c, layer, copy->dst, 0, 0), find_page(c, layer, copy->src, 0, 0),
                   c->block_values * sizeof(uint16_t));
        }
    }
}

/* Whole blocks, in the plan's order within each layer: slots past n_tokens are nobody's yet. */
void cpu_copy(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    if (c->plan->n_copies > 0)
        cpu_pool_run(c->pool, c->step_threads, copy_work, c);
}

/* ---- rotation and writes --------------------------------------------------------------------------- */

struct rope_job {
    struct cpu *c;
    int32_t layer;
    const float *qkv, *bias;
    uint16_t *q;
};

/* Rotates the first rope_dim of x [D] by the angles of a position. Plain C, compiled once: the same
 * on every path. */
static void rotate(const struct attention_shape *s, int32_t position, float *x)
{
    int32_t half = s->rope_dim / 2, step = s->rope_neox ? 1 : 2, apart = s->rope_neox ? half : 1;
    const float *cosine = s->rope_cos + (size_t)position * (size_t)half;
    const float *sine = s->rope_sin + (size_t)position * (size_t)half;
    for (int32_t i = 0; i < half; i++) {
        float *first = x + i * step, *second = first + apart, a = *first, b = *second;
        *first = a * cosine[i] - b * sine[i];
        *second = a * sine[i] + b * cosine[i];
    }
}

static void write_slot(const struct cpu *c, uint16_t *page, int32_t token, const float *k,
                       const float *v)
{
    uint16_t half[CPU_MAX_HEAD];
    int32_t dim = c->shape.head_dim;
    c->kernel->round_bf16(k, dim, half);
    for (int32_t p = 0; p < dim / 2; p++)
        memcpy(page + p * 2 * CPU_PAGE + token * 2, half + 2 * p, 4);
    c->kernel->round_bf16(v, dim, half);
    uint16_t *to = page + c->page_values + (size_t)(token / 2) * 2 * (size_t)dim + token % 2;
    for (int32_t d = 0; d < dim; d++)
        to[2 * d] = half[d];
}

static void rope_row(const struct rope_job *job, int32_t t, float *row)
{
    const struct cpu *c = job->c;
    const struct attention_shape *s = &c->shape;
    int32_t dim = s->head_dim, heads = s->n_heads, kv = s->n_kv_heads;
    int32_t width = (heads + 2 * kv) * dim, slot = c->plan->slots[t];
    const float *from = job->qkv + (size_t)t * (size_t)width;
    for (int32_t i = 0; i < width; i++)
        row[i] = job->bias ? from[i] + job->bias[i] : from[i];
    for (int32_t h = 0; h < heads + kv; h++)
        rotate(s, c->plan->positions[t], row + h * dim);
    c->kernel->round_bf16(row, heads * dim, job->q + (size_t)t * (size_t)(heads * dim));
    for (int32_t g = 0; g < kv; g++) {
        int32_t offset = slot % s->block_size;
        uint16_t *page = find_page(c, job->layer, slot / s->block_size, g, offset);
        write_slot(c, page, offset % CPU_PAGE, row + (heads + g) * dim,
                   row + (heads + kv + g) * dim);
    }
}

static void rope_work(void *arg, int thread, int n_threads)
{
    const struct rope_job *job = arg;
    int first, end;
    cpu_share(job->c->plan->n_rows, thread, n_threads, &first, &end);
    for (int t = first; t < end; t++)
        rope_row(job, t, job->c->threads[thread].row);
}

/* qkv [T, (H + 2G) D] + bias -> q [T, H, D] bf16, rotated; K and V to the slots of the rows. */
void cpu_rope_kv_write(struct backend *b, int32_t layer, const float *qkv, const float *bias,
                       void *q)
{
    struct cpu *c = (struct cpu *)b;
    struct rope_job job = {c, layer, qkv, bias, q};
    if (c->plan->n_rows > 0)
        cpu_pool_run(c->pool, cpu_threads_for(c, c->plan->n_rows), rope_work, &job);
}

/* ---- work items ------------------------------------------------------------------------------------ */

static int32_t last_position(const struct plan *p, const struct cpu_item *i)
{
    return p->positions[i->first_row + i->n_rows - 1];
}

static void add_item(struct cpu *c, struct cpu_item item)
{
    ASSERT(c->n_items < c->item_cap);
    int64_t tokens = last_position(c->plan, &item) + 1;
    if (item.split >= 0) {
        tokens -= item.split * CPU_SPLIT;
        tokens = tokens < CPU_SPLIT ? tokens : CPU_SPLIT;
    }
    item.work_before = c->total_work;
    c->total_work +=
        tokens * item.n_rows + CPU_PAGE; /* a page's worth: what an item costs at least */
    c->items[c->n_items++] = item;
}

static void add_split_items(struct cpu *c, struct cpu_item item)
{
    if (!c->is_split) {
        item.split = -1;
        add_item(c, item);
        return;
    }
    for (item.split = 0; item.split <= last_position(c->plan, &item) / CPU_SPLIT; item.split++)
        add_item(c, item);
}

/* Whether splits become items: few whole items, and room for all partial results. */
static bool choose_split(struct cpu *c)
{
    const struct plan *p = c->plan;
    int32_t positions = item_positions(&c->shape), whole = 0, splits = 0;
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *s = &p->seqs[i];
        int32_t n = (s->position + s->n_rows - 1) / CPU_SPLIT + 1;
        whole += (s->n_rows + positions - 1) / positions;
        splits = n > splits ? n : splits;
    }
    c->n_splits = splits;
    return whole * c->shape.n_kv_heads < ITEMS_EACH * c->config.n_threads && splits > 1 &&
           (int64_t)p->n_rows * c->shape.n_heads * splits <= c->partial_cap;
}

/* The items of the step's plan: sequences, K/V heads, stretches of positions. A sequence's heads come
 * one after the other, so that a thread reads neighbouring memory. */
void cpu_attention_plan(struct cpu *c)
{
    const struct plan *p = c->plan;
    int32_t positions = item_positions(&c->shape);
    c->n_items = 0;
    c->total_work = 0;
    c->is_split = choose_split(c);
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *s = &p->seqs[i];
        for (int32_t g = 0; g < c->shape.n_kv_heads; g++) {
            for (int32_t at = 0; at < s->n_rows; at += positions) {
                int32_t n = s->n_rows - at < positions ? s->n_rows - at : positions;
                add_split_items(
                    c, (struct cpu_item){
                           .seq = i, .kv_head = g, .first_row = s->first_row + at, .n_rows = n});
            }
        }
    }
}

/* ---- one item -------------------------------------------------------------------------------------- */

struct attention_job {
    struct cpu *c;
    int32_t layer;
    const uint16_t *q;
    void *out;
    float factor; /* scale * log2(e) */
};

/* Result of one query row: m, l, o [D]. */
struct state {
    float m, l, o[];
};

static struct state *state_at(float *states, int32_t dim, int64_t i)
{
    return (struct state *)(states + i * (dim + 2));
}
static struct state *partial_at(const struct cpu *c, int32_t row, int32_t head, int32_t split)
{
    int64_t i = ((int64_t)row * c->shape.n_heads + head) * c->n_splits + split;
    return state_at(c->partials, c->shape.head_dim, i);
}

/* Page addresses of a split, as far as the item sees. */
static void find_pages(const struct attention_job *job, const struct cpu_item *item, int32_t split,
                       struct cpu_attend *a)
{
    const struct cpu *c = job->c;
    const int32_t *table = c->plan->tables + c->plan->seqs[item->seq].table_at;
    int32_t first = split * CPU_SPLIT, last = last_position(c->plan, item);
    for (int32_t i = 0; i < CPU_SPLIT / CPU_PAGE && first + i * CPU_PAGE <= last; i++) {
        int32_t position = first + i * CPU_PAGE, size = c->shape.block_size;
        a->k[i] = find_page(c, job->layer, table[position / size], item->kv_head, position % size);
        a->v[i] = a->k[i] + c->page_values;
    }
}

/* Query rows [i, end) of the item against a split: results to the states, or to the partials. */
static void attend_tile(const struct attention_job *job, const struct cpu_item *item, int32_t split,
                        int32_t i, int32_t end, struct cpu_attend *a, float *states)
{
    const struct cpu *c = job->c;
    int32_t dim = c->shape.head_dim, group = group_of(&c->shape), head[CPU_TILE];
    float fresh[CPU_TILE][CPU_MAX_HEAD];
    struct state *to[CPU_TILE];
    a->n_rows = 0;
    for (; i < end; i++) {
        int32_t row = item->first_row + i / group, r = a->n_rows;
        int32_t n = c->plan->positions[row] + 1 - split * CPU_SPLIT;
        if (n <= 0)
            continue; /* none of this row's tokens lie here */
        head[r] = item->kv_head * group + i % group;
        a->q[r] = job->q + ((size_t)row * (size_t)c->shape.n_heads + (size_t)head[r]) * (size_t)dim;
        a->n[r] = n < CPU_SPLIT ? n : CPU_SPLIT;
        to[r] = item->split >= 0 ? partial_at(c, row, head[r], split) : state_at(states, dim, i);
        a->o[r] = item->split >= 0 || split == 0 ? to[r]->o : fresh[r];
        a->n_rows++;
    }
    if (a->n_rows == 0)
        return;
    c->kernel->attend(a);
    for (int32_t r = 0; r < a->n_rows; r++) {
        if (a->o[r] == to[r]->o) {
            to[r]->m = a->m[r];
            to[r]->l = a->l[r];
        } else {
            c->kernel->merge(&to[r]->m, &to[r]->l, to[r]->o, a->m[r], a->l[r], a->o[r], a->c, dim);
        }
    }
}

static void run_split(const struct attention_job *job, const struct cpu_item *item, int32_t split,
                      float *states)
{
    struct cpu_attend a = {.head_dim = job->c->shape.head_dim, .c = job->factor};
    int32_t rows = item->n_rows * group_of(&job->c->shape);
    find_pages(job, item, split, &a);
    for (int32_t i = 0; i < cpu_tiles(rows); i++)
        attend_tile(job, item, split, cpu_tile_first(rows, i), cpu_tile_first(rows, i + 1), &a,
                    states);
}

static void run_item(const struct attention_job *job, const struct cpu_item *item, float *states)
{
    const struct cpu *c = job->c;
    int32_t dim = c->shape.head_dim, group = group_of(&c->shape);
    if (item->split >= 0) {
        run_split(job, item, item->split, states);
        return;
    }
    for (int32_t split = 0; split <= last_position(c->plan, item) / CPU_SPLIT; split++)
        run_split(job, item, split, states);
    for (int32_t i = 0; i < item->n_rows * group; i++) {
        int32_t row = item->first_row + i / group, head = item->kv_head * group + i % group;
        const struct state *s = state_at(states, dim, i);
        size_t at = ((size_t)row * (size_t)c->shape.n_heads + (size_t)head) * (size_t)dim;
        c->kernel->finish(s->o, s->l, dim, c->attended + at);
    }
}

/* Contiguous items of about equal work. */
static void item_work(void *arg, int thread, int n_threads)
{
    const struct attention_job *job = arg;
    const struct cpu *c = job->c;
    int64_t from = c->total_work * thread / n_threads,
            to = c->total_work * (thread + 1) / n_threads;
    for (int32_t i = 0; i < c->n_items; i++) {
        if (c->items[i].work_before >= from && c->items[i].work_before < to)
            run_item(job, &c->items[i], c->threads[thread].row);
    }
}

/* ---- rows out of the items ------------------------------------------------------------------------- */

static void merge_row(const struct attention_job *job, int32_t t, float *out)
{
    const struct cpu *c = job->c;
    int32_t dim = c->shape.head_dim;
    for (int32_t head = 0; head < c->shape.n_heads; head++) {
        struct state *s = partial_at(c, t, head, 0);
        for (int32_t split = 1; split <= c->plan->positions[t] / CPU_SPLIT; split++) {
            const struct state *next = partial_at(c, t, head, split);
            c->kernel->merge(&s->m, &s->l, s->o, next->m, next->l, next->o, job->factor, dim);
        }
        c->kernel->finish(s->o, s->l, dim, out + head * dim);
    }
}

static void put_work(void *arg, int thread, int n_threads)
{
    const struct attention_job *job = arg;
    const struct cpu *c = job->c;
    int32_t rows = c->plan->n_rows, width = c->shape.n_heads * c->shape.head_dim;
    int first, end;
    cpu_share(cpu_tiles(rows), thread, n_threads, &first, &end);
    for (int32_t t = cpu_tile_first(rows, first); t < cpu_tile_first(rows, end); t++) {
        float *row = c->attended + (size_t)t * (size_t)width;
        if (c->is_split)
            merge_row(job, t, row);
        cpu_act_put(c, job->out, rows, width, t, row);
    }
}

/* q [T, H, D] over the pool, causal -> out: act [T, H D] */
void cpu_attention(struct backend *b, int32_t layer, const void *q, void *out)
{
    struct cpu *c = (struct cpu *)b;
    struct attention_job job = {c, layer, q, out, c->shape.scale * 1.44269504f};
    if (c->plan->n_rows == 0)
        return;
    cpu_pool_run(c->pool, cpu_threads_for(c, c->plan->n_rows), item_work, &job);
    cpu_pool_run(c->pool, cpu_threads_for(c, c->plan->n_rows), put_work, &job);
}
