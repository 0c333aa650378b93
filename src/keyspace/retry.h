/* retry.h - a retry is not a second request: who asked for a generation, and what the same GEN
 * gets.
 *
 * An attempt is the identity of one accepted GEN: user, database, key and all argument bytes but
 * BLOCK's. The key holds the one that runs or ran last; waiters that are told its end share it. Of
 * those with an ID it keeps a replay each, as long as the end entry stands. */
#ifndef KEYSPACE_RETRY_H
#define KEYSPACE_RETRY_H

#include "base/str.h"
#include "keyspace/generate.h"
#include "keyspace/group.h"

/* What remains of a GEN with ID behind its end: enough to answer the same again from the entry. */
struct replay {
    struct stream_id end_id; /* of the entry that carries the ID; of several the one written last */
    int32_t n_ends;          /* that must stand */
    struct stream_id after;  /* what ASYNC is answered with */
    uint64_t scope;          /* digest of user, database, key and ID */
    uint64_t args[2];        /* digests of the whole identity */
};

struct attempt {
    int32_t refs;
    uint64_t digest;         /* of identity: a quick no */
    struct str identity;     /* owns; decides. Empty once it can match nothing any more */
    struct str token;        /* owns; the ID; empty: none */
    struct replay replay;    /* with ID: what the key keeps at the end */
    struct stream_id after;  /* what ASYNC is answered with */
    struct stream_id group;  /* of its end entries */
    struct stream_id end_id; /* of the end entry written last; 0-0 while it runs */
    int32_t n_branches;
    enum gen_finish finish; /* of all; GEN_NONE while it runs */
    uint64_t seed;
    bool is_unowned;   /* ASYNC or inside MULTI: it belongs to nobody, no orphan clock */
    bool is_read;      /* a reader got an end entry while others were still to come */
    bool is_delivered; /* a waiter was answered, or a reader got an end entry */
};

struct attempt *attempt_new(uint64_t user, int32_t db, const struct gen_request *request);
struct attempt *attempt_take(struct attempt *attempt);
void attempt_put(struct attempt *attempt); /* accepts NULL */
/* It is over: the end entry of its last branch has this id. */
void attempt_end(struct attempt *attempt, struct stream_id end_id, enum gen_finish finish);
/* Somebody was told its end. */
void attempt_set_delivered(struct attempt *attempt);
/* A reader got this end entry; it may be one of the attempt's. */
void attempt_note_read(struct attempt *attempt, const struct entry *end);

/* Called when the end entries of an attempt with ID stand in the key. */
void retry_keep(struct key *key, const struct attempt *attempt);
void retry_forget(struct key *key); /* the key goes */
/* The entries of this key that carry the attempt's ID, of the same user; NULL: not all stand. */
const struct replay *retry_find(const struct key *key, const struct attempt *attempt);
/* The end entries [n] of which the last was written with this id; false: not all stand. */
bool retry_ends(const struct key *key, struct stream_id end_id, int32_t n, struct end_group *group);

enum retry_verdict {
    RETRY_NEW,
    RETRY_ATTACH,
    RETRY_BUSY,
    RETRY_DELIVER,
    RETRY_RESUME,
    RETRY_REPLAY,  /* its ID stands in an entry */
    RETRY_MISUSED, /* its ID stands in an entry of other arguments */
};
/* What a GEN with this identity gets on this key (NULL: a missing one). */
enum retry_verdict retry_judge(const struct key *key, const struct attempt *attempt);

#endif
