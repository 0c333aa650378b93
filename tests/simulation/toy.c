/* toy.c - a runner without a model: K/V are hashes in an array, a step ends when it is told to.
 *
 * A step swaps in, copies, writes and samples in the plan's order, all of it through the block
 * tables that the plan carries. The K/V of a row is made from the slot before it, read through the
 * table: so one wrong block spoils everything behind it. What is swapped out may be read at any time
 * of the step: first, or last. A step that fails leaves garbage wherever it was to write, in host
 * memory too, the worst that a device may do. */
#include "toy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "lone.h"

static struct toy *toy_of(struct runner *r)
{
    return (struct toy *)(void *)r;
}

static uint64_t *slot_of(struct toy *t, const struct plan_seq *q, int32_t position)
{
    int32_t block = t->plan->tables[q->table_at + position / t->runner.info.block_size];
    return &t->slots[(int64_t)block * t->runner.info.block_size +
                     position % t->runner.info.block_size];
}

static void copy_blocks(struct toy *t)
{
    int32_t size = t->runner.info.block_size;
    for (int32_t i = 0; i < t->plan->n_copies; i++) {
        const struct plan_copy *copy = &t->plan->copies[i];
        for (int32_t k = 0; k < size; k++) /* what is not copied is not there */
            t->slots[copy->dst * size + k] =
                k < copy->n_tokens ? t->slots[copy->src * size + k] : 0xdead0000u + (uint64_t)k;
    }
}

static void swap_out(struct toy *t)
{
    int32_t size = t->runner.info.block_size;
    for (int32_t i = 0; i < t->plan->n_outs; i++)
        memcpy(t->host + t->plan->outs[i].slot * size, t->slots + t->plan->outs[i].block * size,
               (size_t)size * sizeof *t->host);
}

static void swap_in(struct toy *t)
{
    int32_t size = t->runner.info.block_size;
    for (int32_t i = 0; i < t->plan->n_ins; i++)
        memcpy(t->slots + t->plan->ins[i].block * size, t->host + t->plan->ins[i].slot * size,
               (size_t)size * sizeof *t->host);
}

static void write_rows(struct toy *t, const struct plan_seq *q)
{
    for (int32_t i = 0; i < q->n_rows; i++) {
        int32_t at = q->position + i;
        uint64_t before = at > 0 ? *slot_of(t, q, at - 1) : 0;
        *slot_of(t, q, at) = toy_slot(before, t->plan->ids[q->first_row + i]);
    }
}

static void spoil_block(struct toy *t, uint64_t *slots, int32_t block)
{
    int32_t size = t->runner.info.block_size;
    for (int32_t k = 0; k < size; k++)
        slots[block * size + k] = toy_mix(t->n_steps, (uint64_t)k);
}

static void spoil(struct toy *t)
{
    const struct plan *plan = t->plan;
    for (int32_t i = 0; i < plan->n_copies; i++)
        spoil_block(t, t->slots, plan->copies[i].dst);
    for (int32_t i = 0; i < plan->n_ins; i++)
        spoil_block(t, t->slots, plan->ins[i].block);
    for (int32_t i = 0; i < plan->n_outs; i++)
        spoil_block(t, t->host, plan->outs[i].slot);
    for (int32_t row = 0; row < plan->n_rows; row++)
        t->slots[plan->slots[row]] = toy_mix(t->n_steps, (uint64_t)row);
}

static uint32_t banned_by(const struct plan *plan, const struct plan_sample *sample)
{
    uint32_t banned = 0;
    for (int32_t i = 0; i < sample->n_bias; i++) {
        const struct plan_bias *bias = &plan->bias[sample->bias_at + i];
        if (bias->value == -INFINITY)
            banned |= 1u << bias->id;
    }
    return banned;
}

/* Of all slots up to the row of the sample: the last of its sequence, or one that tells how likely
 * the next id of a prompt was. */
static uint64_t fold_of(struct toy *t, const struct plan_sample *sample)
{
    const struct plan_seq *q = &t->plan->seqs[t->plan->row_seq[sample->row]];
    int32_t n = sample->row - q->first_row + 1;
    uint64_t fold = 0;
    if ((!sample->is_given && n != q->n_rows) || sample->position != q->position + n)
        snprintf(t->fault, sizeof t->fault, "plan: a sample behind row %d, position %d",
                 sample->row, sample->position);
    for (int32_t at = 0; at < q->position + n; at++)
        fold = toy_fold(fold, *slot_of(t, q, at));
    return fold;
}

static void sample_one(struct toy *t, int32_t i)
{
    const struct plan_sample *sample = &t->plan->samples[i];
    bool is_greedy = sample->temperature == 0;
    struct toy_choice choice = {
        .fold = fold_of(t, sample),
        .seed = is_greedy ? 0 : sample->seed,
        .branch = is_greedy ? 0 : sample->branch,
        .position = sample->position,
        .recent = t->plan->recent + sample->recent_at,
        .n_recent = sample->n_recent,
        .counts = t->plan->counts + sample->counts_at,
        .n_counts = sample->n_counts,
        .banned = banned_by(t->plan, sample),
    };
    int32_t id = sample->is_given ? sample->id : toy_choose(&choice, t->n_letters);
    uint64_t seen = choice.fold;
    if (sample->best_adjusted)
        seen = toy_seen(seen, choice.recent, choice.n_recent, choice.counts, choice.n_counts);
    t->samples[i] = (struct chosen){id, toy_logprob(choice.fold, id)};
    toy_best(seen, sample->best_adjusted ? choice.banned : 0, sample->n_best,
             t->samples + t->plan->n_samples + sample->best_at);
}

static void compute(struct toy *t)
{
    if (t->is_written)
        return;
    if (!t->is_late)
        swap_out(t);
    swap_in(t);
    copy_blocks(t);
    for (int32_t i = 0; i < t->plan->n_seqs; i++)
        write_rows(t, &t->plan->seqs[i]);
    for (int32_t i = 0; i < t->plan->n_samples; i++)
        sample_one(t, i);
    if (t->is_late)
        swap_out(t);
    t->is_written = true;
}

static void toy_launch(struct runner *r, const struct plan *plan)
{
    struct toy *t = toy_of(r);
    if (t->plan)
        snprintf(t->fault, sizeof t->fault, "plan: launched while one runs");
    t->plan = plan;
    t->is_written = false;
    t->n_steps++;
    t->n_rows += (uint64_t)plan->n_rows;
    if (!t->is_late)
        compute(t);
    t->launched(t->owner);
}

static bool toy_poll(struct runner *r, struct runner_done *done)
{
    struct toy *t = toy_of(r);
    if (!t->plan || !t->may_finish)
        return false;
    compute(t);
    if (t->must_fail)
        spoil(t);
    *done = (struct runner_done){.failed = t->must_fail,
                                 .n_samples = t->must_fail ? 0 : t->plan->n_samples,
                                 .samples = t->samples,
                                 .duration_us = 1000};
    if (done->failed)
        snprintf(done->error, sizeof done->error, "the toy was told to fail");
    t->plan = NULL;
    return true;
}

static void toy_close(struct runner *r)
{
    toy_of(r)->plan = NULL;
}

void toy_init(struct toy *t, const struct runner_info *info, int32_t n_letters)
{
    *t = (struct toy){.runner = {.info = *info,
                                 .fd = -1,
                                 .launch = toy_launch,
                                 .poll = toy_poll,
                                 .close = toy_close},
                      .n_letters = n_letters};
    size_t size = (size_t)info->block_size;
    t->slots = xcalloc((size_t)info->n_blocks * size, sizeof *t->slots);
    t->host = xcalloc((size_t)info->n_slots * size + 1, sizeof *t->host);
    t->samples =
        xcalloc((size_t)info->limits.max_seqs + (size_t)info->limits.max_best, sizeof *t->samples);
}

void toy_done(struct toy *t)
{
    xfree(t->slots);
    xfree(t->host);
    xfree(t->samples);
}
