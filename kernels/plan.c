/* plan.c - build the flat arrays of one step.
 *
 * A plan is filled by the engine between two steps and read by every rank during one. All arrays
 * are sized once, by the limits, so that building a step allocates nothing. What the backends need
 * per row (position, slot, sequence) is derived here, in one place: a slot computed twice in two
 * ways would be a fault that only shows as another token.
 *
 *     tables   [ 7 2 9 | 7 4 | ... ]          ranges of plan_seq: table_at, n_blocks
 *     rows     [ a a a a a | b | ... ]        ranges of plan_seq: first_row, n_rows
 *     slot(row) = tables[table_at + position / B] * B + position % B
 *
 * Exceeding a limit is our own bug (the engine counts before it adds), so it is asserted. */
#include "kernels/plan.h"

#include <string.h>
#include "base/mem.h"

/* Zeroed array of n elements; one more, so that a limit of 0 still gives a valid pointer. */
static void *array(int32_t n, size_t size_bytes)
{
    ASSERT(n >= 0);
    return xcalloc((size_t)n + 1, size_bytes);
}

/* An empty plan for steps within the limits; the caller frees it with plan_free. */
struct plan *plan_new(const struct plan_limits *limits)
{
    ASSERT(limits->block_size > 0 && limits->max_rows > 0 && limits->max_seqs > 0);
    struct plan *p = xcalloc(1, sizeof(*p));
    p->limits = *limits;
    p->ids = array(limits->max_rows, sizeof(*p->ids));
    p->seqs = array(limits->max_seqs, sizeof(*p->seqs));
    p->tables = array(limits->max_table_blocks, sizeof(*p->tables));
    p->copies = array(limits->max_copies, sizeof(*p->copies));
    p->outs = array(limits->max_outs, sizeof(*p->outs));
    p->ins = array(limits->max_ins, sizeof(*p->ins));
    p->samples = array(limits->max_seqs, sizeof(*p->samples));
    p->recent = xcalloc((size_t)limits->max_seqs * PLAN_RECENT + 1, sizeof(*p->recent));
    p->counts = array(limits->max_counts, sizeof(*p->counts));
    p->bias = array(limits->max_bias, sizeof(*p->bias));
    p->positions = array(limits->max_rows, sizeof(*p->positions));
    p->slots = array(limits->max_rows, sizeof(*p->slots));
    p->row_seq = array(limits->max_rows, sizeof(*p->row_seq));
    return p;
}

void plan_free(struct plan *p)
{
    if (p == NULL)
        return;
    xfree(p->ids);
    xfree(p->seqs);
    xfree(p->tables);
    xfree(p->copies);
    xfree(p->outs);
    xfree(p->ins);
    xfree(p->samples);
    xfree(p->recent);
    xfree(p->counts);
    xfree(p->bias);
    xfree(p->positions);
    xfree(p->slots);
    xfree(p->row_seq);
    xfree(p);
}

/* Empties it for the next step. */
void plan_clear(struct plan *p)
{
    p->n_rows = p->n_seqs = p->n_table_blocks = p->n_copies = 0;
    p->n_samples = p->n_recent = p->n_counts = p->n_bias = 0;
    p->n_outs = p->n_ins = p->n_best = 0;
}

/* n of src go to the end of a pool that holds *used of at most `limit`; returns where. */
static int32_t append(void *pool, int32_t *used, int32_t limit, const void *src, int32_t n,
                      size_t size_bytes)
{
    ASSERT(n >= 0 && n <= limit - *used);
    int32_t at = *used;
    if (n > 0)
        memcpy((char *)pool + (size_t)at * size_bytes, src, (size_t)n * size_bytes);
    *used += n;
    return at;
}

/* The next n_rows ids of a sequence, the first of them at `position`; blocks: its whole table. */
int32_t plan_add_seq(struct plan *p, int32_t position, const int32_t *ids, int32_t n_rows,
                     const int32_t *blocks, int32_t n_blocks)
{
    ASSERT(p->n_seqs < p->limits.max_seqs && n_rows > 0 && position >= 0);
    struct plan_seq *s = &p->seqs[p->n_seqs];
    s->position = position;
    s->n_rows = n_rows;
    s->first_row = append(p->ids, &p->n_rows, p->limits.max_rows, ids, n_rows, sizeof(*ids));
    s->n_blocks = n_blocks;
    s->table_at = append(p->tables, &p->n_table_blocks, p->limits.max_table_blocks, blocks,
                         n_blocks, sizeof(*blocks));
    return p->n_seqs++;
}

void plan_add_copy(struct plan *p, int32_t src, int32_t dst, int32_t n_tokens)
{
    ASSERT(n_tokens > 0 && n_tokens <= p->limits.block_size && src != dst);
    struct plan_copy copy = {.src = src, .dst = dst, .n_tokens = n_tokens};
    append(p->copies, &p->n_copies, p->limits.max_copies, &copy, 1, sizeof(copy));
}

void plan_add_out(struct plan *p, int32_t block, int32_t slot)
{
    ASSERT(p->n_outs < p->limits.max_outs);
    p->outs[p->n_outs++] = (struct plan_move){block, slot};
}

void plan_add_in(struct plan *p, int32_t slot, int32_t block)
{
    ASSERT(p->n_ins < p->limits.max_ins);
    p->ins[p->n_ins++] = (struct plan_move){block, slot};
}

/* Arrays may be NULL when their count is 0; the ranges inside *sample are ignored. */
int32_t plan_add_sample(struct plan *p, const struct plan_sample *sample, const int32_t *recent,
                        int32_t n_recent, const struct plan_count *counts, int32_t n_counts,
                        const struct plan_bias *bias, int32_t n_bias)
{
    ASSERT(p->n_samples < p->limits.max_seqs && n_recent <= PLAN_RECENT);
    struct plan_sample *s = &p->samples[p->n_samples];
    *s = *sample;
    s->n_recent = n_recent;
    s->recent_at = append(p->recent, &p->n_recent, p->limits.max_seqs * PLAN_RECENT, recent,
                          n_recent, sizeof(*recent));
    s->n_counts = n_counts;
    s->counts_at =
        append(p->counts, &p->n_counts, p->limits.max_counts, counts, n_counts, sizeof(*counts));
    s->n_bias = n_bias;
    s->bias_at = append(p->bias, &p->n_bias, p->limits.max_bias, bias, n_bias, sizeof(*bias));
    ASSERT(s->n_best >= 0 && s->n_best <= PLAN_BEST && s->n_best <= p->limits.max_best - p->n_best);
    s->best_at = p->n_best;
    p->n_best += s->n_best;
    return p->n_samples++;
}

/* Position, slot and sequence of every row of sequence number `index`. */
static void derive_rows(struct plan *p, int32_t index)
{
    const struct plan_seq *s = &p->seqs[index];
    int32_t block_size = p->limits.block_size;

    ASSERT((int64_t)s->position + s->n_rows <= (int64_t)s->n_blocks * block_size);
    for (int32_t i = 0; i < s->n_rows; i++) {
        int32_t row = s->first_row + i, position = s->position + i;
        int32_t block = p->tables[s->table_at + position / block_size];
        ASSERT(block >= 0 && block <= INT32_MAX / block_size - 1);
        p->positions[row] = position;
        p->slots[row] = block * block_size + position % block_size;
        p->row_seq[row] = index;
    }
}

/* Called once, when everything has been added and before the plan is launched. */
void plan_finish(struct plan *p)
{
    for (int32_t i = 0; i < p->n_seqs; i++)
        derive_rows(p, i);
    for (int32_t i = 0; i < p->n_samples; i++)
        ASSERT(p->samples[i].row >= 0 && p->samples[i].row < p->n_rows);
}
