/* generation.h - one GEN from arrival to end entry: the struct, for the files of this folder only.
 */
#ifndef KEYSPACE_GENERATION_H
#define KEYSPACE_GENERATION_H

#include "keyspace/conversation.h"
#include "keyspace/keyspace.h"
#include "keyspace/retry.h"

/* One branch of it. */
struct generation_branch {
    struct generation *generation; /* borrows; whose array it is in */
    int32_t number;
    struct str held;  /* owns; text that no piece has shown yet */
    size_t n_text;    /* bytes of the answer so far, held ones too */
    bool has_shown;   /* a piece has left */
    int64_t shown_us; /* when the last one left */
    struct timer piece_timer;
    struct str logprobs;          /* owns; field of the end entry, as far as it is known */
    struct str prompt_logprobs;   /* owns; the same */
    struct bytes logprobs_before; /* borrows; of `resumed`: lines of the tokens still to come */
    struct entry *resumed;        /* shares; the orphaned end entry that goes on; NULL: none */
    struct entry *end;            /* shares; its end entry; NULL: it goes on */
    bool is_over; /* it ended before this attempt, which resumes others of the group */
};

/* Owned by its key, from the arrival of a GEN that is new (or resumes) until its end entry stands,
 * or until it is refused. `gen` and the engine's callbacks point to each other in between. */
struct generation {
    struct keyspace *ks;
    struct key *key;
    struct list node;           /* in keyspace.generations */
    struct attempt *attempt;    /* shares */
    struct build *build;        /* owns; while it tokenises. A job may run on it */
    struct entry *prompt;       /* owns; until it stands in the stream; NULL: there is none */
    struct gen *gen;            /* the engine's; NULL until it has accepted, and after the end */
    struct gen_options options; /* of the request; stops and bias copied below */
    unsigned given;
    uint64_t user;
    bool is_chat;
    bool has_begun;    /* the prompt stands, ASYNC has its id: from here on an end entry is due */
    bool key_is_going; /* answer now, and say so */
    bool resumes;      /* end entries of an orphan go on */
    struct token_run *opening;          /* shares; becomes the end entries' run */
    struct generation_branch *branches; /* [n_branches] owns */
    int32_t n_branches;
    struct timer orphan; /* runs while nobody waits, unless it belongs to nobody */
    struct list waiters; /* of struct gen_waiter.node */
};

/* generation.c */
extern const struct gen_events generation_events;
struct generation *generation_new(struct key *key, struct attempt *attempt,
                                  const struct gen_request *request);
/* The prompt goes into the stream, ASYNC gets its id. Room was reserved. Harmless twice. */
void generation_begin(struct generation *g);
/* What end facts of a branch have of the generation and its request; borrowed from it. */
void generation_describe(const struct generation *g, int32_t branch, struct end_facts *facts);
/* Refused: an error to all who wait, or an error entry when it has begun. Frees it. */
void generation_refuse(struct generation *g, const char *error);
/* Ends it now at any stage; true when `finish` became its finish. Frees it. */
bool generation_stop(struct generation *g, enum gen_finish finish);

/* Field `prompt-logprobs` of the entry that this branch goes on from, or had ended with; data NULL:
 * there is none. */
static inline struct bytes prompt_logprobs_of(const struct generation_branch *branch)
{
    const struct entry *entry = branch->resumed ? branch->resumed : branch->end;
    return entry ? entry_field(entry, "prompt-logprobs") : (struct bytes){NULL, 0};
}

/* resume.c */
void resume_take(struct generation *g, const struct end_group *resumed);
int resume_check(const struct generation *g, struct err *err);
struct gen_start *resume_starts(const struct generation *g);
void resume_take_out(struct generation *g);
void resume_pieces(struct generation *g, bool have_gone);

/* gen_info.c */
void generation_note_last(const struct generation *g);

/* waiter.c */
void waiter_attach(struct generation *g, struct gen_waiter *waiter, int64_t block_ms);
void waiter_answer_error(struct gen_waiter *waiter, const char *error);
void waiter_answer_id(struct gen_waiter *waiter, struct stream_id id);
void waiter_answer_end(struct gen_waiter *waiter, struct key *key, const struct end_group *ends);
void waiters_answer_id(struct generation *g);                       /* those who want it */
void waiters_answer_error(struct generation *g, const char *error); /* all */
void waiters_hand_end(struct generation *g);                        /* all, to the ready list */

#endif
