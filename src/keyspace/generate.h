/* generate.h - GEN, CANCEL, GENINFO and CACHE PROBE: one key's generation from arrival to end
 * entry.
 *
 *     request -> same as the one that runs, or undelivered?  attach or deliver (retry.h)
 *             -> token ids of the whole conversation         (conversation.h; long text in a job)
 *             -> engine_submit -> pieces -> end entry -> waiters and readers
 *
 * Nothing is written before the engine has accepted. Every answer comes through the waiter, either
 * inside the call or later. */
#ifndef KEYSPACE_GENERATE_H
#define KEYSPACE_GENERATE_H

#include "base/list.h"
#include "keyspace/keys.h"
#include "keyspace/timer.h"

enum gen_answer_kind {
    GEN_ANSWER_ID,      /* ASYNC, and every GEN inside MULTI: read after this id */
    GEN_ANSWER_TEXT,    /* finish stop or length: the text of each end entry */
    GEN_ANSWER_ENTRY,   /* WITHINFO: the end entries, whatever the finish */
    GEN_ANSWER_ERROR,   /* text with its prefix */
    GEN_ANSWER_TIMEOUT, /* BLOCK is over: null ($-1; *-1 with WITHINFO, N or BEAM in RESP2) */
};
struct gen_answer {
    enum gen_answer_kind kind;
    struct stream_id id;       /* ID */
    struct entry *const *ends; /* TEXT, ENTRY: [n_ends] by branch; borrowed for the call */
    int32_t n_ends;
    const char *error; /* ERROR; borrowed for the call */
};

/* A client that waits for the end of a generation. Embedded in the server's client; must have left
 * before that memory goes. answer is called exactly once unless the waiter leaves; the waiter has
 * left before it is called. What is called back (here and in watch.h) writes a reply and may let
 * waiters and readers leave, but must not run commands: that waits for the next turn. */
struct gen_waiter {
    void (*answer)(struct gen_waiter *waiter, const struct gen_answer *answer);
    void *owner;
    /* The rest is the keyspace's. */
    bool with_info;
    bool is_list; /* GEN had N or BEAM: the answer is an array, also of one */
    struct keyspace *ks;
    struct generation *generation; /* borrowed; NULL: it has ended, or the waiter has left */
    struct attempt *attempt;       /* shares; on the ready list: whose end it is told */
    struct outcome *outcome;       /* shares; on the ready list: what it is told */
    bool wants_id;                 /* is answered as soon as the engine has accepted */
    struct list node;              /* in the generation's list, or in the ready list */
    struct timer timer;            /* BLOCK */
};
void gen_waiter_init(struct gen_waiter *waiter); /* zeroes the keyspace's fields */
bool gen_waiter_is_waiting(const struct gen_waiter *waiter);
/* The client is gone, half-closed or unblocked: its orphan clock starts when it was the last. */
void gen_waiter_leave(struct gen_waiter *waiter);

enum { /* which options were given */
       GEN_HAS_MAX_TOKENS = 1,
       GEN_HAS_TEMPERATURE = 2,
       GEN_HAS_SEED = 4,
       GEN_HAS_LOGPROBS = 8,
       GEN_HAS_N = 16,
       GEN_HAS_BEAM = 32,
       GEN_HAS_PROMPT_LOGPROBS = 64,
       GEN_HAS_LIST = GEN_HAS_N | GEN_HAS_BEAM, /* the answer is an array */
};
/* All pointers are borrowed for the call. */
struct gen_request {
    uint64_t user; /* 0: the default user */
    struct bytes prompt;
    bool has_prompt;   /* an argument stood there; an empty one without AS and IDS is none */
    struct bytes role; /* AS; data NULL: not given */
    bool ids;          /* IDS: the prompt is little-endian int32 ids */
    struct bytes id;   /* ID: the token that a client gives this one action; data NULL: none */
    bool with_info, async;
    bool in_multi;              /* answers with the id at once, also when a job must tokenise */
    int64_t block_ms;           /* 0: no bound */
    int64_t deadline_ms;        /* from arrival; 0: none */
    struct gen_options options; /* deadline_us, and what `given` lacks, is filled in here */
    unsigned given;
    const struct bytes *args; /* [n_args] the key and all that follows, as received */
    int32_t n_args;
    int32_t block_arg; /* index in args of the word BLOCK; 0: none. It and its value do not
                          make another request */
};
/* The waiter's answer and owner are set. Answers inside the call where it can. */
void keys_generate(struct keyspace *ks, int32_t db, struct bytes name,
                   const struct gen_request *request, struct gen_waiter *waiter);

/* True when a generation was cancelled. */
bool keys_cancel(struct keyspace *ks, int32_t db, struct bytes name);

struct gen_info {
    const char *state;  /* none, idle, queued, running */
    const char *finish; /* of the last generation; "" when there was none */
    int64_t place, prompt, cached, computed, generated;
    int64_t blocks, shared_blocks; /* that it holds; those that another branch holds too */
    /* that no other conversation has used; of them held by nobody, so they may be evicted */
    int64_t own_blocks, cached_blocks;
    int64_t swapped_blocks; /* in host memory */
    int64_t queued_ms, prefill_ms, decode_ms;
};
void keys_gen_info(struct keyspace *ks, int32_t db, struct bytes name, struct gen_info *info);

/* CACHE PROBE: what a GEN with this prompt (and AS role) would find. name data NULL: as on an empty
 * key. Main thread: begin (NULL: err) and end, which frees it (-1: err); any thread: run, between
 * the two. A long one, which takes over a millisecond, is for a job. */
struct gen_probe *gen_probe_begin(struct keyspace *ks, int32_t db, uint64_t user,
                                  struct bytes prompt, struct bytes role, struct bytes name,
                                  struct err *err);
bool gen_probe_is_long(const struct gen_probe *probe);
void gen_probe_run(struct gen_probe *probe);
int gen_probe_end(struct gen_probe *probe, int32_t *n_tokens, int32_t *n_cached, struct err *err);
int32_t keys_n_generating(const struct keyspace *ks); /* tokenising, queued or running */

#endif
