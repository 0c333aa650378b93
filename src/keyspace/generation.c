/* generation.c - the life of an accepted GEN: pieces, the end entries, stopping at any stage.
 *
 *     arrived ──build──▶ begun (prompt stands) ──engine──▶ pieces ... end entries ──▶ freed
 *        └ refused: nothing was written          └ refused (inside MULTI): an error entry
 *
 * Text comes out of the engine a token at a time. The first portion becomes a piece at once, the
 * others wait until piece-interval has passed, the rest leaves with the end whatever the interval:
 * readers see a steady flow, and a fast model does not write a thousand fragments a second.
 *
 * With N or BEAM each branch has its own flow and its own end entry, written when it ends, in
 * whatever order; the generation is over, and its clients are told, behind the last. Main thread
 * only. */
#include "keyspace/generation.h"

#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/plant.h"
#include "base/rng.h"
#include "keyspace/logprobs.h"

struct key *generation_key(struct list *node)
{
    return LIST_ITEM(node, struct generation, node)->key;
}

/* ---- making and freeing --------------------------------------------------------------------- */

static void copy_options(struct generation *g, const struct gen_request *request)
{
    struct gen_options *o = &g->options;
    *o = request->options;
    struct bytes *stops = xcalloc((size_t)o->n_stops + 1, sizeof *stops);
    for (int32_t i = 0; i < o->n_stops; i++)
        stops[i] = (struct bytes){xmemdup(o->stops[i].data, o->stops[i].len), o->stops[i].len};
    o->stops = stops;
    o->bias = o->n_bias > 0 ? xmemdup(o->bias, (size_t)o->n_bias * sizeof *o->bias) : NULL;
    if (!(request->given & GEN_HAS_TEMPERATURE))
        o->temperature = g->ks->config.default_temperature;
    if (!(request->given & GEN_HAS_MAX_TOKENS))
        o->max_tokens = g->ks->config.default_max_tokens;
    if (!(request->given & GEN_HAS_SEED))
        o->seed = rng_entropy();
    o->logprobs = request->given & GEN_HAS_LOGPROBS;
    o->prompt_logprobs = request->given & GEN_HAS_PROMPT_LOGPROBS;
    bool has_deadline = request->deadline_ms > 0 && request->deadline_ms < INT64_MAX / 2000;
    o->deadline_us = has_deadline ? clock_now_us() + request->deadline_ms * 1000 : 0;
}

static void free_options(struct gen_options *o)
{
    for (int32_t i = 0; i < o->n_stops; i++)
        xfree((void *)(uintptr_t)o->stops[i].data); /* ours: copied above */
    xfree((void *)(uintptr_t)o->stops);
    xfree((void *)(uintptr_t)o->bias);
}

static void interval_is_over(struct timer *timer);

static void open_branches(struct generation *g)
{
    g->n_branches = g->attempt->n_branches;
    g->branches = xcalloc((size_t)g->n_branches, sizeof *g->branches);
    for (int32_t i = 0; i < g->n_branches; i++) {
        g->branches[i].generation = g;
        g->branches[i].number = i;
        g->branches[i].piece_timer.fire = interval_is_over;
    }
}

/* Until the end entry holds them they count for maxmemory themselves: 20 beside each token are many
 * times its text. */
static void count_logprobs(const struct generation_branch *b, int sign)
{
    mem_count(MEM_KEY, sign * (ptrdiff_t)(b->logprobs.cap + b->prompt_logprobs.cap));
}

static void drop_logprobs(struct generation_branch *b)
{
    count_logprobs(b, -1);
    str_free(&b->logprobs);
    str_free(&b->prompt_logprobs);
}

static void free_branches(struct generation *g)
{
    for (int32_t i = 0; i < g->n_branches; i++) {
        struct generation_branch *b = &g->branches[i];
        timer_stop(&g->ks->timers, &b->piece_timer);
        str_free(&b->held);
        drop_logprobs(b);
        entry_put(b->resumed);
        entry_put(b->end);
    }
    xfree(g->branches);
}

static void nobody_came(struct timer *timer)
{
    (void)generation_stop(LIST_ITEM(timer, struct generation, orphan), GEN_ORPHANED);
}

struct generation *generation_new(struct key *key, struct attempt *attempt,
                                  const struct gen_request *request)
{
    struct generation *g = xcalloc(1, sizeof *g);
    ASSERT(key->generation == NULL);
    key->generation = g;
    g->ks = key->ks;
    g->key = key;
    g->attempt = attempt_take(attempt);
    g->given = request->given;
    g->user = request->user;
    g->orphan.fire = nobody_came;
    list_init(&g->waiters);
    list_push_back(&g->ks->generations, &g->node);
    g->ks->n_generations++;
    copy_options(g, request);
    open_branches(g);
    return g;
}

/* A job may still run on the build: it is then freed when the job is done. */
static void drop_build(struct generation *g)
{
    if (g->build == NULL)
        return;
    if (g->build->owner != NULL)
        g->build->owner = NULL;
    else
        build_free(g->build);
    g->build = NULL;
}

static void generation_free(struct generation *g)
{
    ASSERT(list_is_empty(&g->waiters) && g->gen == NULL);
    drop_build(g);
    timer_stop(&g->ks->timers, &g->orphan);
    free_branches(g);
    list_remove(&g->node);
    g->ks->n_generations--;
    g->key->generation = NULL;
    entry_put(g->prompt);
    token_run_put(g->opening);
    attempt_put(g->attempt);
    free_options(&g->options);
    xfree(g);
}

/* ---- beginning ------------------------------------------------------------------------------ */

void generation_begin(struct generation *g)
{
    struct key *key = g->key;
    struct attempt *attempt = g->attempt;
    if (g->has_begun)
        return;
    g->has_begun = true;
    if (g->prompt != NULL) {
        ASSERT(keyspace_next_id(g->ks, key->stream, &g->prompt->id)); /* 2^32 are left */
        key_append(key, g->prompt);
        g->prompt = NULL;
    }
    attempt->group = key->stream->last_id;
    if (!g->resumes) {
        attempt->after = key->stream->last_id;
        pieces_open(key, g->n_branches);
    } else { /* its readers go on behind the pieces that they know */
        attempt->after = key->attempt->after;
    }
    attempt->seed = g->options.seed;
    attempt_put(key->attempt);
    key->attempt = attempt_take(attempt);
    waiters_answer_id(g);
}

/* ---- pieces --------------------------------------------------------------------------------- */

static void show_held(struct generation_branch *b)
{
    struct generation *g = b->generation;
    timer_stop(&g->ks->timers, &b->piece_timer);
    pieces_add(g->key, PLANTED(PIECES_JOINED) ? 0 : b->number, bytes_of(&b->held));
    str_clear(&b->held);
    b->has_shown = true;
    b->shown_us = clock_now_us();
}

static void interval_is_over(struct timer *timer)
{
    show_held(LIST_ITEM(timer, struct generation_branch, piece_timer));
}

static void on_output(void *owner, const struct gen_output *output)
{
    struct generation *g = owner;
    struct generation_branch *b = &g->branches[output->branch];
    int64_t due_us = b->shown_us + g->ks->config.piece_interval_ms * 1000;
    str_append(&b->held, output->text.data, output->text.len);
    b->n_text += output->text.len;
    if (!b->has_shown || due_us <= clock_now_us())
        show_held(b);
    else if (!timer_is_running(&b->piece_timer))
        timer_start(&g->ks->timers, &b->piece_timer, due_us);
}

/* ---- log-probabilities ---------------------------------------------------------------------- */

/* They become text as they come: those of a long answer would take the end many milliseconds. */
static void on_rows(void *owner, const struct gen_rows *rows)
{
    struct generation *g = owner;
    struct generation_branch *b = &g->branches[rows->branch];
    struct bytes none = {0};
    count_logprobs(b, -1);
    if (rows->of_prompt)
        logprobs_print(rows->rows, rows->n, rows->n_best, &none, &b->prompt_logprobs);
    else
        logprobs_print(rows->rows, rows->n, rows->n_best, &b->logprobs_before, &b->logprobs);
    count_logprobs(b, 1);
}

/* The field; data NULL: nobody asked for it. */
static struct bytes logprobs_field(const struct chosen *asked, const struct str *text)
{
    if (asked == NULL)
        return (struct bytes){NULL, 0};
    return text->len > 0 ? bytes_of(text) : BYTES("");
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Memory may be gone just now, but an end entry is due: one without text is small, and of a
 * size that is ours. */
static struct entry *end_entry(struct stream_id id, const struct end_facts *facts)
{
    struct entry *entry = conversation_end_entry(id, facts);
    if (entry != NULL)
        return entry;
    struct end_facts poor = *facts;
    poor.finish = GEN_ERROR;
    poor.text = BYTES("");
    poor.n_ids = 0;
    poor.logprobs.data = poor.prompt_logprobs.data = NULL;
    poor.is_small = true;
    poor.error = "no memory for the end entry with its text";
    return conversation_end_entry(id, &poor);
}

void generation_describe(const struct generation *g, int32_t branch, struct end_facts *facts)
{
    facts->is_chat = g->is_chat;
    facts->seed = g->options.seed;
    facts->id = bytes_of(&g->attempt->token);
    facts->branch = branch;
    facts->tells_branch = g->given & GEN_HAS_LIST;
    facts->is_beam = g->options.beam;
    facts->group = g->attempt->group;
}

/* Writes the end entry of a branch. facts: generation_describe fills in the rest. */
static void end_branch(struct generation *g, int32_t branch, struct end_facts *facts)
{
    struct generation_branch *b = &g->branches[branch];
    struct key *key = g->key;
    struct stream_id id;
    if (b->held.len > 0 && !PLANTED(PIECE_LOST))
        show_held(b);
    generation_describe(g, branch, facts);
    ASSERT(keyspace_next_id(g->ks, key->stream, &id)); /* 2^32 were left */
    b->end = entry_take(end_entry(id, facts));
    key_append(key, b->end);
    if (g->opening != NULL)
        stream_slot(key->stream, key->stream->n - 1)->run = token_run_take(g->opening);
    pieces_close(key, branch, b->end);
}

/* The whole is what one of its branches is that did not end by itself; else what branch 0 is. */
static enum gen_finish finish_of(const struct generation *g)
{
    for (int32_t i = 0; i < g->n_branches && !PLANTED(FINISH_FIRST); i++) {
        enum gen_finish finish = g->branches[i].end->finish;
        if (finish != GEN_STOP && finish != GEN_LENGTH)
            return finish;
    }
    return g->branches[0].end->finish;
}

/* Called behind the end of the last branch: tells everybody, frees the generation. */
static void end_all(struct generation *g)
{
    struct key *key = g->key;
    attempt_end(g->attempt, key->stream->last_id, finish_of(g));
    retry_keep(key, g->attempt);
    generation_note_last(g);
    pieces_hold(key);
    waiters_hand_end(g);
    generation_free(g);
    key_changed(key, KEY_EVENT_GEN_END);
}

static void on_end(void *owner, const struct gen_end *end)
{
    struct generation *g = owner;
    struct generation_branch *b = &g->branches[end->branch];
    if (end->text.len > b->n_text && !g->options.beam)
        str_append(&b->held, end->text.data + b->n_text, end->text.len - b->n_text);
    struct end_facts facts = {
        .finish = end->finish,
        .was_submitted = true,
        .text = end->text,
        .matched = end->matched,
        .ids = end->ids,
        .n_ids = end->n_ids,
        .unfinished = end->unfinished,
        .n_prompt = end->n_prompt,
        .n_cached = end->n_cached,
        .n_generated = end->n_generated,
        .queued_ms = end->queued_ms,
        .prefill_ms = end->prefill_ms,
        .decode_ms = end->decode_ms,
        .logprobs = logprobs_field(end->logprobs, &b->logprobs),
        .prompt_logprobs = logprobs_field(end->prompt_logprobs, &b->prompt_logprobs),
        .error = end->error,
    };
    if (facts.text.data == NULL)
        facts.text = BYTES("");
    if (end->branch == 0 && end->prompt_logprobs == NULL)
        facts.prompt_logprobs = prompt_logprobs_of(b);
    end_branch(g, end->branch, &facts);
    drop_logprobs(b);
    if (!end->is_last)
        return;
    g->gen = NULL;
    end_all(g);
}

const struct gen_events generation_events = {.output = on_output, .end = on_end, .rows = on_rows};

/* The engine never had it. What it was to resume stays, and is not of its group. */
static void end_unsubmitted(struct generation *g, enum gen_finish finish, const char *error)
{
    for (int32_t i = 0; i < g->n_branches; i++) {
        struct end_facts facts = {.finish = finish, .text = BYTES(""), .error = error};
        entry_put(g->branches[i].end);
        g->branches[i].is_over = false;
        end_branch(g, i, &facts);
    }
    end_all(g);
}

void generation_refuse(struct generation *g, const char *error)
{
    struct key *key = g->key;
    if (g->has_begun) {
        end_unsubmitted(g, GEN_ERROR, error);
        return;
    }
    waiters_answer_error(g, error);
    generation_free(g);
    if (key->unborn)
        key_remove(key, KEY_EVENT_NONE);
}

bool generation_stop(struct generation *g, enum gen_finish finish)
{
    if (g->gen != NULL) {
        struct attempt *attempt = attempt_take(g->attempt);
        engine_cancel(g->ks->config.engine, g->gen, finish); /* the last on_end frees g */
        bool did = attempt->finish == finish;
        attempt_put(attempt);
        return did;
    }
    if (g->has_begun) {
        end_unsubmitted(g, finish, NULL);
        return true;
    }
    char name[64];
    struct str text = {0};
    str_printf(&text, "CANCELLED the generation on '%s' was cancelled before it began%s",
               key_quoted(name, bytes_of(&g->key->name)),
               g->key_is_going ? " and the key is gone" : "");
    generation_refuse(g, text.data);
    str_free(&text);
    return true;
}

void generation_end_with_key(struct generation *g)
{
    struct key *key = g->key;
    g->key_is_going = !PLANTED(WAITERS_UNTOLD);
    (void)generation_stop(g, GEN_CANCELLED); /* or it had ended by itself: as well */
    watch_serve_key(key);
}

void generation_heard_read(struct generation *g)
{
    if (timer_is_running(&g->orphan))
        timer_start(&g->ks->timers, &g->orphan,
                    clock_now_us() + g->ks->config.orphan_timeout_ms * 1000);
}
