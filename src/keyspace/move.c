/* move.c - keys and whole databases change their place: MOVE, SWAPDB; XSETID, which moves the ids.
 *
 * A key that generates stays where it is: its retries are known by database and name, and its
 * readers wait under that name. So all three are refused with BUSYKEY from the arrival of a GEN on.
 *
 * Readers wait for names in a numbered database, not for keys. Whoever waits for a name under which
 * a stream appears here is woken, and reads what stands above his cursor. SWAPDB exchanges what the
 * numbers stand for; watches stay with the numbers. Main thread only. */
#include "keyspace/keyspace.h"

#include "base/mem.h"
#include "keyspace/guard.h"

/* A stream is found under this name from now on. */
static void appears(struct key *key)
{
    if (key->stream->n > 0)
        watch_signal(key, key->stream->last_id);
}

int keys_move(struct keyspace *ks, int32_t db, struct bytes name, int32_t to, struct err *err)
{
    if (db == to)
        return err_set(err, "ERR source and destination objects are the same");
    struct key *key = keys_lookup(ks, db, name);
    if (key == NULL)
        return 0;
    if (key_refuse_busy(key, err) < 0)
        return -1;
    struct key *target = keys_lookup(ks, to, name);
    if (target != NULL && !target->unborn)
        return 0;
    if (target != NULL)
        key_remove(target,
                   KEY_EVENT_NONE); /* a GEN whose prompt is being tokenised: as if written over */
    (void)table_remove(key->db->keys, name); /* it is this key */
    key->db->n_expiring -= key->expires;
    key->db = keyspace_database(ks, to);
    key->db->n_expiring += key->expires;
    ASSERT(table_put(key->db->keys, name, key) == NULL);
    keys_tell(ks, to, name, KEY_EVENT_NEW);
    keys_tell_change(ks, db, name, KEY_EVENT_MOVE_FROM);
    key_changed(key, KEY_EVENT_MOVE_TO);
    appears(key);
    return 1;
}

/* ---- SWAPDB ---------------------------------------------------------------------------------- */

static int refuse_generating(struct keyspace *ks, int32_t db, struct err *err)
{
    LIST_FOREACH(&ks->generations, node, next) {
        struct key *key = generation_key(node);
        if (key->db->number == db)
            return key_refuse_busy(key, err);
    }
    return 0;
}

/* Those who wait for names of this database may find them now. */
static void wake_readers(struct keyspace *ks, int32_t db)
{
    struct bytes name;
    struct watch *watch;
    TABLE_FOREACH(ks->watches[db], name, watch) {
        struct key *key = table_get(ks->databases[db]->keys, name);
        if (key != NULL)
            appears(key);
    }
}

static void put_database(struct keyspace *ks, int32_t number, struct database *db)
{
    ks->databases[number] = db;
    db->number = number;
}

int keys_swap(struct keyspace *ks, int32_t a, int32_t b, struct err *err)
{
    if (a == b)
        return 0;
    if (refuse_generating(ks, a, err) < 0 || refuse_generating(ks, b, err) < 0)
        return -1;
    guard_spoil_all(ks, a, b);
    struct database *was_a = keyspace_database(ks, a);
    struct table *removed = ks->removed[a];
    put_database(ks, a, keyspace_database(ks, b));
    put_database(ks, b, was_a);
    ks->removed[a] = ks->removed[b];
    ks->removed[b] = removed;
    wake_readers(ks, a);
    wake_readers(ks, b);
    return 0;
}

/* ---- XSETID ---------------------------------------------------------------------------------- */

int keys_set_id(struct keyspace *ks, int32_t db, struct bytes name, const struct set_id *set,
                struct err *err)
{
    struct key *key = keys_lookup(ks, db, name);
    if (key != NULL && key_refuse_busy(key, err) < 0)
        return -1;
    if (key == NULL)
        return err_set(err, "ERR no such key");
    struct stream *s = key->stream;
    if (stream_id_compare(set->last, set->max_deleted) < 0)
        return err_set(err, "ERR The ID specified in XSETID is smaller than the provided "
                            "max_deleted_entry_id");
    if (s->n > 0 && stream_id_compare(set->last, stream_entry(s, s->n - 1)->id) < 0)
        return err_set(err, "ERR The ID specified in XSETID is smaller than the target stream top "
                            "item");
    if (stream_id_compare(set->last, s->max_deleted) < 0)
        return err_set(err, "ERR The ID specified in XSETID is smaller than current "
                            "max_deleted_entry_id");
    if (set->has_added && s->n > set->entries_added)
        return err_set(err, "ERR The entries_added specified in XSETID is smaller than the target "
                            "stream length");
    s->last_id = set->last;
    if (set->has_added)
        s->entries_added = set->entries_added;
    if (stream_id_compare(set->max_deleted, STREAM_ID_MIN) > 0)
        s->max_deleted = set->max_deleted;
    key_changed(key, KEY_EVENT_XSETID);
    return 0;
}
