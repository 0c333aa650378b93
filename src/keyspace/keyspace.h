/* keyspace.h - the structs behind keys.h, for the files of this folder only.
 *
 *     keyspace ─ databases ─ keys (by name) ─ stream, pieces, attempt, generation while it runs
 *        │            └───── watches (by name): readers blocked on it, also where no key is
 *        ├ timers (monotonic, wall)      ├ ready readers and waiters
 *        └ generations                   └ garbage: streams and databases that are freed in slices
 *
 * A key that is made for a GEN whose prompt is still being tokenised is `unborn`: nobody sees it,
 * but it is busy, and what removes or overwrites the name ends the generation as it does
 * everywhere. */
#ifndef KEYSPACE_KEYSPACE_H
#define KEYSPACE_KEYSPACE_H

#include "base/list.h"
#include "base/table.h"
#include "keyspace/generate.h"
#include "keyspace/keys.h"
#include "keyspace/timer.h"
#include "keyspace/watch.h"

#define KEYSPACE_MEMORY_US (60 * 1000000LL) /* pieces after the end, last finish after removal */

/* FLUSH puts a fresh one in its place; the old one is freed in slices. */
struct database {
    int32_t number;
    bool is_flushed;    /* nobody finds its keys any more */
    struct table *keys; /* name -> struct key, owns */
    size_t n_unborn;
    size_t n_expiring;
};

struct watch {
    struct table *table; /* borrows: the one it stands in */
    struct str name;     /* owns */
    struct list readers; /* of struct reader_key */
};

/* What GENINFO says about a key that is gone. */
struct removed {
    struct keyspace *ks;
    struct table *table; /* borrows: the one it stands in */
    struct str name;     /* owns */
    enum gen_finish finish;
    struct timer timer;
};

/* A few generated tokens that only XREAD sees. */
struct piece {
    struct stream_id id;
    int32_t branch;
    size_t text_at, text_end; /* in the branch's text */
};
/* Those of one branch. */
struct pieces_branch {
    struct str text;   /* owns; all joined: with `base`, the end entry's text in the end */
    size_t base;       /* bytes of that text before the first piece: a resumed answer's */
    struct entry *end; /* shares; NULL while it generates */
};
/* The live overlay of a key's last generation. */
struct pieces {
    struct pieces_branch *branches; /* [n_branches] owns */
    int32_t n_branches;             /* 0: there was none, or they are gone */
    struct piece *items;            /* [n] owns; of all branches, by id */
    int32_t n, cap;
    size_t n_bytes; /* held by all of it */
    char carry[4];  /* bytes that each text began with and its ids do not hold */
    int32_t n_carry;
    struct timer hold; /* from the end on */
};

struct key {
    struct keyspace *ks;
    struct database *db;
    struct str name;       /* owns */
    struct stream *stream; /* owns */
    bool unborn, removing;
    bool expires, expires_at_wall; /* at_wall: timer in wall milliseconds, else monotonic us */
    struct timer expiry;
    int64_t used_us;
    struct generation *generation; /* owns; NULL: idle */
    struct attempt *attempt;       /* shares; of the last GEN that was accepted; or NULL */
    struct replay *replays;        /* [n_replays] owns; of GENs with ID, some perhaps stale */
    int32_t n_replays, replays_cap;
    struct pieces pieces;
    struct lineage
        *lineage;         /* owns a reference; blocks that its GENs used; NULL before the first */
    struct gen_info last; /* numbers of the last generation; state unused */
};

struct keyspace {
    struct keyspace_config config;
    int32_t n_databases;
    struct database **databases; /* [n_databases] owns */
    struct table **watches;      /* [n_databases] name -> struct watch, owns; those with a reader */
    struct table **removed;      /* [n_databases] name -> struct removed, owns */
    struct table **guarded;      /* [n_databases] name -> struct guarded (guard.c) */
    struct timers timers;        /* clock_now_us */
    struct timers wall_timers;   /* clock_now_ms: keys with EXPIREAT */
    struct list ready_readers;   /* of struct reader.ready_node */
    struct list ready_waiters;   /* of struct gen_waiter.node */
    struct list generations;     /* of struct generation.node */
    int32_t n_generations;
    struct stream **garbage; /* [n_garbage] owns; freed in slices */
    int32_t n_garbage, garbage_cap;
    struct database **flushed; /* [n_flushed] owns; freed in slices */
    int32_t n_flushed, flushed_cap;
    struct stream_id mark; /* greatest id taken from the clock or from itself */
    bool is_shutting_down;
    struct keyspace_stats stats;
};

/* keys.c */
struct database *keyspace_database(struct keyspace *ks, int32_t db);
struct key *keys_lookup(struct keyspace *ks, int32_t db, struct bytes name); /* unborn ones too */
struct key *keys_create(struct keyspace *ks, int32_t db, struct bytes name); /* unborn */
void key_set_born(struct key *key);
/* Ends its generation, serves its readers, then it goes; why: the event that follows, or none. */
void key_remove(struct key *key, enum key_event why);
void key_copy_expiry(struct key *to, const struct key *from);
struct key *expiry_key(struct timer *timer); /* whose time to live this is; NULL: another timer */
bool keyspace_collect_garbage(struct keyspace *ks); /* a slice; false: there is none */
void keyspace_discard_stream(struct keyspace *ks, struct stream *stream);
/* The id that a new entry of this stream gets; false when there is none above its last. */
bool keyspace_next_id(struct keyspace *ks, const struct stream *stream, struct stream_id *id);
/* A new durable entry: it is visible, and readers are told. Room must be reserved. Hands over. */
void key_append(struct key *key, struct entry *entry);
int key_refuse_busy(const struct key *key,
                    struct err *err); /* -1 with BUSYKEY while it generates */
/* The name for an error text: printable, cut after 40 bytes. */
const char *key_quoted(char out[64], struct bytes name);

/* event.c */
void keys_tell(struct keyspace *ks, int32_t db, struct bytes name, enum key_event event);
/* The same, and it spoils the transactions of those who WATCH the name. */
void keys_tell_change(struct keyspace *ks, int32_t db, struct bytes name, enum key_event event);
void key_changed(struct key *key, enum key_event event);

/* pieces.c */
void pieces_clear(struct key *key);
void pieces_open(struct key *key, int32_t n_branches);
void pieces_add(struct key *key, int32_t branch, struct bytes text);
void pieces_close(struct key *key, int32_t branch, struct entry *end);
void pieces_hold(struct key *key);
int32_t pieces_above(const struct pieces *pieces, struct stream_id after);
const struct piece *pieces_find(const struct pieces *pieces, struct stream_id id); /* or NULL */

/* watch.c */
void watch_signal(struct key *key,
                  struct stream_id id); /* an entry or piece with this id appeared */
void watch_serve_key(struct key *key);  /* those of its readers that are ready */
bool watch_serve_ready(struct keyspace *ks, int64_t until_us); /* true: some are left */

/* generation.c */
struct key *generation_key(struct list *node); /* of a node in keyspace.generations */
/* The key is going: cancels, and answers waiters now rather than in the next turn. */
void generation_end_with_key(struct generation *generation);
void generation_heard_read(struct generation *generation); /* an XREAD restarts the orphan clock */

/* waiter.c */
bool waiters_serve_ready(struct keyspace *ks, int64_t until_us); /* true: some are left */

#endif
