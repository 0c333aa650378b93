/* cpu_attention.c - attention dealt out as work items.
 *
 * All query heads that share a K/V head are rows of one tile, and so are the positions of a prompt.
 * An item is up to 48 such rows (16 positions of 3 heads); it walks the splits of 256 tokens from
 * position 0 on, merging each into the rows' running result. A step with too few items for its
 * threads (decoding one long sequence) makes an item of every split; their partial results are merged
 * afterwards in the same order by the same function, so that it cannot be told which way was taken.
 *
 * Decoding sequences that share a prefix share its blocks. Such a step is cut into splits, too, and a
 * split whose blocks stand in several tables is one item for all of them: its keys and values are read
 * once, and the tiles are full. (A step that holds prompts as well does without.)
 *
 * Items are made once per step, in plain C, and dealt out by the tokens they read. All K and V of a
 * step are in the pool before anything attends: prefill reads its own rows back like everybody. While
 * a thread computes a split it asks for the pages of its next one, a few lines at a time. */
#include <string.h>
#include <math.h>
#include "base/mem.h"
#include "kernels/cpu/cpu_backend.h"

#define SPLIT_PAGES (CPU_SPLIT / CPU_PAGE)
#define ITEM_ROWS 48    /* query rows of an item: 8 full tiles, states within L1 */
#define ITEMS_EACH 4    /* items a thread should have before splits are made items */
#define PARTIAL_ROWS 64 /* sequences at full context whose splits fit the partials */
#define SHARE_SEQS 256  /* sequences among which equal splits are looked for: pairs are compared */

static int32_t group_of(const struct attention_shape *s)
{
    return s->n_heads / s->n_kv_heads;
}
static int32_t item_positions(const struct attention_shape *s)
{
    int32_t n = ITEM_ROWS / group_of(s);
    return n > 0 ? n : 1;
}

/* ---- memory ---------------------------------------------------------------------------------------- */

/* Room for a step's items and results, behind the pool's sizes; false: none. */
bool cpu_attention_open(struct cpu *c)
{
    const struct attention_shape *s = &c->shape;
    size_t splits = (size_t)c->config.n_context / CPU_SPLIT + 1;
    size_t width = (size_t)s->n_heads * (size_t)s->head_dim;
    int32_t states = group_of(s) > ITEM_ROWS ? group_of(s) : ITEM_ROWS;
    c->partial_cap = (int32_t)(splits * PARTIAL_ROWS * (size_t)s->n_heads);
    int32_t whole = c->config.limits.max_rows * s->n_kv_heads; /* items, splits aside */
    int32_t cut = c->partial_cap / group_of(s);                /* items, each a split */
    c->item_cap = whole + ITEMS_EACH * c->config.n_threads * (int32_t)splits;
    c->item_cap = c->item_cap > cut ? c->item_cap : cut;
    c->rows_cap = c->config.limits.max_rows + c->partial_cap / s->n_heads;
    c->attended = cpu_map((size_t)c->config.limits.max_rows * width * sizeof(float));
    c->partials = cpu_map((size_t)c->partial_cap * (size_t)(s->head_dim + 2) * sizeof(float));
    c->items = cpu_map((size_t)c->item_cap * sizeof *c->items);
    c->rows = cpu_map((size_t)c->rows_cap * sizeof *c->rows);
    c->leaders = cpu_map((size_t)c->config.limits.max_seqs * sizeof *c->leaders);
    cpu_row_reserve(c, states * (s->head_dim + 2));
    for (int32_t i = 0; c->rows && i < c->config.limits.max_rows; i++)
        c->rows[i] = i;
    return c->attended && c->partials && c->items && c->rows && c->leaders;
}

void cpu_attention_close(struct cpu *c)
{
    cpu_unmap(c->attended);
    cpu_unmap(c->partials);
    cpu_unmap(c->items);
    cpu_unmap(c->rows);
    cpu_unmap(c->leaders);
    c->attended = c->partials = NULL;
    c->items = NULL;
    c->rows = c->leaders = NULL;
}

/* ---- work items ------------------------------------------------------------------------------------ */

static int32_t last_position(const struct plan *p, const struct cpu_item *i)
{
    return p->positions[i->rows[i->n_rows - 1]];
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

/* Splits of the longest sequence; whether all partial results have room. */
static bool fit_partials(struct cpu *c)
{
    const struct plan *p = c->plan;
    c->n_splits = 0;
    for (int32_t i = 0; i < p->n_seqs; i++) {
        int32_t n = (p->seqs[i].position + p->seqs[i].n_rows - 1) / CPU_SPLIT + 1;
        c->n_splits = n > c->n_splits ? n : c->n_splits;
    }
    return (int64_t)p->n_rows * c->shape.n_heads * c->n_splits <= c->partial_cap;
}

/* Too few whole items for the threads. */
static bool is_short_of_items(const struct cpu *c)
{
    int32_t positions = item_positions(&c->shape), whole = 0;
    for (int32_t i = 0; i < c->plan->n_seqs; i++)
        whole += (c->plan->seqs[i].n_rows + positions - 1) / positions;
    return whole * c->shape.n_kv_heads < ITEMS_EACH * c->config.n_threads && c->n_splits > 1;
}

/* Sequences, K/V heads, stretches of positions. A sequence's heads come one after the other, so that a
 * thread reads neighbouring memory. */
static void add_seq_items(struct cpu *c, int32_t seq)
{
    const struct plan_seq *s = &c->plan->seqs[seq];
    int32_t positions = item_positions(&c->shape);
    for (int32_t g = 0; g < c->shape.n_kv_heads; g++) {
        for (int32_t at = 0; at < s->n_rows; at += positions) {
            int32_t n = s->n_rows - at < positions ? s->n_rows - at : positions;
            const int32_t *rows = c->rows + s->first_row + at;
            add_split_items(c,
                            (struct cpu_item){.seq = seq, .kv_head = g, .rows = rows, .n_rows = n});
        }
    }
}

/* ---- splits that several sequences share ----------------------------------------------------------- */

static bool is_decode(const struct plan *p)
{
    for (int32_t i = 0; i < p->n_seqs; i++)
        if (p->seqs[i].n_rows != 1)
            return false;
    return true;
}

/* Both sequences see all of the split, in the same blocks. */
static bool is_same_split(const struct cpu *c, int32_t a, int32_t b, int32_t split)
{
    const struct plan *p = c->plan;
    int32_t end = (split + 1) * CPU_SPLIT, n = CPU_SPLIT / c->shape.block_size;
    if (p->seqs[a].position + 1 < end || p->seqs[b].position + 1 < end)
        return false;
    const int32_t *blocks = p->tables + p->seqs[a].table_at + split * n;
    return memcmp(blocks, p->tables + p->seqs[b].table_at + split * n,
                  (size_t)n * sizeof *blocks) == 0;
}

/* leaders [S] of one split; true: some sequence has another one's. */
static bool find_leaders(struct cpu *c, int32_t split)
{
    bool shared = false;
    for (int32_t i = 0; i < c->plan->n_seqs; i++) {
        int32_t leader = 0;
        while (leader < i && (c->leaders[leader] != leader || !is_same_split(c, leader, i, split)))
            leader++;
        c->leaders[i] = leader;
        shared |= leader < i;
    }
    return shared;
}

/* One item a K/V head for the sequences that follow `leader` in this split, itself included. */
static void add_shared_items(struct cpu *c, int32_t leader, int32_t split)
{
    const struct plan *p = c->plan;
    struct cpu_item item = {.seq = leader, .split = split, .rows = c->rows + c->n_rows};
    for (int32_t i = leader; i < p->n_seqs; i++) {
        if (c->leaders[i] != leader)
            continue;
        ASSERT(c->n_rows < c->rows_cap);
        c->rows[c->n_rows++] = p->seqs[i].first_row;
        item.n_rows++;
    }
    for (item.kv_head = 0; item.kv_head < c->shape.n_kv_heads; item.kv_head++)
        add_item(c, item);
}

static void add_step_of_shared_items(struct cpu *c)
{
    const struct plan *p = c->plan;
    c->n_rows = c->config.limits.max_rows;
    for (int32_t split = 0; split < c->n_splits; split++) {
        (void)find_leaders(c, split);
        for (int32_t i = 0; i < p->n_seqs; i++)
            if (c->leaders[i] == i && p->seqs[i].position >= split * CPU_SPLIT)
                add_shared_items(c, i, split);
    }
}

/* The items of the step's plan. Whoever shares anything shares the first split. */
void cpu_attention_plan(struct cpu *c)
{
    const struct plan *p = c->plan;
    c->n_items = 0;
    c->total_work = 0;
    bool fits = fit_partials(c);
    if (fits && p->n_seqs <= SHARE_SEQS && is_decode(p) && find_leaders(c, 0)) {
        c->is_split = true;
        add_step_of_shared_items(c);
        return;
    }
    c->is_split = fits && is_short_of_items(c);
    for (int32_t i = 0; i < p->n_seqs; i++)
        add_seq_items(c, i);
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

/* A split of an item. */
struct part {
    const struct cpu_item *item; /* NULL: none */
    int32_t split;
};

/* The part after this one: the item's next split, or what the next item, if there is one, begins
 * with. */
static struct part part_after(const struct plan *p, struct part at, const struct cpu_item *next)
{
    if (at.item->split < 0 && at.split < last_position(p, at.item) / CPU_SPLIT)
        return (struct part){at.item, at.split + 1};
    return (struct part){next, next && next->split >= 0 ? next->split : 0};
}

/* Page addresses of a part, as far as its item sees; how many. */
static int32_t find_pages(const struct attention_job *job, struct part part, const uint8_t **pages)
{
    if (!part.item)
        return 0;
    const struct cpu *c = job->c;
    const int32_t *table = c->plan->tables + c->plan->seqs[part.item->seq].table_at;
    int32_t first = part.split * CPU_SPLIT, last = last_position(c->plan, part.item), i = 0;
    for (; i < SPLIT_PAGES && first + i * CPU_PAGE <= last; i++) {
        int32_t position = first + i * CPU_PAGE, size = c->shape.block_size;
        pages[i] =
            cpu_kv_page(c, job->layer, table[position / size], part.item->kv_head, position % size);
    }
    return i;
}

/* Query rows [i, end) of the item against a split: results to the states, or to the partials. */
static void attend_tile(const struct attention_job *job, struct part part, int32_t i, int32_t end,
                        struct cpu_attend *a, float *states)
{
    const struct cpu *c = job->c;
    const struct cpu_item *item = part.item;
    int32_t split = part.split;
    int32_t dim = c->shape.head_dim, group = group_of(&c->shape), head[CPU_TILE];
    float fresh[CPU_TILE][CPU_MAX_HEAD];
    struct state *to[CPU_TILE];
    a->n_rows = 0;
    for (; i < end; i++) {
        int32_t row = item->rows[i / group], r = a->n_rows;
        int32_t n = c->plan->positions[row] + 1 - split * CPU_SPLIT;
        if (n <= 0)
            continue; /* none of this row's tokens lie here */
        head[r] = item->kv_head * group + i % group;
        a->q[r] = job->q + ((size_t)row * (size_t)c->shape.n_heads + (size_t)head[r]) * c->q_values;
        a->n[r] = n < CPU_SPLIT ? n : CPU_SPLIT;
        to[r] = item->split >= 0 ? partial_at(c, row, head[r], split) : state_at(states, dim, i);
        a->o[r] = item->split >= 0 || split == 0 ? to[r]->o : fresh[r];
        a->n_rows++;
    }
    if (a->n_rows == 0)
        return;
    c->kernel->attend[c->shape.kv_type](a);
    for (int32_t r = 0; r < a->n_rows; r++) {
        if (a->o[r] == to[r]->o) {
            to[r]->m = a->m[r];
            to[r]->l = a->l[r];
        } else {
            c->kernel->merge(&to[r]->m, &to[r]->l, to[r]->o, a->m[r], a->l[r], a->o[r], a->c, dim);
        }
    }
}

/* All tiles of a part; each asks for a share of the pages of the part after it. */
static void run_part(const struct attention_job *job, struct part part, struct part after,
                     float *states)
{
    const struct cpu *c = job->c;
    const uint8_t *ahead[SPLIT_PAGES];
    struct cpu_attend a = {
        .head_dim = c->shape.head_dim, .c = job->factor, .page_bytes = c->page_bytes};
    int32_t rows = part.item->n_rows * group_of(&c->shape), n_tiles = cpu_tiles(rows);
    int32_t n_pages = find_pages(job, part, a.k), n_ahead = find_pages(job, after, ahead);
    for (int32_t i = 0; i < n_pages; i++)
        a.v[i] = a.k[i] + c->v_at;
    for (int32_t i = 0; i < n_tiles; i++) {
        a.ahead = ahead + n_ahead * i / n_tiles;
        a.n_ahead = n_ahead * (i + 1) / n_tiles - n_ahead * i / n_tiles;
        attend_tile(job, part, cpu_tile_first(rows, i), cpu_tile_first(rows, i + 1), &a, states);
    }
}

/* next: the thread's next item, or NULL. */
static void run_item(const struct attention_job *job, const struct cpu_item *item,
                     const struct cpu_item *next, float *states)
{
    const struct cpu *c = job->c;
    int32_t dim = c->shape.head_dim, group = group_of(&c->shape);
    struct part part = {item, item->split >= 0 ? item->split : 0}, after;
    for (; part.item == item; part = after) {
        after = part_after(c->plan, part, next);
        run_part(job, part, after, states);
    }
    if (item->split >= 0)
        return;
    for (int32_t i = 0; i < item->n_rows * group; i++) {
        int32_t row = item->rows[i / group], head = item->kv_head * group + i % group;
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
    int32_t i = 0, end;
    while (i < c->n_items && c->items[i].work_before < from)
        i++;
    for (end = i; end < c->n_items && c->items[end].work_before < to;)
        end++;
    for (; i < end; i++)
        run_item(job, &c->items[i], i + 1 < end ? &c->items[i + 1] : NULL, c->threads[thread].row);
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
