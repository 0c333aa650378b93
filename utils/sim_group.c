/* sim_group.c - the blocks of beams, on the real cache.
 *
 * A group computes its prompt in one table, lets every beam take that table (cache_share), and each
 * beam then writes on: the half-filled last block is copied by whoever writes first. The engine has
 * no beams yet, so this is done with the cache's own calls, one group after the other; every step
 * counts what the tables name and what the pool holds.
 *
 * Who survives is a beam search over a random model: each beam's next logits are independent normal
 * numbers, their log-softmax is added to its score, and the best `width` of all candidates go on; a
 * beam without a successor frees what only it used. One deviation serves all widths and workloads:
 * it says how sure of itself the model is. With little of it one beam soon takes over, with much
 * the first beams never end. Drawing it anew for every request, from a log-normal, was tried: no
 * nearer to the published savings, and a parameter more. */
#include "utils/sim_group.h"

#include <math.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "cache/cache.h"

enum { CONTEXT = 2048 };

struct beam {
    struct block_table table;
    int32_t ids[CONTEXT + 1];
    int32_t n_ids, n_left;
    double score;
};

struct group {
    struct cache *cache;
    struct cache_namespace ns;
    struct cache_owner owner;
    struct beam *beams[SIM_MAX_BEAMS]; /* [n] owns */
    int32_t n;
    struct rng random;
};

static struct beam *beam_open(struct group *g)
{
    struct beam *b = xcalloc(1, sizeof *b);

    cache_open(g->cache, &b->table, &g->ns, &g->owner, CONTEXT / cache_block_size(g->cache) + 1);
    return b;
}

static void beam_close(struct group *g, struct beam *b)
{
    cache_release(g->cache, &b->table, b->ids);
    cache_close(g->cache, &b->table);
    xfree(b);
}

static struct beam *beam_fork(struct group *g, const struct beam *from)
{
    struct beam *b = beam_open(g);

    memcpy(b->ids, from->ids, (size_t)from->n_ids * sizeof *b->ids);
    b->n_ids = from->n_ids;
    b->n_left = from->n_left;
    b->score = from->score;
    cache_share(g->cache, &from->table, &b->table);
    return b;
}

static int32_t draw_id(struct group *g)
{
    return 1 + (int32_t)rng_below(&g->random, 1 << 20);
}

/* The prompt's K/V, computed in one step by the first branch. */
static void prefill(struct group *g, struct beam *b, int32_t n_prompt)
{
    struct cache_found found;
    struct cache_copy copy;

    for (b->n_ids = 0; b->n_ids < n_prompt; b->n_ids++)
        b->ids[b->n_ids] = draw_id(g);
    cache_look(g->cache, &b->table, b->ids, n_prompt, &found);
    bool fits = cache_reserve(g->cache, &b->table, b->ids, n_prompt, &found, 0, &copy);
    ASSERT(fits); /* the pool holds every group without any sharing */
    cache_copy_done(g->cache, &copy);
    cache_landed(g->cache, &b->table);
    cache_advance(g->cache, &b->table, b->ids, n_prompt - b->table.computed);
}

/* One step: every beam writes its newest token. Two of them may copy the same block: all copies
 * are asked for before any is done. */
static void decode(struct group *g, struct sim_sharing *sharing)
{
    struct cache_copy copies[SIM_MAX_BEAMS];
    struct cache_stats stats;

    for (int32_t i = 0; i < g->n; i++)
        cache_write_room(g->cache, &g->beams[i]->table, &copies[i]);
    for (int32_t i = 0; i < g->n; i++) {
        struct beam *b = g->beams[i];
        cache_copy_done(g->cache, &copies[i]);
        sharing->copies += copies[i].n_tokens > 0;
        cache_landed(g->cache, &b->table);
        cache_advance(g->cache, &b->table, b->ids, 1);
        sharing->logical += b->table.n_blocks;
    }
    cache_stats(g->cache, &stats);
    sharing->physical += stats.used_blocks;
}

static void push_id(struct beam *b, int32_t id)
{
    b->ids[b->n_ids++] = id;
    b->n_left--;
}

/* ---- beams ---------------------------------------------------------------------------------- */

struct candidate {
    double score;
    int32_t parent;
};

/* Two normal numbers at a time. */
static void draw_logits(struct rng *r, double logits[SIM_BEAM_CANDIDATES])
{
    for (int i = 0; i < SIM_BEAM_CANDIDATES; i += 2) {
        uint64_t bits = rng_next(r);
        double u = ((double)(bits >> 32) + 0.5) * 0x1p-32;
        double angle = 2 * M_PI * (double)(bits & 0xffffffff) * 0x1p-32;
        double radius = SIM_BEAM_DEVIATION * sqrt(-2 * log(u));
        logits[i] = radius * cos(angle);
        logits[i + 1] = radius * sin(angle);
    }
}

/* Puts a candidate among the best n of `best`, sorted, the earlier one first where they tie. */
static int32_t keep_best(struct candidate *best, int32_t n, int32_t n_max, struct candidate c)
{
    if (n == n_max && best[n - 1].score >= c.score)
        return n;
    int32_t at = n < n_max ? n++ : n - 1;
    for (; at > 0 && best[at - 1].score < c.score; at--)
        best[at] = best[at - 1];
    best[at] = c;
    return n;
}

static int32_t choose(struct group *g, int32_t width, struct candidate best[SIM_MAX_BEAMS])
{
    int32_t n = 0;

    for (int32_t i = 0; i < g->n; i++) {
        double logits[SIM_BEAM_CANDIDATES], sum = 0;
        draw_logits(&g->random, logits);
        for (int k = 0; k < SIM_BEAM_CANDIDATES; k++)
            sum += exp(logits[k]);
        for (int k = 0; k < SIM_BEAM_CANDIDATES; k++)
            n = keep_best(best, n, width,
                          (struct candidate){g->beams[i]->score + logits[k] - log(sum), i});
    }
    return n;
}

/* The survivors' first successor keeps the table, the others fork it; then the rest goes. */
static void survive(struct group *g, int32_t width)
{
    struct candidate best[SIM_MAX_BEAMS];
    struct beam *next[SIM_MAX_BEAMS];
    bool is_kept[SIM_MAX_BEAMS] = {false};
    int32_t n = choose(g, width, best);

    for (int32_t i = 0; i < n; i++) {
        int32_t parent = best[i].parent;
        next[i] = is_kept[parent] ? beam_fork(g, g->beams[parent]) : g->beams[parent];
        is_kept[parent] = true;
    }
    for (int32_t i = 0; i < g->n; i++)
        if (!is_kept[i])
            beam_close(g, g->beams[i]);
    for (int32_t i = 0; i < n; i++) {
        next[i]->score = best[i].score;
        push_id(next[i], draw_id(g));
        g->beams[i] = next[i];
    }
    g->n = n;
}

/* ---- groups --------------------------------------------------------------------------------- */

static void run_beams(struct group *g, int32_t width, int32_t n_output, struct sim_sharing *sharing)
{
    g->beams[0]->n_left = n_output;
    for (int32_t i = 0; i < n_output; i++) {
        survive(g, width);
        decode(g, sharing);
    }
    for (int32_t i = 0; i < g->n; i++)
        beam_close(g, g->beams[i]);
}

static int32_t draw_output(struct sim_lengths *d, int32_t n_prompt, struct rng *r)
{
    int32_t n = sim_lengths_draw(d, r);
    return n < CONTEXT - n_prompt ? n : CONTEXT - n_prompt;
}

void sim_group_run(const struct sim_workload *w, int32_t width, int32_t n_groups,
                   int32_t block_size, uint64_t seed, struct sim_sharing *sharing)
{
    struct sim_lengths in = {.mean = w->prompt_mean, .sigma = w->sigma, .cut = CONTEXT / 2};
    struct sim_lengths out = {.mean = w->output_mean, .sigma = w->sigma, .cut = CONTEXT};
    struct rng lengths = rng_from(seed);

    ASSERT(width >= 1 && width <= SIM_MAX_BEAMS);
    *sharing = (struct sim_sharing){0};
    sim_lengths_fit(&in);
    sim_lengths_fit(&out);
    struct group g = {.random = rng_from(~seed)};
    g.cache = cache_new(&(struct cache_config){.n_blocks = (width + 1) * (CONTEXT / block_size + 1),
                                               .block_size = block_size});
    for (int32_t i = 0; i < n_groups; i++) {
        int32_t n_prompt = sim_lengths_draw(&in, &lengths);
        int32_t n_output = draw_output(&out, n_prompt, &lengths);
        g.owner = (struct cache_owner){0};
        g.beams[0] = beam_open(&g);
        g.n = 1;
        prefill(&g, g.beams[0], n_prompt);
        run_beams(&g, width, n_output, sharing);
        cache_clear(g.cache);
    }
    cache_free(g.cache);
}
