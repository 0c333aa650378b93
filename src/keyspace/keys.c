/* keys.c - databases and keys: finding, making, removing, renaming, walking; the keyspace's turn.
 *
 * A name leads to a struct key through one hash table a database. Looking a key up removes it when
 * it has expired, so nobody ever sees a dead one; the timers remove those that nobody asks for. As
 * time stands still for the length of a command, a key that was found once stays for that command.
 *
 * Removal has one path, key_remove: a generation is cancelled first (its end entry is written, its
 * readers and waiters are served at that moment), then the key leaves the table, then its memory is
 * given back, a large stream in slices. DEL, FLUSH, expiry and everything that overwrites a name
 * come through here. Main thread only. */
#include "keyspace/keyspace.h"

#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/plant.h"
#include "base/rng.h"
#include "keyspace/guard.h"
#include "keyspace/retry.h"

#define TURN_US 150      /* of replies a turn: with all else in it under 1 ms */
#define TIMERS_A_TURN 64 /* an expired key with readers costs a few microseconds each */
#define GARBAGE_US 150   /* of giving memory back a turn */
#define FREE_ENTRIES 100 /* entries given back at once, inside a command too; 0.01 to 0.1 ms */
#define FREE_KEYS 20     /* keys of a flushed database given back at once */
#define FREE_PARTS 10    /* of these a turn at most, whatever the clock says */
#define TABLE_PLACE 64   /* bytes of a key's place in the hash table, about */
#define RANDOM_TRIES 64  /* draws until a key that has not expired */

struct keyspace_config keyspace_config_default(void)
{
    return (struct keyspace_config){
        .n_context = 2048,
        .databases = 16,
        .default_temperature = 0.8f,
        .default_max_tokens = 512,
        .orphan_timeout_ms = 10000,
        .piece_interval_ms = 20,
    };
}

static struct database *database_new(int32_t number)
{
    struct database *db = xcalloc(1, sizeof *db);
    db->number = number;
    db->keys = table_new();
    return db;
}

struct keyspace *keyspace_new(const struct keyspace_config *config)
{
    ASSERT(config->databases > 0);
    struct keyspace *ks = xcalloc(1, sizeof *ks);
    ks->config = *config;
    size_t n = (size_t)config->databases;
    ks->n_databases = config->databases;
    ks->databases = xcalloc(n, sizeof *ks->databases);
    ks->watches = xcalloc(n, sizeof *ks->watches);
    ks->removed = xcalloc(n, sizeof *ks->removed);
    ks->guarded = xcalloc(n, sizeof *ks->guarded);
    for (int32_t i = 0; i < ks->n_databases; i++) {
        ks->databases[i] = database_new(i);
        ks->watches[i] = table_new();
        ks->removed[i] = table_new();
        ks->guarded[i] = table_new();
    }
    list_init(&ks->ready_readers);
    list_init(&ks->ready_waiters);
    list_init(&ks->generations);
    return ks;
}

struct keyspace_config *keyspace_options(struct keyspace *ks)
{
    return &ks->config;
}

struct keyspace_stats *keyspace_stats(struct keyspace *ks)
{
    return &ks->stats;
}

struct database *keyspace_database(struct keyspace *ks, int32_t db)
{
    ASSERT(db >= 0 && db < ks->n_databases);
    return ks->databases[db];
}

/* ---- removed keys: their last finish, for GENINFO ------------------------------------------- */

static void removed_forget(struct removed *removed)
{
    (void)table_remove(removed->table, bytes_of(&removed->name)); /* it is this one */
    timer_stop(&removed->ks->timers, &removed->timer);
    str_free(&removed->name);
    xfree(removed);
}

static void removed_is_old(struct timer *timer)
{
    removed_forget(LIST_ITEM(timer, struct removed, timer));
}

static void removed_remember(struct key *key)
{
    struct table *table = key->ks->removed[key->db->number];
    if (key->attempt == NULL || key->attempt->finish == GEN_NONE)
        return;
    struct removed *removed = table_get(table, bytes_of(&key->name));
    if (removed != NULL)
        removed_forget(removed);
    removed = xcalloc(1, sizeof *removed);
    removed->ks = key->ks;
    removed->table = table;
    removed->finish = key->attempt->finish;
    removed->timer.fire = removed_is_old;
    str_append(&removed->name, key->name.data, key->name.len);
    table_put(table, bytes_of(&removed->name), removed);
    timer_start(&key->ks->timers, &removed->timer, clock_now_us() + KEYSPACE_MEMORY_US);
}

/* ---- making and removing -------------------------------------------------------------------- */

struct key *keys_lookup(struct keyspace *ks, int32_t db, struct bytes name)
{
    struct key *key = table_get(keyspace_database(ks, db)->keys, name);
    if (key == NULL || key->removing || !key->expires || PLANTED(EXPIRE_BLIND))
        return key;
    int64_t now = key->expires_at_wall ? clock_now_ms() : clock_now_us();
    if (key->expiry.at > now)
        return key;
    ks->stats.expired++;
    key_remove(key, KEY_EVENT_EXPIRED);
    return NULL;
}

struct key *keys_find(struct keyspace *ks, int32_t db, struct bytes name)
{
    struct key *key = keys_lookup(ks, db, name);
    return key == NULL || (key->unborn && !PLANTED(UNBORN_SEEN)) ? NULL : key;
}

struct key *keys_find_read(struct keyspace *ks, int32_t db, struct bytes name)
{
    struct key *key = keys_find(ks, db, name);
    if (key != NULL) {
        ks->stats.hits++;
        return key;
    }
    ks->stats.misses++;
    keys_tell(ks, db, name, KEY_EVENT_MISS);
    return NULL;
}

/* What a key costs beside entries, pieces and arguments. */
static ptrdiff_t own_bytes(const struct key *key)
{
    return (ptrdiff_t)(sizeof *key + sizeof *key->stream + TABLE_PLACE + key->name.cap);
}

struct key *keys_create(struct keyspace *ks, int32_t db, struct bytes name)
{
    struct key *key = xcalloc(1, sizeof *key);
    key->ks = ks;
    key->db = keyspace_database(ks, db);
    key->stream = stream_new();
    key->unborn = true;
    key->db->n_unborn++;
    key->used_us = clock_now_us();
    str_append(&key->name, name.data, name.len);
    mem_count(MEM_KEY, own_bytes(key));
    ASSERT(table_put(key->db->keys, name, key) == NULL);
    return key;
}

void key_set_born(struct key *key)
{
    if (!key->unborn)
        return;
    key->unborn = false;
    key->db->n_unborn--;
    keys_tell(key->ks, key->db->number, bytes_of(&key->name), KEY_EVENT_NEW);
}

void keyspace_discard_stream(struct keyspace *ks, struct stream *stream)
{
    if (stream_free_slice(stream, FREE_ENTRIES))
        return;
    if (ks->n_garbage == ks->garbage_cap) {
        ks->garbage_cap = ks->garbage_cap ? ks->garbage_cap * 2 : 16;
        ks->garbage = xrealloc(ks->garbage, (size_t)ks->garbage_cap * sizeof(struct stream *));
    }
    ks->garbage[ks->n_garbage++] = stream;
}

static void stop_expiry(struct key *key)
{
    if (!key->expires)
        return;
    timer_stop(key->expires_at_wall ? &key->ks->wall_timers : &key->ks->timers, &key->expiry);
    key->expires = false;
    key->db->n_expiring--;
}

static void key_free(struct key *key)
{
    stop_expiry(key);
    pieces_clear(key);
    attempt_put(key->attempt);
    retry_forget(key);
    if (key->lineage != NULL)
        engine_drop_lineage(key->ks->config.engine, key->lineage);
    mem_count(MEM_KEY, -own_bytes(key));
    keyspace_discard_stream(key->ks, key->stream);
    str_free(&key->name);
    xfree(key);
}

void key_remove(struct key *key, enum key_event why)
{
    if (key->removing)
        return; /* by somebody further up, whose callback has led here */
    key->removing = true;
    if (key->generation != NULL)
        generation_end_with_key(key->generation);
    ASSERT(key->generation == NULL);
    (void)table_remove(key->db->keys, bytes_of(&key->name)); /* it is this key */
    if (key->unborn) {
        key->db->n_unborn--;
    } else {
        removed_remember(key);
        key_changed(key, why);
    }
    key_free(key);
}

bool keys_delete(struct keyspace *ks, int32_t db, struct bytes name)
{
    struct key *key = keys_lookup(ks, db, name);
    if (key == NULL)
        return false;
    bool was_there = !key->unborn;
    key_remove(key, KEY_EVENT_DEL);
    return was_there;
}

static struct key *first_generating(struct keyspace *ks, int32_t db)
{
    LIST_FOREACH(&ks->generations, node, next) {
        struct key *key = generation_key(node);
        if (db == -1 || key->db->number == db)
            return key;
    }
    return NULL;
}

static void flush_database(struct keyspace *ks, int32_t i)
{
    struct database *db = ks->databases[i];
    if (table_count(db->keys) == 0)
        return;
    if (ks->n_flushed == ks->flushed_cap) {
        ks->flushed_cap = ks->flushed_cap ? ks->flushed_cap * 2 : 16;
        ks->flushed = xrealloc(ks->flushed, (size_t)ks->flushed_cap * sizeof(struct database *));
    }
    guard_spoil_all(ks, i, -1);
    db->is_flushed = true;
    ks->flushed[ks->n_flushed++] = db;
    ks->databases[i] = database_new(i);
}

/* What generates is removed key by key, since each has readers; there are at most max-queue +
 * max-running of them. The others vanish with their table, which is freed in slices. */
void keys_flush(struct keyspace *ks, int32_t db)
{
    struct key *key;
    while ((key = first_generating(ks, db)) != NULL)
        key_remove(key, KEY_EVENT_NONE);
    for (int32_t i = 0; i < ks->n_databases; i++)
        if (db == -1 || db == i)
            flush_database(ks, i);
}

static void free_flushed(void *value)
{
    removed_remember(value);
    key_free(value);
}

/* True when it is gone. */
static bool database_free_slice(struct database *db, int max)
{
    if (!table_free_slice(db->keys, max, free_flushed))
        return false;
    xfree(db);
    return true;
}

/* ---- asking --------------------------------------------------------------------------------- */

struct bytes key_name(const struct key *key)
{
    return bytes_of(&key->name);
}

const char *key_type_name(const struct key *key)
{
    return "stream";
}

const char *key_encoding_name(const struct key *key)
{
    return "stream";
}

size_t key_memory_bytes(const struct key *key)
{
    return sizeof *key + key->name.cap + stream_bytes(key->stream) + key->pieces.n_bytes +
           (key->attempt ? key->attempt->identity.cap : 0) +
           (size_t)key->replays_cap * sizeof *key->replays;
}

struct stream *key_stream(struct key *key)
{
    return key->stream;
}

void key_touch(struct key *key)
{
    key->used_us = clock_now_us();
}

int64_t key_idle_ms(const struct key *key)
{
    return (clock_now_us() - key->used_us) / 1000;
}

size_t keys_count(const struct keyspace *ks, int32_t db)
{
    return table_count(ks->databases[db]->keys) - ks->databases[db]->n_unborn;
}

size_t keys_count_expiring(const struct keyspace *ks, int32_t db)
{
    return ks->databases[db]->n_expiring;
}

static bool is_visible(const struct key *key)
{
    if (key->unborn)
        return false;
    return !key->expires ||
           key->expiry.at > (key->expires_at_wall ? clock_now_ms() : clock_now_us());
}

struct scan {
    key_visit visit;
    void *arg;
};

static void scan_visit(void *arg, struct bytes name, void *value)
{
    struct scan *scan = arg;
    if (is_visible(value))
        scan->visit(scan->arg, value);
}

uint64_t keys_scan(struct keyspace *ks, int32_t db, uint64_t cursor, key_visit visit, void *arg)
{
    struct scan scan = {visit, arg};
    return table_scan(keyspace_database(ks, db)->keys, cursor, scan_visit, &scan);
}

struct key *keys_random(struct keyspace *ks, int32_t db)
{
    struct table *keys = keyspace_database(ks, db)->keys;
    for (int i = 0; i < RANDOM_TRIES; i++) {
        struct bytes name;
        struct key *key = table_random(keys, rng_at(rng_entropy(), 0, (uint32_t)i), &name);
        if (key == NULL || is_visible(key))
            return key;
    }
    size_t at = 0; /* nearly all have expired: the first that has not */
    struct bytes name;
    void *value;
    while (table_next(keys, &at, &name, &value))
        if (is_visible(value))
            return value;
    return NULL;
}

/* ---- renaming ------------------------------------------------------------------------------- */

int key_refuse_busy(const struct key *key, struct err *err)
{
    char name[64];
    if (key->generation == NULL)
        return 0;
    return err_set(err, "BUSYKEY a generation is running on '%s', CANCEL ends it",
                   key_quoted(name, bytes_of(&key->name)));
}

const char *key_quoted(char out[64], struct bytes name)
{
    size_t n = name.len < 40 ? name.len : 40;
    for (size_t i = 0; i < n; i++)
        out[i] = name.data[i] >= 0x20 && name.data[i] < 0x7f ? name.data[i] : '?';
    strcpy(out + n, name.len > 40 ? "..." : "");
    return out;
}

int keys_rename(struct keyspace *ks, int32_t db, struct bytes from, struct bytes to, bool only_new,
                struct err *err)
{
    struct key *key = keys_lookup(ks, db, from);
    if (key != NULL && key_refuse_busy(key, err) < 0)
        return -1;
    if (key == NULL)
        return err_set(err, "ERR no such key");
    if (bytes_equal(from, to))
        return !only_new;
    struct key *target = keys_lookup(ks, db, to);
    if (target != NULL && !target->unborn && only_new)
        return 0;
    if (target != NULL)
        key_remove(target, KEY_EVENT_NONE);
    (void)table_remove(key->db->keys, from); /* it is this key */
    mem_count(MEM_KEY, -own_bytes(key));
    str_clear(&key->name);
    str_append(&key->name, to.data, to.len);
    mem_count(MEM_KEY, own_bytes(key));
    ASSERT(table_put(key->db->keys, to, key) == NULL);
    keys_tell(ks, db, to, KEY_EVENT_NEW);
    keys_tell_change(ks, db, from, KEY_EVENT_RENAME_FROM);
    key_changed(key, KEY_EVENT_RENAME_TO);
    if (key->stream->n > 0)
        watch_signal(key, key->stream->last_id);
    return 1;
}

/* ---- the turn ------------------------------------------------------------------------------- */

bool keyspace_collect_garbage(struct keyspace *ks)
{
    if (ks->n_garbage == 0 && ks->n_flushed == 0)
        return false;
    if (ks->n_garbage > 0 && stream_free_slice(ks->garbage[ks->n_garbage - 1], FREE_ENTRIES))
        ks->n_garbage--;
    if (ks->n_flushed > 0 && database_free_slice(ks->flushed[ks->n_flushed - 1], FREE_KEYS))
        ks->n_flushed--;
    return true;
}

bool keyspace_turn(struct keyspace *ks)
{
    int n = timers_run(&ks->timers, clock_now_us(), TIMERS_A_TURN);
    n += timers_run(&ks->wall_timers, clock_now_ms(), TIMERS_A_TURN);
    int64_t until_us = clock_mono_us() + TURN_US;
    bool more = waiters_serve_ready(ks, until_us);
    more |= watch_serve_ready(ks, until_us);
    until_us = clock_mono_us() + GARBAGE_US;
    for (int i = 0; i < FREE_PARTS && keyspace_collect_garbage(ks); i++)
        if (clock_mono_us() >= until_us)
            break;
    return more || ks->n_garbage > 0 || ks->n_flushed > 0 || n >= TIMERS_A_TURN;
}

int64_t keyspace_next_us(const struct keyspace *ks)
{
    if (!list_is_empty(&ks->ready_waiters) || !list_is_empty(&ks->ready_readers) ||
        ks->n_garbage > 0 || ks->n_flushed > 0)
        return clock_mono_us();
    int64_t next = timers_next(&ks->timers), wall = timers_next(&ks->wall_timers);
    if (wall == INT64_MAX)
        return next;
    /* Looked at again after a second at most: an operator may set the wall clock forward. */
    int64_t wait_ms = wall - clock_wall_ms();
    wait_ms = wait_ms < 0 ? 0 : wait_ms > 1000 ? 1000 : wait_ms;
    int64_t at = clock_mono_us() + wait_ms * 1000;
    return at < next ? at : next;
}

static void free_removed(void *value)
{
    struct removed *removed = value;
    str_free(&removed->name);
    xfree(removed);
}

void keyspace_free(struct keyspace *ks)
{
    if (ks == NULL)
        return;
    ASSERT(list_is_empty(&ks->ready_waiters) && list_is_empty(&ks->ready_readers));
    keys_flush(ks, -1);
    while (keyspace_collect_garbage(ks))
        continue;
    for (int32_t i = 0; i < ks->n_databases; i++) {
        ASSERT(table_count(ks->watches[i]) == 0 && table_count(ks->guarded[i]) == 0);
        table_free(ks->databases[i]->keys, NULL);
        xfree(ks->databases[i]);
        table_free(ks->watches[i], NULL);
        table_free(ks->guarded[i], NULL);
        table_free(ks->removed[i], free_removed);
    }
    xfree(ks->databases);
    xfree(ks->watches);
    xfree(ks->guarded);
    xfree(ks->removed);
    xfree(ks->garbage);
    xfree(ks->flushed);
    timers_free(&ks->timers);
    timers_free(&ks->wall_timers);
    xfree(ks);
}
