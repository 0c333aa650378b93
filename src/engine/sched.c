/* sched.c - who is computed next: one order, admission, the budget of a step, victims.
 *
 * There is one order, priority and then arrival, and everything follows it: the queue, the budget,
 * and from its other end the victims. Whoever is first always advances, so everything drains.
 *
 *     sched_plan   decodes    one row each, a block where one is full; when none is available the
 *                             last in order gives all of its blocks back, up to the asker itself
 *                  admission  in order, nobody past the head; not in a step that preempted
 *                  prompts    what is left of the budget, shared in whole blocks
 *
 * Admission takes blocks for all known ids and looks at one token more of each branch, and leaves
 * RESERVE blocks for each branch that runs: the last ones admitted would otherwise be thrown out
 * again at the next block border, and their prompts computed twice. Whoever waited for a promise is
 * let in without the reserve: those who came later filled the pool meanwhile, and what it needs is
 * mostly there.
 *
 * Promises: the first to come with a new prefix computes it, the others are passed over and hold
 * nothing. A leader has at least the priority of those who wait for it, or they would wait behind
 * all that stand between.
 *
 * Preemption drops blocks, or copies them to host memory first where that has room for all of the
 * group; then nothing is taken in that step that the copies still read. Dropped blocks stay findable
 * until they are evicted, so a victim that returns soon computes little again; and with the same ids
 * it generates the same ones.
 *
 * Rejected: admitting past a head that does not fit (a large prompt starves under a stream of small
 * ones); skipping victims that free nothing by themselves (two that share all their blocks would
 * both be skipped for ever); preempting to admit somebody of higher priority (throws work away each
 * time). The executable model that found these had each as a switch.
 *
 * Nothing here allocates. Main thread only; sched_plan only while no step runs. */
#include "engine/sched.h"

#include <inttypes.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/plant.h"

/* Available blocks that an admission leaves per running generation: one for the token it is about
 * to write across a block border, one for the next border. Less preempts often, more idles the
 * pool. */
#define RESERVE 2
#define RESERVE_SWAP 1 /* a victim costs two copies, not a prompt */

/* Tokens that one step looks at in the cache to admit. Looking at and admitting a prompt of 4,000
 * takes 40 us, a turn of the loop has a millisecond, and a queue may hold thousands that all wait
 * for one prefix. Whoever is behind the last look is looked at in the next step; to be asked again
 * about a promise met before is no look. */
#define MAX_LOOKED (1 << 16)

#define GEN_AT(node) LIST_ITEM(node, struct gen, in_order)

void sched_init(struct sched *s, struct cache *c, const struct engine_config *config)
{
    const struct runner_info *info = &config->runner->info;

    *s = (struct sched){.cache = c,
                        .max_batch_tokens = config->max_batch_tokens,
                        .max_chunk = config->max_chunk,
                        .max_running = config->max_running,
                        .max_queue = config->max_queue,
                        .block_size = info->block_size,
                        .n_blocks = info->n_blocks,
                        .n_context = info->n_context,
                        .swaps = config->swap && info->n_slots > 0};
    list_init(&s->queued);
    list_init(&s->running);
}

/* ---- the order ------------------------------------------------------------------------------ */

/* From the back: most arrive last. */
static void insert_in_order(struct list *list, struct gen *g)
{
    struct list *at = list;

    while (at->prev != list && (PLANTED(PRIORITY_LOST) ? g->arrival < GEN_AT(at->prev)->arrival
                                                       : gen_precedes(g, GEN_AT(at->prev))))
        at = at->prev;
    list_insert_before(at, &g->in_order);
}

/* A new one takes its place in the queue. */
void sched_enqueue(struct sched *s, struct gen *g)
{
    g->arrival = s->next_arrival++;
    g->state = GEN_QUEUED;
    insert_in_order(&s->queued, g);
    s->n_queued++;
}

/* It has ended: out of queue or running list. Its blocks are the caller's to release. */
void sched_remove(struct sched *s, struct gen *g)
{
    ASSERT(g->state == GEN_QUEUED || g->state == GEN_RUNNING);
    if (g->state == GEN_QUEUED)
        s->n_queued--;
    else {
        s->n_running--;
        s->n_branches -= g->n_live;
    }
    list_remove(&g->in_order);
}

/* From 1 in the queue; 0 when it is not queued. */
int32_t sched_place(const struct sched *s, const struct gen *g)
{
    int32_t place = 0;

    if (g->state != GEN_QUEUED)
        return 0;
    for (const struct list *at = &g->in_order; at != &s->queued; at = at->prev)
        place++;
    return place;
}

/* The queue is bounded; those whom a place among the running awaits do not count. They have not
 * been looked at yet: a burst between two turns is no queue. */
bool sched_is_full(const struct sched *s)
{
    int32_t places = s->max_running - s->n_branches;

    if (PLANTED(QUEUE_UNBOUNDED))
        return false;
    if (s->is_backlogged && s->n_queued > 0)
        places = 0;
    return s->n_queued >= places && s->n_queued - places >= s->max_queue;
}

/* ---- what fits ------------------------------------------------------------------------------ */

/* Blocks at the end of the longest life: whole blocks of the prompt, then those of each branch. */
int64_t sched_blocks_for(const struct sched *s, int64_t n_prompt, int64_t max_tokens,
                         int32_t n_branches)
{
    int64_t block = s->block_size, room = s->n_context - n_prompt;
    int64_t growth = max_tokens < room ? max_tokens : room;

    return n_prompt / block + n_branches * ((n_prompt % block + growth + block - 1) / block);
}

/* The most max_tokens for which sched_blocks_for still fits the pool, and the context. */
int64_t sched_fit_max_tokens(const struct sched *s, int64_t n_prompt, int32_t n_branches)
{
    int64_t own = (s->n_blocks - n_prompt / s->block_size) / n_branches; /* blocks of each branch */
    int64_t pool = own * s->block_size - n_prompt % s->block_size;
    int64_t context = s->n_context - n_prompt;
    int64_t most = pool < context ? pool : context;

    return most > 0 ? most : 0;
}

/* ---- victims -------------------------------------------------------------------------------- */

/* Gives all blocks of g back: what it promised first, since branches may hold it together. */
void sched_release(struct sched *s, struct gen *g)
{
    cache_unpromise(s->cache, &g->promises);
    GEN_FOREACH_LIVE(g, q)
        cache_release(s->cache, &q->table, q->ids);
}

/* Copies what g has computed to host memory. False: it has no room, or there is nothing. */
static bool swap_out(struct sched *s, struct step *step, struct gen *g)
{
    struct block_table *tables[ENGINE_MAX_BRANCHES];
    int32_t n = 0, n_before = step->n_outs;

    if (!s->swaps)
        return false;
    GEN_FOREACH_LIVE(g, q)
        tables[n++] = &q->table;
    if (!cache_swap_out(s->cache, tables, n, step->moves, &step->n_outs))
        return false;
    step_add_leaving(step, g, n_before);
    return true;
}

/* g gives all its blocks back, to be found, swapped or computed again. */
static void preempt(struct sched *s, struct step *step, struct gen *g)
{
    struct seq *q = gen_next_live(g, NULL);

    log_info(LOG_ENGINE, "preempted a generation of %d branches, %d tokens in the first; %d queued",
             g->n_live, q->n_ids, s->n_queued + 1);
    if (!swap_out(s, step, g))
        s->dropped_tokens += (uint64_t)cache_count_computed(s->cache, &g->promises);
    sched_release(s, g);
    sched_remove(s, g);
    g->state = GEN_QUEUED;
    g->n_preempted++;
    if (PLANTED(PREEMPTED_LAST))
        g->arrival = s->next_arrival++;
    if (PLANTED(TOKEN_LOST) && q->n_ids > g->n_prompt)
        q->n_ids--;
    insert_in_order(&s->queued, g);
    s->n_queued++;
    s->has_preempted = true;
    s->preemptions++;
}

/* Makes `need` blocks available: the cache evicts by itself, here victims go from the end of the
 * order up to the asker, nobody skipped and nobody before it. What transfers still hold counts as
 * gained: the asker then sits this step out, and finds its blocks in the next one, since those
 * behind it leave them. False then, and when the asker went too. */
static bool make_room(struct sched *s, struct step *step, struct gen *asker, int32_t need)
{
    while (cache_available(s->cache) + cache_leaving(s->cache) < need + s->n_awaited) {
        struct gen *victim = GEN_AT(PLANTED(ARRIVAL_UNSORTED) ? s->running.next : s->running.prev);
        if (gen_is_planned(victim))
            return false; /* planned before the asker: it stands before it, and stays */
        preempt(s, step, victim);
        if (victim == asker)
            return false;
    }
    return cache_available(s->cache) >= need || PLANTED(LEAVING_TAKEN);
}

/* ---- decodes -------------------------------------------------------------------------------- */

/* Everything but the last token is computed: one row draws the next one. */
static bool is_decode(const struct seq *q)
{
    return q->n_ids > q->gen->n_prompt && q->table.computed == q->n_ids - 1;
}

/* Blocks that the decodes of g take; n_decodes: how many branches those are. */
static int32_t decode_needs(const struct sched *s, const struct gen *g, int32_t *n_decodes)
{
    struct block_table *tables[ENGINE_MAX_BRANCHES];

    *n_decodes = 0;
    GEN_FOREACH_LIVE(g, q) {
        if (g->beam && !is_decode(q) && !PLANTED(BEAM_ALONE))
            return 0; /* beams choose together: they wait for each other */
    }
    GEN_FOREACH_LIVE(g, q)
        if (is_decode(q))
            tables[(*n_decodes)++] = &q->table;
    return cache_write_needs(s->cache, tables, *n_decodes);
}

static void add_decodes(struct sched *s, struct step *step, struct gen *g)
{
    bool is_landing = false;

    GEN_FOREACH_LIVE(g, q) {
        struct cache_copy copy = {0};
        if (!is_decode(q))
            continue;
        cache_write_room(s->cache, &q->table, &copy);
        step_add_copy(step, &copy);
        if (copy.n_tokens > 0 && !is_landing)
            step_add_landing(step, g);
        is_landing |= copy.n_tokens > 0;
        step_add_decode(step, q);
    }
}

/* The blocks it needs are still being copied out: none of its decodes gets a row in this step, also
 * not of what is left for prompts. A block that branches share has room, but not for a write. */
static void sit_out(struct sched *s, struct gen *g, int32_t need)
{
    if (!PLANTED(SITTER_OVERTAKEN))
        s->n_awaited += need;
    GEN_FOREACH_LIVE(g, q)
        q->is_decoding = is_decode(q) && !PLANTED(SITTER_WRITES);
}

static void plan_decodes(struct sched *s, struct step *step)
{
    struct list *next;

    for (struct list *node = s->running.next; node != &s->running; node = next) {
        struct gen *g = GEN_AT(node);
        int32_t n_decodes, need = decode_needs(s, g, &n_decodes);
        if (need > 0 && !make_room(s, step, g, need)) {
            if (g->state == GEN_QUEUED)
                return; /* it was the last in order itself */
            sit_out(s, g, need);
            next = node->next;
            continue;
        }
        if (n_decodes > 0)
            add_decodes(s, step, g);
        next = node->next; /* behind make_room: victims leave the list behind us */
    }
}

/* ---- admission ------------------------------------------------------------------------------ */

enum admission { ADMITTED, PASSED_OVER, NO_ROOM };

/* Somebody waits for what the leader computes: it must not stand behind the waiter's rank. */
static void raise_leader(struct sched *s, struct gen *leader, const struct gen *waiter)
{
    if (leader->boost >= waiter->priority || PLANTED(BOOST_MISSED))
        return;
    leader->boost = waiter->priority;
    list_remove(&leader->in_order);
    insert_in_order(&s->running, leader);
}

/* The promise it met last still stands: the cheap way to know that a look would find it again. */
static bool still_waits(const struct sched *s, const struct gen *g)
{
    return g->waits_for.promised_by && cache_is_promised(s->cache, &g->waits_for);
}

/* Looks at what the cache has of it. True when the next missing block is promised by somebody. */
static bool must_wait(struct sched *s, struct gen *g, struct cache_seat *seats, int32_t n_seats)
{
    for (int32_t i = 0; i < n_seats; i++) {
        struct cache_found *found = &seats[i].found;
        int32_t n = prompt_findable(gen_next_live(g, NULL), seats[i].n);
        s->n_looked += n;
        cache_look(s->cache, seats[i].table, seats[i].ids, n, found);
        if (seats[i].table->n_slots > 0)
            continue; /* has it in host memory */
        g->waits_for = *found;
        if (!found->promised_by)
            continue;
        raise_leader(s, found->promised_by->who, g);
        g->was_passed = true;
        return true;
    }
    return false;
}

/* The tables that an admission of g fills: the first alone as long as it is fresh. */
static int32_t seat_branches(const struct gen *g, struct cache_seat *seats)
{
    int32_t n = 0;

    GEN_FOREACH_LIVE(g, q) {
        seats[n++] = (struct cache_seat){.table = &q->table, .ids = q->ids, .n = seq_n_known(q)};
        if (gen_is_fresh(g) || PLANTED(GROUP_PARTLY))
            break;
    }
    return n;
}

/* Leading blocks of the prompt that all seats name together: a token is left to each. */
static int32_t count_common(const struct sched *s, const struct gen *g,
                            const struct cache_seat *seats, int32_t n_seats)
{
    int32_t n_common = g->n_prompt / s->block_size;

    for (int32_t i = 0; i < n_seats; i++)
        if (n_common > (seats[i].n - 1) / s->block_size)
            n_common = (seats[i].n - 1) / s->block_size;
    return n_seats > 1 ? n_common : 0;
}

/* Blocks for the next token of each of its branches, or it would be its own first victim: a new one
 * behind a full block, a copy where a fresh group will share the half-filled one. */
static int32_t own_room(const struct sched *s, const struct gen *g)
{
    int32_t n = 0;

    GEN_FOREACH_LIVE(g, q)
        n += seq_n_known(q) % s->block_size == 0;
    if (gen_is_fresh(g) && g->n_prompt % s->block_size != 0)
        n += g->n_live - 1;
    return PLANTED(ROOM_FOR_ONE) && n > 1 ? 1 : n;
}

/* Available blocks that the admission of g has to leave. */
static int32_t blocks_to_keep(const struct sched *s, const struct gen *g)
{
    bool waived =
        (g->was_passed && g->n_preempted == 0 && !PLANTED(WAIVED_NEVER)) || PLANTED(WAIVED_ALWAYS);

    return (waived ? 0
                   : (s->swaps && !PLANTED(RESERVE_RECOMPUTE) ? RESERVE_SWAP : RESERVE) *
                         s->n_branches * (PLANTED(RESERVE_DOUBLE) ? 2 : 1)) +
           own_room(s, g);
}

/* Figures are those of the first admission: what a client waited for, and what it found. */
static void note_first_admission(struct sched *s, struct gen *g)
{
    const struct block_table *t = &gen_next_live(g, NULL)->table;
    int32_t cached = t->computed + t->ahead;

    if (g->was_admitted)
        return;
    g->was_admitted = true;
    g->admitted_us = clock_now_us();
    g->n_cached = cached < g->n_prompt ? cached : g->n_prompt;
    s->prompt_tokens += (uint64_t)g->n_prompt;
    s->cached_tokens += (uint64_t)g->n_cached;
}

static enum admission admit(struct sched *s, struct gen *g, struct step *step)
{
    struct cache_seat seats[ENGINE_MAX_BRANCHES];

    bool is_too_wide = s->n_branches + (PLANTED(RUNNING_GROUPS) ? 1 : g->n_live) > s->max_running;
    if (s->n_branches >= s->max_running || (is_too_wide && PLANTED(WAITER_BLOCKS)))
        return NO_ROOM;
    if (still_waits(s, g))
        return PASSED_OVER;
    if (s->n_looked >= MAX_LOOKED)
        return NO_ROOM;
    int32_t n_seats = seat_branches(g, seats);
    if (must_wait(s, g, seats, n_seats))
        return PASSED_OVER;
    if (is_too_wide)
        return NO_ROOM; /* behind the look: whoever waits for a promise blocks nobody */
    g->n_common = count_common(s, g, seats, n_seats);
    g->promises.is_quiet = prompt_owes(g);
    if (!cache_reserve_all(s->cache, seats, n_seats, g->n_common, blocks_to_keep(s, g)))
        return NO_ROOM;
    for (int32_t i = 0; i < n_seats; i++)
        step_add_copy(step, &seats[i].copy);
    int32_t n_ins = step->n_ins;
    cache_swap_in(s->cache, seats, n_seats, g->n_common, step->moves + step->n_outs, &n_ins);
    step_add_ins(step, n_ins);
    step_add_landing(step, g);
    sched_remove(s, g);
    g->state = GEN_RUNNING;
    g->boost = INT32_MIN;
    g->waits_for = (struct cache_found){0};
    insert_in_order(&s->running, g);
    s->n_running++;
    s->n_branches += g->n_live;
    note_first_admission(s, g);
    return ADMITTED;
}

static void plan_admissions(struct sched *s, struct step *step)
{
    int32_t n_refused = 0;

    LIST_FOREACH(&s->queued, node, next) {
        if (PLANTED(ADMIT_ONE) && step->n_landing > 0)
            break;
        if (admit(s, GEN_AT(node), step) != NO_ROOM)
            continue;
        if (!PLANTED(PAST_HEAD) || ++n_refused > 1 || s->n_branches >= s->max_running)
            break; /* strictly in order */
    }
}

/* ---- prompts -------------------------------------------------------------------------------- */

/* First token that no step computes yet. */
static int32_t next_row(const struct seq *q)
{
    return q->table.computed + q->table.ahead + q->n_planned;
}

/* Tokens that still want a row of this step. A decode has its one, or sits out. Behind the first
 * branch the others wait for what is common; as long as the group is fresh they have no table. */
static int32_t seq_rows_left(const struct sched *s, const struct seq *q)
{
    const struct gen *g = q->gen;

    if (q->is_decoding || q->table.n_blocks == 0)
        return 0;
    if (q->table.computed + q->table.ahead < g->n_common * s->block_size &&
        q != gen_next_live(g, NULL))
        return 0;
    if (g->beam && q->n_ids > g->n_prompt)
        return q->n_ids - 1 - next_row(q); /* the last id is a decode's, of all beams at once */
    return seq_n_known(q) - next_row(q);
}

static int32_t rows_left(const struct sched *s, const struct gen *g)
{
    int32_t n = 0;

    GEN_FOREACH_LIVE(g, q)
        n += seq_rows_left(s, q);
    return n;
}

static int32_t rows_planned(const struct gen *g)
{
    int32_t n = 0;

    GEN_FOREACH_LIVE(g, q)
        n += q->is_decoding ? 0 : q->n_planned;
    return n;
}

/* Rows that still fit the samples of the step, for a prompt that owes log-probabilities and has
 * n_given of them in it: where none is free, one whose sample has the place of its own draw. */
static int32_t rows_by_samples(const struct sched *s, const struct seq *q, int32_t n_given)
{
    int32_t n = prompt_fit_rows(q, n_given + s->n_free_samples);

    if (s->n_free_samples == 0 && n_given > 0)
        return 0; /* the place of its draw may be taken */
    if (n == INT32_MAX)
        return n;
    return n - q->n_planned + (s->n_free_samples == 0);
}

/* Gives a branch up to `want` of at most `most` rows, cut at a block border unless they reach the
 * end or all samples are taken: the first block at least. Returns how many. */
static int32_t give_seq(struct sched *s, struct seq *q, int32_t want, int32_t most)
{
    int32_t block = s->block_size, at = next_row(q), todo = seq_rows_left(s, q);
    int32_t to_border = block - at % block, first = at - q->n_planned;
    int32_t n_given = prompt_n_given(q, first, q->n_planned);
    int32_t by_samples = rows_by_samples(s, q, n_given);
    int32_t n = want > to_border ? want : to_border;

    if (n > most)
        n = most;
    if (n > by_samples)
        n = by_samples;
    if (todo <= n)
        n = todo;
    else if (n < by_samples && !PLANTED(CHUNK_UNCUT))
        n -= (at + n) % block;
    if (n <= 0)
        return 0;
    q->n_planned += n;
    n_given = prompt_n_given(q, first, q->n_planned) - n_given;
    s->n_free_samples -= n_given < s->n_free_samples ? n_given : s->n_free_samples;
    return n;
}

/* Gives g up to `want` rows of the budget that is left, its branches in order: a block at least to
 * the first that wants some, to the others no more than that leaves of `want`. Returns what is left
 * then. */
static int32_t give_rows(struct sched *s, struct gen *g, int32_t want, int32_t left)
{
    int32_t planned = PLANTED(CHUNK_EACH) ? 0 : rows_planned(g);
    int32_t most = s->max_chunk - planned < left ? s->max_chunk - planned : left;
    int32_t given = 0;

    GEN_FOREACH_LIVE(g, q) {
        int32_t todo = seq_rows_left(s, q);
        if (todo == 0)
            continue;
        int32_t bound = given == 0 || want > most || PLANTED(SHORT_OVERRUN) ? most : want;
        int32_t n = give_seq(s, q, want - given, bound - given);
        given += n;
        if (n < todo)
            break;
    }
    return left - given;
}

/* The prompt with the fewest tokens left; NULL unless there are two prompts at least. */
static struct gen *shortest(const struct sched *s)
{
    struct gen *best = NULL;
    int32_t n_prompts = 0;

    LIST_FOREACH(&s->running, node, next) {
        struct gen *g = GEN_AT(node);
        int32_t left = rows_left(s, g);
        n_prompts += left > 0;
        if (left > 0 && (!best || left < rows_left(s, best)))
            best = g;
    }
    return n_prompts > 1 && !PLANTED(SHORT_LAST) ? best : NULL;
}

/* One block to the shortest, so that it does not wait behind long ones; then in order half of what
 * is left to each, then what remains in the same order. */
static void share_budget(struct sched *s, int32_t left)
{
    struct gen *first = left >= 2 * s->block_size ? shortest(s) : NULL;

    if (first)
        left = give_rows(s, first, s->block_size, left);
    for (int round = 0; round < (PLANTED(LEFTOVER_LOST) ? 1 : 2); round++)
        LIST_FOREACH(&s->running, node, next) {
            if (rows_left(s, GEN_AT(node)) > 0)
                left = give_rows(s, GEN_AT(node), round == 0 ? left / 2 : left, left);
        }
}

/* Fills the step: decodes, admissions, prompts. No step runs. */
void sched_plan(struct sched *s, struct step *step)
{
    step_begin(step);
    s->has_preempted = false;
    s->n_looked = s->n_awaited = 0;
    LIST_FOREACH(&s->running, node, next) {
        GEN_FOREACH_LIVE(GEN_AT(node), q) {
            q->n_planned = 0;
            q->is_decoding = false;
        }
    }
    plan_decodes(s, step);
    step->n_written = step->n_landing;
    s->planned_before = s->next_arrival;
    if (!s->has_preempted || PLANTED(PREEMPT_ADMITS))
        plan_admissions(s, step);
    s->is_backlogged = s->n_queued > 0;
    s->n_free_samples = step->plan->limits.max_seqs - s->n_branches;
    share_budget(s, s->max_batch_tokens - (PLANTED(BUDGET_OVERRUN) ? 0 : step->n_decodes));
    LIST_FOREACH(&s->running, node, next) {
        GEN_FOREACH_LIVE(GEN_AT(node), q)
            if (q->n_planned > 0 && !q->is_decoding)
                step_add_rows(step, q);
    }
}
