/* keys.h - databases, keys, expiry, and the stream commands on them; the keyspace as its users see
 * it.
 *
 * Main thread only. The server parses and writes replies; what a key is and what happens to it is
 * here. Error texts carry their prefix ("ERR ...", "BUSYKEY ..."): the server writes '-', text,
 * CRLF. Time stands still for the length of a command (clock_tick), so two look-ups of one command
 * agree.
 *
 *     keyspace_turn   after engine_turn, every turn of the loop: timers, expiry, readers that are
 *                     ready, memory to give back; a slice of each
 *     jobs_collect    finishes generations whose prompt was tokenised by a job thread */
#ifndef KEYSPACE_KEYS_H
#define KEYSPACE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/jobs.h"
#include "base/str.h"
#include "engine/engine.h"
#include "keyspace/event.h"
#include "keyspace/stream.h"
#include "model/chat.h"
#include "model/tokenizer.h"

struct keyspace;
struct key;

/* Borrowed objects live longer than the keyspace. The options may change while it lives. */
struct keyspace_config {
    struct engine *engine; /* NULL: no model, every GEN is an error */
    struct jobs *jobs;     /* NULL: prompts are tokenised inside the call */
    const struct tokenizer *tokenizer;
    const struct chat_template *chat; /* NULL: unknown; messages are then refused by GEN */
    const char *chat_error;           /* why chat is NULL; borrowed; may be NULL */
    uint64_t model_digest;
    int32_t kv_type;
    int32_t n_context; /* tokens; the running limit, not the model's */
    int32_t databases;
    float default_temperature;  /* of GEN without TEMP */
    int64_t default_max_tokens; /* of GEN without MAXTOKENS */
    int64_t orphan_timeout_ms;
    int64_t piece_interval_ms;
    bool share_prefixes; /* across users */
    /* Told of every event, inside the call that made it: must not change keys. NULL: nobody is. */
    void (*key_event)(void *owner, int32_t db, struct bytes name, enum key_event event);
    void *key_event_owner;
};
struct keyspace_config keyspace_config_default(void);

struct keyspace *keyspace_new(const struct keyspace_config *config);
/* Frees everything. Generations must have ended (keyspace_shut_down) and the engine still stand;
 * waiters and readers must have left. */
void keyspace_free(struct keyspace *ks);
struct keyspace_config *keyspace_options(struct keyspace *ks); /* CONFIG SET writes here */
/* One slice of everything that waits; true when there is more to do at once. */
bool keyspace_turn(struct keyspace *ks);
/* clock_mono_us at which keyspace_turn has something to do; INT64_MAX: nothing is timed. */
int64_t keyspace_next_us(const struct keyspace *ks);
/* Ends every generation with `cancelled`, serves its waiters and readers, refuses new GENs. */
void keyspace_shut_down(struct keyspace *ks);

/* ---- keys ----------------------------------------------------------------------------------- */

/* NULL when it is missing; an expired key is removed first. */
struct key *keys_find(struct keyspace *ks, int32_t db, struct bytes name);
/* The same for a command that reads: counts as a hit, or as a miss, which is an event. */
struct key *keys_find_read(struct keyspace *ks, int32_t db, struct bytes name);
struct bytes key_name(const struct key *key);
const char *key_type_name(const struct key *key);     /* "stream" */
const char *key_encoding_name(const struct key *key); /* "stream" */
size_t key_memory_bytes(const struct key *key);       /* text, ids and pieces */
struct stream *key_stream(struct key *key);           /* for XLEN, XINFO; change nothing */
void key_touch(struct key *key);                      /* it was used now */
int64_t key_idle_ms(const struct key *key);

/* A generating key is cancelled first, its readers are served, then it goes. */
bool keys_delete(struct keyspace *ks, int32_t db, struct bytes name);
void keys_flush(struct keyspace *ks, int32_t db); /* -1: all databases */
size_t keys_count(const struct keyspace *ks, int32_t db);
size_t keys_count_expiring(const struct keyspace *ks, int32_t db);
/* Visits at least one bucket and returns the next cursor, 0 at the end. Expired keys are left out.
 * The visitor must not change the keyspace. */
typedef void (*key_visit)(void *arg, struct key *key);
uint64_t keys_scan(struct keyspace *ks, int32_t db, uint64_t cursor, key_visit visit, void *arg);
struct key *keys_random(struct keyspace *ks, int32_t db); /* NULL when empty */
/* 1: done; 0: only_new and the target exists; -1: err ("ERR no such key", BUSYKEY). */
int keys_rename(struct keyspace *ks, int32_t db, struct bytes from, struct bytes to, bool only_new,
                struct err *err);
/* 1: done; 0: no such key, or the name is taken there; -1: err (same database, BUSYKEY). */
int keys_move(struct keyspace *ks, int32_t db, struct bytes name, int32_t to, struct err *err);
int keys_swap(struct keyspace *ks, int32_t a, int32_t b, struct err *err); /* -1: BUSYKEY */

/* Since the start or the last reset. */
struct keyspace_stats {
    uint64_t hits, misses; /* of keys_find_read */
    uint64_t expired;      /* keys */
};
struct keyspace_stats *keyspace_stats(struct keyspace *ks); /* CONFIG RESETSTAT zeroes it */

/* ---- expiry --------------------------------------------------------------------------------- */

enum { EXPIRE_NX = 1, EXPIRE_XX = 2, EXPIRE_GT = 4, EXPIRE_LT = 8 };
/* ms from now, or a point of Unix time when absolute; in the past removes the key. True: done. */
bool keys_expire(struct keyspace *ks, int32_t db, struct bytes name, int64_t ms, bool absolute,
                 int flags);
bool keys_persist(struct keyspace *ks, int32_t db, struct bytes name);
int64_t key_ttl_ms(const struct key *key);         /* -1: none */
int64_t key_expire_time_ms(const struct key *key); /* Unix time; -1: none */

/* ---- streams -------------------------------------------------------------------------------- */

enum xadd_id { XADD_AUTO /* "*" */, XADD_AUTO_SEQ /* "<ms>-*" */, XADD_EXPLICIT };
struct xadd {
    enum xadd_id id_kind;
    struct stream_id id; /* ms with AUTO_SEQ, both with EXPLICIT */
    bool no_create;      /* NOMKSTREAM */
    struct stream_trim trim;
    const struct bytes *fields; /* [2 * n_fields] */
    int32_t n_fields;
};
/* "*", "<ms>-*", "<ms>-<seq>", "<ms>"; -1 with Redis' text. */
int xadd_id_parse(struct bytes text, struct xadd *add, struct err *err);
/* 1: added, *id is its id; 0: no_create and no key; -1: err. */
int keys_xadd(struct keyspace *ks, int32_t db, struct bytes name, const struct xadd *add,
              struct stream_id *id, struct err *err);
/* Entries that went; -1: err (BUSYKEY). */
int64_t keys_xdel(struct keyspace *ks, int32_t db, struct bytes name, const struct stream_id *ids,
                  int32_t n, struct err *err);
int64_t keys_xtrim(struct keyspace *ks, int32_t db, struct bytes name,
                   const struct stream_trim *trim, struct err *err);
struct set_id {
    struct stream_id last, max_deleted; /* max_deleted 0-0: stays as it is */
    bool has_added;                     /* entries_added is given */
    uint64_t entries_added;
};
/* XSETID; -1: err with Redis' texts, or BUSYKEY. */
int keys_set_id(struct keyspace *ks, int32_t db, struct bytes name, const struct set_id *set,
                struct err *err);

/* What a reader sees: an entry, or a piece (its text in "piece"; of several branches also
 * "branch"). Borrowed for the call. */
struct read_entry {
    struct stream_id id;
    const struct bytes *fields; /* [2 * n_fields] */
    int32_t n_fields;
};
typedef void (*entry_visit)(void *arg, const struct read_entry *entry);
struct read_entry read_entry_of(const struct entry *entry);
/* XRANGE and XREVRANGE: durable entries of [low, high]; count 0: none, -1: all. An end entry that
 * is returned counts as delivered. The number visited. */
int64_t keys_range(struct key *key, struct stream_id low, struct stream_id high, bool reverse,
                   int64_t count, entry_visit visit, void *arg);
/* XREAD: durable entries and pieces above `after`, in order; count 0 or -1: all. */
int64_t keys_read(struct key *key, struct stream_id after, int64_t count, entry_visit visit,
                  void *arg);
/* What "$" stands for: the greatest id ever given, pieces included. */
struct stream_id key_last_id(const struct key *key);

#endif
