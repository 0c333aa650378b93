/* key_stream.c - ids of new entries, XADD, XDEL, XTRIM, and reading with or without pieces.
 *
 * A new id is the greatest of the clock, the key's last id plus one, and the keyspace's mark plus
 * one. The mark follows only ids that came from the clock or from the mark itself, so that a client
 * with an explicit id far in the future cannot drag every other key along; and it never falls, so
 * that neither a deletion nor a step of the wall clock brings an id below some reader's cursor.
 * Main thread only. */
#include "keyspace/keyspace.h"

#include <stdio.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/plant.h"
#include "keyspace/conversation.h"
#include "keyspace/retry.h"

bool keyspace_next_id(struct keyspace *ks, const struct stream *stream, struct stream_id *id)
{
    struct stream_id own = stream->last_id, clock = {(uint64_t)clock_now_ms(), 0}, mark = ks->mark;
    if (!stream_id_next(&own))
        return false;
    (void)stream_id_next(&mark); /* it follows the clock: never near the top */
    struct stream_id base =
        stream_id_compare(clock, mark) > 0 || PLANTED(MARK_FALLS) ? clock : mark;
    if (stream_id_compare(base, own) < 0) {
        *id = own;
        return true;
    }
    ks->mark = *id = base;
    return true;
}

void key_append(struct key *key, struct entry *entry)
{
    stream_append(key->stream, entry);
    key_set_born(key);
    key->used_us = clock_now_us();
    key_changed(key, KEY_EVENT_XADD);
    watch_signal(key, entry->id);
}

/* ---- XADD ----------------------------------------------------------------------------------- */

int xadd_id_parse(struct bytes text, struct xadd *add, struct err *err)
{
    add->id = STREAM_ID_MIN;
    if (text.len == 1 && text.data[0] == '*') {
        add->id_kind = XADD_AUTO;
        return 0;
    }
    bool auto_seq =
        text.len > 2 && text.data[text.len - 1] == '*' && text.data[text.len - 2] == '-';
    add->id_kind = auto_seq ? XADD_AUTO_SEQ : XADD_EXPLICIT;
    if (auto_seq ? !stream_id_parse_half((struct bytes){text.data, text.len - 2}, &add->id.ms)
                 : !stream_id_parse(text, 0, &add->id))
        return err_set(err, "ERR Invalid stream ID specified as stream command argument");
    return 0;
}

static int choose_id(struct keyspace *ks, const struct stream *s, const struct xadd *add,
                     struct stream_id *id, struct err *err)
{
    bool is_exhausted = stream_id_compare(s->last_id, STREAM_ID_MAX) == 0;
    bool is_auto = add->id_kind == XADD_AUTO;
    if (is_exhausted || (is_auto && !keyspace_next_id(ks, s, id)))
        return err_set(err, "ERR The stream has exhausted the last possible ID, unable to add more "
                            "items");
    if (is_auto)
        return 0;
    *id = add->id;
    if (add->id_kind == XADD_AUTO_SEQ) {
        id->seq = 0;
        if (s->last_id.ms == id->ms) {
            *id = s->last_id;
            if (id->seq == UINT64_MAX)
                id->seq = 0; /* refused below */
            else
                id->seq++;
        }
    }
    if (stream_id_compare(*id, s->last_id) <= 0)
        return err_set(err,
                       "ERR The ID specified in XADD is equal or smaller than the target stream "
                       "top item");
    return 0;
}

static uint64_t trim_key(struct key *key, const struct stream_trim *trim)
{
    struct stream *trimmed;
    uint64_t n = stream_trim(key->stream, trim, &trimmed);
    if (trimmed != NULL)
        keyspace_discard_stream(key->ks, trimmed);
    if (n > 0)
        key_changed(key, KEY_EVENT_XTRIM);
    return n;
}

int keys_xadd(struct keyspace *ks, int32_t db, struct bytes name, const struct xadd *add,
              struct stream_id *id, struct err *err)
{
    static const struct stream empty;
    if (add->id_kind == XADD_EXPLICIT && stream_id_compare(add->id, STREAM_ID_MIN) == 0)
        return err_set(err, "ERR The ID specified in XADD must be greater than 0-0");
    struct key *key = keys_lookup(ks, db, name);
    enum entry_kind kind;
    if (key != NULL && !PLANTED(BUSY_WRITTEN) && key_refuse_busy(key, err) < 0)
        return -1;
    if (key == NULL && add->no_create)
        return 0;
    if (conversation_kind_of(add->fields, add->n_fields, &kind, err) < 0)
        return -1;
    if (choose_id(ks, key ? key->stream : &empty, add, id, err) < 0)
        return -1;
    struct entry *entry = entry_new(*id, add->fields, add->n_fields);
    if (entry == NULL)
        return err_set(err, "OOM no memory for an entry of %d fields", add->n_fields);
    conversation_set_kind(entry, kind);
    if (key == NULL)
        key = keys_create(ks, db, name);
    if (!stream_reserve(key->stream, 1)) {
        size_t n = key->stream->n;
        entry_put(entry);
        if (key->unborn)
            key_remove(key, KEY_EVENT_NONE);
        return err_set(err, "OOM no memory for entry number %zu of the stream", n + 1);
    }
    key_append(key, entry);
    (void)trim_key(key, &add->trim); /* XADD does not report it */
    return 1;
}

int64_t keys_xdel(struct keyspace *ks, int32_t db, struct bytes name, const struct stream_id *ids,
                  int32_t n, struct err *err)
{
    struct key *key = keys_lookup(ks, db, name);
    if (key == NULL)
        return 0;
    if (key_refuse_busy(key, err) < 0)
        return -1;
    int64_t n_deleted = (int64_t)stream_delete_all(key->stream, ids, (size_t)n);
    if (n_deleted > 0)
        key_changed(key, KEY_EVENT_XDEL);
    return n_deleted;
}

int64_t keys_xtrim(struct keyspace *ks, int32_t db, struct bytes name,
                   const struct stream_trim *trim, struct err *err)
{
    struct key *key = keys_lookup(ks, db, name);
    if (key == NULL)
        return 0;
    if (key_refuse_busy(key, err) < 0)
        return -1;
    return (int64_t)trim_key(key, trim);
}

/* ---- reading -------------------------------------------------------------------------------- */

struct read_entry read_entry_of(const struct entry *entry)
{
    return (struct read_entry){entry->id, entry->fields, entry->n_fields};
}

struct stream_id key_last_id(const struct key *key)
{
    return key->stream->last_id;
}

/* An end entry that a reader got needs no second delivery. */
static void show(struct key *key, const struct entry *entry, entry_visit visit, void *arg)
{
    struct read_entry seen = read_entry_of(entry);
    if (entry->kind == ENTRY_END && key->attempt != NULL)
        attempt_note_read(key->attempt, entry);
    visit(arg, &seen);
}

int64_t keys_range(struct key *key, struct stream_id low, struct stream_id high, bool reverse,
                   int64_t count, entry_visit visit, void *arg)
{
    const struct stream *s = key->stream;
    size_t from = stream_find(s, low), to = s->n;
    if (stream_id_next(&high))
        to = stream_find(s, high);
    int64_t n = to > from ? (int64_t)(to - from) : 0;
    if (count >= 0 && n > count)
        n = count;
    for (int64_t i = 0; i < n; i++)
        show(key, stream_entry(s, reverse ? to - 1 - (size_t)i : from + (size_t)i), visit, arg);
    return n;
}

static void show_piece(const struct pieces *pieces, int32_t i, entry_visit visit, void *arg)
{
    const struct piece *piece = &pieces->items[i];
    char branch[12];
    size_t n = (size_t)snprintf(branch, sizeof branch, "%d", piece->branch);
    const char *text = pieces->branches[piece->branch].text.data + piece->text_at;
    struct bytes fields[4] = {
        BYTES("piece"), {text, piece->text_end - piece->text_at}, BYTES("branch"), {branch, n}};
    struct read_entry seen = {piece->id, fields, pieces->n_branches > 1 ? 2 : 1};
    visit(arg, &seen);
}

int64_t keys_read(struct key *key, struct stream_id after, int64_t count, entry_visit visit,
                  void *arg)
{
    const struct stream *s = key->stream;
    const struct pieces *pieces = &key->pieces;
    struct stream_id from = after;
    size_t i = stream_id_next(&from) ? stream_find(s, from) : s->n;
    int32_t piece = pieces_above(pieces, after), n_pieces = 0;
    int64_t n = 0;
    for (; (count <= 0 || n < count) && (i < s->n || piece < pieces->n); n++) {
        if (i == s->n || (piece < pieces->n &&
                          stream_id_compare(pieces->items[piece].id, stream_entry(s, i)->id) < 0)) {
            show_piece(pieces, piece++, visit, arg);
            n_pieces++;
        } else {
            show(key, stream_entry(s, i++), visit, arg);
        }
    }
    if (n_pieces > 0 && key->generation != NULL)
        generation_heard_read(key->generation);
    return n;
}
