/* conversation.h - what entries mean to the model: kinds, prompts, end entries, the sequence of
 * ids.
 *
 * A build turns a key's entries into the ids that the model sees. It is filled by the main thread
 * (which counts references), run by the main thread or by a job thread (which only reads entries
 * and writes into the build), and installed by the main thread, so that what was tokenised once
 * stays. */
#ifndef KEYSPACE_CONVERSATION_H
#define KEYSPACE_CONVERSATION_H

#include "base/jobs.h"
#include "keyspace/keys.h"

/* What XADD's fields make; -1: both kinds at once, or one of their fields twice. */
int conversation_kind_of(const struct bytes *fields, int32_t n_fields, enum entry_kind *kind,
                         struct err *err);
/* Sets kind, role and text of a new entry from its fields. */
void conversation_set_kind(struct entry *entry, enum entry_kind kind);
/* May a GEN without a prompt go on here? -1 with the reason. *inside: it goes on inside an answer
 * that is not finished, else it starts one; *is_chat: the answer is a chat turn. */
int conversation_may_go_on(const struct stream *s, bool *inside, bool *is_chat, struct err *err);
/* stop, error: an answer that is over; the others may be gone on with. */
bool conversation_is_unfinished(enum gen_finish finish);

/* What an end entry says beside its text. */
struct end_facts {
    enum gen_finish finish;
    bool is_chat;
    bool was_submitted;         /* the engine had accepted it: the numbers apply */
    struct bytes text, matched; /* matched: data NULL when none */
    const int32_t *ids;
    int32_t n_ids;
    struct bytes unfinished; /* at most 3 bytes */
    int32_t n_prompt, n_cached, n_generated;
    uint64_t seed;
    struct bytes id; /* empty: GEN had none */
    int64_t queued_ms, prefill_ms, decode_ms;
    const char *error;
    struct bytes logprobs, prompt_logprobs; /* data NULL: nobody asked */
    int32_t branch;
    bool tells_branch;      /* GEN had N or BEAM: the field `branch` */
    bool is_beam;           /* nothing was drawn: no seed */
    struct stream_id group; /* of the entry */
    bool is_small;          /* no text, no ids: of a size that is ours */
};
/* What a number of an end entry says; 0 when it has none. */
int64_t conversation_end_number(const struct entry *end, const char *name);
uint64_t conversation_end_seed(const struct entry *end);
/* NULL when memory is gone, unless it is small. */
struct entry *conversation_end_entry(struct stream_id id, const struct end_facts *facts);

/* The ids of the first text_len bytes of an answer: whole tokens as they were generated, then the
 * rest of a cut one tokenised anew. carry: bytes that text begins with and ids do not hold. */
void conversation_cut(const struct tokenizer *t, const int32_t *ids, int32_t n_ids, size_t n_carry,
                      struct bytes text, size_t text_len, struct ids *out);

struct build_item {
    struct entry *entry;    /* shares */
    struct token_run *run;  /* shares; as the slot held it, may not fit any more */
    struct token_run *made; /* owns a reference; made here */
    struct ids text_ids;    /* owns; made here for a text without ids */
    bool had_ids;           /* entry->has_ids when the build was filled: later only main reads it */
    int64_t slot;           /* index in the stream; -1: the prompt, which is not in it yet */
};
struct build {
    struct job job;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat; /* or NULL, and chat_error says why */
    const char *chat_error;
    int32_t n_context;        /* tokens; a longer sequence fails early */
    struct build_item *items; /* [n] owns */
    int32_t n, cap;
    bool is_chat; /* an answer is opened after the last entry, if none is open */
    void (*done)(struct build *build); /* main thread, after a job */
    void *owner;
    /* what it makes */
    bool failed;
    struct err err;            /* with prefix */
    struct ids ids;            /* owns; the sequence */
    struct token_run *opening; /* shares; the ids that open the answer; NULL: none needed */
    char carry[4];             /* bytes of an unfinished character to be delivered first */
    int32_t n_carry;
};
/* Of entries [0, n) and then the prompt, which may be NULL. NULL when memory is gone. */
struct build *build_new(const struct keyspace_config *config, const struct stream *s, size_t n,
                        struct entry *prompt);
size_t build_bytes_to_tokenise(const struct build *build);
void build_run(struct build *build);
/* Called when the stream holds the entries that it held at build_new, with the prompt at its end if
 * there was one: what was made goes into the slots. */
void build_install(struct build *build, struct stream *s);
void build_free(struct build *build); /* accepts NULL */

#endif
