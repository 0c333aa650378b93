/* keys_check.c - what must be true of keys: after every operation, and of every answer.
 *
 *   K1  a key holds what the plain model says: entries, kinds, texts, finish, time to live
 *   K2  ids of entries only grow, over all keys
 *   K3  an accepted generation ends once, by its lone run or by what somebody asked for, and its end
 *       entry is the beginning of the lone run's text
 *   K4  a client that waits is answered once: the text, or an error that names why
 *   K5  orphans and deadlines end when they are due, and not before */
#include <string.h>
#include "base/clock.h"
#include "keys_world.h"

static bool is_letters(const struct lone *l, struct bytes text)
{
    if ((int32_t)text.len > l->n_ids - l->n_prompt)
        return false;
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] != 'a' + l->ids[l->n_prompt + (int32_t)i] - 1)
            return false;
    return true;
}

/* ---- ends --------------------------------------------------------------------------------------- */

static bool is_due(const struct keys_world *k, const struct plain_gen *gen, enum gen_finish finish)
{
    switch (finish) {
    case GEN_STOP:
    case GEN_LENGTH:
        return finish == gen->lone.finish;
    case GEN_ERROR:
        return k->is_failing;
    case GEN_DEADLINE:
        return gen->deadline_us > 0 && gen->deadline_us <= clock_now_us();
    case GEN_ORPHANED:
        return gen->orphan_us > 0 && gen->orphan_us <= clock_now_us() && !gen->is_unowned &&
               keys_waiting(k, gen) == 0;
    default:
        return finish == gen->asked;
    }
}

static void adopt_end(struct keys_world *k, struct plain_key *p, struct key *key)
{
    struct plain_gen *gen = p->running;
    struct stream *s = key_stream(key);
    const struct entry *end = s->n > 0 ? stream_entry(s, s->n - 1) : NULL;
    p->running = NULL;
    if (!end || end->kind != ENTRY_END || (int32_t)s->n != p->n + 1) {
        world_fault(k->world, "K3 a generation ended without an end entry");
        return;
    }
    if (!is_due(k, gen, end->finish))
        world_fault(k->world, "K3 ended by %s, the lone run by %s", gen_finish_name(end->finish),
                    gen_finish_name(gen->lone.finish));
    if (!is_letters(&gen->lone, end->text))
        world_fault(k->world, "K3 the end entry's text differs from the lone run");
    if ((end->finish == GEN_STOP || end->finish == GEN_LENGTH) &&
        (int32_t)end->text.len != gen->lone.n_text)
        world_fault(k->world, "K3 an end entry of %d letters, the lone run has %d",
                    (int)end->text.len, gen->lone.n_text);
    gen->end_id = end->id;
    gen->n_final = (int32_t)end->text.len;
    plain_append(k, p, end);
    plain_end(k, gen, end->finish);
}

void keys_sync(struct keys_world *k)
{
    for (int32_t i = 0; i < k->world->config.n_keys; i++) {
        struct plain_key *p = &k->plain[i];
        struct key *key = keys_raw(k, i);
        if (p->running && key && key->generation == NULL)
            adopt_end(k, p, key);
    }
}

/* Looking a key up removes it when its time has come, as a command would. */
void keys_expire_plain(struct keys_world *k)
{
    for (int32_t i = 0; i < k->world->config.n_keys; i++) {
        struct plain_key *p = &k->plain[i];
        if (p->expires_us == 0 || p->expires_us > clock_now_us())
            continue;
        if (keys_real(k, i))
            world_fault(k->world, "K1 key %d is past its time", i);
        plain_remove(k, p);
    }
}

/* ---- answers ------------------------------------------------------------------------------------ */

static const char *const PREFIXES[GEN_N_FINISHES] = {
    [GEN_DEADLINE] = "TIMEDOUT ",  [GEN_CANCELLED] = "CANCELLED ", [GEN_FORKED] = "CANCELLED ",
    [GEN_ORPHANED] = "CANCELLED ", [GEN_ERROR] = "GENFAILED ",
};

static void check_told(struct client *client)
{
    struct world *w = client->rig->world;
    const struct plain_gen *gen = client->gen;
    const char *prefix = PREFIXES[gen->finish];
    if (gen->is_refused) {
        if (client->kind != GEN_ANSWER_ERROR)
            world_fault(w, "K4 a GEN was refused, and a client got no error");
    } else if (gen->finish == GEN_NONE) {
        world_fault(w, "K4 told of an end before it");
    } else if (prefix) {
        if (client->kind != GEN_ANSWER_ERROR || strncmp(client->text, prefix, strlen(prefix)) != 0)
            world_fault(w, "K4 finish %s was told as '%.60s'", gen_finish_name(gen->finish),
                        client->text);
        if (gen->is_key_gone != (strstr(client->text, "the key is gone") != NULL))
            world_fault(w, "K4 whether the key is gone was told wrong: '%.60s'", client->text);
    } else if (client->kind != GEN_ANSWER_TEXT || (int32_t)strlen(client->text) != gen->n_final ||
               !is_letters(&gen->lone, bytes_from(client->text))) {
        world_fault(w, "K4 the answer '%.60s' is not the end entry's text", client->text);
    }
}

/* The client was answered; its turn is over. */
void keys_check_answer(struct client *client)
{
    struct world *w = client->rig->world;
    if (client->n_answers > 1)
        world_fault(w, "K4 a client was answered %d times", client->n_answers);
    if (client->n_answers == 0 || !client->gen)
        return;
    if (client->kind == GEN_ANSWER_TIMEOUT) {
        if (client->block_us == 0 || client->block_us > clock_now_us())
            world_fault(w, "K4 BLOCK was over too early");
    } else if (client->kind != GEN_ANSWER_ID) {
        check_told(client);
    }
}

/* ---- keys --------------------------------------------------------------------------------------- */

static void check_entry(struct world *w, int32_t i, const struct plain_entry *e,
                        const struct entry *entry)
{
    char text[KEY_TEXT];
    if (stream_id_compare(e->id, entry->id) != 0 || e->kind != entry->kind)
        world_fault(w, "K1 an entry of key %d is another", i);
    else if (e->kind == ENTRY_END && e->finish != entry->finish)
        world_fault(w, "K1 an end entry of key %d changed its finish", i);
    else if (e->kind != ENTRY_OTHER && (plain_strip(entry->text, text) != e->len ||
                                        memcmp(text, e->text, (size_t)e->len) != 0))
        world_fault(w, "K1 the text of an entry of key %d differs", i);
}

/* Joined they are the text of the end entry. An orphan's end tells what was held back for a stop
 * string too: when it is resumed and that string becomes whole, what went out cannot come back. */
static void check_joined(struct keys_world *k, int32_t i, const struct pieces_branch *b)
{
    const struct plain_gen *last = k->plain[i].last;
    struct bytes text = b->end->text;
    size_t n = b->base + b->text.len;
    bool is_cut = last && (int32_t)text.len < last->n_resumed && (int32_t)n == last->n_resumed;
    if (n != text.len && !is_cut)
        world_fault(k->world, "K3 the pieces of key %d are not its end entry's text", i);
    else if (text.len > b->base &&
             memcmp(b->text.data, text.data + b->base, text.len - b->base) != 0)
        world_fault(k->world, "K3 the pieces of key %d differ from its end entry's text", i);
}

static void check_branch_pieces(struct keys_world *k, int32_t i, const struct pieces_branch *b)
{
    const struct plain_gen *gen = k->plain[i].running;
    for (size_t c = 0; gen && !gen->pending && c < b->text.len; c++) {
        int32_t at = gen->lone.n_prompt + (int32_t)(b->base + c);
        if (at >= gen->lone.n_ids || b->text.data[c] != 'a' + gen->lone.ids[at] - 1) {
            world_fault(k->world, "K3 the pieces of key %d differ from the lone run", i);
            return;
        }
    }
    if (b->end)
        check_joined(k, i, b);
}

static void check_pieces(struct keys_world *k, int32_t i, const struct key *key)
{
    const struct pieces *pieces = &key->pieces;
    struct stream_id before = STREAM_ID_MIN;
    for (int32_t j = 0; j < pieces->n; j++) {
        if (stream_id_compare(pieces->items[j].id, before) <= 0)
            world_fault(k->world, "K2 piece %d of key %d is not above the one before", j, i);
        before = pieces->items[j].id;
    }
    if (pieces->n > 0 && stream_id_compare(k->greatest, before) < 0)
        k->greatest = before;
    for (int32_t b = 0; b < pieces->n_branches && !world_is_wrong(k->world); b++)
        check_branch_pieces(k, i, &pieces->branches[b]);
}

static void check_running(struct keys_world *k, int32_t i, const struct key *key)
{
    const struct plain_gen *gen = k->plain[i].running;
    struct gen_info info;
    char name[8];
    keys_gen_info(k->keys, 0, keys_name(i, name), &info);
    bool is_busy = strcmp(info.state, "queued") == 0 || strcmp(info.state, "running") == 0;
    if ((key->generation != NULL) != (gen != NULL) || is_busy != (gen != NULL))
        world_fault(k->world, "K3 key %d is %s", i, info.state);
    if (gen && gen->orphan_us > 0 && !gen->is_unowned && keys_waiting(k, gen) > 0)
        world_fault(k->world, "K5 an orphan with a client");
}

static void check_key(struct keys_world *k, int32_t i)
{
    struct plain_key *p = &k->plain[i];
    struct key *key = keys_real(k, i);
    if ((key != NULL) != p->exists) {
        world_fault(k->world, "K1 key %d %s", i, key ? "is there" : "is missing");
        return;
    }
    if (!key)
        return;
    const struct stream *s = key_stream(key);
    if ((int32_t)s->n != p->n)
        world_fault(k->world, "K1 key %d holds %d entries, %d in the model", i, (int)s->n, p->n);
    for (int32_t j = 0; j < p->n && !world_is_wrong(k->world); j++)
        check_entry(k->world, i, &p->entries[j], stream_entry(s, (size_t)j));
    int64_t ttl_ms = p->expires_us ? (p->expires_us - clock_now_us() + 999) / 1000 : -1;
    if (key_ttl_ms(key) != ttl_ms)
        world_fault(k->world, "K1 key %d lives for %lld ms, %lld in the model", i,
                    (long long)key_ttl_ms(key), (long long)ttl_ms);
    check_pieces(k, i, key);
    check_running(k, i, key);
}

void keys_check(struct keys_world *k)
{
    size_t n = 0;
    if (world_is_wrong(k->world))
        return;
    for (int32_t i = 0; i < k->world->config.n_keys && !world_is_wrong(k->world); i++) {
        check_key(k, i);
        n += k->plain[i].exists;
    }
    if (!world_is_wrong(k->world) && keys_count(k->keys, 0) != n)
        world_fault(k->world, "K1 %d keys, %d in the model", (int)keys_count(k->keys, 0), (int)n);
    for (int32_t i = 0; i < KEY_WAITERS; i++) {
        struct client *client = &k->clients[i];
        if (!client->is_used)
            continue;
        keys_check_answer(client);
        if (client->n_answers > 0)
            client->is_used = false;
        else if (client->gen->is_key_gone)
            world_fault(k->world, "K4 the key is gone, and a client was not told");
    }
}
