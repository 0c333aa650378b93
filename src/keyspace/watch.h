/* watch.h - clients that wait for something in the keyspace: blocked XREADs, and the ready list.
 *
 * A reader names keys (also missing ones) and cursors. When an entry above a cursor appears in one
 * of them, the reader goes to the ready list, which keyspace_turn serves in slices, after the next
 * step was launched. Serving calls ready(); the server then reads all keys of that XREAD again, and
 * when something came it replies and leaves (reader_leave); when nothing came it goes on waiting.
 * When a generating key is removed, its readers are served at once, inside the removing command. */
#ifndef KEYSPACE_WATCH_H
#define KEYSPACE_WATCH_H

#include "base/list.h"
#include "keyspace/keys.h"
#include "keyspace/timer.h"

/* One key of a blocked XREAD; the keyspace fills it. */
struct reader_key {
    struct list node; /* in the watch of its key's name */
    struct reader *reader;
    struct watch *watch;
    struct stream_id after;
};

/* Embedded in the server's client; must have left before that memory goes. */
struct reader {
    struct keyspace *ks;
    void (*ready)(struct reader *reader);   /* read again; may leave */
    void (*timeout)(struct reader *reader); /* BLOCK is over; it has left already */
    void *owner;
    struct list ready_node; /* in the ready list; links to itself otherwise */
    struct timer timer;
    struct reader_key *keys; /* [n_keys] owns; NULL: not waiting */
    int32_t n_keys;
};

/* Begins to wait for entries above afters[i] in names[i]; block_ms 0: for ever. ready, timeout and
 * owner must be set. Restarts the orphan clock of the keys that generate. */
void reader_wait(struct keyspace *ks, struct reader *reader, int32_t db, const struct bytes *names,
                 const struct stream_id *afters, int32_t n_keys, int64_t block_ms);
void reader_leave(struct reader *reader); /* harmless when it does not wait */
static inline bool reader_is_waiting(const struct reader *reader)
{
    return reader->keys != NULL;
}

#endif
