/* engine.c - the loop's one entrance: submit, cancel, publish, turn.
 *
 * One turn, in this order:
 *
 *     step done?   results: copies let go, tokens confirmed, ids taken, ends noted
 *     expire       deadlines; resumed ones that have nothing left to do
 *     plan, launch when no step runs
 *     tell         callbacks of all of that, a slice of time (tell.c)
 *
 * The devices wait for nobody: the next step runs while callbacks write replies. So what is to be
 * told is only noted before, and told behind the launch.
 *
 * An end comes at once, also in the middle of a step: the blocks go back, the step forgets the
 * generation. Exactly one end is told: a cancel that comes after the last id, before its end was
 * told, tells that end.
 *
 * A failed step ends everything that runs: no K/V of it is valid, and what it was to confirm never
 * becomes a hit. What was confirmed before stays, and the queue goes on.
 *
 * Main thread only, nothing waits. The same calls with the same results of the runner and the same
 * clock give the same plans. */
#include "engine/state.h"

#include <inttypes.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plant.h"
#include "engine/generation.h"
#include "engine/limits.h"
#include "engine/tell.h"

/* ---- life ----------------------------------------------------------------------------------- */

struct engine *engine_new(const struct engine_config *config, struct err *err)
{
    const struct runner_info *info = &config->runner->info;

    if (limits_check(config, err))
        return NULL;
    struct engine *e = xcalloc(1, sizeof *e);
    e->runner = config->runner;
    e->tokenizer = config->tokenizer;
    e->cache = cache_new(&(struct cache_config){.n_blocks = info->n_blocks,
                                                .block_size = info->block_size,
                                                .n_slots = config->swap ? info->n_slots : 0,
                                                .hash_bits = config->hash_bits});
    sched_init(&e->sched, e->cache, config);
    struct plan_limits limits = info->limits;
    limits.block_size = info->block_size;
    limits.max_outs = e->sched.swaps ? info->n_slots : 0;
    limits.max_ins = e->sched.swaps ? info->n_blocks : 0;
    step_init(&e->step, &limits);
    list_init(&e->outbox);
    e->tell_us = config->tell_us;
    return e;
}

static void free_all(struct engine *e, struct list *list)
{
    LIST_FOREACH(list, node, next) {
        struct gen *g = LIST_ITEM(node, struct gen, in_order);
        sched_release(&e->sched, g);
        list_remove(&g->in_order);
        list_remove(&g->in_outbox);
        gen_free(g);
    }
}

/* A step that still runs is the runner's: close that before. */
void engine_free(struct engine *e)
{
    if (!e)
        return;
    for (int32_t i = 0; i < e->step.n_copies; i++)
        cache_copy_done(e->cache, &e->step.copies[i]);
    for (int32_t i = 0; i < e->step.n_outs + e->step.n_ins; i++)
        cache_move_done(e->cache, &e->step.moves[i], i < e->step.n_outs);
    free_all(e, &e->sched.queued);
    free_all(e, &e->sched.running);
    LIST_FOREACH(&e->outbox, node, next) {
        list_remove(node);
        gen_free(LIST_ITEM(node, struct gen, in_outbox));
    }
    step_done(&e->step);
    cache_free(e->cache);
    xfree(e);
}

/* ---- ends ----------------------------------------------------------------------------------- */

/* Ends a branch: blocks back, into the outbox; with the last live one the generation leaves the
 * order. After a failed step nothing of it becomes findable that was not so before. */
static void end_branch(struct engine *e, struct seq *q, enum gen_finish finish, const char *error)
{
    struct gen *g = q->gen;

    if (PLANTED(LEAK_CANCELLED) && finish == GEN_CANCELLED && q->table.n_blocks > 0)
        q->table.n_blocks--;
    if (finish == GEN_ERROR)
        cache_discard(e->cache, &q->table);
    else
        cache_release(e->cache, &q->table, q->ids);
    cache_close(e->cache, &q->table);
    if (g->n_live == 1) {
        step_forget(&e->step, g);
        sched_remove(&e->sched, g);
    } else if (g->state == GEN_RUNNING && !PLANTED(BRANCHES_KEPT)) {
        e->sched.n_branches--;
    }
    seq_finish_with(q, finish, error);
    e->ends[finish]++;
    tell_note(e, g);
}

/* Ends all that is live of g. */
static void end(struct engine *e, struct gen *g, enum gen_finish finish, const char *error)
{
    cache_unpromise(e->cache, &g->promises);
    if (g->beam)
        beam_settle(g, finish);
    GEN_FOREACH_LIVE(g, q)
        if (!PLANTED(CANCEL_SHORT) || g->n_seqs == 1 || g->n_live > 1)
            end_branch(e, q, finish, error);
}

/* The blocks of a running generation go back at once although the step may still write them: blocks
 * are taken again only when no step runs. */
void engine_cancel(struct engine *e, struct gen *g, enum gen_finish finish)
{
    if (g->state == GEN_TOLD)
        return; /* from inside its own end callback */
    if (g->state != GEN_ENDED)
        end(e, g, finish, NULL);
    tell_whole(g);
}

static void scan_deadlines(struct engine *e, struct list *list, int64_t now)
{
    LIST_FOREACH(list, node, next) {
        struct gen *g = LIST_ITEM(node, struct gen, in_order);
        if (g->deadline_us == 0)
            continue;
        if (g->deadline_us <= now)
            end(e, g, GEN_DEADLINE, NULL);
        else if (e->next_deadline_us == 0 || g->deadline_us < e->next_deadline_us)
            e->next_deadline_us = g->deadline_us;
    }
}

/* Ends those whose deadline has passed. Looks at nobody before the first deadline. */
static void expire(struct engine *e)
{
    int64_t now = clock_now_us();

    if (e->next_deadline_us == 0 || e->next_deadline_us > now)
        return;
    e->next_deadline_us = 0;
    if (!PLANTED(DEADLINE_QUEUED))
        scan_deadlines(e, &e->sched.queued, now);
    scan_deadlines(e, &e->sched.running, now);
}

/* Ends queued ones that are complete already: resumed with ids that reach a limit. */
static void end_due(struct engine *e)
{
    if (e->n_due == 0)
        return;
    e->n_due = 0;
    LIST_FOREACH(&e->sched.queued, node, next) {
        struct gen *g = LIST_ITEM(node, struct gen, in_order);
        GEN_FOREACH_LIVE(g, q)
            if (q->finish != GEN_NONE)
                end_branch(e, q, q->finish, NULL);
    }
}

/* ---- results -------------------------------------------------------------------------------- */

static void fail_all(struct engine *e, const char *error)
{
    log_warning(LOG_ENGINE, "a step failed: %s; %d running generations end with an error", error,
                e->sched.n_running);
    LIST_FOREACH(&e->sched.running, node, next) {
        end(e, LIST_ITEM(node, struct gen, in_order), GEN_ERROR, error);
    }
}

static void note_token(struct gen *g)
{
    if (g->has_token)
        return;
    g->has_token = true;
    g->token_us = clock_now_us();
}

/* The sampled id of a running branch: number `at` of the step. */
static void accept(struct engine *e, struct seq *q, const struct chosen *samples, int32_t at)
{
    struct gen *g = q->gen;
    const struct plan *plan = e->step.plan;

    note_token(g);
    int32_t before = seq_n_generated(q);
    seq_accept(q, samples[at].id);
    if (q->logprobs && seq_n_generated(q) > before)
        seq_note_logprobs(q, &samples[at], samples + plan->n_samples + plan->samples[at].best_at);
    e->counts.generated_tokens += (uint64_t)(seq_n_generated(q) - before);
    if (q->finish != GEN_NONE)
        end_branch(e, q, q->finish, NULL);
    else
        tell_note(e, g);
}

/* The best continuations of a beam: when those of all branches are there, it goes a step further. */
static void accept_beam(struct engine *e, struct seq *q, const struct chosen *samples, int32_t at)
{
    const struct plan *plan = e->step.plan;
    struct gen *g = q->gen;

    note_token(g);
    if (!beam_take(g, q, samples + plan->n_samples + plan->samples[at].best_at))
        return;
    e->counts.generated_tokens += (uint64_t)g->n_live;
    if (!beam_step(g, e->cache))
        return;
    beam_settle(g, GEN_NONE);
    GEN_FOREACH_LIVE(g, o)
        end_branch(e, o, o->finish, NULL);
}

/* The prompt of a group is done: the other branches take its table, and every one gets its first
 * id. The table first: an id may end the branch that has it. */
static void accept_all(struct engine *e, struct seq *lead, const struct chosen *samples, int32_t at)
{
    GEN_FOREACH_LIVE(lead->gen, q)
        if (q != lead)
            cache_share(e->cache, &lead->table, &q->table);
    GEN_FOREACH_LIVE(lead->gen, q) {
        accept(e, q, samples, at);
        at += !PLANTED(SAMPLE_FIRST);
    }
}

/* As many samples as were asked for, in the order of the parts. An id outside the vocabulary or a
 * wrong number of them is a device's fault, not ours: it fails the step. */
static bool samples_are_valid(const struct engine *e, struct runner_done *done)
{
    if (done->n_samples != e->step.plan->n_samples) {
        snprintf(done->error, sizeof done->error,
                 "the device returned %d tokens, %d were asked for", done->n_samples,
                 e->step.plan->n_samples);
        return false;
    }
    for (int32_t i = 0; i < done->n_samples; i++)
        if (done->samples[i].id < 0 || done->samples[i].id >= e->runner->info.n_vocab) {
            snprintf(done->error, sizeof done->error, "the device chose token %d of %d",
                     done->samples[i].id, e->runner->info.n_vocab);
            return false;
        }
    return true;
}

/* Takes the results of a step that is done; false when none is. */
static bool take_results(struct engine *e)
{
    struct runner_done done = {0};

    if (!e->step.is_running || !e->runner->poll(e->runner, &done))
        return false;
    if (!done.failed && !samples_are_valid(e, &done))
        done.failed = true;
    step_count(&e->step, done.duration_us, &e->counts);
    step_settle(&e->step, e->cache, done.failed);
    if (done.failed) {
        done.error[sizeof done.error - 1] = '\0';
        fail_all(e, done.error[0] ? done.error : "the device gave no reason");
        return true;
    }
    for (int32_t i = 0, at = 0; i < e->step.n_parts; i++) {
        const struct step_part *part = &e->step.parts[i];
        if (part->seq && part->n_given > 0) {
            prompt_take(part->seq, done.samples, at, part->n_given, e->step.plan);
            tell_note(e, part->seq->gen);
        }
        at += part->n_given;
        if (part->seq && part->n_samples > 0 && part->seq->gen->beam)
            accept_beam(e, part->seq, done.samples, at);
        else if (part->seq && part->n_samples > 0 && gen_is_fresh(part->seq->gen))
            accept_all(e, part->seq, done.samples, at);
        else if (part->seq && part->n_samples > 0)
            accept(e, part->seq, done.samples, at);
        at += part->n_samples;
    }
    return true;
}

/* ---- the loop's entrance -------------------------------------------------------------------- */

bool engine_turn(struct engine *e)
{
    ASSERT(!e->is_turning);
    e->is_turning = true;
    bool did = take_results(e);

    expire(e);
    end_due(e);
    if (!e->step.is_running && e->sched.n_queued + e->sched.n_running > 0) {
        sched_plan(&e->sched, &e->step);
        did |= step_launch(&e->step, e->runner) || e->step.n_landing > 0;
    }
    did |= tell_slice(e);
    e->is_turning = false;
    return did || e->step.is_running;
}

bool engine_is_idle(const struct engine *e)
{
    return e->sched.n_queued + e->sched.n_running == 0 && !e->step.is_running &&
           list_is_empty(&e->outbox);
}

bool engine_has_to_tell(const struct engine *e)
{
    return !list_is_empty(&e->outbox);
}

/* May be a time at which nothing is due any more; never later than the first deadline. */
int64_t engine_next_deadline_us(const struct engine *e)
{
    return e->next_deadline_us;
}

/* ---- submission ----------------------------------------------------------------------------- */

int64_t engine_fit_group(const struct engine *e, int32_t n_prompt, int32_t n_branches)
{
    if (n_branches > e->sched.max_running)
        return 0;
    return sched_fit_max_tokens(&e->sched, n_prompt, n_branches);
}

/* The most ids that a branch which goes on has generated before. */
static int32_t longest_start(const struct gen_options *options, int32_t n_branches)
{
    int32_t n = 0;

    for (int32_t i = 0; options->starts && i < n_branches; i++)
        if ((!options->starts[i].is_over || PLANTED(OVER_COUNTED)) && n < options->starts[i].n)
            n = options->starts[i].n;
    return n;
}

/* What can never be served is refused here, with limit and value. */
static enum submit_error check_submit(const struct engine *e, int32_t n_prompt,
                                      const struct gen_options *options, struct err *err)
{
    const struct sched *s = &e->sched;
    int32_t n_branches = options->n_branches > 0 ? options->n_branches : 1;
    int32_t n = n_prompt + longest_start(options, n_branches);
    int32_t most = options->beam ? ENGINE_MAX_BEAM : ENGINE_MAX_BRANCHES;
    if (n_branches > most || options->n_branches < 0) {
        err_set(err, "%d %s, from 1 to %d are possible", options->n_branches,
                options->beam ? "beams" : "branches", most);
        return SUBMIT_TOO_LARGE;
    }
    if (n_prompt < 1) {
        err_set(err, "there is no prompt: at least one token is needed");
        return SUBMIT_CONTEXT;
    }
    if (n >= s->n_context) {
        err_set(err, "the prompt has %d tokens, the context holds %d with one to generate", n,
                s->n_context);
        return SUBMIT_CONTEXT;
    }
    if (n_branches > s->max_running) {
        err_set(err, "%d branches can not run at once, max-running is %d", n_branches,
                s->max_running);
        return SUBMIT_TOO_LARGE;
    }
    int64_t need = sched_blocks_for(s, n_prompt, options->max_tokens, n_branches);
    if (need > s->n_blocks && !PLANTED(NEVER_FIT)) {
        err_set(err,
                "%d tokens and %d times %" PRId64 " to generate need %" PRId64
                " blocks of %d, the cache has %d",
                n_prompt, n_branches, options->max_tokens, need, s->block_size, s->n_blocks);
        return SUBMIT_TOO_LARGE;
    }
    if (sched_is_full(s)) {
        err_set(err, "%d generations are queued, max-queue is %d", s->n_queued, s->max_queue);
        return SUBMIT_QUEUE_FULL;
    }
    return SUBMIT_OK;
}

enum submit_error engine_submit(struct engine *e, const struct cache_namespace *ns,
                                const int32_t *ids, int32_t n, const struct gen_options *options,
                                const struct gen_events *events, void *owner, struct gen **gen,
                                struct err *err)
{
    enum submit_error refused = check_submit(e, n, options, err);

    *gen = NULL;
    if (refused != SUBMIT_OK)
        return refused;
    struct gen *g = gen_new(e->cache, e->tokenizer, ns, ids, n, options, e->sched.n_context);
    if (!g) {
        err_set(err,
                "no memory for the log-probabilities of %d tokens of prompt and at most %" PRId64
                " to generate",
                n, options->max_tokens);
        return SUBMIT_TOO_LARGE;
    }
    g->engine = e;
    g->events = *events;
    g->owner = owner;
    sched_enqueue(&e->sched, g);
    GEN_FOREACH_LIVE(g, q)
        e->n_due += q->finish != GEN_NONE;
    if (g->deadline_us != 0 && (e->next_deadline_us == 0 ||
                                (g->deadline_us < e->next_deadline_us && !PLANTED(DEADLINE_LATER))))
        e->next_deadline_us = g->deadline_us;
    *gen = g;
    return SUBMIT_OK;
}

/* ---- forks, conversations, the cache -------------------------------------------------------- */

void engine_publish_branch(struct engine *e, struct gen *g, int32_t branch)
{
    struct seq *q = &g->seqs[gen_place_of(g, branch)];

    if (g->state != GEN_RUNNING || q->state != SEQ_LIVE)
        return; /* what has ended is findable already */
    if (q->table.n_blocks == 0)
        q = gen_next_live(g, NULL); /* they all stand in the prompt */
    cache_publish(e->cache, &q->table, PLANTED(PUBLISH_OTHER) ? g->seqs[0].ids : q->ids);
}

void engine_publish(struct engine *e, struct gen *g)
{
    engine_publish_branch(e, g, 0);
}

void engine_fork_lineage(struct engine *e, struct gen *g, struct lineage **from,
                         struct lineage **child)
{
    cache_fork_lineage(e->cache, from, child);
    if (g)
        g->promises.lineage = *from;
}

void engine_drop_lineage(struct engine *e, struct lineage *l)
{
    cache_drop_lineage(e->cache, l);
}

int32_t engine_count_lineage(const struct engine *e, const struct lineage *l, int32_t *n_cached)
{
    return cache_count_lineage(e->cache, l, n_cached);
}

int32_t engine_cache_clear(struct engine *e)
{
    return cache_clear(e->cache);
}
