/* keys_gen.c - GENs of clients: what they ask for, what they must get, who waits for what.
 *
 * What a GEN will make is known as soon as it is accepted: a lone run for each branch, or one plain
 * search for a beam. One that resumes an orphan goes on from the ids that the model has of its end
 * entries; branches that had ended stay what they were. */
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "keys_world.h"
#include "keyspace/generation.h"

/* ---- clients ------------------------------------------------------------------------------------ */

int32_t keys_waiting(const struct keys_world *k, const struct plain_gen *gen)
{
    int32_t n = 0;
    for (int32_t i = 0; i < KEY_WAITERS; i++)
        n += k->clients[i].is_used && k->clients[i].gen == gen && k->clients[i].n_answers == 0;
    return n;
}

/* The last client of a generation is gone: its orphan clock starts. */
static void left(struct keys_world *k, struct plain_gen *gen)
{
    if (gen->finish == GEN_NONE && !gen->is_unowned && keys_waiting(k, gen) == 0)
        gen->orphan_us = clock_now_us() + ORPHAN_MS * 1000;
}

static void note_ends(struct client *client, const struct gen_answer *answer)
{
    client->n_ends = answer->n_ends;
    for (int32_t i = 0; i < answer->n_ends && i < KEY_BRANCHES; i++) {
        const struct entry *end = answer->ends[i];
        struct told *told = &client->ends[i];
        *told = (struct told){.branch = end->branch, .finish = end->finish, .len = -1};
        if (end->text.len > sizeof told->text)
            continue;
        told->len = (int32_t)end->text.len;
        memcpy(told->text, end->text.data, end->text.len);
    }
}

static void on_answer(struct gen_waiter *waiter, const struct gen_answer *answer)
{
    struct client *client = (struct client *)(void *)waiter;
    client->n_answers++;
    client->kind = answer->kind;
    client->error[0] = '\0';
    if (answer->kind == GEN_ANSWER_ERROR)
        snprintf(client->error, sizeof client->error, "%s", answer->error);
    else if (answer->kind == GEN_ANSWER_TEXT || answer->kind == GEN_ANSWER_ENTRY)
        note_ends(client, answer);
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

static void leave(struct keys_world *k, struct client *client)
{
    gen_waiter_leave(&client->waiter);
    client->is_used = false;
    left(k, client->gen);
}

void keys_apply_leave(struct keys_world *k, const struct op *op)
{
    for (int32_t i = 0; i < KEY_WAITERS; i++) {
        struct client *client = &k->clients[(op->args[0] + i) % KEY_WAITERS];
        if (!client->is_used || client->n_answers > 0)
            continue;
        leave(k, client);
        return;
    }
}

void keys_apply_desert(struct keys_world *k, const struct op *op)
{
    const struct plain_gen *gen = k->plain[op->args[0] % k->world->config.n_keys].running;
    for (int32_t i = 0; gen && i < KEY_WAITERS; i++)
        if (k->clients[i].is_used && k->clients[i].gen == gen && k->clients[i].n_answers == 0)
            leave(k, &k->clients[i]);
}

/* ---- requests ----------------------------------------------------------------------------------- */

/* The texts of a request, for as long as the call lasts. */
struct key_request {
    struct gen_request gen;
    struct bytes args[2];
    char name[8], prompt[KEY_TEXT + KEY_PADDING], words[160], id[8];
    int32_t n_prompt;          /* ids of the prompt */
    struct plain_gen *resumed; /* borrows; goes on; NULL: it is new */
    int32_t ids[LONE_MAX_IDS * 8 +
                KEY_ENTRIES_CAP * KEY_TEXT]; /* the whole sequence, prompt included */
    int32_t n_ids;
};

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

static struct gen_options options_of(const struct op *op)
{
    struct gen_options options = world_options(op);
    options.deadline_us = 0;
    options.priority = 0; /* the argument says how it waits */
    if (options.n_branches > KEY_BRANCHES)
        options.n_branches = KEY_BRANCHES;
    return options;
}

/* A beam draws nothing: it has neither temperature nor seed. */
static unsigned given_by(const struct op *op)
{
    int32_t flags = op->args[ARG_FLAGS];
    unsigned given = op->args[ARG_MAX_TOKENS] > 0 ? GEN_HAS_MAX_TOKENS : 0;
    if (flags & FLAG_BEAM)
        given |= GEN_HAS_BEAM;
    else
        given |= GEN_HAS_TEMPERATURE | GEN_HAS_SEED | (op->args[ARG_BRANCHES] > 0 ? GEN_HAS_N : 0);
    given |= flags & FLAG_LOGPROBS ? GEN_HAS_LOGPROBS : 0;
    given |= flags & FLAG_PROMPT_LOGPROBS ? GEN_HAS_PROMPT_LOGPROBS : 0;
    return given;
}

/* Without MAXTOKENS the default, lowered to what all branches have room for, if that is any. */
static void fit_tokens(const struct keys_world *k, struct key_request *r)
{
    struct gen_options *o = &r->gen.options;
    if (r->gen.given & GEN_HAS_MAX_TOKENS)
        return;
    for (o->max_tokens = DEFAULT_TOKENS; o->max_tokens > 0; o->max_tokens--)
        if (world_expect(k->world, r->n_ids + r->n_prompt, 0, o) == SUBMIT_OK)
            return;
    o->max_tokens = DEFAULT_TOKENS;
}

static void fill_prompt(struct keys_world *k, const struct op *op, struct key_request *r)
{
    int32_t n = keys_write_letters(k->world, op, r->prompt);
    for (int32_t i = 0; i < n && !r->resumed; i++)
        r->ids[r->n_ids + i] = r->prompt[i] - 'a' + 1;
    r->n_prompt = r->resumed ? 0 : n; /* it stands already */
    if (op->args[ARG_FLAGS] & FLAG_LONG) {
        memset(r->prompt + n, 'Z', KEY_PADDING);
        n += KEY_PADDING;
    }
    r->gen.has_prompt = true;
    r->gen.prompt = (struct bytes){r->prompt, (size_t)n};
}

static void fill_request(struct keys_world *k, const struct op *op, int32_t name,
                         struct plain_gen *resumed, struct key_request *r)
{
    (void)keys_name(name, r->name);
    fill_words(r, op);
    r->resumed = resumed;
    r->n_ids = plain_sequence(&k->plain[name], resumed ? resumed->group : 0, r->ids);
    r->gen = (struct gen_request){
        .async = op->args[KEY_MODE] == KEY_ASYNC,
        .with_info = op->args[ARG_FLAGS] & FLAG_WITH_INFO,
        .block_ms = op->args[KEY_MODE] == KEY_BLOCKS ? BLOCK_MS : 0,
        .deadline_ms = op->args[ARG_DEADLINE],
        .options = options_of(op),
        .given = given_by(op),
        .args = r->args,
        .n_args = 2,
    };
    if (op->args[KEY_ID] > 0) {
        snprintf(r->id, sizeof r->id, "id-%d", (int)(op->args[KEY_ID] % 100));
        r->gen.id = bytes_from(r->id);
    }
    if (!op->args[KEY_NO_PROMPT])
        fill_prompt(k, op, r);
    fit_tokens(k, r);
}

/* ---- what it will make -------------------------------------------------------------------------- */

void plain_gen_free(struct plain_gen *gen)
{
    xfree(gen->pending);
    xfree(gen->branches);
    xfree(gen->beam);
    xfree(gen);
}

/* ids [n]: the prompt, with room for what it had made before. */
static void open_branch(const struct keys_world *k, struct plain_gen *gen, int32_t i, int32_t *ids,
                        int32_t n, const struct plain_branch *old)
{
    const struct world_config *c = &k->world->config;
    struct plain_branch *b = &gen->branches[i];
    if (old && old->finish != GEN_ORPHANED && !gen->beam) {
        *b = *old;
        b->was_over = true;
        return;
    }
    if (gen->beam) {
        lone_open(&b->lone, ids, n, 0);
        return;
    }
    if (old) {
        b->n_resumed = old->n_final;
        memcpy(b->seen, old->seen, sizeof b->seen);
    }
    for (int32_t j = 0; j < b->n_resumed; j++)
        ids[n + j] = old->text[j] - 'a' + 1;
    lone_run(&b->lone, ids, n + b->n_resumed, b->n_resumed, &gen->options, i, c->n_context,
             c->n_letters);
    for (int32_t j = b->n_resumed; j < b->lone.n_ids - n; j++)
        b->seen[j] = b->lone.folds[n + j - 1];
}

static void open_branches(struct keys_world *k, struct plain_gen *gen, struct key_request *r)
{
    int32_t n = r->n_ids + r->n_prompt;
    gen->options = r->gen.options;
    gen->n_branches = gen->options.n_branches;
    gen->branches = xcalloc((size_t)gen->n_branches, sizeof *gen->branches);
    gen->group = r->resumed ? r->resumed->group : ++k->n_groups;
    if (gen->options.beam) {
        gen->beam = xcalloc(1, sizeof *gen->beam);
        plain_beam_run(gen->beam, r->ids, n, &gen->options, k->world->config.n_context,
                       LONE_MAX_IDS);
    }
    for (int32_t i = 0; i < gen->n_branches; i++) {
        open_branch(k, gen, i, r->ids, n, r->resumed ? &r->resumed->branches[i] : NULL);
        k->n_branches += !gen->branches[i].was_over;
    }
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

/* The ends that are resumed go, wherever entries that mean nothing stand; a beam's all of them. */
static void take_out_resumed(struct plain_key *p, const struct plain_gen *resumed)
{
    for (int32_t i = p->n - 1; i >= 0; i--) {
        const struct plain_entry *e = &p->entries[i];
        if (e->kind == ENTRY_END && e->group == resumed->group &&
            (e->finish == GEN_ORPHANED || resumed->beam))
            plain_take_out(p, i, 1);
    }
}

/* The engine has taken it. */
static void accepted(struct keys_world *k, struct plain_gen *gen, struct key_request *r)
{
    struct plain_key *p = &k->plain[gen->name];
    struct key *key = keys_raw(k, gen->name);
    struct stream *s = key_stream(key);
    k->n_accepted++;
    open_branches(k, gen, r);
    if (r->resumed)
        take_out_resumed(p, r->resumed);
    else if (r->gen.has_prompt && s->n > 0)
        plain_append(k, p, stream_entry(s, s->n - 1), 0);
    p->exists = true;
    p->last = gen;
    gen->object = p->object;
    k->world->cache = key->generation->gen->cache;
}

/* ---- whether it is taken ------------------------------------------------------------------------ */

static bool is_queue_full(const struct keys_world *k)
{
    struct engine_stats stats;
    engine_stats(k->world->engine, &stats);
    return stats.queued >= k->world->config.max_queue;
}

/* A beam begins anew; of other branches the longest that goes on must leave room. */
static enum submit_error expect_of(const struct keys_world *k, const struct key_request *r)
{
    int32_t longest = 0;
    for (int32_t i = 0; r->resumed && !r->resumed->beam && i < r->resumed->n_branches; i++) {
        const struct plain_branch *b = &r->resumed->branches[i];
        if (b->finish == GEN_ORPHANED && b->n_final > longest)
            longest = b->n_final;
    }
    return world_expect(k->world, r->n_ids + r->n_prompt + longest, longest, &r->gen.options);
}

/* True when it is kept: it waits for a job. */
static bool after_new(struct keys_world *k, int32_t name, const struct op *op,
                      struct key_request *r, struct client *client)
{
    struct key *key = keys_raw(k, name);
    enum submit_error expected = expect_of(k, r);
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
        world_fault(k->world, "S6 a GEN was refused: %.200s", client->error);
    return false;
}

/* Jobs are done: what was tokenised is accepted now, or refused and leaves no trace. */
void keys_collect(struct keys_world *k)
{
    jobs_collect(k->jobs);
    for (int32_t i = 0; i < k->world->config.n_keys; i++) {
        struct plain_gen *gen = k->plain[i].running;
        struct key_request *r = gen ? gen->pending : NULL;
        struct key *key = keys_raw(k, i);
        if (!r)
            continue;
        enum submit_error expected = expect_of(k, r);
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

/* ---- GEN ---------------------------------------------------------------------------------------- */

/* Told of its own end, or of that of the same group before it was resumed. */
static void delivered(struct plain_key *p, struct plain_gen *replayed)
{
    if (p->last && p->last->group == replayed->group)
        p->last->is_delivered = true;
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
        if (client->kind != GEN_ANSWER_ID)
            delivered(p, replayed);
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
    fill_request(k, op, name, verdict == VERDICT_RESUME ? k->plain[name].last : NULL, r);
    client->with_info = r->gen.with_info;
    keys_generate(k->keys, 0, keys_name(name, text), &r->gen, &client->waiter);
    bool is_kept = false;
    if (verdict == VERDICT_NEW || verdict == VERDICT_RESUME)
        is_kept = after_new(k, name, op, r, client);
    else
        after_known(k, name, verdict, replayed, client);
    if (r->gen.block_ms > 0 && client->n_answers == 0)
        client->block_us = clock_now_us() + BLOCK_MS * 1000;
    if (r->gen.async && client->n_answers == 0 && !(client->gen && client->gen->pending))
        world_fault(k->world, "K4 an ASYNC GEN got no id");
    if (client->waiter.is_list != ((r->gen.given & GEN_HAS_LIST) != 0))
        world_fault(k->world, "K4 an answer is%s a list", client->waiter.is_list ? "" : " not");
    if (!is_kept)
        xfree(r);
}

void keys_apply_gen(struct keys_world *k, const struct op *op)
{
    generate(k, op->args[0] % k->world->config.n_keys, op);
}

void keys_apply_again(struct keys_world *k, const struct op *op)
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
