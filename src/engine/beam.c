/* beam.c - beam search over the branches of a group: which of the best continuations go on.
 *
 * Each running branch hands in its best continuations; those of all are put into one order by the
 * sum of log-probabilities (ties: the lower branch, then the better rank), and from the front:
 *
 *     end of text, or a stop string    an answer, if it stands among the first `width`
 *     anything else                    goes on, until `width` do
 *
 * So the search is over when `width` answers are there and, without EARLYSTOP, the best that goes on
 * could not enter them as it stands: its sum over its length^penalty is not above the worst answer.
 * At the length limit what goes on becomes answers as it is.
 *
 * The device tells only so many of the best. With stop strings fewer than `width` of them may go on:
 * then the search goes on with those, and the places left over repeat the first of them with a sum of
 * minus infinity, so that nothing comes of them: answers and what goes on are `width` at least, since
 * of the first `width` in the order each is one or the other.
 *
 * The branches form a tree over blocks. A branch with several continuations keeps the first in its
 * place; the others take its table in the place of branches that have none, whose blocks go back. The
 * block that is being filled is copied when one of them writes, as in any group. Nothing is told
 * before the end: outputs are made then, from ids. Until then a branch knows of its text only what it
 * ends with of each stop string.
 *
 * Preempted beams are computed again up to their last ids, then all decode in one step: scores live
 * in the sums, nothing is drawn twice. Main thread only. */
#include "engine/beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"
#include "engine/generation.h"

/* As many as can not all be ends of text with fewer than `width` others among them. How many a stop
 * string ends nobody knows: then all that can be told. */
static int32_t n_candidates(const struct tokenizer *t, const struct gen_options *options)
{
    int32_t n_ends, n_vocab = tokenizer_n_vocab(t);

    (void)tokenizer_end_ids(t, &n_ends);
    int32_t n = 2 * options->n_branches + n_ends;
    if (n > PLAN_BEST || options->n_stops > 0)
        n = PLAN_BEST;
    return n < n_vocab ? n : n_vocab;
}

/* Best ids that are asked for of each branch: candidates, and what LOGPROBS shows. */
int32_t beam_n_best(const struct tokenizer *t, const struct gen_options *options)
{
    int32_t n = n_candidates(t, options);

    return options->logprobs && options->n_logprobs > n ? options->n_logprobs : n;
}

/* What the text of a branch ends with of each stop string. */
static int32_t *matched_of(const struct beam *b, int32_t branch)
{
    return b->matched + (ptrdiff_t)branch * b->check.n_stops;
}

struct beam *beam_new(const struct tokenizer *t, const struct gen_options *options,
                      int32_t n_prompt, int32_t n_context)
{
    struct beam *b = xcalloc(1, sizeof *b);
    size_t width = (size_t)options->n_branches;

    b->tokenizer = t;
    b->width = options->n_branches;
    b->n_candidates = n_candidates(t, options);
    b->n_logprobs = options->logprobs ? options->n_logprobs : -1;
    b->length_penalty = options->length_penalty;
    b->early_stop = options->early_stop;
    b->ignore_eos = options->ignore_eos;
    b->sums = xcalloc(width, sizeof *b->sums);
    b->best = xcalloc(width, sizeof *b->best);
    b->answers = xcalloc(width + 1, sizeof *b->answers);
    b->next = xcalloc(width, sizeof *b->next);
    b->candidates = xcalloc(width * (size_t)b->n_candidates, sizeof *b->candidates);
    output_init(&b->check, t, options, n_prompt, n_context);
    b->matched = xcalloc((width + 1) * (size_t)options->n_stops + 1, sizeof *b->matched);
    for (int32_t i = 0; i < b->width; i++)
        output_begin_stops(&b->check, matched_of(b, i));
    return b;
}

static void drop_worst(struct beam *b)
{
    struct beam_answer *a = &b->answers[--b->n_answers];

    xfree(a->ids);
    xfree(a->logprobs);
}

void beam_free(struct beam *b)
{
    if (!b)
        return;
    while (b->n_answers > 0)
        drop_worst(b);
    output_free(&b->check);
    xfree(b->matched);
    xfree(b->sums);
    xfree((void *)b->best);
    xfree(b->answers);
    xfree(b->next);
    xfree(b->candidates);
    xfree(b);
}

/* The best continuations of branch q have come; true when those of all have. Borrowed until
 * beam_step. */
bool beam_take(struct gen *g, struct seq *q, const struct chosen *best)
{
    struct beam *b = g->beam;

    b->best[q->branch] = best;
    return ++b->n_ready == (gen_is_fresh(g) ? 1 : g->n_live);
}

static int compare(const void *left, const void *right)
{
    const struct beam_candidate *a = left, *b = right;

    if (a->sum != b->sum)
        return a->sum > b->sum ? -1 : 1;
    if (a->branch != b->branch)
        return (a->branch < b->branch) != PLANTED(BEAM_TIES) ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Not one that only holds a place. */
static bool is_beam(const struct beam *b, int32_t branch)
{
    return b->sums[branch] > -INFINITY;
}

static int32_t collect(struct beam *b)
{
    int32_t n = 0;

    for (int32_t i = 0; i < b->width; i++)
        for (int32_t k = 0; b->best[i] && is_beam(b, i) && k < b->n_candidates; k++) {
            const struct chosen *c = &b->best[i][k];
            if (c->id >= 0 && c->logprob > -INFINITY)
                b->candidates[n++] = (struct beam_candidate){
                    .sum = b->sums[i] + (double)c->logprob, .branch = i, .rank = k, .id = c->id};
        }
    qsort(b->candidates, (size_t)n, sizeof *b->candidates, compare);
    return n;
}

static double score_of(const struct beam *b, double sum, int32_t length)
{
    return sum / pow(PLANTED(BEAM_LENGTH) && length > 1 ? length - 1 : length, b->length_penalty);
}

/* The row that LOGPROBS tells of a continuation: of its id, then of the best of its branch. */
static void put_row(const struct beam *b, const struct beam_candidate *c, struct chosen *row)
{
    row[0] = b->best[c->branch][c->rank];
    memcpy(row + 1, b->best[c->branch], (size_t)b->n_logprobs * sizeof *row);
}

/* What branch q has generated is an answer, with the id of `last` behind it unless that is NULL;
 * the worst of more than width goes. */
static void add_answer(struct beam *b, const struct seq *q, const struct beam_candidate *last,
                       double score, enum gen_finish finish)
{
    int32_t at = b->n_answers, n = q->n_ids - q->gen->n_prompt;
    size_t width = (size_t)b->n_logprobs + 1;

    while (at > 0 && b->answers[at - 1].score < score)
        at--;
    if (at >= b->width)
        return;
    memmove(b->answers + at + 1, b->answers + at, (size_t)(b->n_answers - at) * sizeof *b->answers);
    struct beam_answer *a = &b->answers[at];
    *a = (struct beam_answer){.n = n + (last != NULL), .score = score, .finish = finish};
    a->ids = xcalloc((size_t)a->n + 1, sizeof *a->ids);
    memcpy(a->ids, q->ids + q->gen->n_prompt, (size_t)n * sizeof *a->ids);
    if (last)
        a->ids[n] = last->id;
    if (q->logprobs) {
        a->logprobs = xcalloc(((size_t)a->n + 1) * width, sizeof *a->logprobs);
        memcpy(a->logprobs, q->logprobs, (size_t)n * width * sizeof *a->logprobs);
    }
    if (q->logprobs && last)
        put_row(b, last, a->logprobs + (size_t)n * width);
    if (++b->n_answers > b->width)
        drop_worst(b);
}

/* How a branch would stand with this id: an answer by a stop string, at its length, or going on. */
static enum gen_finish try_id(struct gen *g, const struct seq *q, int32_t id)
{
    struct beam *b = g->beam;
    struct output *o = &b->check;
    int32_t *trial = matched_of(b, b->width);

    memcpy(trial, matched_of(b, q->branch), (size_t)o->n_stops * sizeof *trial);
    if (output_accept_stops(o, id, trial))
        return GEN_STOP;
    if (q->n_ids - g->n_prompt + 1 >= o->max_ids || q->n_ids + 1 >= o->n_context)
        return GEN_LENGTH;
    return GEN_NONE;
}

/* Walks the order: answers are kept, b->next [returned] go on. */
static int32_t walk(struct gen *g, int32_t n)
{
    struct beam *b = g->beam;
    int32_t n_next = 0;

    for (int32_t i = 0; i < n && n_next < b->width; i++) {
        struct beam_candidate *c = &b->candidates[i];
        const struct seq *q = &g->seqs[c->branch];
        double score = score_of(b, c->sum, q->n_ids - g->n_prompt + 1);
        if (!b->ignore_eos && tokenizer_is_end(b->tokenizer, c->id)) {
            if (i < b->width || PLANTED(BEAM_OUTSIDE))
                add_answer(b, q, NULL, score, GEN_STOP);
            continue;
        }
        c->finish = try_id(g, q, c->id);
        if (c->finish != GEN_STOP)
            b->next[n_next++] = *c;
        else if (i < b->width)
            add_answer(b, q, c, score, GEN_STOP);
    }
    return n_next;
}

/* The places behind the n_next that go on are held by the first of them. */
static void fill_places(struct beam *b, int32_t n_next)
{
    for (int32_t i = n_next; i < b->width; i++) {
        b->next[i] = b->next[0];
        b->next[i].sum = -INFINITY;
    }
}

/* Branch q goes on from where `from` stands. */
static void take_place(struct cache *c, struct seq *q, const struct seq *from)
{
    size_t n_generated = (size_t)(from->n_ids - from->gen->n_prompt);
    const struct beam *b = q->gen->beam;

    cache_share(c, &from->table, &q->table);
    memcpy(q->ids, from->ids, (size_t)from->n_ids * sizeof *q->ids);
    q->n_ids = from->n_ids;
    memcpy(matched_of(b, q->branch), matched_of(b, from->branch),
           (size_t)b->check.n_stops * sizeof *b->matched);
    if (PLANTED(BEAM_STALE))
        q->ids[q->n_ids - 1] = q->ids[0];
    if (q->logprobs)
        memcpy(q->logprobs, from->logprobs,
               n_generated * ((size_t)q->n_best + 1) * sizeof *q->logprobs);
    if (PLANTED(BEAM_COUNTS))
        return;
    q->sampler.n_counts = from->sampler.n_counts;
    if (q->sampler.counts)
        memcpy(q->sampler.counts, from->sampler.counts,
               (size_t)from->sampler.n_counts * sizeof *q->sampler.counts);
}

/* next [width]: the first of each branch stays where it is, the others take places of branches that
 * nobody goes on from. Blocks of those go back first: what only they used is free. */
static void assign(struct gen *g, struct cache *c)
{
    struct beam *b = g->beam;
    int32_t place[ENGINE_MAX_BRANCHES];
    bool is_kept[ENGINE_MAX_BRANCHES] = {false};

    for (int32_t i = 0; i < b->width; i++) {
        int32_t branch = b->next[i].branch;
        place[i] = is_kept[branch] ? -1 : branch;
        is_kept[branch] = true;
    }
    for (int32_t i = 0; i < b->width; i++)
        if (!is_kept[i] || (PLANTED(BEAM_DROPS) && i + 1 == b->width))
            cache_discard(c, &g->seqs[i].table);
    for (int32_t i = 0, free = 0; i < b->width; i++) {
        if (place[i] >= 0)
            continue;
        while (is_kept[free])
            free++;
        place[i] = free;
        is_kept[free] = true;
        take_place(c, &g->seqs[free], &g->seqs[b->next[i].branch]);
    }
    for (int32_t i = 0; i < b->width; i++) {
        struct seq *q = &g->seqs[place[i]];
        ASSERT(q->n_ids < q->ids_cap);
        if (q->logprobs)
            put_row(b, &b->next[i],
                    q->logprobs + (size_t)(q->n_ids - g->n_prompt) * ((size_t)q->n_best + 1));
        q->ids[q->n_ids++] = b->next[i].id;
        (void)output_accept_stops(&b->check, b->next[i].id, matched_of(b, place[i])); /* none */
        sampler_count(&q->sampler, b->next[i].id);
        if (!PLANTED(BEAM_SUMS) || place[i] == i)
            b->sums[place[i]] = b->next[i].sum;
    }
}

/* The best of what goes on cannot enter the answers as it stands. */
static bool is_settled(const struct beam *b, double best_sum, int32_t length)
{
    if (b->n_answers < b->width)
        return false;
    return b->early_stop || PLANTED(BEAM_EARLY) ||
           score_of(b, best_sum, length) <= b->answers[b->n_answers - 1].score;
}

/* All best are there: who goes on. True when the search is over. No step runs. */
bool beam_step(struct gen *g, struct cache *c)
{
    struct beam *b = g->beam;
    int32_t length = gen_next_live(g, NULL)->n_ids - g->n_prompt + 1;
    int32_t n_next = walk(g, collect(b));

    for (int32_t i = 0; i < n_next; i++) {
        const struct beam_candidate *n = &b->next[i];
        if (n->finish == GEN_LENGTH)
            add_answer(b, &g->seqs[n->branch], n, score_of(b, n->sum, length), GEN_LENGTH);
    }
    bool is_over =
        n_next == 0 || b->next[0].finish == GEN_LENGTH || is_settled(b, b->next[0].sum, length);
    if (!is_over) {
        fill_places(b, n_next);
        assign(g, c);
    }
    memset((void *)b->best, 0, (size_t)b->width * sizeof *b->best);
    b->n_ready = 0;
    return is_over;
}

/* The i-th best of what runs. */
const struct seq *beam_at(const struct gen *g, int32_t place)
{
    const struct beam *b = g->beam;

    for (int32_t i = 0; i < b->width; i++) {
        int32_t before = 0;
        for (int32_t k = 0; k < b->width; k++)
            before += b->sums[k] > b->sums[i] || (b->sums[k] == b->sums[i] && k < i);
        if (before == place)
            return &g->seqs[i];
    }
    return &g->seqs[place];
}

/* The output of the branch-th becomes that of the branch-th best of what runs: nothing is told from
 * it before beam_settle makes it anew. */
void beam_show(struct gen *g, int32_t branch)
{
    const struct seq *q = PLANTED(BRANCH_BEST) ? &g->seqs[branch] : beam_at(g, branch);
    struct output *o = &g->seqs[branch].output;

    output_reset(o);
    for (int32_t i = g->n_prompt; i < q->n_ids; i++)
        (void)output_accept(o, q->ids[i]);
}

/* The search ends: answer i becomes the output of branch i. GEN_NONE: by itself; else what runs
 * fills the places that have no answer yet, and all end for that reason. */
void beam_settle(struct gen *g, enum gen_finish finish)
{
    struct beam *b = g->beam;

    for (int32_t i = 0; i < b->width && finish != GEN_NONE; i++) {
        const struct seq *q = beam_at(g, i);
        int32_t n = q->n_ids - g->n_prompt;
        if (n > 0 && b->n_answers < b->width && !PLANTED(BEAM_CUT))
            add_answer(b, q, NULL, score_of(b, b->sums[q->branch], n), finish);
    }
    for (int32_t i = 0; i < b->width; i++) {
        struct seq *q = &g->seqs[i];
        size_t n_rows = i < b->n_answers ? (size_t)b->answers[i].n : 0;
        if (q->logprobs && n_rows > 0)
            memcpy(q->logprobs, b->answers[i].logprobs,
                   n_rows * ((size_t)q->n_best + 1) * sizeof *q->logprobs);
        output_reset(&q->output);
        q->finish = i < b->n_answers ? b->answers[i].finish : GEN_LENGTH;
        q->score = i < b->n_answers ? b->answers[i].score : -INFINITY;
        for (int32_t k = 0; i < b->n_answers && k < b->answers[i].n; k++)
            (void)output_accept(&q->output, b->answers[i].ids[k]);
    }
}
