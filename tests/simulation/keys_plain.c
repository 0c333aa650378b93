/* keys_plain.c - the plain model of keys: lists of texts, and what a retry gets.
 *
 * No blocks, no ids but letters, no sharing: a fork copies. Raw text only, so the sequence that the
 * model sees is the letters of all entries, one after the other; of a generation with several
 * branches those of one end entry, the lowest branch that stands. Which generation an end entry is
 * of is known by a number that the model gives it, and that copies carry along. */
#include <string.h>
#include "base/mem.h"
#include "keys_world.h"

/* Of the end entries of one generation the lowest branch that stands; all else goes on. */
bool plain_goes_on(const struct plain_entry *entries, int32_t n, int32_t i, int64_t but)
{
    const struct plain_entry *e = &entries[i];
    if (e->kind != ENTRY_END)
        return true;
    for (int32_t j = 0; j < n; j++)
        if (entries[j].kind == ENTRY_END && entries[j].group == e->group &&
            entries[j].branch < e->branch)
            return false;
    return e->group != but;
}

/* ids <- the letters of all that means something to the model. */
int32_t plain_sequence(const struct plain_key *p, int64_t but, int32_t *ids)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const struct plain_entry *e = &p->entries[i];
        if (e->kind == ENTRY_OTHER || !plain_goes_on(p->entries, p->n, i, but))
            continue;
        for (int32_t k = 0; k < e->len; k++)
            ids[n++] = e->text[k] - 'a' + 1;
    }
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
    for (int32_t i = 0; last && last->kind == ENTRY_END && i < p->n; i++)
        if (p->entries[i].kind == ENTRY_END && p->entries[i].group == last->group &&
            plain_goes_on(p->entries, p->n, i, 0))
            return p->entries[i].finish != GEN_STOP;
    return last != NULL;
}

int32_t plain_strip(struct bytes text, char *out)
{
    int32_t n = 0;
    for (size_t i = 0; i < text.len && n < KEY_TEXT; i++)
        if (text.data[i] != 'Z')
            out[n++] = text.data[i];
    return n;
}

/* group: of an end entry. */
void plain_append(struct keys_world *k, struct plain_key *p, const struct entry *entry,
                  int64_t group)
{
    if (p->n >= KEY_ENTRIES_CAP) {
        world_fault(k->world, "K1 a key grows beyond %d entries", KEY_ENTRIES_CAP);
        return;
    }
    struct plain_entry *e = &p->entries[p->n++];
    if (stream_id_compare(entry->id, k->floor) <= 0 ||
        (p->n > 1 && stream_id_compare(entry->id, e[-1].id) <= 0))
        world_fault(k->world, "K2 entry id %llu-%llu is not above all before",
                    (unsigned long long)entry->id.ms, (unsigned long long)entry->id.seq);
    if (stream_id_compare(entry->id, k->greatest) > 0)
        k->greatest = entry->id;
    *e = (struct plain_entry){.id = entry->id,
                              .kind = entry->kind,
                              .finish = entry->finish,
                              .group = group,
                              .branch = entry->branch};
    if (entry->kind == ENTRY_OTHER)
        return;
    e->len = plain_strip(entry->text, e->text);
}

void plain_take_out(struct plain_key *p, int32_t at, int32_t n)
{
    memmove(p->entries + at, p->entries + at + n, (size_t)(p->n - at - n) * sizeof *p->entries);
    p->n -= n;
}

/* The whole is what the first branch is that did not end by itself; else what branch 0 is. */
void plain_end(struct keys_world *k, struct plain_gen *gen)
{
    gen->finish = gen->branches[0].finish;
    for (int32_t i = gen->n_branches - 1; i >= 0; i--) {
        enum gen_finish finish = gen->branches[i].finish;
        if (finish != GEN_STOP && finish != GEN_LENGTH)
            gen->finish = finish;
    }
    k->n_ended++;
}

void plain_refuse(struct plain_key *p)
{
    p->running->is_refused = true;
    xfree(p->running->pending);
    p->running->pending = NULL;
    p->running = NULL;
}

/* Nobody will see the ends that are written now. */
static void end_unseen(struct keys_world *k, struct plain_gen *gen)
{
    for (int32_t i = 0; i < gen->n_branches; i++) {
        struct plain_branch *b = &gen->branches[i];
        if (b->finish != GEN_NONE)
            continue;
        b->finish = GEN_CANCELLED;
        b->n_final = -1;
        k->n_ends++;
    }
    plain_end(k, gen);
}

/* The key is gone; what ran on it was cancelled, and whoever waited was told in the same call. */
void plain_remove(struct keys_world *k, struct plain_key *p)
{
    if (p->running)
        p->running->is_key_gone = true;
    if (p->running && p->running->pending) {
        plain_refuse(p);
    } else if (p->running) {
        end_unseen(k, p->running);
    }
    p->running = p->last = NULL;
    lru_forget(k->world->lru, (int32_t)(p - k->plain), true);
    p->object = ++k->n_objects;
    p->exists = false;
    p->expires_us = 0;
    p->n = 0;
}

/* ---- what the same GEN gets --------------------------------------------------------------------- */

/* The same key and argument bytes, BLOCK aside. */
static bool is_same(const struct plain_gen *gen, int32_t name, const struct op *op)
{
    struct op a = gen->op, b = *op;
    a.args[KEY_MODE] = a.args[KEY_MODE] == KEY_ASYNC;
    b.args[KEY_MODE] = b.args[KEY_MODE] == KEY_ASYNC;
    return gen->name == name && memcmp(&a.args[1], &b.args[1], sizeof a.args - sizeof *a.args) == 0;
}

/* The end entries of all branches. */
static bool all_stand(const struct plain_key *p, const struct plain_gen *gen)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n; i++)
        n += p->entries[i].kind == ENTRY_END && p->entries[i].group == gen->group;
    return n == gen->n_branches;
}

/* The newest first; for as long as its entries stand in the key that it was made for, under the name
 * that it had then. */
struct plain_gen *plain_find_replay(const struct keys_world *k, int32_t name, const struct op *op)
{
    const struct plain_key *p = &k->plain[name];
    for (struct plain_gen *gen = k->gens; gen && op->args[KEY_ID] > 0; gen = gen->next)
        if (gen->op.args[KEY_ID] == op->args[KEY_ID] && gen->name == name &&
            gen->object == p->object && gen->finish != GEN_NONE && all_stand(p, gen))
            return gen;
    return NULL;
}

static bool is_last(const struct plain_key *p, const struct plain_gen *gen)
{
    const struct plain_entry *last = plain_last_known(p);
    return last && last->kind == ENTRY_END && last->group == gen->group && all_stand(p, gen);
}

/* The table of COMMANDS.md: a retry is not a second request. */
enum verdict plain_judge(const struct keys_world *k, int32_t name, const struct op *op)
{
    const struct plain_key *p = &k->plain[name];
    if (p->running)
        return is_same(p->running, name, op) ? VERDICT_ATTACH : VERDICT_ERROR;
    if (p->last && is_same(p->last, name, op) && is_last(p, p->last)) {
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
