/* resp.c - reads requests of the Redis protocol out of bytes that may be cut anywhere.
 *
 * A request is an array of bulk strings (`*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`) or one inline line
 * that a person types. The reader is a state machine that is pushed bytes and keeps only what it
 * has not yet handed out, so the answer never depends on how the network cut the stream.
 *
 *     START --'*'--> COUNT_LINE --> BULK_START --'$'--> BULK_LINE --> BULK_BODY --> BULK_END --+
 *       |                              ^                                                      |
 *       +--other--> INLINE             +------------------------- arguments left -------------+
 *
 * Memory grows with what arrives and never with what a header promises: `*1048576` costs nothing,
 * `$16777216` costs as many bytes as have come, doubled. All arguments of a request lie in one
 * body, each with a NUL behind it; pointers are set when the request is complete, since the body
 * moves as it grows. What it costs is counted against client-query-buffer-limit with the pointers
 * included: a million arguments of one byte are 17 MiB, not 1.
 *
 * Stricter than Redis, which differs between its own versions: counts have no sign, blank or
 * leading zero, CR must be followed by LF, and so must a bulk. `*0`, `*-1` and empty lines are
 * nothing at all, and leave the reader as new (CVE-2026-27623). Runs on the main thread. */
#include "server/resp.h"

#include <string.h>
#include "base/mem.h"
#include "base/option.h"

enum {
    FIRST_ARGS = 8, /* most commands fit */
    FIRST_BODY = 256,
    KEEP_BODY = 1024, /* what an idle reader may keep: 2,000 of them are 2 MiB */
};

static enum resp_status broken(struct err *err, const char *what)
{
    (void)err_set(err, "Protocol error: %s", what);
    return RESP_BROKEN;
}

void request_free(struct request *q)
{
    try_free(MEM_CLIENT, q->args);
    try_free(MEM_CLIENT, q->body);
    *q = (struct request){0};
}

/* Makes room for `more` bytes of body and a NUL. */
static bool body_room(struct resp_reader *r, size_t more)
{
    size_t need = r->body_len + more + 1;
    if (need <= r->body_cap)
        return true;
    size_t cap = r->body_cap ? r->body_cap : FIRST_BODY;
    while (cap < need)
        cap *= 2;
    char *body = try_realloc(MEM_CLIENT, r->request.body, cap);
    if (!body)
        return false;
    r->request.body = body;
    r->body_cap = cap;
    return true;
}

/* Opens one more argument of length 0 at the end of the body. */
static bool arg_open(struct resp_reader *r)
{
    if (r->request.n_args == r->args_cap) {
        int cap = r->args_cap ? r->args_cap * 2 : FIRST_ARGS;
        struct bytes *args = try_realloc(MEM_CLIENT, r->request.args, sizeof(*args) * (size_t)cap);
        if (!args)
            return false;
        r->request.args = args;
        r->args_cap = cap;
    }
    r->request.args[r->request.n_args++] = (struct bytes){NULL, 0};
    return body_room(r, 0);
}

static bool arg_append(struct resp_reader *r, const char *data, size_t len)
{
    if (!body_room(r, len))
        return false;
    memcpy(r->request.body + r->body_len, data, len);
    r->body_len += len;
    r->request.args[r->request.n_args - 1].len += len;
    return true;
}

static void arg_close(struct resp_reader *r)
{
    r->request.body[r->body_len++] = '\0';
}

/* Sets the pointers: arguments lie in order, each followed by its NUL. */
static enum resp_status finish(struct resp_reader *r)
{
    char *at = r->request.body;
    for (int i = 0; i < r->request.n_args; i++) {
        r->request.args[i].data = at;
        at += r->request.args[i].len + 1;
    }
    r->state = RESP_START;
    r->ready = true;
    return RESP_READY;
}

/* Forgets the request that was handed out. Its room is used again, unless it is large. */
static void renew(struct resp_reader *r)
{
    r->request.n_args = 0;
    r->body_len = 0;
    r->ready = false;
    if (r->body_cap > KEEP_BODY || r->args_cap > FIRST_ARGS) {
        request_free(&r->request);
        r->body_cap = 0;
        r->args_cap = 0;
    }
}

static bool over_query(const struct resp_reader *r, const struct resp_limits *limits)
{
    size_t limit = limits->max_query_bytes;
    if (!limits->authenticated && limit > RESP_AUTH_QUERY)
        limit = RESP_AUTH_QUERY;
    return r->body_len + (size_t)r->request.n_args * sizeof(struct bytes) > limit;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool line_keep(struct resp_reader *r, const char *data, size_t len)
{
    if (r->line_len + len > r->line_cap) {
        size_t cap = r->line_cap ? r->line_cap : 64;
        while (cap < r->line_len + len)
            cap *= 2;
        char *line = try_realloc(MEM_CLIENT, r->line, cap);
        if (!line)
            return false;
        r->line = line;
        r->line_cap = cap;
    }
    memcpy(r->line + r->line_len, data, len);
    r->line_len += len;
    return true;
}

static void line_drop(struct resp_reader *r)
{
    r->line_len = 0;
    if (r->line_cap > FIRST_BODY) {
        try_free(MEM_CLIENT, r->line);
        r->line = NULL;
        r->line_cap = 0;
    }
}

/* Looks for LF. RESP_READY: *line is the line without LF, from data or from what was kept; the
 * caller drops the line when it has read it. A line over the limit is refused whether or not its
 * end has come, so that the answer does not depend on the cut. */
static enum resp_status line_read(struct resp_reader *r, const char *data, size_t len, size_t *used,
                                  struct bytes *line, const char *too_big, struct err *err)
{
    const char *end = memchr(data, '\n', len);
    size_t n = end ? (size_t)(end - data) : len;
    if (r->line_len + n > RESP_MAX_LINE)
        return broken(err, too_big);
    *used += end ? n + 1 : n;
    if (end && r->line_len == 0) {
        *line = (struct bytes){data, n};
        return RESP_READY;
    }
    if (!line_keep(r, data, n))
        return broken(err, "out of memory");
    *line = (struct bytes){r->line, r->line_len};
    return end ? RESP_READY : RESP_MORE;
}

/* A line that holds a count ends in CR LF. A bare LF is a byte of the line, as in Redis: LF-only
 * requests wait until a CR or the limit comes. A CR not followed by LF is refused. */
static enum resp_status count_line_read(struct resp_reader *r, const char *data, size_t len,
                                        size_t *used, struct bytes *line, const char *too_big,
                                        struct err *err)
{
    size_t at = 0;
    while (at < len) {
        if (r->line_len > 0 && r->line[r->line_len - 1] == '\r') {
            if (data[at] != '\n')
                return broken(err, "expected LF after CR");
            *used += at + 1;
            *line = (struct bytes){r->line, r->line_len - 1};
            return RESP_READY;
        }
        const char *cr = memchr(data + at, '\r', len - at);
        size_t n = cr ? (size_t)(cr - data) - at + 1 : len - at;
        if (r->line_len + n > RESP_MAX_LINE)
            return broken(err, too_big);
        if (cr && r->line_len == 0 && at + n < len && data[at + n] == '\n') {
            *line = (struct bytes){data + at, n - 1};
            *used += at + n + 1;
            return RESP_READY;
        }
        if (!line_keep(r, data + at, n))
            return broken(err, "out of memory");
        at += n;
    }
    *used += at;
    return RESP_MORE;
}

/* ---- states ---------------------------------------------------------------------------------- */

static enum resp_status read_start(struct resp_reader *r, char first, size_t *used, struct err *err)
{
    if (first == '*') {
        *used += 1;
        r->state = RESP_COUNT_LINE;
        return RESP_MORE;
    }
    /* First byte of a TLS record: its reader waits for ours, so a plain answer has to end it. */
    if (first == 0x16)
        return broken(err, "TLS record on a port without TLS");
    r->state = RESP_INLINE;
    return RESP_MORE;
}

static enum resp_status read_count(struct resp_reader *r, const struct resp_limits *limits,
                                   const char *data, size_t len, size_t *used, struct err *err)
{
    struct bytes line;
    enum resp_status s =
        count_line_read(r, data, len, used, &line, "too big mbulk count string", err);
    if (s != RESP_READY)
        return s;
    int64_t n;
    bool ok = parse_i64(line, &n) && n <= RESP_MAX_ARGS;
    line_drop(r);
    if (!ok)
        return broken(err, "invalid multibulk length");
    if (!limits->authenticated && n > RESP_AUTH_ARGS)
        return broken(err, "unauthenticated multibulk length");
    r->args_left = n > 0 ? n : 0;
    r->state = n > 0 ? RESP_BULK_START : RESP_START;
    return RESP_MORE;
}

static enum resp_status read_bulk_start(struct resp_reader *r, char first, size_t *used,
                                        struct err *err)
{
    if (first != '$') {
        char printable = first > 0x20 && first < 0x7f ? first : '?';
        (void)err_set(err, "Protocol error: expected '$', got '%c'", printable);
        return RESP_BROKEN;
    }
    *used += 1;
    r->state = RESP_BULK_LINE;
    return RESP_MORE;
}

static enum resp_status read_bulk_line(struct resp_reader *r, const struct resp_limits *limits,
                                       const char *data, size_t len, size_t *used, struct err *err)
{
    struct bytes line;
    enum resp_status s =
        count_line_read(r, data, len, used, &line, "too big bulk count string", err);
    if (s != RESP_READY)
        return s;
    int64_t n;
    bool ok = parse_i64(line, &n) && n >= 0 && (uint64_t)n <= limits->max_bulk_bytes;
    line_drop(r);
    if (!ok)
        return broken(err, "invalid bulk length");
    if (!limits->authenticated && n > RESP_AUTH_BULK)
        return broken(err, "unauthenticated bulk length");
    if (!arg_open(r))
        return broken(err, "out of memory");
    r->bulk_left = (size_t)n;
    r->state = n > 0 ? RESP_BULK_BODY : RESP_BULK_END;
    return RESP_MORE;
}

static enum resp_status read_bulk_body(struct resp_reader *r, const struct resp_limits *limits,
                                       const char *data, size_t len, size_t *used, struct err *err)
{
    size_t n = len < r->bulk_left ? len : r->bulk_left;
    if (!arg_append(r, data, n))
        return broken(err, "out of memory");
    if (over_query(r, limits))
        return broken(err, "request over client-query-buffer-limit");
    *used += n;
    r->bulk_left -= n;
    if (r->bulk_left == 0)
        r->state = RESP_BULK_END;
    return RESP_MORE;
}

static enum resp_status read_bulk_end(struct resp_reader *r, const struct resp_limits *limits,
                                      const char *data, size_t len, size_t *used, struct err *err)
{
    static const char end[2] = {'\r', '\n'};
    while (len > 0 && r->line_len < 2) {
        if (*data != end[r->line_len])
            return broken(err, "expected CR LF after a bulk string");
        r->line_len++; /* here a count of matched bytes: the line itself is empty */
        data++, len--, *used += 1;
    }
    if (r->line_len < 2)
        return RESP_MORE;
    r->line_len = 0;
    arg_close(r);
    if (over_query(r, limits))
        return broken(err, "request over client-query-buffer-limit");
    r->state = RESP_BULK_START;
    return --r->args_left == 0 ? finish(r) : RESP_MORE;
}

/* Splits the line into the request's arguments; RESP_MORE when it holds none. */
static enum resp_status split_inline(struct resp_reader *r, const struct resp_limits *limits,
                                     struct bytes line, struct err *err)
{
    int max = (int)(line.len / 2 + 1);
    struct str *words = try_malloc(MEM_CLIENT, sizeof(*words) * (size_t)max);
    if (!words)
        return broken(err, "out of memory");
    memset(words, 0, sizeof(*words) * (size_t)max);
    enum resp_status status = RESP_MORE;
    int n = option_split(line, words, max);
    if (n < 0)
        status = broken(err, "unbalanced quotes in request");
    else if (!limits->authenticated && n > RESP_AUTH_ARGS)
        status = broken(err, "unauthenticated multibulk length");
    for (int i = 0; i < n && status == RESP_MORE; i++) {
        if (!limits->authenticated && words[i].len > RESP_AUTH_BULK)
            status = broken(err, "unauthenticated bulk length");
        else if (!arg_open(r) || !arg_append(r, bytes_of(&words[i]).data, words[i].len))
            status = broken(err, "out of memory");
        else
            arg_close(r);
    }
    for (int i = 0; i < n; i++)
        str_free(&words[i]);
    try_free(MEM_CLIENT, words);
    return status == RESP_MORE && n > 0 ? finish(r) : status;
}

static enum resp_status read_inline(struct resp_reader *r, const struct resp_limits *limits,
                                    const char *data, size_t len, size_t *used, struct err *err)
{
    struct bytes line;
    enum resp_status s = line_read(r, data, len, used, &line, "too big inline request", err);
    if (s != RESP_READY)
        return s;
    if (line.len > 0 && line.data[line.len - 1] == '\r')
        line.len--;
    r->state = RESP_START;
    s = split_inline(r, limits, line, err);
    line_drop(r);
    return s;
}

/* ---- the reader ------------------------------------------------------------------------------ */

static enum resp_status step(struct resp_reader *r, const struct resp_limits *limits,
                             const char *data, size_t len, size_t *used, struct err *err)
{
    switch (r->state) {
    case RESP_START:
        return read_start(r, *data, used, err);
    case RESP_COUNT_LINE:
        return read_count(r, limits, data, len, used, err);
    case RESP_BULK_START:
        return read_bulk_start(r, *data, used, err);
    case RESP_BULK_LINE:
        return read_bulk_line(r, limits, data, len, used, err);
    case RESP_BULK_BODY:
        return read_bulk_body(r, limits, data, len, used, err);
    case RESP_BULK_END:
        return read_bulk_end(r, limits, data, len, used, err);
    case RESP_INLINE:
        return read_inline(r, limits, data, len, used, err);
    }
    return broken(err, "unknown state");
}

enum resp_status resp_read(struct resp_reader *r, const struct resp_limits *limits,
                           const char *data, size_t len, size_t *used, struct err *err)
{
    *used = 0;
    if (r->ready)
        renew(r);
    enum resp_status s = RESP_MORE;
    while (s == RESP_MORE && *used < len)
        s = step(r, limits, data + *used, len - *used, used, err);
    return s;
}

struct request resp_take(struct resp_reader *r)
{
    ASSERT(r->ready);
    struct request q = r->request;
    r->request = (struct request){0};
    r->body_len = r->body_cap = 0;
    r->args_cap = 0;
    r->ready = false;
    return q;
}

size_t resp_bytes(const struct resp_reader *r)
{
    return r->body_cap + r->line_cap + (size_t)r->args_cap * sizeof(struct bytes);
}

bool resp_is_idle(const struct resp_reader *r)
{
    return r->state == RESP_START;
}

void resp_rest(struct resp_reader *r)
{
    if (r->ready)
        renew(r);
    if (!resp_is_idle(r))
        return;
    request_free(&r->request);
    try_free(MEM_CLIENT, r->line);
    *r = (struct resp_reader){0};
}

void resp_free(struct resp_reader *r)
{
    request_free(&r->request);
    try_free(MEM_CLIENT, r->line);
    *r = (struct resp_reader){0};
}
