/* plain_beam.c - what a beam must answer: a search over the toy on plain arrays, no blocks.
 *
 * Every row is written out anew at every step, its hashes are computed from position 0, all
 * continuations of all rows stand in one array that is sorted by insertion. It shares nothing with
 * the engine's search but the rules:
 *   - order: the greater sum, then the lower row, then the better rank in its row;
 *   - among the first `width`, an end of text or a stop string makes an answer; anywhere in the
 *     order it goes no further; the first `width` others go on;
 *   - a row's first continuation stays in its place, the others take places that nobody keeps, from
 *     the lowest on;
 *   - where stop strings leave fewer than `width`, those go on, and the other places repeat the first
 *     of them with a sum of minus infinity, of which nothing comes;
 *   - over: the length is reached, none goes on, or `width` answers are there and (unless
 *     EARLYSTOP) the best that goes on does not score more than the worst of them. */
#include "plain_beam.h"

#include <math.h>
#include <string.h>

enum { MAX_ROWS = ENGINE_MAX_BEAM, MAX_ALL = ENGINE_MAX_BEAM * TOY_VOCAB };

struct next {
    double sum;
    int32_t row, id;
};

int32_t plain_beam_row(const struct plain_beam *b, int32_t step, int32_t row, int32_t *ids)
{
    int32_t n = b->n_prompt + step;
    memcpy(ids, b->prompt, (size_t)b->n_prompt * sizeof *ids);
    for (int32_t s = step - 1; s >= 0; s--) {
        ids[b->n_prompt + s] = b->rows[s][row].id;
        row = b->rows[s][row].from;
    }
    return n;
}

uint64_t plain_beam_seen(const struct plain_beam *b, const int32_t *ids, int32_t n)
{
    const struct gen_options *o = &b->options;
    struct plan_count counts[TOY_VOCAB];
    bool counted = o->presence != 0 || o->frequency != 0;
    int32_t n_recent = n < PLAN_RECENT ? n : PLAN_RECENT;
    uint64_t slot = 0, fold = 0;
    for (int32_t i = 0; i < n; i++) {
        slot = toy_slot(slot, ids[i]);
        fold = toy_fold(fold, slot);
    }
    int32_t n_counts = counted ? toy_count_ids(ids + b->n_prompt, n - b->n_prompt, counts) : 0;
    return toy_seen(fold, ids + n - n_recent, o->repeat != 1 ? n_recent : 0, counts, n_counts);
}

/* The continuations of all rows in their order. */
static int32_t list_all(const struct plain_beam *b, struct next *all)
{
    int32_t width = b->options.n_branches, n_rows = b->n_steps > 0 ? width : 1, n = 0;
    bool is_narrow = b->options.n_stops == 0 && 2 * width + 1 < TOY_VOCAB;
    int32_t n_best = is_narrow ? 2 * width + 1 : TOY_VOCAB;
    struct chosen best[TOY_VOCAB];
    int32_t ids[LONE_MAX_IDS];
    for (int32_t row = 0; row < n_rows; row++) {
        double sum = b->n_steps > 0 ? b->rows[b->n_steps - 1][row].sum : 0;
        int32_t n_ids = plain_beam_row(b, b->n_steps, row, ids);
        if (isinf(sum))
            continue;
        toy_best(plain_beam_seen(b, ids, n_ids), toy_banned(&b->options), n_best, best);
        for (int32_t k = 0; k < n_best && best[k].id >= 0; k++) {
            struct next c = {sum + (double)best[k].logprob, row, best[k].id};
            int32_t at = n++;
            for (; at > 0 && all[at - 1].sum < c.sum; at--)
                all[at] = all[at - 1];
            all[at] = c;
        }
    }
    return n;
}

static double score_of(const struct plain_beam *b, double sum, int32_t length)
{
    return sum / pow(length, (double)b->options.length_penalty);
}

/* The worst of more than `width` answers goes; of equal ones the later. */
static void keep(struct plain_beam *b, const int32_t *ids, int32_t n, double score,
                 enum gen_finish finish)
{
    int32_t at = b->n_answers++;
    for (; at > 0 && b->answers[at - 1].score < score; at--)
        b->answers[at] = b->answers[at - 1];
    b->answers[at] = (struct plain_answer){.n = n, .score = score, .finish = finish};
    memcpy(b->answers[at].ids, ids, (size_t)n * sizeof *ids);
    if (b->n_answers > b->options.n_branches)
        b->n_answers--;
}

/* Takes answers out of the order; next [returned, at most width] go on. */
static int32_t sort_out(struct plain_beam *b, const struct next *all, int32_t n, struct next *next)
{
    int32_t width = b->options.n_branches, n_next = 0;
    for (int32_t i = 0; i < n && n_next < width; i++) {
        int32_t ids[LONE_MAX_IDS + 1];
        int32_t made = plain_beam_row(b, b->n_steps, all[i].row, ids) - b->n_prompt;
        const int32_t *text = ids + b->n_prompt;
        double score = score_of(b, all[i].sum, made + 1);
        ids[b->n_prompt + made] = all[i].id;
        bool is_end = all[i].id == TOY_END;
        bool is_stopped = !is_end && lone_stop_length(text, made + 1, &b->options) > 0;
        if (!is_end && !is_stopped)
            next[n_next++] = all[i];
        else if (i < width)
            keep(b, text, made + is_stopped, score, GEN_STOP);
    }
    return n_next;
}

/* The step's rows: everybody to a place. */
static void place_all(struct plain_beam *b, struct next *next, int32_t n_next)
{
    int32_t width = b->options.n_branches, place[MAX_ROWS];
    bool is_taken[MAX_ROWS] = {false};
    for (; n_next < width; n_next++)
        next[n_next] = (struct next){-INFINITY, next[0].row, next[0].id};
    for (int32_t i = 0; i < width; i++) {
        place[i] = is_taken[next[i].row] ? -1 : next[i].row;
        is_taken[next[i].row] = true;
    }
    for (int32_t i = 0; i < width; i++) {
        for (int32_t k = 0; place[i] < 0; k++)
            if (!is_taken[k]) {
                place[i] = k;
                is_taken[k] = true;
            }
        b->rows[b->n_steps][place[i]] = (struct plain_row){next[i].row, next[i].id, next[i].sum};
    }
    b->n_steps++;
}

/* All reach their length at once: they are answers as they are. */
static bool end_by_length(struct plain_beam *b, const struct next *next, int32_t n_next)
{
    int32_t length = b->n_steps + 1;
    if (length < b->options.max_tokens && b->n_prompt + length < b->n_context)
        return false;
    for (int32_t i = 0; i < n_next; i++) {
        int32_t ids[LONE_MAX_IDS + 1], n = plain_beam_row(b, b->n_steps, next[i].row, ids);
        ids[n] = next[i].id;
        keep(b, ids + b->n_prompt, length, score_of(b, next[i].sum, length), GEN_LENGTH);
    }
    return true;
}

static bool is_settled(const struct plain_beam *b, double best_sum)
{
    int32_t width = b->options.n_branches;
    return b->n_answers == width &&
           (b->options.early_stop ||
            score_of(b, best_sum, b->n_steps + 1) <= b->answers[width - 1].score);
}

/* The best of what goes on fill the places that have no answer. */
static void fill_up(struct plain_beam *b)
{
    int32_t width = b->options.n_branches;
    bool is_used[MAX_ROWS] = {false};
    while (b->n_steps > 0 && b->n_answers < width) {
        int32_t ids[LONE_MAX_IDS], best = -1;
        for (int32_t row = 0; row < width; row++)
            if (!is_used[row] &&
                (best < 0 || b->rows[b->n_steps - 1][row].sum > b->rows[b->n_steps - 1][best].sum))
                best = row;
        is_used[best] = true;
        plain_beam_row(b, b->n_steps, best, ids);
        keep(b, ids + b->n_prompt, b->n_steps,
             score_of(b, b->rows[b->n_steps - 1][best].sum, b->n_steps), GEN_NONE);
    }
}

void plain_beam_run(struct plain_beam *b, const int32_t *prompt, int32_t n_prompt,
                    const struct gen_options *options, int32_t n_context, int32_t n_steps)
{
    static struct next all[MAX_ALL], next[MAX_ROWS];
    b->options = *options;
    b->n_prompt = n_prompt;
    b->n_context = n_context;
    b->n_steps = b->n_answers = 0;
    b->is_over = false;
    memcpy(b->prompt, prompt, (size_t)n_prompt * sizeof *prompt);
    while (b->n_steps < n_steps) {
        int32_t n_next = sort_out(b, all, list_all(b, all), next);
        b->is_over = end_by_length(b, next, n_next) || n_next == 0 || is_settled(b, next[0].sum);
        if (b->is_over)
            return;
        place_all(b, next, n_next);
    }
    fill_up(b);
}
