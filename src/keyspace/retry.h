/* retry.h - a retry is not a second request: who asked for a generation, and what the same GEN
 * gets.
 *
 * An attempt is the identity of one accepted GEN: user, database, key and all argument bytes but
 * BLOCK's. The key holds the one that runs or ran last; waiters that are told its end share it. */
#ifndef KEYSPACE_RETRY_H
#define KEYSPACE_RETRY_H

#include "base/str.h"
#include "keyspace/generate.h"

struct attempt {
    int32_t refs;
    uint64_t digest;         /* of identity: a quick no */
    struct str identity;     /* owns; decides. Empty once it can match nothing any more */
    struct stream_id after;  /* what ASYNC is answered with */
    struct stream_id end_id; /* of its end entry; 0-0 while it runs */
    enum gen_finish finish;  /* GEN_NONE while it runs */
    uint64_t seed;
    bool is_unowned;   /* ASYNC or inside MULTI: it belongs to nobody, no orphan clock */
    bool is_delivered; /* a waiter was answered, or a reader got the end entry */
};

struct attempt *attempt_new(uint64_t user, int32_t db, const struct gen_request *request);
struct attempt *attempt_take(struct attempt *attempt);
void attempt_put(struct attempt *attempt); /* accepts NULL */
bool attempt_equal(const struct attempt *a, const struct attempt *b);
/* Somebody was told its end. */
void attempt_set_delivered(struct attempt *attempt);
/* A reader got the entry with this id; it may be the end entry. */
void attempt_note_read(struct attempt *attempt, struct stream_id id);

enum retry_verdict { RETRY_NEW, RETRY_ATTACH, RETRY_BUSY, RETRY_DELIVER, RETRY_RESUME };
/* What a GEN with this identity gets on this key (NULL: a missing one). */
enum retry_verdict retry_judge(const struct key *key, const struct attempt *attempt);

#endif
