/* lone.c - the lone run: what a branch must produce, on plain arrays, without any block.
 *
 * Deliberately naive: stop strings are looked for by comparing the end of the text, counts are
 * counted anew for every token. It shares nothing with the engine but the options. */
#include "lone.h"

#include <math.h>
#include <string.h>

/* The finaliser of MurmurHash3 over both halves; only has to spread well. */
uint64_t toy_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + (b ^ 0xd1b54a32d192ed03u);
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 29;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 32;
}

/* About one token in 29 ends the text. A banned id gives way to the next one. */
int32_t toy_choose(const struct toy_choice *choice, int32_t n_letters)
{
    uint64_t x = toy_mix(choice->fold, toy_mix(choice->seed, (uint64_t)(uint32_t)choice->branch));
    x = toy_mix(x, (uint64_t)(uint32_t)choice->position);
    for (int32_t i = 0; i < choice->n_recent; i++)
        x = toy_mix(x, (uint64_t)(uint32_t)choice->recent[i]);
    for (int32_t i = 0; i < choice->n_counts; i++)
        x = toy_mix(x, (uint64_t)(uint32_t)choice->counts[i].id << 32 |
                           (uint32_t)choice->counts[i].count);
    int32_t id = (x >> 20) % 29 == 0 ? TOY_END : 1 + (int32_t)((x >> 3) % (uint64_t)n_letters);
    while (choice->banned >> id & 1)
        id = (id + 1) % (n_letters + 1);
    return id;
}

float toy_logprob(uint64_t seen, int32_t id)
{
    uint64_t x = toy_mix(seen, (uint64_t)(uint32_t)id + 0x10000);
    float logprob = -(float)(x % 64) / 16;
    if (id == TOY_END)
        return (x >> 20) % 8 == 0 ? logprob : logprob - 6; /* else every beam would end at once */
    return id > 5 ? logprob - 2 : logprob;                 /* few letters, so that prefixes meet */
}

void toy_best(uint64_t seen, uint32_t banned, int32_t n, struct chosen *best)
{
    int32_t n_best = 0;
    for (int32_t id = 0; id < TOY_VOCAB - 1; id++) {
        struct chosen c = {id, toy_logprob(seen, id)};
        int32_t at = n_best;
        if (banned >> id & 1)
            continue;
        while (at > 0 && best[at - 1].logprob < c.logprob)
            at--;
        if (at == n)
            continue;
        n_best += n_best < n;
        memmove(best + at + 1, best + at, (size_t)(n_best - at - 1) * sizeof *best);
        best[at] = c;
    }
    for (; n_best < n; n_best++)
        best[n_best] = (struct chosen){-1, -INFINITY};
}

uint64_t toy_seen(uint64_t fold, const int32_t *recent, int32_t n_recent,
                  const struct plan_count *counts, int32_t n_counts)
{
    for (int32_t i = 0; i < n_recent; i++)
        fold = toy_mix(fold, (uint64_t)(uint32_t)recent[i]);
    for (int32_t i = 0; i < n_counts; i++)
        fold = toy_mix(fold, (uint64_t)(uint32_t)counts[i].id << 32 | (uint32_t)counts[i].count);
    return fold;
}

uint32_t toy_banned(const struct gen_options *options)
{
    uint32_t banned = options->ignore_eos ? 1u << TOY_END : 0;
    for (int32_t i = 0; i < options->n_bias; i++)
        if (options->bias[i].value == -INFINITY)
            banned |= 1u << options->bias[i].id;
    return banned;
}

int32_t toy_count_ids(const int32_t *ids, int32_t n, struct plan_count counts[TOY_VOCAB])
{
    int32_t n_counts = 0;
    for (int32_t id = 0; id < TOY_VOCAB; id++) {
        int32_t count = 0;
        for (int32_t i = 0; i < n; i++)
            count += ids[i] == id;
        if (count > 0)
            counts[n_counts++] = (struct plan_count){id, count};
    }
    return n_counts;
}

/* ---- the run ------------------------------------------------------------------------------------ */

static int32_t next_id(const struct lone *l, const struct gen_options *options, int32_t branch,
                       int32_t n_letters)
{
    struct plan_count counts[TOY_VOCAB];
    int32_t n_recent = l->n_ids < PLAN_RECENT ? l->n_ids : PLAN_RECENT;
    bool counted = options->presence != 0 || options->frequency != 0;
    struct toy_choice choice = {
        .fold = l->folds[l->n_ids - 1],
        .seed = options->temperature == 0 ? 0 : options->seed,
        .branch = options->temperature == 0 ? 0 : branch,
        .position = l->n_ids,
        .recent = l->ids + l->n_ids - n_recent,
        .n_recent = options->repeat != 1 ? n_recent : 0,
        .counts = counts,
        .n_counts =
            counted ? toy_count_ids(l->ids + l->n_prompt, l->n_ids - l->n_prompt, counts) : 0,
        .banned = toy_banned(options),
    };
    return toy_choose(&choice, n_letters);
}

int32_t lone_stop_length(const int32_t *ids, int32_t n, const struct gen_options *options)
{
    int32_t longest = 0;
    for (int32_t s = 0; s < options->n_stops; s++) {
        int32_t len = (int32_t)options->stops[s].len, i = 0;
        if (len > n || len <= longest)
            continue;
        while (i < len && options->stops[s].data[i] == 'a' + ids[n - len + i] - 1)
            i++;
        if (i == len)
            longest = len;
    }
    return longest;
}

static void append(struct lone *l, int32_t id)
{
    uint64_t before = l->n_ids > 0 ? l->slots[l->n_ids - 1] : 0;
    uint64_t fold = l->n_ids > 0 ? l->folds[l->n_ids - 1] : 0;
    l->slots[l->n_ids] = toy_slot(before, id);
    l->folds[l->n_ids] = toy_fold(fold, l->slots[l->n_ids]);
    l->ids[l->n_ids++] = id;
}

void lone_open(struct lone *l, const int32_t *ids, int32_t n, int32_t n_resumed)
{
    *l = (struct lone){.n_prompt = n - n_resumed, .n_text = n_resumed};
    for (int32_t i = 0; i < n; i++)
        append(l, ids[i]);
}

void lone_run(struct lone *l, const int32_t *ids, int32_t n, int32_t n_resumed,
              const struct gen_options *options, int32_t branch, int32_t n_context,
              int32_t n_letters)
{
    lone_open(l, ids, n, n_resumed);
    while (l->finish == GEN_NONE) {
        int32_t id = next_id(l, options, branch, n_letters);
        if (id == TOY_END) {
            l->finish = GEN_STOP;
            break;
        }
        append(l, id);
        l->n_text++;
        int32_t stop = lone_stop_length(l->ids + l->n_prompt, l->n_ids - l->n_prompt, options);
        if (stop > 0) {
            l->n_text -= stop;
            l->finish = GEN_STOP;
        } else if (l->n_text >= options->max_tokens || l->n_ids >= n_context) {
            l->finish = GEN_LENGTH;
        }
    }
}
