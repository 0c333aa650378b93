/* event.c - what happens to keys: one table of events, and the one place where a change is told.
 *
 * Every change of a key's value or life comes through key_changed or keys_tell_change: it spoils
 * the transactions of those who WATCH the name (guard.h) and is told to whoever made the keyspace.
 * The events, their names and their order are those of Redis 7: what overwrites a key removes it
 * without an event, `new` comes before the event of the command that made the key, FLUSHDB and
 * FLUSHALL tell nothing. Of our own is gen-end.
 *
 * The one who is told is inside a half-done command: it may write messages, but not touch keys.
 * Main thread only. */
#include "keyspace/keyspace.h"

#include "base/mem.h"
#include "keyspace/guard.h"

static const struct {
    const char *name;
    char class;
} events[KEY_N_EVENTS] = {
    [KEY_EVENT_NEW] = {"new", 'n'},
    [KEY_EVENT_DEL] = {"del", 'g'},
    [KEY_EVENT_EXPIRE] = {"expire", 'g'},
    [KEY_EVENT_PERSIST] = {"persist", 'g'},
    [KEY_EVENT_EXPIRED] = {"expired", 'x'},
    [KEY_EVENT_EVICTED] = {"evicted", 'e'},
    [KEY_EVENT_RENAME_FROM] = {"rename_from", 'g'},
    [KEY_EVENT_RENAME_TO] = {"rename_to", 'g'},
    [KEY_EVENT_MOVE_FROM] = {"move_from", 'g'},
    [KEY_EVENT_MOVE_TO] = {"move_to", 'g'},
    [KEY_EVENT_COPY_TO] = {"copy_to", 'g'},
    [KEY_EVENT_XADD] = {"xadd", 't'},
    [KEY_EVENT_XDEL] = {"xdel", 't'},
    [KEY_EVENT_XTRIM] = {"xtrim", 't'},
    [KEY_EVENT_XSETID] = {"xsetid", 't'},
    [KEY_EVENT_GEN_END] = {"gen-end", 't'},
    [KEY_EVENT_MISS] = {"keymiss", 'm'},
};

const char *key_event_name(enum key_event event)
{
    ASSERT(event > KEY_EVENT_NONE && event < KEY_N_EVENTS);
    return events[event].name;
}

char key_event_class(enum key_event event)
{
    ASSERT(event > KEY_EVENT_NONE && event < KEY_N_EVENTS);
    return events[event].class;
}

void keys_tell(struct keyspace *ks, int32_t db, struct bytes name, enum key_event event)
{
    const struct keyspace_config *config = &ks->config;
    if (config->key_event != NULL && event != KEY_EVENT_NONE)
        config->key_event(config->key_event_owner, db, name, event);
}

void keys_tell_change(struct keyspace *ks, int32_t db, struct bytes name, enum key_event event)
{
    guard_spoil(ks, db, name);
    keys_tell(ks, db, name, event);
}

void key_changed(struct key *key, enum key_event event)
{
    keys_tell_change(key->ks, key->db->number, bytes_of(&key->name), event);
}
