/* keys_plain.c - the plain model of keys: lists of texts, and what a retry gets.
 *
 * No blocks, no ids but letters, no sharing: a fork copies. Raw text only, so the sequence that the
 * model sees is the letters of all entries, one after the other. */
#include <string.h>
#include "base/mem.h"
#include "keys_world.h"

/* ids <- the letters of all that means something to the model. */
int32_t plain_sequence(const struct plain_key *p, int32_t *ids)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n; i++)
        for (int32_t k = 0; p->entries[i].kind != ENTRY_OTHER && k < p->entries[i].len; k++)
            ids[n++] = p->entries[i].text[k] - 'a' + 1;
    return n;
}

const struct plain_entry *plain_last_known(const struct plain_key *p)
{
    for (int32_t i = p->n - 1; i >= 0; i--)
        if (p->entries[i].kind != ENTRY_OTHER)
            return &p->entries[i];
    return NULL;
}

/* Without a prompt: not on nothing, not after a finished answer. */
bool plain_may_go_on(const struct plain_key *p)
{
    const struct plain_entry *last = plain_last_known(p);
    return last && !(last->kind == ENTRY_END && last->finish == GEN_STOP);
}

int32_t plain_strip(struct bytes text, char *out)
{
    int32_t n = 0;
    for (size_t i = 0; i < text.len && n < KEY_TEXT; i++)
        if (text.data[i] != 'Z')
            out[n++] = text.data[i];
    return n;
}

void plain_append(struct keys_world *k, struct plain_key *p, const struct entry *entry)
{
    struct plain_entry *e = &p->entries[p->n++];
    if (stream_id_compare(entry->id, k->floor) <= 0 ||
        (p->n > 1 && stream_id_compare(entry->id, e[-1].id) <= 0))
        world_fault(k->world, "K2 entry id %llu-%llu is not above all before",
                    (unsigned long long)entry->id.ms, (unsigned long long)entry->id.seq);
    if (stream_id_compare(entry->id, k->greatest) > 0)
        k->greatest = entry->id;
    *e = (struct plain_entry){.id = entry->id, .kind = entry->kind, .finish = entry->finish};
    if (entry->kind == ENTRY_OTHER)
        return;
    e->len = plain_strip(entry->text, e->text);
}

void plain_end(struct keys_world *k, struct plain_gen *gen, enum gen_finish finish)
{
    gen->finish = finish;
    k->n_ended++;
}

void plain_refuse(struct plain_key *p)
{
    p->running->is_refused = true;
    xfree(p->running->pending);
    p->running->pending = NULL;
    p->running = NULL;
}

/* The key is gone; what ran on it was cancelled, and whoever waited was told in the same call. */
void plain_remove(struct keys_world *k, struct plain_key *p)
{
    if (p->running)
        p->running->is_key_gone = true;
    if (p->running && p->running->pending) {
        plain_refuse(p);
    } else if (p->running) {
        plain_end(k, p->running, GEN_CANCELLED);
    }
    p->running = p->last = NULL;
    p->object = ++k->n_objects;
    p->exists = false;
    p->expires_us = 0;
    p->n = 0;
}

/* A child holds the first n entries and the time to live. */
void plain_copy(struct plain_key *to, const struct plain_key *from, int32_t n)
{
    memcpy(to->entries, from->entries, (size_t)n * sizeof *to->entries);
    to->n = n;
    to->exists = true;
    to->expires_us = from->expires_us;
    to->running = to->last = NULL;
}

/* The same key and argument bytes, BLOCK aside. */
static bool is_same(const struct plain_gen *gen, int32_t name, const struct op *op)
{
    struct op a = gen->op, b = *op;
    a.args[KEY_MODE] = a.args[KEY_MODE] == KEY_ASYNC;
    b.args[KEY_MODE] = b.args[KEY_MODE] == KEY_ASYNC;
    return gen->name == name && memcmp(&a.args[1], &b.args[1], sizeof a.args - sizeof *a.args) == 0;
}

static bool has_end(const struct plain_key *p, struct stream_id id)
{
    for (int32_t i = 0; i < p->n; i++)
        if (p->entries[i].kind == ENTRY_END && stream_id_compare(p->entries[i].id, id) == 0)
            return true;
    return false;
}

/* The newest first; for as long as the entry stands in the key that it was made for, under the name
 * that it had then. */
struct plain_gen *plain_find_replay(const struct keys_world *k, int32_t name, const struct op *op)
{
    const struct plain_key *p = &k->plain[name];
    for (struct plain_gen *gen = k->gens; gen && op->args[KEY_ID] > 0; gen = gen->next)
        if (gen->op.args[KEY_ID] == op->args[KEY_ID] && gen->name == name &&
            gen->object == p->object && gen->finish != GEN_NONE && has_end(p, gen->end_id))
            return gen;
    return NULL;
}

/* The table of COMMANDS.md: a retry is not a second request. */
enum verdict plain_judge(const struct keys_world *k, int32_t name, const struct op *op)
{
    const struct plain_key *p = &k->plain[name];
    const struct plain_entry *last = plain_last_known(p);
    if (p->running)
        return is_same(p->running, name, op) ? VERDICT_ATTACH : VERDICT_ERROR;
    if (p->last && last && is_same(p->last, name, op) &&
        stream_id_compare(last->id, p->last->end_id) == 0) {
        if (p->last->finish == GEN_ORPHANED)
            return VERDICT_RESUME;
        if (!p->last->is_delivered)
            return VERDICT_DELIVER;
    }
    const struct plain_gen *before = plain_find_replay(k, name, op);
    if (before)
        return is_same(before, name, op) ? VERDICT_REPLAY : VERDICT_ERROR;
    return op->args[KEY_NO_PROMPT] && !plain_may_go_on(p) ? VERDICT_ERROR : VERDICT_NEW;
}
