/* choose.c - the arithmetic of choosing one id.
 *
 * Every filter keeps a prefix of one list: the candidates sorted by (logit descending, id
 * ascending), with probabilities p = exp((logit - best) / temperature).
 *
 *     top-k   the first k
 *     top-p   the shortest prefix that holds top_p of the mass that top-k left
 *     min-p   those with p >= min_p of the best one
 *     draw    the first whose running sum exceeds u times the mass of what is left
 *
 * Ties go to the lowest id because the order says so. Sorting a whole vocabulary for that would
 * take milliseconds, and nearly every draw ends within the first few candidates: the list is made
 * as long as it is needed, FIRST_CUT at first and GROWTH times as long when it runs out. The list
 * of n best is the same whatever n was before, so the cut never shows.
 *
 * Sums are double, in list order; the mass of the whole vocabulary, where no top-k is set, comes
 * from the caller's pass. A rounding may leave a running sum short of the target at the end: then
 * the last candidate is meant. The log-probability is that of the raw logits, before everything.
 *
 * Logits that are NaN are never chosen; a row that has nothing to choose from gives id 0. */
#include "kernels/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"

#define FIRST_CUT 64 /* at temperature 1 a language model has 80-99 % of its mass here */
#define GROWTH 16    /* 64, 1,024, 16,384, all: a rare long list costs at most four selections */

/* ---- passes over a whole row ---------------------------------------------------------------- */

static float max_plain(const float *x, int32_t n)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static double sum_exp_plain(const float *x, int32_t n, float max, double scale)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        if (x[i] > -INFINITY) /* false for NaN */
            sum += exp(((double)x[i] - max) * scale);
    return sum;
}

static int32_t find_plain(const float *x, int32_t n, int32_t from, float bound)
{
    while (from < n && !(x[from] >= bound))
        from++;
    return from;
}

const struct choose_passes choose_passes_plain = {
    .max = max_plain, .sum_exp = sum_exp_plain, .find = find_plain};

/* ---- room ----------------------------------------------------------------------------------- */

int choose_scratch_init(struct choose_scratch *s, int32_t n_vocab, struct err *err)
{
    ASSERT(n_vocab > 0);
    *s = (struct choose_scratch){.n_vocab = n_vocab};
    s->candidates = try_malloc(MEM_ENGINE, (size_t)n_vocab * sizeof(*s->candidates));
    s->row = try_malloc(MEM_ENGINE, (size_t)n_vocab * sizeof(*s->row));
    if (s->candidates != NULL && s->row != NULL)
        return 0;
    choose_scratch_free(s);
    return err_set(err, "no memory to choose from a vocabulary of %d", n_vocab);
}

void choose_scratch_free(struct choose_scratch *s)
{
    try_free(MEM_ENGINE, s->candidates);
    try_free(MEM_ENGINE, s->row);
    *s = (struct choose_scratch){0};
}

/* ---- bias and penalties --------------------------------------------------------------------- */

/* In the plan's order: bias, repeat, presence and frequency. A repeated id is penalised once. */
static void adjust(const struct plan *plan, const struct plan_sample *s, float *logits)
{
    const int32_t *recent = plan->recent + s->recent_at;

    for (int32_t i = 0; i < s->n_bias; i++)
        logits[plan->bias[s->bias_at + i].id] += plan->bias[s->bias_at + i].value;
    for (int32_t i = 0; s->repeat != 1 && i < s->n_recent; i++) {
        int32_t earlier = 0;
        while (recent[earlier] != recent[i])
            earlier++;
        if (earlier < i)
            continue;
        float *x = &logits[recent[i]];
        *x = *x > 0 ? *x / s->repeat : *x * s->repeat;
    }
    for (int32_t i = 0; i < s->n_counts; i++) {
        const struct plan_count *c = &plan->counts[s->counts_at + i];
        if (c->count > 0)
            logits[c->id] -= s->presence + s->frequency * (float)c->count;
    }
}

static bool is_adjusted(const struct plan_sample *s)
{
    return s->n_bias > 0 || (s->repeat != 1 && s->n_recent > 0) ||
           ((s->presence != 0 || s->frequency != 0) && s->n_counts > 0);
}

/* ---- the list ------------------------------------------------------------------------------- */

/* True when a stands before b. */
static bool is_before(struct choose_candidate a, struct choose_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static int compare(const void *a, const void *b)
{
    return is_before(*(const struct choose_candidate *)a, *(const struct choose_candidate *)b) ? -1
                                                                                               : 1;
}

/* Restores the heap below `at`: the last of the list is on top. */
static void sift_down(struct choose_candidate *heap, int32_t n, int32_t at)
{
    struct choose_candidate moved = heap[at];
    for (int32_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && is_before(heap[child], heap[child + 1]))
            child++;
        if (!is_before(moved, heap[child]))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* The n first candidates of x [n_vocab], sorted, into list; returns how many there are. Once n are
 * there, only an id above the last of them can enter, and those are few: the pass skips to them. */
static int32_t select_best(const float *x, int32_t n_vocab, int32_t n,
                           const struct choose_passes *passes, struct choose_candidate *list)
{
    int32_t filled = 0, id = 0;
    for (; id < n_vocab && filled < n; id++) {
        if (x[id] > -INFINITY) /* neither banned nor NaN */
            list[filled++] = (struct choose_candidate){x[id], id};
    }
    for (int32_t i = n / 2 - 1; filled == n && i >= 0; i--)
        sift_down(list, n, i);
    while (filled == n && (id = passes->find(x, n_vocab, id, list[0].logit)) < n_vocab) {
        struct choose_candidate c = {x[id], id};
        if (is_before(c, list[0])) {
            list[0] = c;
            sift_down(list, n, 0);
        }
        id++;
    }
    qsort(list, (size_t)filled, sizeof(*list), compare);
    return filled;
}

/* The list as far as it has been made. */
struct list {
    const float *x; /* [n_vocab] */
    int32_t n_vocab;
    struct choose_candidate *items; /* [n_vocab], n of them made */
    int32_t n, cut;                 /* n < cut: there are no more */
    double scale;                   /* 1 / temperature */
    const struct choose_passes *passes;
};

static void list_start(struct list *l, int32_t cut)
{
    l->cut = cut < l->n_vocab ? cut : l->n_vocab;
    l->n = select_best(l->x, l->n_vocab, l->cut, l->passes, l->items);
}

/* Makes sure that item i is there; false when the list ends before it. */
static bool list_reach(struct list *l, int32_t i)
{
    while (i >= l->n && l->n == l->cut && l->cut < l->n_vocab)
        list_start(l, l->cut > l->n_vocab / GROWTH ? l->n_vocab : l->cut * GROWTH);
    return i < l->n;
}

/* Unnormalised probability of item i: 1 for the best. */
static double list_weight(const struct list *l, int32_t i)
{
    return exp(((double)l->items[i].logit - l->items[0].logit) * l->scale);
}

/* ---- filters and draw ----------------------------------------------------------------------- */

/* Mass of the first `limit` items, or of the whole row. */
static double mass_after_top_k(struct list *l, int32_t limit, const struct choose_passes *passes)
{
    if (limit == l->n_vocab)
        return passes->sum_exp(l->x, l->n_vocab, l->items[0].logit, l->scale);
    double mass = 0;
    for (int32_t i = 0; i < limit && list_reach(l, i); i++)
        mass += list_weight(l, i);
    return mass;
}

/* Items that top-p and min-p leave of the first `limit`; *mass goes from theirs to the rest's. */
static int32_t filter(struct list *l, const struct plan_sample *s, int32_t limit, double *mass)
{
    double left = 0, target = s->top_p < 1 ? s->top_p * *mass : INFINITY;
    int32_t n = 0;
    while (n < limit && list_reach(l, n)) {
        double weight = list_weight(l, n);
        if (weight < s->min_p)
            break;
        left += weight;
        n++;
        if (left >= target)
            break;
    }
    *mass = left;
    return n;
}

static int32_t draw(struct list *l, const struct plan_sample *s, const struct choose_passes *passes)
{
    int32_t limit = s->top_k > 0 && s->top_k < l->n_vocab ? s->top_k : l->n_vocab;
    list_start(l, limit < FIRST_CUT ? limit : FIRST_CUT);
    if (l->n == 0)
        return 0;

    double mass = mass_after_top_k(l, limit, passes);
    if (s->top_p < 1 || s->min_p > 0)
        limit = filter(l, s, limit, &mass);
    double sum = 0;
    double target = mass * rng_unit(rng_at(s->seed, (uint32_t)s->branch, (uint32_t)s->position));
    int32_t i = 0;
    for (; i < limit && list_reach(l, i); i++) {
        sum += list_weight(l, i);
        if (sum > target)
            return l->items[i].id;
    }
    return l->items[i > 0 ? i - 1 : 0].id;
}

/* All NaN or all banned: 0. */
static int32_t find_greedy(const float *x, int32_t n, const struct choose_passes *passes)
{
    int32_t i = passes->find(x, n, 0, passes->max(x, n));
    return i < n ? i : 0;
}

void choose_row(const struct plan *plan, const struct plan_sample *s, const float *logits,
                const struct choose_passes *passes, struct choose_scratch *scratch,
                struct chosen *out)
{
    int32_t n = scratch->n_vocab;
    const float *x = logits;

    if (!s->is_given && is_adjusted(s)) {
        memcpy(scratch->row, logits, (size_t)n * sizeof(*logits));
        adjust(plan, s, scratch->row);
        x = scratch->row;
    }
    if (s->is_given) {
        out->id = s->id;
    } else if (s->temperature > 0) {
        struct list l = {x, n, scratch->candidates, 0, 0, 1.0 / s->temperature, passes};
        out->id = draw(&l, s, passes);
    } else {
        out->id = find_greedy(x, n, passes);
    }
    float max = passes->max(logits, n);
    out->logprob = (float)((double)logits[out->id] - max - log(passes->sum_exp(logits, n, max, 1)));
}

void choose_best(const struct plan *plan, const struct plan_sample *s, const float *logits,
                 const struct choose_passes *passes, struct choose_scratch *scratch,
                 struct chosen *out)
{
    int32_t n = scratch->n_vocab;
    const float *x = logits;

    if (s->best_adjusted && is_adjusted(s)) {
        memcpy(scratch->row, logits, (size_t)n * sizeof(*logits));
        adjust(plan, s, scratch->row);
        x = scratch->row;
    }
    int32_t n_found = select_best(x, n, s->n_best < n ? s->n_best : n, passes, scratch->candidates);
    float max = passes->max(x, n);
    double log_sum = n_found > 0 ? log(passes->sum_exp(x, n, max, 1)) : 0;
    for (int32_t i = 0; i < s->n_best; i++)
        out[i] =
            i < n_found
                ? (struct chosen){scratch->candidates[i].id,
                                  (float)((double)scratch->candidates[i].logit - max - log_sum)}
                : (struct chosen){-1, -INFINITY};
}
