/* watch.c - blocked readers: registration by name, the ready list, serving.
 *
 * A reader waits for names, not for keys: XREAD BLOCK on a missing key is woken when the key
 * appears. So each database has a table of watches, one for each name that somebody waits for; each
 * reader has a node in the watch of every key it named. An append walks the watch of its key and
 * puts the readers whose cursor lies below the new id onto the ready list. Nothing is read for them
 * there: one wake answers everything new on all keys of that XREAD, and many appends before the
 * turn cost one reply.
 *
 * Whoever is called back may leave, or make other readers leave: all loops take the first of a list
 * until it is empty. Main thread only. */
#include "keyspace/keyspace.h"

#include "base/clock.h"
#include "base/mem.h"

static struct watch *watch_of(struct table *watches, struct bytes name)
{
    struct watch *watch = table_get(watches, name);
    if (watch != NULL)
        return watch;
    watch = xcalloc(1, sizeof *watch);
    watch->table = watches;
    str_append(&watch->name, name.data, name.len);
    list_init(&watch->readers);
    table_put(watches, name, watch);
    return watch;
}

static void watch_free(struct watch *watch)
{
    (void)table_remove(watch->table, bytes_of(&watch->name)); /* it is this watch */
    str_free(&watch->name);
    xfree(watch);
}

static void block_is_over(struct timer *timer)
{
    struct reader *reader = LIST_ITEM(timer, struct reader, timer);
    reader_leave(reader);
    reader->timeout(reader);
}

void reader_wait(struct keyspace *ks, struct reader *reader, int32_t db, const struct bytes *names,
                 const struct stream_id *afters, int32_t n_keys, int64_t block_ms)
{
    ASSERT(!reader_is_waiting(reader) && n_keys > 0);
    /* Looked up before it stands in any list: a key that has expired is removed by that, and its
     * readers are served from inside. */
    for (int32_t i = 0; i < n_keys; i++) {
        struct key *key = keys_lookup(ks, db, names[i]);
        if (key != NULL && key->generation != NULL)
            generation_heard_read(key->generation);
    }
    reader->ks = ks;
    reader->n_keys = n_keys;
    reader->keys = xcalloc((size_t)n_keys, sizeof *reader->keys);
    list_init(&reader->ready_node);
    for (int32_t i = 0; i < n_keys; i++) {
        struct reader_key *rk = &reader->keys[i];
        struct watch *watch = watch_of(ks->watches[db], names[i]);
        *rk = (struct reader_key){.reader = reader, .watch = watch, .after = afters[i]};
        list_push_back(&watch->readers, &rk->node);
    }
    reader->timer = (struct timer){.fire = block_is_over};
    if (block_ms > 0 && block_ms < INT64_MAX / 2000)
        timer_start(&ks->timers, &reader->timer, clock_now_us() + block_ms * 1000);
}

void reader_leave(struct reader *reader)
{
    if (!reader_is_waiting(reader))
        return;
    for (int32_t i = 0; i < reader->n_keys; i++) {
        struct reader_key *rk = &reader->keys[i];
        list_remove(&rk->node);
        if (list_is_empty(&rk->watch->readers))
            watch_free(rk->watch);
    }
    list_remove(&reader->ready_node);
    timer_stop(&reader->ks->timers, &reader->timer);
    xfree(reader->keys);
    reader->keys = NULL;
    reader->n_keys = 0;
}

void watch_signal(struct key *key, struct stream_id id)
{
    struct watch *watch = table_get(key->ks->watches[key->db->number], bytes_of(&key->name));
    if (watch == NULL)
        return;
    LIST_FOREACH(&watch->readers, node, next) {
        struct reader_key *rk = LIST_ITEM(node, struct reader_key, node);
        if (stream_id_compare(rk->after, id) < 0 && list_is_empty(&rk->reader->ready_node))
            list_push_back(&key->ks->ready_readers, &rk->reader->ready_node);
    }
}

static void serve_first(struct list *ready)
{
    struct reader *reader = LIST_FIRST(ready, struct reader, ready_node);
    list_remove(&reader->ready_node);
    reader->ready(reader);
}

/* Called when the key is going, after its end entry was written. The ready ones are first taken to
 * a list of their own: who is served and goes on waiting is not met twice. */
void watch_serve_key(struct key *key)
{
    struct watch *watch = table_get(key->ks->watches[key->db->number], bytes_of(&key->name));
    struct list now;
    list_init(&now);
    if (watch == NULL)
        return;
    LIST_FOREACH(&watch->readers, node, next) {
        struct reader *reader = LIST_ITEM(node, struct reader_key, node)->reader;
        if (list_is_empty(&reader->ready_node))
            continue;
        list_remove(&reader->ready_node);
        list_push_back(&now, &reader->ready_node);
    }
    while (!list_is_empty(&now))
        serve_first(&now);
}

bool watch_serve_ready(struct keyspace *ks, int64_t until_us)
{
    while (!list_is_empty(&ks->ready_readers)) {
        serve_first(&ks->ready_readers);
        if (clock_mono_us() >= until_us)
            break;
    }
    return !list_is_empty(&ks->ready_readers);
}
