/* reply.h - writes replies of the Redis protocol, version 2 or 3. */
#ifndef SERVER_REPLY_H
#define SERVER_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/str.h"

enum { REPLY_ECHO_MAX = 128 }; /* bytes of an argument that an error text may repeat */

/* Where the replies of one client go. */
struct reply {
    struct str *out;   /* borrowed: the connection's output */
    int protocol;      /* 2 or 3 */
    size_t limit;      /* bytes of one reply; 0: none */
    size_t mark;       /* where the current reply begins in out */
    bool over;         /* it passed the limit: the rest is not written */
    uint64_t errors;   /* error replies so far, for EXEC and INFO */
    bool is_open;      /* between reply_begin and reply_end */
    struct str behind; /* owns; messages that came meanwhile, for reply_follow */
};

/* Every command's reply stands between these two. An overlong one is replaced by an error. */
void reply_begin(struct reply *r);
void reply_end(struct reply *r);
/* Drops the current reply when it is overlong, for a command that has better advice than COUNT and
 * writes its own error then. False: it is not. */
bool reply_drop_overlong(struct reply *r);
/* The messages that came while it was written follow it. */
void reply_follow(struct reply *r);

void reply_status(struct reply *r, const char *text); /* one line, ours */
void reply_ok(struct reply *r);
/* One line `-text`; text begins with the error's prefix. Control bytes become blanks. */
void reply_error(struct reply *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void reply_error_bytes(struct reply *r, struct bytes text);
void reply_int(struct reply *r, int64_t value);
void reply_bulk(struct reply *r, struct bytes data);
void reply_text(struct reply *r, const char *nul_terminated); /* a bulk string */
void reply_bulk_int(struct reply *r, int64_t value);          /* a number as a bulk string */
void reply_null(struct reply *r);                             /* $-1, or _ */
void reply_null_array(struct reply *r);                       /* *-1, or _ */
void reply_array(struct reply *r, int64_t n);
void reply_map(struct reply *r, int64_t n_pairs);        /* an array of 2n in version 2 */
void reply_set(struct reply *r, int64_t n);              /* an array in version 2 */
void reply_push(struct reply *r, int64_t n);             /* an array in version 2 */
void reply_verbatim(struct reply *r, struct bytes text); /* kind txt; a bulk string in version 2 */
void reply_raw(struct reply *r, struct bytes data);      /* a complete reply made elsewhere */

/* For counts that are known only behind their elements: the elements are written first, then the
 * header is put in front of them. at = reply_hold before the first element. */
size_t reply_hold(const struct reply *r);
void reply_array_at(struct reply *r, size_t at, int64_t n);
void reply_map_at(struct reply *r, size_t at, int64_t n_pairs);

/* Appends at most REPLY_ECHO_MAX bytes of an argument to an error text. */
void echo_append(struct str *out, struct bytes arg);

#endif
