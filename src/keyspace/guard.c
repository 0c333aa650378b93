/* guard.c - WATCH: who watches which name, and spoiling the transactions of all of them.
 *
 *     guard ─ names ─▶ guard_key ◀─ list ─ guarded ◀─ name ─ ks->guarded[database]
 *
 * Each database has a table of the names that somebody guards; a change costs one look-up there
 * when nobody does. A guard that is spoiled lets go of its names at once: it can be spoiled only
 * once, so a key that a thousand clients WATCH costs them one walk, not one for every change until
 * each of them calls EXEC (Redis does so since 7.0).
 *
 * Expiry is a change when it happens after WATCH. A key that has expired already at WATCH is
 * removed there, so that its removal does not spoil; one that expires later spoils by its removal,
 * which guard_is_spoiled brings about by looking at every name. Main thread only. */
#include "keyspace/guard.h"

#include "base/list.h"
#include "base/mem.h"
#include "keyspace/keyspace.h"

/* A name that somebody guards. */
struct guarded {
    struct table *table; /* borrows: the one it stands in */
    struct str name;     /* owns */
    struct list keys;    /* of struct guard_key.node */
};
/* One guard's interest in one name. */
struct guard_key {
    struct list node; /* in guarded->keys */
    struct guarded *guarded;
    struct guard *guard;
    int32_t db;
};

/* The key of a guard's own table. */
static struct bytes full_name(struct str *out, int32_t db, struct bytes name)
{
    str_append(out, &db, sizeof db);
    str_append(out, name.data, name.len);
    return bytes_of(out);
}

static struct guarded *guarded_of(struct table *table, struct bytes name)
{
    struct guarded *guarded = table_get(table, name);
    if (guarded != NULL)
        return guarded;
    guarded = xcalloc(1, sizeof *guarded);
    guarded->table = table;
    str_append(&guarded->name, name.data, name.len);
    list_init(&guarded->keys);
    table_put(table, name, guarded);
    return guarded;
}

static void guard_key_free(void *value)
{
    struct guard_key *gk = value;
    struct guarded *guarded = gk->guarded;
    list_remove(&gk->node);
    xfree(gk);
    if (!list_is_empty(&guarded->keys))
        return;
    (void)table_remove(guarded->table, bytes_of(&guarded->name)); /* it is this one */
    str_free(&guarded->name);
    xfree(guarded);
}

static void let_go(struct guard *guard)
{
    if (guard->names == NULL)
        return;
    table_free(guard->names, guard_key_free);
    guard->names = NULL;
    guard->bytes = 0;
}

void guard_add(struct keyspace *ks, struct guard *guard, int32_t db, struct bytes name)
{
    struct str full = {0};
    guard->ks = ks;
    if (guard->is_spoiled)
        return;                      /* it can not become worse */
    (void)keys_lookup(ks, db, name); /* an expired one goes now */
    if (guard->is_spoiled)
        return; /* it stood in this very guard */
    if (guard->names == NULL)
        guard->names = table_new();
    if (table_get(guard->names, full_name(&full, db, name)) == NULL) {
        struct guard_key *gk = xcalloc(1, sizeof *gk);
        gk->guard = guard;
        gk->guarded = guarded_of(ks->guarded[db], name);
        gk->db = db;
        list_push_back(&gk->guarded->keys, &gk->node);
        table_put(guard->names, bytes_of(&full), gk);
        guard->bytes += sizeof *gk + full.len + 32; /* 32: its slot in the table */
    }
    str_free(&full);
}

/* The look-up that finds an expired key spoils this guard, whose table is then gone. */
bool guard_is_spoiled(struct guard *guard)
{
    struct bytes full;
    void *value;
    size_t at = 0;
    while (!guard->is_spoiled && guard->names != NULL &&
           table_next(guard->names, &at, &full, &value)) {
        struct guard_key *gk = value;
        (void)keys_lookup(guard->ks, gk->db, bytes_of(&gk->guarded->name));
    }
    return guard->is_spoiled;
}

void guard_clear(struct guard *guard)
{
    let_go(guard);
    guard->is_spoiled = false;
}

int64_t guard_count(const struct guard *guard)
{
    return guard->names != NULL ? (int64_t)table_count(guard->names) : 0;
}

void guard_spoil(struct keyspace *ks, int32_t db, struct bytes name)
{
    struct guarded *guarded;
    while ((guarded = table_get(ks->guarded[db], name)) != NULL) {
        struct guard *guard = LIST_FIRST(&guarded->keys, struct guard_key, node)->guard;
        guard->is_spoiled = true;
        let_go(guard);
    }
}

static bool is_there(struct keyspace *ks, int32_t db, struct bytes name)
{
    struct key *key = db >= 0 ? table_get(ks->databases[db]->keys, name) : NULL;
    return key != NULL && !key->unborn;
}

/* Only marks: the table that is walked must not change. */
static void mark_all(struct keyspace *ks, int32_t db, int32_t other)
{
    struct bytes name;
    void *value;
    size_t at = 0;
    while (table_next(ks->guarded[db], &at, &name, &value)) {
        if (!is_there(ks, db, name) && !is_there(ks, other, name))
            continue;
        LIST_FOREACH(&((struct guarded *)value)->keys, node, next) {
            LIST_ITEM(node, struct guard_key, node)->guard->is_spoiled = true;
        }
    }
}

void guard_spoil_all(struct keyspace *ks, int32_t db, int32_t other)
{
    mark_all(ks, db, other);
    if (other >= 0)
        mark_all(ks, other, db);
}
