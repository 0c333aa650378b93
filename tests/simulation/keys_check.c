/* keys_check.c - what must be true of keys: after every operation, and of every answer.
 *
 *   K1  a key holds what the plain model says: entries, kinds, texts, finish, time to live
 *   K2  ids of entries only grow, over all keys
 *   K3  pieces are the beginning of the lone run's text, of their branch; joined, its end entry's;
 *       of end entries keys_ends.c has more
 *   K4  a client that waits is answered once: the texts of all branches in order, or an error that
 *       names why
 *   K5  orphans and deadlines end when they are due, and not before */
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "keys_world.h"

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

/* One end entry, as it was written; where the key is gone, nobody has seen that. */
static bool is_told_right(const struct plain_branch *b, const struct told *told)
{
    if (told->len < 0 || told->finish != b->finish)
        return false;
    if (b->n_final < 0)
        return plain_is_letters(b, (struct bytes){told->text, (size_t)told->len});
    return told->len == b->n_final && memcmp(told->text, b->text, (size_t)told->len) == 0;
}

static void check_list(struct client *client)
{
    struct world *w = client->rig->world;
    const struct plain_gen *gen = client->gen;
    bool is_known = !gen->beam; /* that of a beam on a key that is gone is not */
    if (client->kind != (client->with_info ? GEN_ANSWER_ENTRY : GEN_ANSWER_TEXT) ||
        client->n_ends != gen->n_branches) {
        world_fault(w, "K4 an answer of %d ends for %d branches", client->n_ends, gen->n_branches);
        return;
    }
    for (int32_t i = 0; i < gen->n_branches && !world_is_wrong(w); i++)
        if (client->ends[i].branch != i || ((is_known || gen->branches[i].n_final >= 0) &&
                                            !is_told_right(&gen->branches[i], &client->ends[i])))
            world_fault(w, "K4 end %d of an answer, of branch %d, is not the end entry", i,
                        client->ends[i].branch);
}

/* The error is that of the first branch that did not end by itself. */
static void check_error(struct client *client, const char *prefix)
{
    struct world *w = client->rig->world;
    const struct plain_gen *gen = client->gen;
    char branch[40] = "";
    int32_t first = 0;
    while (gen->branches[first].finish == GEN_STOP || gen->branches[first].finish == GEN_LENGTH)
        first++;
    if (gen->n_branches > 1)
        snprintf(branch, sizeof branch, " in branch %d of %d", first, gen->n_branches);
    if (client->kind != GEN_ANSWER_ERROR || strncmp(client->error, prefix, strlen(prefix)) != 0 ||
        !strstr(client->error, branch) || (!*branch && strstr(client->error, " in branch ")))
        world_fault(w, "K4 finish %s of branch %d was told as '%.100s'",
                    gen_finish_name(gen->finish), first, client->error);
    if (gen->is_key_gone != (strstr(client->error, "the key is gone") != NULL))
        world_fault(w, "K4 whether the key is gone was told wrong: '%.60s'", client->error);
}

static void check_told(struct client *client)
{
    const struct plain_gen *gen = client->gen;
    const char *prefix = PREFIXES[gen->finish];
    if (gen->is_refused) {
        if (client->kind != GEN_ANSWER_ERROR)
            world_fault(client->rig->world, "K4 a GEN was refused, and a client got no error");
    } else if (gen->finish == GEN_NONE) {
        world_fault(client->rig->world, "K4 told of an end before it");
    } else if (prefix && !client->with_info) {
        check_error(client, prefix);
    } else {
        check_list(client);
    }
}

/* The client was answered; its turn is over. */
static void check_answer(struct client *client)
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
    else if (e->kind == ENTRY_END && (e->finish != entry->finish || e->branch != entry->branch))
        world_fault(w, "K1 an end entry of key %d changed its finish or branch", i);
    else if (e->kind != ENTRY_OTHER && (plain_strip(entry->text, text) != e->len ||
                                        memcmp(text, e->text, (size_t)e->len) != 0))
        world_fault(w, "K1 the text of an entry of key %d differs", i);
}

/* Joined they are the text of the end entry. An orphan's end tells what was held back for a stop
 * string too: when it is resumed and that string becomes whole, what went out cannot come back. */
static void check_joined(struct keys_world *k, int32_t i, int32_t branch)
{
    const struct pieces_branch *b = &keys_raw(k, i)->pieces.branches[branch];
    const struct plain_gen *last = k->plain[i].last;
    int32_t n_resumed = last && branch < last->n_branches ? last->branches[branch].n_resumed : 0;
    struct bytes text = b->end->text;
    size_t n = b->base + b->text.len;
    bool is_cut = (int32_t)text.len < n_resumed && (int32_t)n == n_resumed;
    if (n != text.len && !is_cut)
        world_fault(k->world, "K3 the pieces of key %d are not its end entry's text", i);
    else if (text.len > b->base &&
             memcmp(b->text.data, text.data + b->base, text.len - b->base) != 0)
        world_fault(k->world, "K3 the pieces of key %d differ from its end entry's text", i);
}

static void check_branch_pieces(struct keys_world *k, int32_t i, int32_t branch)
{
    const struct pieces_branch *b = &keys_raw(k, i)->pieces.branches[branch];
    const struct plain_gen *gen = k->plain[i].running;
    if (gen && !gen->pending && (branch >= gen->n_branches || (gen->beam && b->text.len > 0))) {
        world_fault(k->world, "K3 key %d has pieces of branch %d", i, branch);
        return;
    }
    for (size_t c = 0; gen && !gen->pending && c < b->text.len; c++) {
        const struct lone *l = &gen->branches[branch].lone;
        int32_t at = l->n_prompt + (int32_t)(b->base + c);
        if (at >= l->n_ids || b->text.data[c] != 'a' + l->ids[at] - 1) {
            world_fault(k->world, "K3 the pieces of key %d differ from the lone run", i);
            return;
        }
    }
    if (b->end && (!k->plain[i].last || !k->plain[i].last->beam))
        check_joined(k, i, branch);
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
        check_branch_pieces(k, i, b);
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

/* End entries of one generation have one name, those of two have two. */
static void check_names(struct keys_world *k, int32_t i, const struct stream *s)
{
    const struct plain_key *p = &k->plain[i];
    int32_t before = -1;
    for (int32_t j = 0; j < p->n; j++) {
        if (p->entries[j].kind != ENTRY_END)
            continue;
        if (before >= 0 && (p->entries[before].group == p->entries[j].group) !=
                               (stream_id_compare(stream_entry(s, (size_t)before)->group,
                                                  stream_entry(s, (size_t)j)->group) == 0))
            world_fault(k->world, "K1 end entries %d and %d of key %d", before, j, i);
        before = j;
    }
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
    if (!world_is_wrong(k->world))
        check_names(k, i, s);
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
        check_answer(client);
        if (client->n_answers > 0)
            client->is_used = false;
        else if (client->gen->is_key_gone)
            world_fault(k->world, "K4 the key is gone, and a client was not told");
    }
}
