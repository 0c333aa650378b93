/* cmd_xread.c - XREAD, also blocking: the live side of a conversation, pieces included.
 *
 * A blocked XREAD keeps what it asked for (names, cursors, COUNT) in a struct xread; the keyspace
 * wakes it through the reader and the same code reads again, all keys at once. A wake that finds
 * nothing leaves the timeout running (redis#13004). The lists are allocated from the number of
 * arguments that have arrived, never on the stack (CVE-2025-62507). */
#include "server/xread.h"

#include <string.h>
#include "base/mem.h"
#include "keyspace/watch.h"
#include "server/command.h"
#include "server/server.h"
#include "server/stream_reply.h"

struct xread {
    int32_t n, db;
    int64_t count;            /* -1: all */
    struct bytes *names;      /* [n] owns the array; borrows from the request, or from copies */
    struct stream_id *afters; /* [n] owns */
    char *copies;             /* owns; NULL while the request stands */
};

void xread_free(struct xread *x)
{
    if (!x)
        return;
    try_free(MEM_CLIENT, x->names);
    try_free(MEM_CLIENT, x->afters);
    try_free(MEM_CLIENT, x->copies);
    xfree(x);
}

/* ---- reading ---------------------------------------------------------------------------------- */

/* Appends [name, entries] of one key; false when there is nothing new in it. */
static bool read_one(struct client *c, const struct xread *x, int32_t i)
{
    struct reply *r = &c->reply;
    struct key *key = c->blocked == BLOCK_READ /* its misses were told when it came */
                          ? keys_find(c->server->keys, x->db, x->names[i])
                          : keys_find_read(c->server->keys, x->db, x->names[i]);
    if (!key)
        return false;
    size_t start = reply_hold(r);
    if (r->protocol < 3)
        reply_array(r, 2);
    reply_bulk(r, x->names[i]);
    size_t at = reply_hold(r);
    command_touch(c, key);
    int64_t n = keys_read(key, x->afters[i], x->count, reply_entry_visit, r);
    if (n == 0) {
        r->out->len = start;
        return false;
    }
    reply_array_at(r, at, n);
    return true;
}

/* Writes the reply when something is there; false, and nothing is written, when not. */
static bool read_all(struct client *c, const struct xread *x)
{
    struct reply *r = &c->reply;
    size_t at = reply_hold(r);
    int64_t n = 0;
    for (int32_t i = 0; i < x->n && !r->over; i++)
        n += read_one(c, x, i);
    if (n == 0 && !r->over)
        return false;
    if (r->protocol >= 3)
        reply_map_at(r, at, n);
    else
        reply_array_at(r, at, n);
    return true;
}

/* ---- waiting ---------------------------------------------------------------------------------- */

static void end_wait(struct client *c)
{
    xread_free(c->xread);
    c->xread = NULL;
    client_unblock(c);
}

/* Looks every key up once: one that has expired while it generates is removed by that, and its readers,
 * this one too, are served from inside. False: that has happened. */
static bool settle_keys(struct client *c)
{
    const struct xread *x = c->xread;
    for (int32_t i = 0; c->xread == x && i < x->n; i++)
        (void)keys_find(c->server->keys, x->db, x->names[i]);
    return c->xread == x;
}

static void on_ready(struct reader *reader)
{
    struct client *c = reader->owner;
    if (!settle_keys(c))
        return;
    client_answer_begin(c);
    bool has_come = read_all(c, c->xread);
    client_answer_end(c);
    if (!has_come)
        return;
    reader_leave(reader);
    end_wait(c);
}

static void on_timeout(struct reader *reader)
{
    struct client *c = reader->owner;
    client_answer_begin(c);
    reply_null_array(&c->reply);
    client_answer_end(c);
    end_wait(c);
}

/* The names move out of the request, which does not live as long. False: no memory. */
static bool keep_names(struct xread *x)
{
    size_t total = 0;
    for (int32_t i = 0; i < x->n; i++)
        total += x->names[i].len;
    x->copies = try_malloc(MEM_CLIENT, total + 1);
    if (!x->copies)
        return false;
    char *at = x->copies;
    for (int32_t i = 0; i < x->n; i++) {
        memcpy(at, x->names[i].data, x->names[i].len);
        x->names[i].data = at;
        at += x->names[i].len;
    }
    return true;
}

static void wait(struct client *c, struct xread *x, int64_t block_ms)
{
    if (!keep_names(x)) {
        reply_error(&c->reply, "OOM no memory to wait for %d streams", x->n);
        xread_free(x);
        return;
    }
    c->xread = x;
    c->blocked = BLOCK_READ;
    c->reader_wait.owner = c;
    c->reader_wait.ready = on_ready;
    c->reader_wait.timeout = on_timeout;
    reader_wait(c->server->keys, &c->reader_wait, x->db, x->names, x->afters, x->n, block_ms);
}

/* ---- the command ------------------------------------------------------------------------------ */

struct options {
    int64_t count, block_ms; /* block_ms -1: does not block */
    int streams_at;          /* index of the first key; 0: no STREAMS */
};

/* Consumer groups are XREADGROUP's; Redis tells its callers so. */
static bool is_group_word(const struct request *q, int i)
{
    return (bytes_equal_nocase(q->args[i], "group") && i + 2 < q->n_args) ||
           bytes_equal_nocase(q->args[i], "noack");
}

static bool parse_options(struct client *c, const struct request *q, struct options *o)
{
    *o = (struct options){.count = -1, .block_ms = -1};
    for (int i = 1; i < q->n_args; i += 2) {
        if (bytes_equal_nocase(q->args[i], "streams") && i + 1 < q->n_args) {
            o->streams_at = i + 1;
            return true;
        }
        if (is_group_word(q, i)) {
            reply_error(&c->reply,
                        "ERR The %s option is only supported by XREADGROUP. You called "
                        "XREAD instead.",
                        bytes_equal_nocase(q->args[i], "group") ? "GROUP" : "NOACK");
            return false;
        }
        bool is_count = bytes_equal_nocase(q->args[i], "count");
        if (i + 1 >= q->n_args || (!is_count && !bytes_equal_nocase(q->args[i], "block")))
            break;
        int64_t value;
        const char *fault = NULL;
        if (!parse_i64(q->args[i + 1], &value))
            fault = is_count ? "ERR value is not an integer or out of range"
                             : "ERR timeout is not an integer or out of range";
        else if (!is_count && value < 0)
            fault = "ERR timeout is negative";
        if (fault) {
            reply_error(&c->reply, "%s", fault);
            return false;
        }
        if (is_count)
            o->count = value > 0 ? value : -1; /* 0 and less are no limit, as in Redis */
        else
            o->block_ms = value;
    }
    reply_syntax_error(&c->reply);
    return false;
}

/* "$" is the greatest id of the key at this moment. */
static bool parse_cursor(struct client *c, struct xread *x, int32_t i, struct bytes text)
{
    if (bytes_equal(text, BYTES("$"))) {
        struct key *key = keys_find(c->server->keys, x->db, x->names[i]);
        x->afters[i] = key ? key_last_id(key) : STREAM_ID_MIN;
        return true;
    }
    if (bytes_equal(text, BYTES(">"))) {
        reply_error(&c->reply, "ERR The > ID can be specified only when calling XREADGROUP using "
                               "the GROUP <group> <consumer> option.");
        return false;
    }
    if (stream_id_parse(text, 0, &x->afters[i]))
        return true;
    reply_error(&c->reply, "ERR Invalid stream ID specified as stream command argument");
    return false;
}

static struct xread *xread_new(struct client *c, const struct request *q, const struct options *o)
{
    int n_words = q->n_args - o->streams_at;
    if (n_words % 2 != 0) {
        reply_error(&c->reply, "ERR Unbalanced XREAD list of streams: for each stream key an ID or "
                               "'$' must be specified.");
        return NULL;
    }
    struct xread *x = xcalloc(1, sizeof *x);
    x->n = n_words / 2;
    x->db = c->db;
    x->count = o->count;
    x->names = try_malloc(MEM_CLIENT, sizeof *x->names * (size_t)x->n);
    x->afters = try_malloc(MEM_CLIENT, sizeof *x->afters * (size_t)x->n);
    bool ok = x->names && x->afters;
    if (!ok)
        reply_error(&c->reply, "OOM no memory to read %d streams", x->n);
    for (int32_t i = 0; i < x->n && ok; i++) {
        x->names[i] = q->args[o->streams_at + i];
        ok = parse_cursor(c, x, i, q->args[o->streams_at + x->n + i]);
    }
    if (ok)
        return x;
    xread_free(x);
    return NULL;
}

static void run_xread(struct client *c, const struct request *q)
{
    struct options o;
    if (!parse_options(c, q, &o))
        return;
    struct xread *x = xread_new(c, q, &o);
    if (!x)
        return;
    if (read_all(c, x)) {
        xread_free(x);
    } else if (o.block_ms >= 0 && !c->in_exec && c->server->state < SERVER_STOPPING) {
        wait(c, x, o.block_ms);
    } else {
        reply_null_array(&c->reply);
        xread_free(x);
    }
}

/* The keys are the first half behind STREAMS. */
static bool find_keys(const struct request *q, struct key_positions *positions)
{
    for (int i = 1; i < q->n_args; i++) {
        if (!bytes_equal_nocase(q->args[i], "streams"))
            continue;
        int n = q->n_args - i - 1;
        if (n == 0 || n % 2 != 0)
            return false;
        for (int k = 0; k < n / 2; k++)
            key_positions_add(positions, i + 1 + k);
        return true;
    }
    return false;
}

// clang-format off
const struct command cmd_xread_table[] = {
    {.name = "xread", .arity = -4, .flags = CMD_READONLY | CMD_BLOCKING | CMD_MOVABLE_KEYS,
     .categories = "stream", .group = "stream", .since = "5.0.0",
     .complexity = "O(N) with N being the number of elements being returned",
     .summary = "Returns messages from multiple streams with IDs greater than the ones requested; "
                "blocks until a message is available otherwise.",
     .syntax = "[COUNT count:integer] [BLOCK milliseconds:integer] (STREAMS key:key... id...)",
     .run = run_xread, .keys = find_keys},
    {.name = NULL},
};
// clang-format on
