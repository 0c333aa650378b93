/* sim_orca.c - contiguous reservation with iteration-level batching: the systems before paging.
 *
 * Orca (Yu et al., OSDI 2022) batches anew in every step, as we do, but keeps the K/V of a request
 * in one run of slots that is taken when it is admitted; sim_reserve.c has the paper's three ways to
 * say how long. What the rounding to a power of two loses is external waste, as the paper counts it.
 * First come, first served, nobody past a head that does not fit; nothing is preempted, since
 * nothing grows. A whole prompt is computed in the step that admits it. */
#include "base/err.h"
#include "base/mem.h"
#include "utils/sim_policy.h"
#include "utils/sim_reserve.h"

struct running {
    struct sim_request *request; /* borrows */
    struct sim_place place;
    int32_t n_computed;
};

struct orca {
    struct sim_batch base; /* first: the interface */
    struct sim_setup setup;
    struct sim_reserve reserve;
    struct running *running;    /* [n_running of max_running] owns; in order of admission */
    struct sim_request **queue; /* [n_queued of queue_cap, from queue_at] owns the array */
    int32_t n_running, queue_at, n_queued, queue_cap;
    struct sim_totals totals;
    bool is_stepping;
};

static struct orca *orca_of(struct sim_batch *b)
{
    return (struct orca *)(void *)b;
}

static struct sim_batch *orca_open(const struct sim_policy *p, const struct sim_setup *setup,
                                   struct err *err)
{
    (void)err;
    struct orca *o = xcalloc(1, sizeof *o);
    o->base.policy = p;
    o->setup = *setup;
    sim_reserve_init(&o->reserve, p->reserve, setup->model->slots, setup->model->n_context);
    o->running = xcalloc((size_t)setup->max_running, sizeof *o->running);
    return &o->base;
}

static void orca_close(struct sim_batch *b)
{
    struct orca *o = orca_of(b);

    sim_reserve_done(&o->reserve);
    xfree(o->running);
    xfree((void *)o->queue);
    xfree(o);
}

static int orca_submit(struct sim_batch *b, struct sim_request *r, int64_t now_us, struct err *err)
{
    struct orca *o = orca_of(b);
    int32_t n = sim_reserve_for(&o->reserve, r->n_prompt, r->n_output);
    int32_t order = sim_buddy_order(n);

    (void)now_us;
    if (r->n_branches > 1)
        return err_set(err, "%s makes one answer a request, not %d", b->policy->name,
                       r->n_branches);
    if (r->n_prompt + r->n_output > n || 1 << order > o->setup.model->slots)
        return err_set(err, "%s reserves %d slots for %d + %d tokens, there are %d in one run",
                       b->policy->name, n, r->n_prompt, r->n_output, o->setup.model->slots);
    if (o->queue_at + o->n_queued == o->queue_cap) {
        o->queue_cap = o->queue_cap ? 2 * o->queue_cap : 256;
        o->queue = xrealloc((void *)o->queue, (size_t)o->queue_cap * sizeof *o->queue);
    }
    o->queue[o->queue_at + o->n_queued++] = r;
    return 0;
}

/* What the step that ran has computed: a prompt as a whole, then a token a step. The last token
 * needs no slot of its own, as in any server: nothing is attended from behind it. */
static void finish_step(struct orca *o, int64_t now_us)
{
    int32_t n_kept = 0;

    for (int32_t i = 0; i < o->n_running; i++) {
        struct running *p = &o->running[i];
        struct sim_request *r = p->request;
        p->n_computed = p->n_computed == 0 ? r->n_prompt : p->n_computed + 1;
        if (p->n_computed >= r->n_prompt + r->n_output - 1) {
            r->end_us = now_us;
            sim_reserve_put(&o->reserve, &p->place);
        } else {
            o->running[n_kept++] = *p;
        }
    }
    o->n_running = n_kept;
}

static void admit(struct orca *o)
{
    while (o->n_queued > 0 && o->n_running < o->setup.max_running) {
        struct sim_request *r = o->queue[o->queue_at];
        struct running p = {.request = r};
        if (!sim_reserve_take(&o->reserve, r->n_prompt, r->n_output, &p.place))
            return;
        o->running[o->n_running++] = p;
        o->totals.prompt_tokens += r->n_prompt;
        o->queue_at++;
        o->n_queued--;
    }
}

static void count_step(const struct orca *o, struct sim_step *step)
{
    int64_t *shares = step->shares;

    *step = (struct sim_step){.n_running = o->n_running, .work.n_seqs = o->n_running};
    shares[SHARE_EXTERNAL] = o->setup.model->slots;
    for (int32_t i = 0; i < o->n_running; i++) {
        const struct running *p = &o->running[i];
        const struct sim_request *r = p->request;
        int32_t n_rows = p->n_computed == 0 ? r->n_prompt : 1, n = p->n_computed + n_rows;
        step->work.n_rows += n_rows;
        step->work.kv_tokens += n;
        shares[SHARE_RUNNING] += n;
        shares[SHARE_RESERVED] += r->n_prompt + r->n_output - n;
        shares[SHARE_INTERNAL] += p->place.n_reserved - r->n_prompt - r->n_output;
        shares[SHARE_EXTERNAL] -= p->place.n_reserved;
    }
}

static bool orca_step(struct sim_batch *b, int64_t now_us, struct sim_step *step)
{
    struct orca *o = orca_of(b);

    if (o->is_stepping)
        finish_step(o, now_us);
    admit(o);
    o->is_stepping = o->n_running > 0;
    count_step(o, step);
    return o->is_stepping;
}

static void orca_totals(const struct sim_batch *b, struct sim_totals *totals)
{
    *totals = ((const struct orca *)(const void *)b)->totals;
}

#define ORCA(title, how)                                                                           \
    {                                                                                              \
        .name = title, .open = orca_open, .close = orca_close, .submit = orca_submit,              \
        .step = orca_step, .totals = orca_totals, .reserve = how                                   \
    }
const struct sim_policy sim_orca_max = ORCA("orca-max", SIM_RESERVE_MAX);
const struct sim_policy sim_orca_pow2 = ORCA("orca-pow2", SIM_RESERVE_POW2);
const struct sim_policy sim_orca_oracle = ORCA("orca-oracle", SIM_RESERVE_EXACT);
