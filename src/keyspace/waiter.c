/* waiter.c - clients that wait for a generation: attaching, leaving, BLOCK, and what they are told.
 *
 *     attached (generation set) ──end──▶ ready (outcome set) ──turn──▶ answered
 *        │  └──────── BLOCK is over, the client is gone ────────┐ │
 *        └ the last one leaves: the orphan clock starts         └─┴──▶ left
 *
 * Only a waiter that was really answered makes an answer delivered: who leaves the ready list
 * before leaves it undelivered, for the same GEN to fetch. What they are told is made once: the
 * outcome, which all of them share. Main thread only. */
#include "keyspace/generation.h"

#include <stdio.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/plant.h"

void gen_waiter_init(struct gen_waiter *waiter)
{
    waiter->ks = NULL;
    waiter->generation = NULL;
    waiter->attempt = NULL;
    waiter->outcome = NULL;
    waiter->wants_id = false;
    list_init(&waiter->node);
    waiter->timer = (struct timer){0};
}

bool gen_waiter_is_waiting(const struct gen_waiter *waiter)
{
    return waiter->node.next != NULL && !list_is_empty(&waiter->node);
}

/* ---- outcomes ------------------------------------------------------------------------------- */

/* The end of a generation as it is told, also when its entries have been deleted meanwhile. */
struct outcome {
    int32_t refs;
    char *error; /* owns; NULL: none */
    int32_t n;
    struct entry *ends[]; /* [n] shares; by branch */
};

/* How each finish is told to who waits without WITHINFO; no prefix: as the text. */
static const struct {
    const char *prefix, *what;
} told[GEN_N_FINISHES] = {
    [GEN_DEADLINE] = {"TIMEDOUT", "reached its deadline"},
    [GEN_CANCELLED] = {"CANCELLED", "was cancelled"},
    [GEN_FORKED] = {"CANCELLED", "was left by a fork"},
    [GEN_ORPHANED] = {"CANCELLED", "was given up, since nobody waited for it"},
    [GEN_ERROR] = {"GENFAILED", "failed"},
};

/* Of the first branch whose finish is an error, NULL when none is. The caller frees. */
static char *error_text(struct bytes name, struct entry *const *ends, int32_t n, bool key_is_going)
{
    char quoted[64], id[STREAM_ID_TEXT];
    struct str text = {0};
    int32_t i = 0;
    while (i < n && told[ends[i]->finish].prefix == NULL)
        i++;
    if (i == n || (PLANTED(ERROR_FIRST) && i > 0))
        return NULL;
    const struct entry *end = ends[i];
    stream_id_format(id, end->id);
    str_printf(&text, "%s the generation on '%s' %s", told[end->finish].prefix,
               key_quoted(quoted, name), told[end->finish].what);
    if (n > 1)
        str_printf(&text, " in branch %d of %d", end->branch, n);
    if (key_is_going)
        str_printf(&text, " and the key is gone (its end entry was %s)", id);
    else
        str_printf(&text, "; entry %s has what it made", id);
    struct bytes why = entry_field(end, "error");
    if (end->finish == GEN_ERROR && why.data != NULL)
        str_printf(&text, ": %.*s", (int)why.len, why.data);
    return text.data;
}

static struct outcome *outcome_new(struct key *key, struct entry *const *ends, int32_t n,
                                   bool key_is_going)
{
    struct outcome *outcome = xcalloc(1, sizeof *outcome + (size_t)n * sizeof *outcome->ends);
    outcome->refs = 1;
    outcome->error = error_text(bytes_of(&key->name), ends, n, key_is_going);
    outcome->n = n;
    for (int32_t i = 0; i < n; i++)
        outcome->ends[i] = entry_take(ends[i]);
    return outcome;
}

static struct outcome *outcome_take(struct outcome *outcome)
{
    outcome->refs++;
    return outcome;
}

static void outcome_put(struct outcome *outcome)
{
    if (outcome == NULL || --outcome->refs > 0)
        return;
    for (int32_t i = 0; i < outcome->n; i++)
        entry_put(outcome->ends[i]);
    xfree(outcome->error);
    xfree(outcome);
}

/* ---- attaching and leaving ------------------------------------------------------------------ */

/* Off every list, nothing owned any more. */
static void detach(struct gen_waiter *waiter)
{
    list_remove(&waiter->node);
    timer_stop(&waiter->ks->timers, &waiter->timer);
    attempt_put(waiter->attempt);
    outcome_put(waiter->outcome);
    waiter->generation = NULL;
    waiter->attempt = NULL;
    waiter->outcome = NULL;
}

void gen_waiter_leave(struct gen_waiter *waiter)
{
    if (!gen_waiter_is_waiting(waiter))
        return;
    struct generation *g = waiter->generation;
    struct keyspace *ks = waiter->ks;
    detach(waiter);
    if (g != NULL && list_is_empty(&g->waiters) && !g->attempt->is_unowned &&
        !PLANTED(ORPHAN_FOREVER))
        timer_start(&ks->timers, &g->orphan, clock_now_us() + ks->config.orphan_timeout_ms * 1000);
}

static void block_is_over(struct timer *timer)
{
    struct gen_waiter *waiter = LIST_ITEM(timer, struct gen_waiter, timer);
    struct gen_answer answer = {.kind = GEN_ANSWER_TIMEOUT};
    gen_waiter_leave(waiter);
    waiter->answer(waiter, &answer);
}

void waiter_attach(struct generation *g, struct gen_waiter *waiter, int64_t block_ms)
{
    struct timers *timers = &g->ks->timers;
    waiter->generation = g;
    list_push_back(&g->waiters, &waiter->node);
    if (!PLANTED(ORPHAN_ATTACHED))
        timer_stop(timers, &g->orphan);
    waiter->timer.fire = block_is_over;
    if (block_ms > 0 && !PLANTED(BLOCK_FORGOTTEN) && block_ms < INT64_MAX / 2000)
        timer_start(timers, &waiter->timer, clock_now_us() + block_ms * 1000);
}

/* ---- answers -------------------------------------------------------------------------------- */

void waiter_answer_error(struct gen_waiter *waiter, const char *error)
{
    struct gen_answer answer = {.kind = GEN_ANSWER_ERROR, .error = error};
    waiter->answer(waiter, &answer);
}

void waiter_answer_id(struct gen_waiter *waiter, struct stream_id id)
{
    struct gen_answer answer = {.kind = GEN_ANSWER_ID, .id = id};
    waiter->answer(waiter, &answer);
}

/* It has left all lists; the outcome stays the caller's. */
static void tell(struct gen_waiter *waiter, const struct outcome *outcome)
{
    struct gen_answer answer = {
        .kind = GEN_ANSWER_TEXT, .ends = outcome->ends, .n_ends = outcome->n};
    if (waiter->with_info) {
        answer.kind = GEN_ANSWER_ENTRY;
    } else if (outcome->error != NULL) {
        answer.kind = GEN_ANSWER_ERROR;
        answer.error = outcome->error;
    }
    waiter->answer(waiter, &answer);
}

void waiter_answer_end(struct gen_waiter *waiter, struct key *key, const struct end_group *ends)
{
    struct outcome *outcome = outcome_new(key, ends->ends, ends->n, false);
    tell(waiter, outcome);
    outcome_put(outcome);
}

static void serve_first(struct list *ready)
{
    struct gen_waiter *waiter = LIST_FIRST(ready, struct gen_waiter, node);
    struct outcome *outcome = waiter->outcome;
    waiter->outcome = NULL;
    attempt_set_delivered(waiter->attempt);
    detach(waiter);
    tell(waiter, outcome);
    outcome_put(outcome);
}

bool waiters_serve_ready(struct keyspace *ks, int64_t until_us)
{
    while (!list_is_empty(&ks->ready_waiters)) {
        serve_first(&ks->ready_waiters);
        if (clock_mono_us() >= until_us)
            break;
    }
    return !list_is_empty(&ks->ready_waiters);
}

/* ---- all waiters of a generation ------------------------------------------------------------ */

void waiters_answer_id(struct generation *g)
{
    struct list now;
    list_init(&now);
    LIST_FOREACH(&g->waiters, node, next) {
        if (!LIST_ITEM(node, struct gen_waiter, node)->wants_id)
            continue;
        list_remove(node);
        list_push_back(&now, node);
    }
    while (!list_is_empty(&now)) {
        struct gen_waiter *waiter = LIST_FIRST(&now, struct gen_waiter, node);
        struct stream_id after = g->attempt->after;
        detach(waiter);
        waiter_answer_id(waiter, after);
    }
}

void waiters_answer_error(struct generation *g, const char *error)
{
    while (!list_is_empty(&g->waiters)) {
        struct gen_waiter *waiter = LIST_FIRST(&g->waiters, struct gen_waiter, node);
        detach(waiter);
        waiter_answer_error(waiter, error);
    }
}

/* Called when all end entries stand. When the key is going, there is no later: they are served now.
 */
void waiters_hand_end(struct generation *g)
{
    struct list now, *ready = g->key_is_going ? &now : &g->ks->ready_waiters;
    struct entry *ends[ENGINE_MAX_BRANCHES];
    list_init(&now);
    if (list_is_empty(&g->waiters))
        return;
    for (int32_t i = 0; i < g->n_branches; i++)
        ends[i] = g->branches[i].end;
    struct outcome *outcome = outcome_new(g->key, ends, g->n_branches, g->key_is_going);
    while (!list_is_empty(&g->waiters)) {
        struct gen_waiter *waiter = LIST_FIRST(&g->waiters, struct gen_waiter, node);
        list_remove(&waiter->node);
        timer_stop(&g->ks->timers, &waiter->timer);
        waiter->generation = NULL;
        waiter->attempt = attempt_take(g->attempt);
        waiter->outcome = outcome_take(outcome);
        list_push_back(ready, &waiter->node);
    }
    outcome_put(outcome);
    while (!list_is_empty(&now))
        serve_first(&now);
}
