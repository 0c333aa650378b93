/* stream.h - ordered lists of immutable, counted entries with ids <ms>-<seq>; what Redis Streams
 * need.
 *
 * A stream knows ids, order and trimming. What an entry means to the model is in conversation.h;
 * the stream only carries each entry's kind, its token ids, and beside it the ids that depend on
 * what stands before it (token_run). Main thread only. */
#ifndef KEYSPACE_STREAM_H
#define KEYSPACE_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"
#include "engine/engine.h"
#include "model/chat.h"
#include "model/tokenizer.h"

struct stream_id {
    uint64_t ms, seq;
};
#define STREAM_ID_MIN ((struct stream_id){0, 0})
#define STREAM_ID_MAX ((struct stream_id){UINT64_MAX, UINT64_MAX})
enum { STREAM_ID_TEXT = 44 }; /* room for the text of an id with its NUL */

int stream_id_compare(struct stream_id a, struct stream_id b); /* <0, 0, >0 */
bool stream_id_next(struct stream_id *id);                     /* false: there is none above */
bool stream_id_previous(struct stream_id *id);                 /* false: there is none below */
int stream_id_format(char out[STREAM_ID_TEXT], struct stream_id id); /* length */
/* The number before or behind the dash: digits only, zeros in front allowed, as Redis. */
bool stream_id_parse_half(struct bytes text, uint64_t *half);
/* "<ms>-<seq>", or "<ms>" alone with the given seq. */
bool stream_id_parse(struct bytes text, uint64_t missing_seq, struct stream_id *id);
/* An end of XRANGE: also "-", "+" and "(id" (exclusive). is_start: a missing seq is 0, else the
 * highest; an exclusive bound is moved by one. -1 with Redis' error text, prefix included. */
int stream_id_parse_range(struct bytes text, bool is_start, struct stream_id *id, struct err *err);

enum entry_kind {
    ENTRY_OTHER,   /* no fields that we know: shown, ignored by the model */
    ENTRY_TEXT,    /* raw text */
    ENTRY_MESSAGE, /* a chat turn */
    ENTRY_END,     /* all that one generation made */
};

/* Immutable once it stands in a stream and shared (counted) between streams. One allocation holds
 * the struct, the field array and the bytes; the token ids are apart, since those of a text are
 * made when first needed. */
struct entry {
    int32_t refs;
    struct stream_id id;
    enum entry_kind kind;
    bool open;              /* MESSAGE: the beginning of an answer, no closing mark */
    bool is_chat;           /* END: an answer to a chat (role and content), else raw text */
    bool has_ids;           /* ids is valid (TEXT: made, or given with IDS; END: always) */
    enum gen_finish finish; /* END */
    int32_t branch;         /* END: of its generation */
    struct stream_id
        group;      /* END: names its generation; all its branches have the same (group.h) */
    struct ids ids; /* owns; TEXT and END: the ids of the text alone, without template marks */
    char carry[4];  /* END: bytes of an unfinished character that ids hold and text does not */
    int32_t n_carry;
    struct bytes role;     /* MESSAGE, END of a chat: borrowed from fields; data NULL: none */
    struct bytes text;     /* content or text, borrowed from fields; data NULL: none */
    size_t size_bytes;     /* of the allocation */
    int32_t n_fields;      /* pairs */
    struct bytes fields[]; /* [2 * n_fields] name, value, ...; borrowed from the tail */
};

/* A new entry with one reference that copies fields [2 * n_fields]. NULL when memory is gone. Kind
 * OTHER, everything else zero. */
struct entry *entry_new(struct stream_id id, const struct bytes *fields, int32_t n_fields);
/* The same for fields of which no client chose the size: never NULL. */
struct entry *entry_new_small(struct stream_id id, const struct bytes *fields, int32_t n_fields);
/* Hands the ids over. Called once for an entry, by the main thread. */
void entry_set_ids(struct entry *entry, struct ids ids);
struct entry *entry_take(struct entry *entry);
void entry_put(struct entry *entry); /* accepts NULL */
/* The value of a field, data NULL when absent. */
struct bytes entry_field(const struct entry *entry, const char *name);

/* Token ids that depend on what stands before the entry: a message with its marks, or what opens
 * the answer of an end entry. Immutable, shared (counted), valid where `before` equals the place it
 * is used at. */
struct token_run {
    int32_t refs;
    struct chat_state before, after;
    struct ids ids; /* owns */
};
/* Its ids are complete: they are counted from now on. Any thread. */
void token_run_count(const struct token_run *run);
struct token_run *token_run_take(struct token_run *run);
void token_run_put(struct token_run *run); /* accepts NULL */

struct stream_slot {
    struct entry *entry;   /* shares */
    struct token_run *run; /* shares; NULL: not made yet, or none needed */
};

/* Of 64 slots, a bit each, the lowest for the first. */
struct stream_marks {
    uint64_t known; /* its entry means something to the model: any kind but OTHER */
    uint64_t turns; /* it is a turn of a chat */
};

struct stream {
    struct stream_slot *slots;  /* [cap] owns; entries are slots[head .. head + n) in order of id */
    struct stream_marks *marks; /* [cap / 64 + 1] owns; only those of the entries are valid */
    size_t head, n, cap;
    struct stream_id last_id;     /* greatest id ever given, pieces included */
    struct stream_id max_deleted; /* greatest id that XDEL took; trimming leaves it, as in Redis */
    uint64_t entries_added;
};

struct stream *stream_new(void);
/* Frees at most max entries and returns false while some are left; true: the stream is gone. */
bool stream_free_slice(struct stream *stream, size_t max);
void stream_free(struct stream *stream); /* accepts NULL */
/* Same entries, last id and counters; only slots [0, n). NULL when memory is gone. */
struct stream *stream_copy(const struct stream *source, size_t n);

static inline struct stream_slot *stream_slot(const struct stream *s, size_t i)
{
    return &s->slots[s->head + i];
}
static inline struct entry *stream_entry(const struct stream *s, size_t i)
{
    return s->slots[s->head + i].entry;
}
/* Among what the model knows: the first at index i or behind (n: none), the last before i (-1: none),
 * how many before i, is any of them a turn of a chat. Quick however many others stand between. */
size_t stream_next_known(const struct stream *s, size_t i);
int64_t stream_previous_known(const struct stream *s, size_t i);
size_t stream_count_known(const struct stream *s, size_t i);
bool stream_has_turns(const struct stream *s);
/* Index of the first entry with an id of at least id; n when there is none. */
size_t stream_find(const struct stream *s, struct stream_id id);
/* The entry with exactly this id; -1 when it is not there. */
int64_t stream_index(const struct stream *s, struct stream_id id);

/* Makes room for `more` entries; false when memory is gone. After it stream_append cannot fail. */
bool stream_reserve(struct stream *s, size_t more);
/* Hands the entry over; its id must be above last_id. */
void stream_append(struct stream *s, struct entry *entry);
bool stream_delete(struct stream *s, struct stream_id id);
/* The same for many in one pass; the number that were there. */
size_t stream_delete_all(struct stream *s, const struct stream_id *ids, size_t n);
/* Entries with is_gone [n] vanish as if they had never been; the number of them. */
size_t stream_drop(struct stream *s, const bool *is_gone);

enum trim_kind { TRIM_NONE, TRIM_MAXLEN, TRIM_MINID };
struct stream_trim {
    enum trim_kind kind;
    bool about; /* "~": only whole hundreds of entries go */
    uint64_t max_len;
    struct stream_id min_id;
    uint64_t limit; /* of entries to go; 0: none */
};
/* Entries that went. Many at once are not freed here but handed over in *trimmed, for
 * stream_free_slice; NULL otherwise. */
uint64_t stream_trim(struct stream *s, const struct stream_trim *trim, struct stream **trimmed);
size_t stream_bytes(const struct stream *s); /* estimated from at most 4,096 entries */

#endif
