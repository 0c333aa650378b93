/* keys_world.c - keys over the engine's world: operations become commands, clients wait.
 *
 * The engine below is the one of world.c, with its audit and its checks of what blocks hold. What
 * happens to keys happens to their plain model first or, where the real one chooses (an id, how far
 * a generation had come), right after and checked. */
#include "keys_world.h"

#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "keyspace/generation.h"

struct bytes keys_name(int32_t i, char out[8])
{
    memcpy(out, "key0", 5); /* by hand: every check asks for every name */
    out[3] = (char)('0' + i % KEYS_MAX);
    return (struct bytes){out, 4};
}

struct key *keys_real(struct keys_world *k, int32_t i)
{
    char name[8];
    return keys_find(k->keys, 0, keys_name(i, name));
}

/* Looked at without removing what has expired. */
struct key *keys_raw(struct keys_world *k, int32_t i)
{
    char name[8];
    return table_get(keyspace_database(k->keys, 0)->keys, keys_name(i, name));
}

const struct gen *keys_gen(struct keys_world *k, int32_t i)
{
    struct key *key = keys_raw(k, i);
    return key && key->generation ? key->generation->gen : NULL;
}

/* ---- life --------------------------------------------------------------------------------------- */

static void *make(const struct world_config *config, const struct tokenizer *tokenizer)
{
    struct keys_world *k = xcalloc(1, sizeof *k);
    k->world = world_new(config, tokenizer);
    struct keyspace_config keys = keyspace_config_default();
    keys.engine = k->world->engine;
    keys.jobs = k->jobs = jobs_new(0);
    keys.tokenizer = tokenizer;
    keys.chat_error = "the simulation has no template";
    keys.model_digest = 7;
    keys.n_context = config->n_context;
    keys.databases = 1;
    keys.default_max_tokens = DEFAULT_TOKENS;
    keys.orphan_timeout_ms = ORPHAN_MS;
    keys.piece_interval_ms = config->roots_seed % 2 ? 20 : 0;
    k->keys = keyspace_new(&keys);
    for (int32_t i = 0; i < config->n_keys && i < KEYS_MAX; i++) {
        k->plain[i].entries = xcalloc(KEY_ENTRIES_CAP, sizeof *k->plain[i].entries);
        k->plain[i].object = ++k->n_objects;
    }
    return k;
}

static struct world *world_of(void *rig)
{
    return ((struct keys_world *)rig)->world;
}

static void free_all(void *rig)
{
    struct keys_world *k = rig;
    keyspace_free(k->keys);
    jobs_free(k->jobs);
    world_free(k->world);
    for (int32_t i = 0; i < KEYS_MAX; i++)
        xfree(k->plain[i].entries);
    for (struct plain_gen *gen = k->gens, *next; gen; gen = next) {
        next = gen->next;
        plain_gen_free(gen);
    }
    xfree(k);
}

int32_t keys_write_letters(const struct world *w, const struct op *op, char *text)
{
    int32_t ids[WORLD_PROMPT];
    int32_t n = world_make_prompt(w, op->args[KEY_ROOT], op, ids);
    for (int32_t i = 0; i < n; i++)
        text[i] = (char)('a' + ids[i] - 1);
    text[n] = '\0';
    return n;
}

/* ---- other commands ----------------------------------------------------------------------------- */

struct plain_key *keys_target(struct keys_world *k, const struct op *op, char name[8])
{
    int32_t i = op->args[0] % k->world->config.n_keys;
    (void)keys_name(i, name);
    return &k->plain[i];
}

void keys_expect(struct keys_world *k, const char *what, int64_t got, int64_t expected)
{
    if (got != expected)
        world_fault(k->world, "K1 %s gave %lld, the model says %lld", what, (long long)got,
                    (long long)expected);
}

static void apply_add(struct keys_world *k, const struct op *op)
{
    char name[8], text[KEY_TEXT];
    struct plain_key *p = keys_target(k, op, name);
    struct bytes fields[2] = {BYTES("text"), {text, 0}};
    struct stream_id id;
    struct err err;
    if (p->n >= KEY_ENTRIES)
        return;
    fields[1].len = (size_t)keys_write_letters(k->world, op, text);
    if (op->args[ARG_VARIANT] == 0)
        fields[0] = BYTES("note");
    struct xadd add = {.id_kind = XADD_AUTO, .fields = fields, .n_fields = 1};
    int got = keys_xadd(k->keys, 0, bytes_from(name), &add, &id, &err);
    keys_expect(k, "XADD", got, p->running ? -1 : 1);
    if (got != 1)
        return;
    struct stream *s = key_stream(keys_find(k->keys, 0, bytes_from(name)));
    plain_append(k, p, stream_entry(s, s->n - 1), 0);
    p->exists = true;
}

static void apply_cancel(struct keys_world *k, const struct op *op)
{
    char name[8];
    struct plain_key *p = keys_target(k, op, name);
    if (p->running)
        p->running->asked = GEN_CANCELLED;
    keys_expect(k, "CANCEL", keys_cancel(k->keys, 0, bytes_from(name)), p->running != NULL);
    if (p->running && p->running->pending)
        plain_refuse(p);
}

static void apply_delete(struct keys_world *k, const struct op *op)
{
    char name[8];
    struct plain_key *p = keys_target(k, op, name);
    keys_expect(k, "DEL", keys_delete(k->keys, 0, bytes_from(name)), p->exists);
    plain_remove(k, p);
}

static void apply_expire(struct keys_world *k, const struct op *op)
{
    char name[8];
    struct plain_key *p = keys_target(k, op, name);
    int64_t ms = op->args[KEY_MS];
    keys_expect(k, "PEXPIRE", keys_expire(k->keys, 0, bytes_from(name), ms, false, 0), p->exists);
    if (p->exists && ms <= 0)
        plain_remove(k, p);
    else if (p->exists)
        p->expires_us = clock_now_us() + ms * 1000;
}

static void apply_persist(struct keys_world *k, const struct op *op)
{
    char name[8];
    struct plain_key *p = keys_target(k, op, name);
    keys_expect(k, "PERSIST", keys_persist(k->keys, 0, bytes_from(name)), p->expires_us > 0);
    p->expires_us = 0;
}

static void apply_rename(struct keys_world *k, const struct op *op)
{
    char name[8], other[8];
    struct plain_key *p = keys_target(k, op, name);
    int32_t to = op->args[KEY_TARGET] % k->world->config.n_keys;
    struct plain_key *q = &k->plain[to];
    bool only_new = op->args[KEY_ONLY_NEW];
    struct err err;
    int expected = !p->exists || p->running ? -1 : p == q ? !only_new : !(only_new && q->exists);
    int got = keys_rename(k->keys, 0, bytes_from(name), keys_name(to, other), only_new, &err);
    keys_expect(k, "RENAME", got, expected);
    if (got != 1 || p == q)
        return;
    struct plain_key moved = *p;
    plain_remove(k, q);
    p->entries = q->entries;
    p->exists = false;
    p->n = 0;
    p->expires_us = 0;
    p->last = NULL;
    p->object = ++k->n_objects;
    *q = moved;
    lru_rename(k->world->lru, (int32_t)(p - k->plain), to);
}

static void apply_xdel(struct keys_world *k, const struct op *op)
{
    char name[8];
    struct plain_key *p = keys_target(k, op, name);
    struct err err;
    if (p->n == 0)
        return;
    int32_t at = op->args[KEY_INDEX] % p->n;
    int64_t got = keys_xdel(k->keys, 0, bytes_from(name), &p->entries[at].id, 1, &err);
    keys_expect(k, "XDEL", got, p->running ? -1 : 1);
    if (p->running)
        return;
    plain_take_out(p, at, 1);
}

static void apply_xtrim(struct keys_world *k, const struct op *op)
{
    char name[8];
    struct plain_key *p = keys_target(k, op, name);
    struct stream_trim trim = {.kind = TRIM_MAXLEN, .max_len = (uint64_t)op->args[KEY_INDEX]};
    struct err err;
    int32_t n = p->n > op->args[KEY_INDEX] ? p->n - op->args[KEY_INDEX] : 0;
    keys_expect(k, "XTRIM", keys_xtrim(k->keys, 0, bytes_from(name), &trim, &err),
                p->running ? -1 : n);
    if (p->running)
        return;
    plain_take_out(p, 0, n);
}

static void apply_flush(struct keys_world *k, const struct op *op)
{
    (void)op;
    keys_flush(k->keys, -1);
    for (int32_t i = 0; i < k->world->config.n_keys; i++)
        lru_forget(k->world->lru, i, false); /* it is freed in slices, from the next turn on */
    for (int32_t i = 0; i < k->world->config.n_keys; i++)
        plain_remove(k, &k->plain[i]);
}

/* ---- time --------------------------------------------------------------------------------------- */

static void note_gens(struct keys_world *k)
{
    for (int32_t i = 0; i < k->world->config.n_keys; i++)
        k->world->keys_gens[i] = keys_gen(k, i);
}

static void turn(struct keys_world *k, bool done, bool fail, bool late)
{
    struct world *w = k->world;
    uint64_t n_steps = w->toy.n_steps;
    k->floor = k->greatest;
    keys_note(k);
    w->toy.may_finish = done;
    w->toy.must_fail = k->is_failing = done && fail && w->toy.plan;
    w->toy.is_late = late;
    keys_collect(k);
    note_gens(k);
    engine_turn(w->engine);
    w->toy.may_finish = false;
    if (w->toy.n_steps == n_steps) /* a beam may be let in without a step, and then be given up */
        check_lru(w, LRU_TURN);
    check_turn(w, n_steps);
    keys_sync(k);
    k->is_failing = false;
    while (keyspace_turn(k->keys))
        continue;
    keys_expire_plain(k);
    keys_sync(k);
    lru_catch_up(w->lru);
    note_gens(k);
    check_lru(w, LRU_TURN);
    for (int32_t i = 0; i < KEY_WAITERS; i++) {
        const struct client *client = &k->clients[i];
        if (client->is_used && client->n_answers == 0 && client->block_us > 0 &&
            client->block_us <= clock_now_us())
            world_fault(w, "K4 a client waits longer than its BLOCK");
    }
    for (int32_t i = 0; i < w->config.n_keys; i++) {
        const struct plain_gen *gen = k->plain[i].running;
        if (gen && gen->orphan_us > 0 && gen->orphan_us <= clock_now_us())
            world_fault(w, "K5 the orphan of key %d lives on", i);
        if (gen && gen->deadline_us > 0 && gen->deadline_us <= clock_now_us())
            world_fault(w, "K5 key %d generates past its deadline", i);
    }
}

static void apply_step(struct keys_world *k, const struct op *op)
{
    turn(k, op->args[ARG_DONE], op->args[ARG_FAIL], op->args[ARG_LATE]);
}

/* As world_turns_for: twice the blocks of each branch, then its tokens one by one; where the prompt
 * is told, that row by row. */
static int32_t turns_for(const struct world *w, const struct plain_gen *gen)
{
    int32_t n_branches = gen->op.args[ARG_BRANCHES] > 1 ? gen->op.args[ARG_BRANCHES] : 1;
    int32_t n_rows = gen->op.args[ARG_FLAGS] & FLAG_PROMPT_LOGPROBS ? LONE_MAX_IDS : 0;
    return 2 * n_branches * (LONE_MAX_IDS / w->config.block_size + 1) + LONE_MAX_IDS + n_rows;
}

static void run_until_idle(struct keys_world *k, const struct op *op)
{
    struct world *w = k->world;
    (void)op;
    int32_t n_turns = 0, n_allowed = 20;
    for (int32_t i = 0; i < w->config.n_keys; i++)
        if (k->plain[i].running)
            n_allowed += turns_for(w, k->plain[i].running);
    while ((!engine_is_idle(w->engine) || jobs_pending(k->jobs) > 0) && !world_is_wrong(w)) {
        if (n_turns++ >= n_allowed)
            world_fault(w, "S7 it does not drain in %d turns", n_allowed);
        turn(k, true, false, n_turns % 2);
        check_state(w);
        keys_check(k);
    }
    world_note_drain(w, n_turns, n_allowed);
    keys_expire_plain(k);
}

static void apply_clock(struct keys_world *k, const struct op *op)
{
    (void)k;
    clock_advance_ms(op->args[ARG_MS]);
}

static void apply_clear(struct keys_world *k, const struct op *op)
{
    (void)op;
    engine_cache_clear(k->world->engine);
}

static void (*const APPLY[OP_N_KINDS])(struct keys_world *k, const struct op *op) = {
    [OP_CLEAR] = apply_clear,
    [OP_CLOCK] = apply_clock,
    [OP_STEP] = apply_step,
    [OP_IDLE] = run_until_idle,
    [OP_KEY_ADD] = apply_add,
    [OP_KEY_GEN] = keys_apply_gen,
    [OP_KEY_AGAIN] = keys_apply_again,
    [OP_KEY_LEAVE] = keys_apply_leave,
    [OP_KEY_FORK] = keys_apply_fork,
    [OP_KEY_CANCEL] = apply_cancel,
    [OP_KEY_DELETE] = apply_delete,
    [OP_KEY_EXPIRE] = apply_expire,
    [OP_KEY_PERSIST] = apply_persist,
    [OP_KEY_RENAME] = apply_rename,
    [OP_KEY_XDEL] = apply_xdel,
    [OP_KEY_XTRIM] = apply_xtrim,
    [OP_KEY_FLUSH] = apply_flush,
    [OP_KEY_READ] = keys_apply_read,
    [OP_KEY_DESERT] = keys_apply_desert,
};

static void apply(void *rig, const struct op *op)
{
    struct keys_world *k = rig;
    if (op->kind != OP_STEP && op->kind != OP_IDLE && op->kind != OP_CLOCK)
        keys_expire_plain(k);
    k->floor = k->greatest;
    keys_note(k);
    if (APPLY[op->kind])
        APPLY[op->kind](k, op);
    if (op->kind == OP_CLOCK)
        return; /* what is due is due in the next turn, or when a command asks */
    keys_sync(k);
    if (op->kind != OP_STEP && op->kind != OP_IDLE) {
        note_gens(k);
        check_lru(k->world, op->kind == OP_KEY_FORK ? LRU_FORK : LRU_OPERATION);
    }
    check_state(k->world);
    keys_check(k);
}

static void drain(void *rig)
{
    struct keys_world *k = rig;
    struct world *w = k->world;
    struct engine_stats stats;
    if (world_is_wrong(w))
        return;
    run_until_idle(k, NULL);
    while (!world_is_wrong(w) && keyspace_turn(k->keys))
        continue;
    keys_check(k);
    for (int32_t i = 0; i < KEY_WAITERS; i++)
        if (k->clients[i].is_used)
            world_fault(w, "K4 a client was never answered");
    engine_cache_clear(w->engine);
    engine_stats(w->engine, &stats);
    if (stats.free_blocks != stats.n_blocks)
        world_fault(w, "P3 %d of %d blocks are back", stats.free_blocks, stats.n_blocks);
    if (k->n_accepted != k->n_ended)
        world_fault(w, "K3 %llu accepted, %llu ended", (unsigned long long)k->n_accepted,
                    (unsigned long long)k->n_ended);
    if (k->n_branches != k->n_ends)
        world_fault(w, "K3 %llu branches accepted, %llu ended", (unsigned long long)k->n_branches,
                    (unsigned long long)k->n_ends);
    w->n_accepted = k->n_accepted;
    w->n_branches = k->n_branches;
}

const struct rig keys_rig = {make, apply, drain, free_all, world_of};
