/* sampler.c - how the next token of a sequence is chosen, as the plan carries it.
 *
 * Choosing itself is the rank's: exact, over the whole vocabulary, drawn by (seed, branch,
 * position). Here the options of a generation become what a plan_sample needs, once at submission;
 * what changes from token to token is the last ids (the repeat penalty) and the counts of the ids
 * that this generation made (presence and frequency).
 *
 * Counts are kept sorted by id and grow by insertion, so that a step copies one array and walks
 * nothing; they depend on the ids alone, so a preempted or resumed generation has the same ones.
 *
 * IGNOREEOS bans the end-of-text ids by a bias of minus infinity: then the choice is exact among
 * the others, as if the ids did not exist. A ban outlives a BIAS that the client gives for that id.
 *
 * Main thread only. */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"
#include "engine/beam.h"

/* Everything off but the temperature; what GEN does without options. */
struct gen_options gen_options_default(void)
{
    return (struct gen_options){.max_tokens = 512,
                                .length_penalty = 1,
                                .temperature = 0.8f,
                                .top_p = 1,
                                .min_p = 0,
                                .repeat = 1};
}

/* Sets the bias of an id; the last one given counts. */
static void set_bias(struct sampler *s, int32_t id, float value)
{
    for (int32_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].id == id) {
            s->bias[i].value = value;
            return;
        }
    s->bias[s->n_bias++] = (struct plan_bias){.id = id, .value = value};
}

static void collect_bias(struct sampler *s, const struct tokenizer *t,
                         const struct gen_options *options)
{
    int32_t n_ends = 0, n_vocab = tokenizer_n_vocab(t);
    const int32_t *ends = tokenizer_end_ids(t, &n_ends);

    ASSERT(options->n_bias >= 0 && options->n_bias <= ENGINE_MAX_BIAS);
    s->bias = xcalloc((size_t)options->n_bias + (size_t)n_ends + 1, sizeof *s->bias);
    for (int32_t i = 0; i < options->n_bias; i++)
        if (options->bias[i].id >= 0 && options->bias[i].id < n_vocab)
            set_bias(s, options->bias[i].id, options->bias[i].value);
    for (int32_t i = 0; options->ignore_eos && i < n_ends; i++)
        if (ends[i] >= 0 && ends[i] < n_vocab)
            set_bias(s, ends[i], -INFINITY);
}

void sampler_init(struct sampler *s, const struct tokenizer *t, const struct gen_options *options,
                  int32_t branch, int32_t max_ids)
{
    bool counts = options->presence != 0 || options->frequency != 0;
    int32_t n_vocab = tokenizer_n_vocab(t);

    *s = (struct sampler){
        .sample = {.seed = options->seed,
                   .branch = branch,
                   .temperature = options->temperature,
                   .top_k = options->top_k,
                   .top_p = options->top_p,
                   .min_p = options->min_p,
                   .repeat = options->repeat,
                   .presence = options->presence,
                   .frequency = options->frequency,
                   .n_best = options->logprobs ? options->n_logprobs : 0},
        .counts_cap = !counts             ? 0
                      : max_ids < n_vocab ? max_ids
                                          : n_vocab,
    };
    if (options->beam) {
        s->sample.temperature = 0;
        s->sample.n_best = beam_n_best(t, options);
        s->sample.best_adjusted = true; /* what is banned is no continuation */
    }
    if (s->counts_cap > 0)
        s->counts = xcalloc((size_t)s->counts_cap, sizeof *s->counts);
    collect_bias(s, t, options);
}

void sampler_free(struct sampler *s)
{
    xfree(s->bias);
    xfree(s->counts);
    *s = (struct sampler){0};
}

/* An id was generated. Allocates nothing. */
void sampler_count(struct sampler *s, int32_t id)
{
    int32_t low = 0, high = s->n_counts;

    if (!s->counts)
        return;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (s->counts[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < s->n_counts && s->counts[low].id == id) {
        s->counts[low].count++;
        return;
    }
    ASSERT(s->n_counts < s->counts_cap);
    memmove(s->counts + low + 1, s->counts + low, (size_t)(s->n_counts - low) * sizeof *s->counts);
    s->counts[low] = (struct plan_count){.id = id, .count = 1};
    s->n_counts++;
}

/* Asks for the token after `row`, the last of ids [n_ids]: all ids of the sequence so far. */
void sampler_plan(const struct sampler *s, struct plan *plan, int32_t row, const int32_t *ids,
                  int32_t n_ids)
{
    struct plan_sample sample = s->sample;
    int32_t n_recent = n_ids < PLAN_RECENT ? n_ids : PLAN_RECENT;

    if (sample.repeat == 1)
        n_recent = 0; /* nobody looks at them */
    sample.row = row;
    sample.position = n_ids;
    if (PLANTED(STREAM_ONE))
        sample.branch = 0;
    plan_add_sample(plan, &sample, ids + n_ids - n_recent, n_recent, s->counts, s->n_counts,
                    s->bias, s->n_bias);
}
