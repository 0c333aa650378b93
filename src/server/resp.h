/* resp.h - reads requests of the Redis protocol out of bytes that may be cut anywhere. */
#ifndef SERVER_RESP_H
#define SERVER_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"

enum {
    RESP_MAX_ARGS = 1024 * 1024, /* as Redis 7 */
    RESP_MAX_LINE = 64 * 1024,   /* an inline request, or a line that holds a count */
    RESP_AUTH_ARGS = 10,         /* before AUTH: CVE-2021-32675, few bytes ask for much memory */
    RESP_AUTH_BULK = 16 * 1024,
    RESP_AUTH_QUERY = 1024 * 1024,
};

struct resp_limits {
    bool authenticated;     /* else the three limits above hold */
    size_t max_bulk_bytes;  /* proto-max-bulk-len */
    size_t max_query_bytes; /* client-query-buffer-limit: one request with what keeps it */
};

/* One complete request. args[i].data is followed by a NUL that len does not count. */
struct request {
    struct bytes *args; /* [n_args] owns the array, borrows from body */
    int n_args;
    char *body; /* owns */
};
void request_free(struct request *q);

enum resp_status {
    RESP_MORE,   /* all bytes used, no request yet */
    RESP_READY,  /* reader->request holds one, until the next call or resp_take */
    RESP_BROKEN, /* err holds "Protocol error: ..."; the connection has to end */
};

enum resp_state {
    RESP_START,
    RESP_COUNT_LINE,
    RESP_BULK_START,
    RESP_BULK_LINE,
    RESP_BULK_BODY,
    RESP_BULK_END,
    RESP_INLINE,
};

/* Zero-initialise; resp_free at the end. */
struct resp_reader {
    enum resp_state state;
    struct request request; /* being built, or complete after RESP_READY */
    bool ready;             /* the request was handed out: the next call drops it */
    int64_t args_left;      /* of the header, not yet complete */
    int args_cap;
    size_t body_len, body_cap;
    size_t bulk_left; /* bytes of the argument still to come */
    char *line;       /* owns; a partial line, kept between calls only */
    size_t line_len, line_cap;
};

/* Reads from data and says in *used how many bytes it took. limits may change between calls. */
enum resp_status resp_read(struct resp_reader *r, const struct resp_limits *limits,
                           const char *data, size_t len, size_t *used, struct err *err);
/* Hands the complete request over to the caller, who frees it. */
struct request resp_take(struct resp_reader *r);
size_t resp_bytes(const struct resp_reader *r); /* memory held */
bool resp_is_idle(const struct resp_reader *r); /* between two requests */
void resp_rest(struct resp_reader *r); /* gives memory back when idle; drops a handed out request */
void resp_free(struct resp_reader *r);

#endif
