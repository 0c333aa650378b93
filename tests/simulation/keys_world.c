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
    snprintf(out, 8, "key%d", (int)(i % 100));
    return bytes_from(out);
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

int32_t keys_waiting(const struct keys_world *k, const struct plain_gen *gen)
{
    int32_t n = 0;
    for (int32_t i = 0; i < KEY_WAITERS; i++)
        n += k->clients[i].is_used && k->clients[i].gen == gen && k->clients[i].n_answers == 0;
    return n;
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
    keys.orphan_timeout_ms = ORPHAN_MS;
    keys.piece_interval_ms = config->roots_seed % 2 ? 20 : 0;
    k->keys = keyspace_new(&keys);
    for (int32_t i = 0; i < config->n_keys && i < KEYS_MAX; i++) {
        k->plain[i].entries = xcalloc(KEY_ENTRIES + 4, sizeof *k->plain[i].entries);
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
        xfree(gen->pending);
        xfree(gen);
    }
    xfree(k);
}

/* ---- clients ------------------------------------------------------------------------------------ */

/* The last client of a generation is gone: its orphan clock starts. */
static void left(struct keys_world *k, struct plain_gen *gen)
{
    if (gen->finish == GEN_NONE && !gen->is_unowned && keys_waiting(k, gen) == 0)
        gen->orphan_us = clock_now_us() + ORPHAN_MS * 1000;
}

static void on_answer(struct gen_waiter *waiter, const struct gen_answer *answer)
{
    struct client *client = (struct client *)(void *)waiter;
    client->n_answers++;
    client->kind = answer->kind;
    client->text[0] = '\0';
    if (answer->kind == GEN_ANSWER_ERROR)
        snprintf(client->text, sizeof client->text, "%s", answer->error);
    else if (answer->kind == GEN_ANSWER_TEXT)
        snprintf(client->text, sizeof client->text, "%.*s", (int)answer->ends[0]->text.len,
                 answer->ends[0]->text.data);
    if (!client->gen)
        return;
    if (answer->kind == GEN_ANSWER_TIMEOUT)
        left(client->rig, client->gen);
    else if (answer->kind != GEN_ANSWER_ID)
        client->gen->is_delivered = true;
}

static struct client *new_client(struct keys_world *k)
{
    for (int32_t i = 0; i < KEY_WAITERS; i++)
        if (!k->clients[i].is_used) {
            k->clients[i] = (struct client){.rig = k, .is_used = true};
            k->clients[i].waiter.answer = on_answer;
            return &k->clients[i];
        }
    return NULL;
}

static void apply_leave(struct keys_world *k, const struct op *op)
{
    for (int32_t i = 0; i < KEY_WAITERS; i++) {
        struct client *client = &k->clients[(op->args[0] + i) % KEY_WAITERS];
        if (!client->is_used || client->n_answers > 0)
            continue;
        gen_waiter_leave(&client->waiter);
        client->is_used = false;
        left(k, client->gen);
        return;
    }
}

/* ---- GEN ---------------------------------------------------------------------------------------- */

/* The texts of a request, for as long as the call lasts. */
struct key_request {
    struct gen_request gen;
    struct bytes args[2];
    char name[8], prompt[KEY_TEXT + KEY_PADDING], words[160], id[8];
    int32_t n_prompt; /* ids of the prompt */
    bool resumes;
    int32_t
        ids[LONE_MAX_IDS * 8 + KEY_ENTRIES * KEY_TEXT]; /* the whole sequence, prompt included */
    int32_t n_ids;
};

static int32_t write_letters(const struct world *w, const struct op *op, char *text)
{
    int32_t ids[WORLD_PROMPT];
    int32_t n = world_make_prompt(w, op->args[KEY_ROOT], op, ids);
    for (int32_t i = 0; i < n; i++)
        text[i] = (char)('a' + ids[i] - 1);
    text[n] = '\0';
    return n;
}

static void fill_words(struct key_request *r, const struct op *op)
{
    size_t at = 0;
    for (int32_t i = 1; i < OP_MAX_ARGS; i++) {
        int32_t value = i == KEY_MODE ? op->args[i] == KEY_ASYNC : op->args[i];
        at += (size_t)snprintf(r->words + at, sizeof r->words - at, "%d ", (int)value);
    }
    r->args[0] = bytes_from(r->name);
    r->args[1] = bytes_from(r->words);
}

static void fill_request(struct keys_world *k, const struct op *op, int32_t name,
                         struct key_request *r)
{
    struct gen_options options = world_options(op);
    options.deadline_us = 0;
    options.priority = 0; /* the argument says how it waits */
    (void)keys_name(name, r->name);
    fill_words(r, op);
    r->n_ids = plain_sequence(&k->plain[name], r->ids);
    r->gen = (struct gen_request){
        .async = op->args[KEY_MODE] == KEY_ASYNC,
        .block_ms = op->args[KEY_MODE] == KEY_BLOCKS ? BLOCK_MS : 0,
        .deadline_ms = op->args[ARG_DEADLINE],
        .options = options,
        .given = GEN_HAS_MAX_TOKENS | GEN_HAS_TEMPERATURE | GEN_HAS_SEED,
        .args = r->args,
        .n_args = 2,
    };
    if (op->args[KEY_ID] > 0) {
        snprintf(r->id, sizeof r->id, "id-%d", (int)(op->args[KEY_ID] % 100));
        r->gen.id = bytes_from(r->id);
    }
    if (op->args[KEY_NO_PROMPT])
        return;
    int32_t n = write_letters(k->world, op, r->prompt);
    for (int32_t i = 0; i < n; i++)
        r->ids[r->n_ids + i] = r->prompt[i] - 'a' + 1;
    r->n_prompt = n;
    if (op->args[ARG_FLAGS] & FLAG_LONG) {
        memset(r->prompt + n, 'Z', KEY_PADDING);
        n += KEY_PADDING;
    }
    r->gen.has_prompt = true;
    r->gen.prompt = (struct bytes){r->prompt, (size_t)n};
}

/* A client's GEN is new, or resumes: accepted in the call or when a job is done. */
static struct plain_gen *new_gen(struct keys_world *k, int32_t name, const struct op *op,
                                 const struct key_request *r)
{
    struct plain_gen *gen = xcalloc(1, sizeof *gen);
    *gen = (struct plain_gen){.next = k->gens, .name = name, .op = *op};
    k->gens = gen;
    gen->is_unowned = r->gen.async;
    if (r->gen.deadline_ms > 0)
        gen->deadline_us = clock_now_us() + r->gen.deadline_ms * 1000;
    k->plain[name].running = gen;
    return gen;
}

/* The entry that is resumed goes, wherever entries that mean nothing stand. */
static void take_out_last(struct plain_key *p)
{
    int32_t at = (int32_t)(plain_last_known(p) - p->entries);
    memmove(p->entries + at, p->entries + at + 1, (size_t)(p->n - at - 1) * sizeof *p->entries);
    p->n--;
}

/* The engine has taken it. */
static void accepted(struct keys_world *k, struct plain_gen *gen, const struct key_request *r)
{
    struct plain_key *p = &k->plain[gen->name];
    struct key *key = keys_raw(k, gen->name);
    struct stream *s = key_stream(key);
    int32_t n = r->n_ids + r->n_prompt;
    gen->n_resumed = r->resumes ? plain_last_known(p)->len : 0;
    k->n_accepted++;
    lone_run(&gen->lone, r->ids, n, gen->n_resumed, &r->gen.options, 0, k->world->config.n_context,
             k->world->config.n_letters);
    if (r->resumes)
        take_out_last(p);
    else if (r->gen.has_prompt && s->n > 0)
        plain_append(k, p, stream_entry(s, s->n - 1));
    p->exists = true;
    p->last = gen;
    gen->object = p->object;
    k->world->cache = key->generation->gen->cache;
}

static bool is_queue_full(const struct keys_world *k)
{
    struct engine_stats stats;
    engine_stats(k->world->engine, &stats);
    return stats.queued >= k->world->config.max_queue;
}

static enum submit_error expect_of(const struct keys_world *k, int32_t name,
                                   const struct key_request *r)
{
    int32_t n_resumed = r->resumes ? plain_last_known(&k->plain[name])->len : 0;
    return world_expect(k->world, r->n_ids + r->n_prompt, n_resumed, &r->gen.options);
}

/* True when it is kept: it waits for a job. */
static bool after_new(struct keys_world *k, int32_t name, const struct op *op,
                      struct key_request *r, struct client *client)
{
    struct key *key = keys_raw(k, name);
    enum submit_error expected = expect_of(k, name, r);
    if (key && key->generation && !key->generation->gen) {
        client->gen = new_gen(k, name, op, r);
        client->gen->pending = r;
        return true;
    }
    if (key && key->generation && expected == SUBMIT_OK)
        accepted(k, client->gen = new_gen(k, name, op, r), r);
    else if (key && key->generation)
        world_fault(k->world, "S6 a GEN was accepted, the rules say %d", expected);
    else if (client->n_answers != 1 || client->kind != GEN_ANSWER_ERROR)
        world_fault(k->world, "K4 a refused GEN got no error");
    else if (expected == SUBMIT_OK && !is_queue_full(k))
        world_fault(k->world, "S6 a GEN was refused: %.200s", client->text);
    return false;
}

/* Jobs are done: what was tokenised is accepted now, or refused and leaves no trace. */
static void collect(struct keys_world *k)
{
    jobs_collect(k->jobs);
    for (int32_t i = 0; i < k->world->config.n_keys; i++) {
        struct plain_gen *gen = k->plain[i].running;
        struct key_request *r = gen ? gen->pending : NULL;
        struct key *key = keys_raw(k, i);
        if (!r)
            continue;
        enum submit_error expected = expect_of(k, i, r);
        bool is_accepted = key && key->generation;
        if (is_accepted != (expected == SUBMIT_OK) && !(expected == SUBMIT_OK && is_queue_full(k)))
            world_fault(k->world, "S6 a long GEN was %s, the rules say %d",
                        is_accepted ? "accepted" : "refused", expected);
        if (!is_accepted || world_is_wrong(k->world)) {
            plain_refuse(&k->plain[i]);
            continue;
        }
        gen->pending = NULL;
        accepted(k, gen, r);
        xfree(r);
    }
}

/* replayed: the one that answers by its ID, if that is the verdict. */
static void after_known(struct keys_world *k, int32_t name, enum verdict verdict,
                        struct plain_gen *replayed, struct client *client)
{
    struct plain_key *p = &k->plain[name];
    if (verdict == VERDICT_ATTACH) {
        client->gen = p->running;
        p->running->orphan_us = 0;
    } else if (verdict == VERDICT_DELIVER) {
        client->gen = p->last;
        if (client->kind != GEN_ANSWER_ID)
            p->last->is_delivered = true;
        if (client->n_answers != 1)
            world_fault(k->world, "K4 an undelivered answer was not delivered");
    } else if (verdict == VERDICT_REPLAY) {
        client->gen = replayed;
        if (client->n_answers != 1)
            world_fault(k->world, "K4 a GEN with the ID of an answer that stands got none");
    } else if (client->n_answers != 1 || client->kind != GEN_ANSWER_ERROR) {
        world_fault(k->world, "K4 a GEN that must be refused was not");
    }
}

static void generate(struct keys_world *k, int32_t name, const struct op *op)
{
    struct client *client = new_client(k);
    char text[8];
    if (!client)
        return;
    if (k->plain[name].n >= KEY_ENTRIES) {
        client->is_used = false;
        return;
    }
    enum verdict verdict = plain_judge(k, name, op);
    struct plain_gen *replayed = plain_find_replay(k, name, op);
    struct key_request *r = xcalloc(1, sizeof *r);
    fill_request(k, op, name, r);
    keys_generate(k->keys, 0, keys_name(name, text), &r->gen, &client->waiter);
    bool is_kept = false;
    r->resumes = verdict == VERDICT_RESUME;
    if (r->resumes)
        r->n_prompt = 0; /* its prompt stands already */
    if (verdict == VERDICT_NEW || verdict == VERDICT_RESUME)
        is_kept = after_new(k, name, op, r, client);
    else
        after_known(k, name, verdict, replayed, client);
    if (r->gen.block_ms > 0 && client->n_answers == 0)
        client->block_us = clock_now_us() + BLOCK_MS * 1000;
    if (r->gen.async && client->n_answers == 0 && !(client->gen && client->gen->pending))
        world_fault(k->world, "K4 an ASYNC GEN got no id");
    if (!is_kept)
        xfree(r);
}

static void apply_gen(struct keys_world *k, const struct op *op)
{
    generate(k, op->args[0] % k->world->config.n_keys, op);
}

static void apply_again(struct keys_world *k, const struct op *op)
{
    int32_t name = op->args[0] % k->world->config.n_keys, back = op->args[KEY_BACK];
    const struct plain_gen *gen = back == 0 ? k->plain[name].last : k->gens;
    for (; gen && back > 0; gen = gen->next)
        if (gen->name == name && --back == 0)
            break;
    if (gen) {
        struct op same = gen->op;
        generate(k, name, &same);
    }
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
    fields[1].len = (size_t)write_letters(k->world, op, text);
    if (op->args[ARG_VARIANT] == 0)
        fields[0] = BYTES("note");
    struct xadd add = {.id_kind = XADD_AUTO, .fields = fields, .n_fields = 1};
    int got = keys_xadd(k->keys, 0, bytes_from(name), &add, &id, &err);
    keys_expect(k, "XADD", got, p->running ? -1 : 1);
    if (got != 1)
        return;
    struct stream *s = key_stream(keys_find(k->keys, 0, bytes_from(name)));
    plain_append(k, p, stream_entry(s, s->n - 1));
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
    memmove(p->entries + at, p->entries + at + 1, (size_t)(p->n - at - 1) * sizeof *p->entries);
    p->n--;
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
    memmove(p->entries, p->entries + n, (size_t)(p->n - n) * sizeof *p->entries);
    p->n -= n;
}

static void apply_flush(struct keys_world *k, const struct op *op)
{
    (void)op;
    keys_flush(k->keys, -1);
    for (int32_t i = 0; i < k->world->config.n_keys; i++)
        plain_remove(k, &k->plain[i]);
}

/* ---- time --------------------------------------------------------------------------------------- */

static void turn(struct keys_world *k, bool done, bool fail, bool late)
{
    struct world *w = k->world;
    uint64_t n_steps = w->toy.n_steps;
    k->floor = k->greatest;
    w->toy.may_finish = done;
    w->toy.must_fail = k->is_failing = done && fail && w->toy.plan;
    w->toy.is_late = late;
    collect(k);
    engine_turn(w->engine);
    w->toy.may_finish = false;
    check_turn(w, n_steps);
    keys_sync(k);
    k->is_failing = false;
    while (keyspace_turn(k->keys))
        continue;
    keys_expire_plain(k);
    keys_sync(k);
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

static void run_until_idle(struct keys_world *k, const struct op *op)
{
    struct world *w = k->world;
    (void)op;
    int32_t n_turns = 0, n_allowed = 20;
    for (int32_t i = 0; i < w->config.n_keys; i++)
        if (k->plain[i].running)
            n_allowed += 2 * (LONE_MAX_IDS / w->config.block_size + 1) + LONE_MAX_IDS;
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
    [OP_CLEAR] = apply_clear,         [OP_CLOCK] = apply_clock,
    [OP_STEP] = apply_step,           [OP_IDLE] = run_until_idle,
    [OP_KEY_ADD] = apply_add,         [OP_KEY_GEN] = apply_gen,
    [OP_KEY_AGAIN] = apply_again,     [OP_KEY_LEAVE] = apply_leave,
    [OP_KEY_FORK] = keys_apply_fork,  [OP_KEY_CANCEL] = apply_cancel,
    [OP_KEY_DELETE] = apply_delete,   [OP_KEY_EXPIRE] = apply_expire,
    [OP_KEY_PERSIST] = apply_persist, [OP_KEY_RENAME] = apply_rename,
    [OP_KEY_XDEL] = apply_xdel,       [OP_KEY_XTRIM] = apply_xtrim,
    [OP_KEY_FLUSH] = apply_flush,     [OP_KEY_READ] = keys_apply_read,
};

static void apply(void *rig, const struct op *op)
{
    struct keys_world *k = rig;
    if (op->kind != OP_STEP && op->kind != OP_IDLE && op->kind != OP_CLOCK)
        keys_expire_plain(k);
    k->floor = k->greatest;
    if (APPLY[op->kind])
        APPLY[op->kind](k, op);
    if (op->kind == OP_CLOCK)
        return; /* what is due is due in the next turn, or when a command asks */
    keys_sync(k);
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
    w->n_accepted = k->n_accepted;
}

const struct rig keys_rig = {make, apply, drain, free_all, world_of};
