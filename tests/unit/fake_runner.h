/* fake_runner.h - a scripted runner for tests of the engine.
 *
 * A slot of the pool holds a chained hash of every id up to its position, read back through the
 * block table as attention would: a wrong, stale or half-copied block gives another hash. The next
 * token is forced where the test has forced it (by seed and position), else it is drawn from the
 * last hash, so that the same ids come out alone, batched, cached or computed again, or the cache
 * is at fault.
 *
 * A step computes when it is polled; `hold` keeps it running. What a plan must not ask for is an
 * ASSERT, so that programs without cmocka can use it too. */
#ifndef TESTS_UNIT_FAKE_RUNNER_H
#define TESTS_UNIT_FAKE_RUNNER_H

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "engine/engine.h"
#include "runner/runner.h"

#define FAKE_FORCED 64

struct fake_forced {
    uint64_t seed;
    int32_t position; /* of the first id */
    const int32_t *ids;
    int32_t n;
};

struct fake_runner {
    struct runner base; /* first: what the engine sees */
    uint64_t *slots;    /* [n_blocks * block_size] owns */
    uint64_t *host;     /* [n_slots * block_size] owns; NULL: no swap */
    struct chosen *samples;
    const struct plan *plan; /* of the running step; NULL: none */
    int32_t end_id;          /* drawn now and then; -1: never */
    struct fake_forced forced[FAKE_FORCED];
    int n_forced;
    bool hold;          /* poll says: still running */
    int32_t hold_at;    /* so it does of launch number hold_at; 0: of none */
    const char *fail;   /* the next step fails with it; "" fails without a reason */
    int32_t bad_sample; /* the next step returns this id; 0: no */
    bool lose_sample;   /* the next step returns one sample too few */
    int32_t n_launched;
};

static inline uint64_t fake_mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static inline void fake_launch(struct runner *base, const struct plan *plan)
{
    struct fake_runner *r = (struct fake_runner *)base;

    ASSERT(!r->plan);
    ASSERT(plan->n_rows + plan->n_outs + plan->n_ins + plan->n_copies > 0);
    r->plan = plan;
    r->n_launched++;
}

/* Hash of the slot at position p of a sequence, through its table. */
static inline uint64_t *fake_slot(struct fake_runner *r, const struct plan_seq *seq, int32_t p)
{
    int32_t block = r->base.info.block_size;

    ASSERT(p / block < seq->n_blocks);
    int32_t b = r->plan->tables[seq->table_at + p / block];
    ASSERT(b >= 0 && b < r->base.info.n_blocks);
    return &r->slots[(size_t)b * (size_t)block + (size_t)(p % block)];
}

static inline bool fake_is_banned(const struct plan *plan, const struct plan_sample *s, int32_t id)
{
    for (int32_t i = s->bias_at; i < s->bias_at + s->n_bias; i++)
        if (plan->bias[i].id == id && isinf(plan->bias[i].value))
            return true;
    return false;
}

/* Letters mostly, the end of the text once in 29. */
static inline int32_t fake_choose(const struct fake_runner *r, const struct plan_sample *s,
                                  uint64_t hash)
{
    for (int i = 0; i < r->n_forced; i++) {
        const struct fake_forced *f = &r->forced[i];
        if (f->seed == s->seed && s->position >= f->position && s->position < f->position + f->n)
            return f->ids[s->position - f->position];
    }
    uint64_t seed = s->temperature > 0 ? s->seed : 0;
    uint64_t branch = s->temperature > 0 ? (uint64_t)s->branch << 32 : 0;
    uint64_t drawn = fake_mix(hash ^ fake_mix((seed * 31 + (uint64_t)s->position) ^ branch));
    if (r->end_id >= 0 && drawn % 29 == 0 && !fake_is_banned(r->plan, s, r->end_id))
        return r->end_id;
    return 'a' + (int32_t)(drawn / 29 % 26);
}

/* Scores of the letters at a place: distinct, natural logarithms of nothing in particular. */
static inline float fake_logprob(uint64_t hash, int32_t letter)
{
    return -(float)(fake_mix(hash ^ (uint64_t)(letter + 1) * 0x51ed27) % 100000 + 1) / 10000;
}

/* The n best letters at a place, then nothing; the end of the text among them once in three. */
static inline void fake_best(const struct fake_runner *r, uint64_t hash, int32_t n,
                             struct chosen *out)
{
    for (int32_t i = 0; i < n; i++) {
        out[i] = (struct chosen){-1, -INFINITY};
        for (int32_t c = 0; c <= 26; c++) {
            bool is_end = c == 26;
            struct chosen x = {is_end ? r->end_id : 'a' + c, fake_logprob(hash, c)};
            if (is_end && (r->end_id < 0 || hash % 3 != 0))
                continue;
            bool is_behind = i == 0 || x.logprob < out[i - 1].logprob ||
                             (x.logprob == out[i - 1].logprob && x.id > out[i - 1].id);
            if (is_behind && (out[i].id < 0 || x.logprob > out[i].logprob ||
                              (x.logprob == out[i].logprob && x.id < out[i].id)))
                out[i] = x;
        }
        if (out[i].id < 0)
            out[i].logprob = -INFINITY;
    }
}

static inline void fake_compute(struct fake_runner *r)
{
    const struct plan *p = r->plan;
    size_t block = (size_t)r->base.info.block_size;
    int32_t at_sample = 0;

    for (int32_t i = 0; i < p->n_ins; i++)
        memcpy(r->slots + (size_t)p->ins[i].block * block, r->host + (size_t)p->ins[i].slot * block,
               block * sizeof *r->host);
    for (int32_t i = 0; i < p->n_copies; i++) {
        uint64_t *dst = r->slots + (size_t)p->copies[i].dst * block;
        size_t n = (size_t)p->copies[i].n_tokens;
        memmove(dst, r->slots + (size_t)p->copies[i].src * block, n * sizeof *dst);
        for (size_t k = n; k < block; k++)
            dst[k] = 0xdead; /* what a copy leaves out is noise */
    }
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *seq = &p->seqs[i];
        for (int32_t k = 0; k < seq->n_rows; k++) {
            int32_t at = seq->position + k;
            uint64_t before = at ? *fake_slot(r, seq, at - 1) : 1;
            *fake_slot(r, seq, at) =
                fake_mix(before ^ (uint64_t)(uint32_t)p->ids[seq->first_row + k]);
        }
        int32_t last = seq->first_row + seq->n_rows - 1;
        for (; at_sample < p->n_samples && p->samples[at_sample].row <= last; at_sample++) {
            const struct plan_sample *s = &p->samples[at_sample];
            uint64_t all = 0; /* reads every slot up to the row, as attention does */
            for (int32_t at = 0; at <= seq->position + s->row - seq->first_row; at++)
                all = fake_mix(all ^ *fake_slot(r, seq, at));
            r->samples[at_sample].id = s->is_given ? s->id : fake_choose(r, s, all);
            r->samples[at_sample].logprob = fake_logprob(all, r->samples[at_sample].id - 'a');
            fake_best(r, all, s->n_best, r->samples + p->n_samples + s->best_at);
        }
    }
}

/* Reads as late as it may: behind all writes of the step. */
static inline void fake_swap_out(struct fake_runner *r)
{
    size_t block = (size_t)r->base.info.block_size;

    for (int32_t i = 0; i < r->plan->n_outs; i++) {
        const struct plan_move *m = &r->plan->outs[i];
        ASSERT(m->slot >= 0 && m->slot < r->base.info.n_slots);
        memcpy(r->host + (size_t)m->slot * block, r->slots + (size_t)m->block * block,
               block * sizeof *r->host);
    }
}

static inline bool fake_poll(struct runner *base, struct runner_done *done)
{
    struct fake_runner *r = (struct fake_runner *)base;

    if (!r->plan || r->hold || (r->hold_at != 0 && r->n_launched >= r->hold_at))
        return false;
    *done = (struct runner_done){
        .n_samples = r->plan->n_samples, .samples = r->samples, .duration_us = 1000};
    if (r->fail) {
        done->failed = true;
        snprintf(done->error, sizeof done->error, "%s", r->fail);
        r->fail = NULL;
    } else {
        fake_compute(r);
        fake_swap_out(r);
        if (r->bad_sample && done->n_samples > 0) {
            r->samples[0].id = r->bad_sample;
            r->bad_sample = 0;
        }
        done->n_samples -= r->lose_sample;
        r->lose_sample = false;
    }
    r->plan = NULL;
    return true;
}

static inline void fake_close(struct runner *base)
{
    struct fake_runner *r = (struct fake_runner *)base;

    xfree(r->slots);
    xfree(r->host);
    xfree(r->samples);
    xfree(r);
}

static inline struct fake_runner *fake_runner_new(int32_t n_blocks, int32_t block_size,
                                                  int32_t n_context, int32_t n_vocab,
                                                  int32_t max_batch_tokens, int32_t max_running)
{
    struct fake_runner *r = xcalloc(1, sizeof *r);

    r->base =
        (struct runner){.info = {.n_vocab = n_vocab,
                                 .n_context = n_context,
                                 .block_size = block_size,
                                 .n_blocks = n_blocks,
                                 .limits = engine_plan_limits(max_batch_tokens, max_running,
                                                              n_context, n_vocab, block_size, 4)},
                        .fd = -1,
                        .launch = fake_launch,
                        .poll = fake_poll,
                        .close = fake_close};
    r->end_id = -1;
    r->slots = xcalloc((size_t)n_blocks * (size_t)block_size, sizeof *r->slots);
    r->samples = xcalloc((size_t)max_running * (1 + PLAN_BEST), sizeof *r->samples);
    return r;
}

/* Host memory for n blocks; before the engine is made. */
static inline void fake_runner_host(struct fake_runner *r, int32_t n)
{
    r->base.info.n_slots = n;
    r->host = xcalloc((size_t)n * (size_t)r->base.info.block_size + 1, sizeof *r->host);
}

/* The generation with this seed makes ids [n] (borrowed) from position on. */
static inline void fake_force(struct fake_runner *r, uint64_t seed, int32_t position,
                              const int32_t *ids, int32_t n)
{
    ASSERT(r->n_forced < FAKE_FORCED);
    r->forced[r->n_forced++] =
        (struct fake_forced){.seed = seed, .position = position, .ids = ids, .n = n};
}

#endif
