/* group_world.h - clients of groups over the scripted runner, and what each branch must give.
 *
 * The expected ids come from no engine: the chain of hashes that the runner would read is walked
 * over a plain array, one branch at a time. */
#ifndef TESTS_UNIT_GROUP_WORLD_H
#define TESTS_UNIT_GROUP_WORLD_H

#include "tests/unit/engine_world.h"

enum { GROUP_IDS = 512 };

/* Whoever has submitted a group. */
struct group {
    struct world *world;
    struct gen *gen; /* NULL once its last end was told */
    int32_t n_branches, n_ends;
    struct group_branch {
        int n_ends;
        enum gen_finish finish;
        int32_t ids[GROUP_IDS], n_ids, n_cached, n_generated;
        struct str pieces, text;
    } branches[ENGINE_MAX_BRANCHES];
    void (*on_end)(struct group *g, int32_t branch); /* may be NULL */
    void (*on_output)(struct group *g, int32_t branch);
};

static inline void group_output(void *owner, const struct gen_output *output)
{
    struct group *g = owner;
    struct group_branch *b = &g->branches[output->branch];

    assert_in_range(output->branch, 0, g->n_branches - 1);
    assert_int_equal(b->n_ends, 0);
    str_append(&b->pieces, output->text.data, output->text.len);
    if (g->on_output)
        g->on_output(g, output->branch);
}

static inline void group_end(void *owner, const struct gen_end *end)
{
    struct group *g = owner;
    struct group_branch *b = &g->branches[end->branch];

    assert_in_range(end->branch, 0, g->n_branches - 1);
    assert_int_equal(b->n_ends++, 0);
    assert_true(end->n_ids <= GROUP_IDS);
    b->finish = end->finish;
    b->n_ids = end->n_ids;
    b->n_cached = end->n_cached;
    b->n_generated = end->n_generated;
    if (end->n_ids > 0)
        memcpy(b->ids, end->ids, (size_t)end->n_ids * sizeof *end->ids);
    str_append(&b->text, end->text.data, end->text.len);
    g->n_ends++;
    struct gen *gen = g->gen;
    if (end->is_last)
        g->gen = NULL;
    assert_non_null(gen);
    if (g->on_end)
        g->on_end(g, end->branch);
}

static const struct gen_events group_events = {.output = group_output, .end = group_end};

static inline enum submit_error group_try(struct group *g, struct world *w, const int32_t *ids,
                                          int32_t n, const struct gen_options *options,
                                          struct err *err)
{
    *g = (struct group){.world = w, .n_branches = options->n_branches};
    enum submit_error rc =
        engine_submit(w->engine, &w->ns, ids, n, options, &group_events, g, &g->gen, err);
    world_audit(w);
    return rc;
}

static inline void group_submit_with(struct group *g, struct world *w, const int32_t *ids,
                                     int32_t n, const struct gen_options *options)
{
    struct err err = {0};

    if (group_try(g, w, ids, n, options, &err) != SUBMIT_OK)
        fail_msg("%s", err.text);
}

static inline void group_submit(struct group *g, struct world *w, const int32_t *ids, int32_t n,
                                int32_t n_branches, uint64_t seed, int64_t max_tokens)
{
    struct gen_options o = options_of(seed, max_tokens);

    o.n_branches = n_branches;
    group_submit_with(g, w, ids, n, &o);
}

static inline void group_free(struct group *g)
{
    for (int32_t i = 0; i < g->n_branches; i++) {
        str_free(&g->branches[i].pieces);
        str_free(&g->branches[i].text);
    }
}

/* What a branch draws behind ids [n], by plain arrays: out [n_out]. Stops behind the end-of-text id,
 * which is not counted. Returns how many. */
static inline int32_t plain_run(const struct fake_runner *r, const int32_t *ids, int32_t n,
                                const struct gen_options *options, int32_t branch, int32_t *out,
                                int32_t n_out)
{
    struct plan plan = {0};
    struct plan_bias ban = {.id = r->end_id, .value = -INFINITY};
    struct plan_sample s = {.seed = options->seed,
                            .branch = branch,
                            .temperature = options->temperature,
                            .n_bias = options->ignore_eos};
    uint64_t slots[4096], n_slots = 0;

    plan.bias = &ban;
    assert_true(n + n_out < 4096);
    for (int32_t made = 0; made < n_out; made++) {
        for (; n_slots < (uint64_t)(n + made); n_slots++) {
            int32_t id = n_slots < (uint64_t)n ? ids[n_slots] : out[n_slots - (uint64_t)n];
            slots[n_slots] = fake_mix((n_slots ? slots[n_slots - 1] : 1) ^ (uint64_t)(uint32_t)id);
        }
        uint64_t all = 0;
        for (uint64_t at = 0; at < n_slots; at++)
            all = fake_mix(all ^ slots[at]);
        struct fake_runner view = *r;
        view.plan = &plan;
        s.position = n + made;
        out[made] = fake_choose(&view, &s, all);
        if (out[made] == r->end_id)
            return made;
    }
    return n_out;
}

/* Every branch gave what it gives by itself, and told it once. */
static inline void group_is_as_alone(const struct group *g, const int32_t *ids, int32_t n,
                                     const struct gen_options *options)
{
    static int32_t want[GROUP_IDS];

    assert_null(g->gen);
    assert_int_equal(g->n_ends, g->n_branches);
    for (int32_t i = 0; i < g->n_branches; i++) {
        const struct group_branch *b = &g->branches[i];
        int32_t n_want =
            plain_run(g->world->runner, ids, n, options, i, want, (int32_t)options->max_tokens);
        assert_int_equal(b->n_ends, 1);
        assert_int_equal(b->n_ids, n_want);
        assert_memory_equal(b->ids, want, (size_t)n_want * sizeof *want);
        assert_int_equal(b->finish, n_want < options->max_tokens ? GEN_STOP : GEN_LENGTH);
        assert_int_equal(b->pieces.len, b->text.len);
        assert_memory_equal(b->pieces.data, b->text.data, b->text.len);
    }
}

#endif
