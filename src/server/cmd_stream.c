/* cmd_stream.c - XADD XLEN XRANGE XREVRANGE XDEL XTRIM: conversations as Redis Streams.
 *
 * Syntax and error texts are those of Redis 7.0. What an entry means to the model, and that a
 * generating key refuses to be changed, is the keyspace's; pieces are seen by XREAD only. */
#include <string.h>
#include "base/mem.h"
#include "server/command.h"
#include "server/server.h"
#include "server/stream_reply.h"

void reply_stream_id(struct reply *r, struct stream_id id)
{
    char text[STREAM_ID_TEXT];
    int len = stream_id_format(text, id);
    reply_bulk(r, (struct bytes){text, (size_t)len});
}

void reply_entry(struct reply *r, const struct read_entry *entry)
{
    reply_array(r, 2);
    reply_stream_id(r, entry->id);
    reply_array(r, 2 * (int64_t)entry->n_fields);
    for (int32_t i = 0; i < 2 * entry->n_fields; i++)
        reply_bulk(r, entry->fields[i]);
}

void reply_entry_visit(void *arg, const struct read_entry *entry)
{
    reply_entry(arg, entry);
}

/* ---- XADD and XTRIM --------------------------------------------------------------------------- */

/* Where an option list is being read. */
struct trim_parse {
    struct client *c;
    const struct request *q;
    int i;
    struct stream_trim trim;
    bool has_limit;
};

/* MAXLEN or MINID at q->args[i]; leaves i at its last word. False: an error was written. */
static bool parse_strategy(struct trim_parse *p, enum trim_kind kind)
{
    struct reply *r = &p->c->reply;
    int left = p->q->n_args - 1 - p->i;
    if (p->trim.kind != TRIM_NONE) {
        reply_error(r, "ERR syntax error, MAXLEN and MINID options at the same time are not "
                       "compatible");
        return false;
    }
    p->trim.kind = kind;
    bool about = bytes_equal(p->q->args[p->i + 1], BYTES("~"));
    if (left >= 2 && (about || bytes_equal(p->q->args[p->i + 1], BYTES("=")))) {
        p->trim.about = about;
        p->i++;
    }
    struct bytes threshold = p->q->args[++p->i];
    if (kind == TRIM_MINID) {
        if (stream_id_parse(threshold, 0, &p->trim.min_id))
            return true;
        reply_error(r, "ERR Invalid stream ID specified as stream command argument");
        return false;
    }
    int64_t max_len;
    if (!parse_i64(threshold, &max_len)) {
        reply_not_integer(r);
        return false;
    }
    if (max_len < 0) {
        reply_error(r, "ERR The MAXLEN argument must be >= 0.");
        return false;
    }
    p->trim.max_len = (uint64_t)max_len;
    return true;
}

static bool parse_limit(struct trim_parse *p)
{
    int64_t limit;
    if (!parse_i64(p->q->args[++p->i], &limit)) {
        reply_not_integer(&p->c->reply);
        return false;
    }
    if (limit < 0) {
        reply_error(&p->c->reply, "ERR The LIMIT argument must be >= 0.");
        return false;
    }
    p->trim.limit = (uint64_t)limit;
    p->has_limit = true;
    return true;
}

enum trim_step { STEP_TAKEN, STEP_OTHER, STEP_FAILED };

/* One word of the options that XADD and XTRIM share. */
static enum trim_step parse_trim_word(struct trim_parse *p)
{
    struct bytes word = p->q->args[p->i];
    if (p->i + 1 >= p->q->n_args)
        return STEP_OTHER;
    bool ok;
    if (bytes_equal_nocase(word, "maxlen"))
        ok = parse_strategy(p, TRIM_MAXLEN);
    else if (bytes_equal_nocase(word, "minid"))
        ok = parse_strategy(p, TRIM_MINID);
    else if (bytes_equal_nocase(word, "limit"))
        ok = parse_limit(p);
    else
        return STEP_OTHER;
    return ok ? STEP_TAKEN : STEP_FAILED;
}

static bool check_trim(struct trim_parse *p, bool must_trim)
{
    const char *fault = NULL;
    if (p->has_limit && p->trim.kind == TRIM_NONE)
        fault = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy";
    else if (must_trim && p->trim.kind == TRIM_NONE)
        fault = "ERR syntax error, XTRIM must be called with a trimming strategy";
    else if (p->has_limit && !p->trim.about)
        fault = "ERR syntax error, LIMIT cannot be used without the special ~ option";
    if (fault)
        reply_error(&p->c->reply, "%s", fault);
    return !fault;
}

static bool xadd_parse(struct client *c, const struct request *q, struct xadd *add)
{
    struct trim_parse p = {.c = c, .q = q, .i = 2};
    for (; p.i < q->n_args; p.i++) {
        enum trim_step step = parse_trim_word(&p);
        if (step == STEP_FAILED)
            return false;
        if (step == STEP_TAKEN)
            continue;
        if (!bytes_equal_nocase(q->args[p.i], "nomkstream"))
            break;
        add->no_create = true;
    }
    struct err err;
    if (p.i < q->n_args && xadd_id_parse(q->args[p.i], add, &err) < 0) {
        reply_err(&c->reply, &err);
        return false;
    }
    if (!check_trim(&p, false))
        return false;
    int n_left = q->n_args - p.i - 1;
    if (n_left < 2 || n_left % 2 != 0) {
        reply_error(&c->reply, "ERR wrong number of arguments for 'xadd' command");
        return false;
    }
    add->trim = p.trim;
    add->fields = q->args + p.i + 1;
    add->n_fields = n_left / 2;
    return true;
}

static void run_xadd(struct client *c, const struct request *q)
{
    struct xadd add = {0};
    struct stream_id id;
    struct err err;
    if (!xadd_parse(c, q, &add))
        return;
    int rc = keys_xadd(c->server->keys, c->db, q->args[1], &add, &id, &err);
    if (rc < 0)
        reply_err(&c->reply, &err);
    else if (rc == 0)
        reply_null(&c->reply);
    else
        reply_stream_id(&c->reply, id);
}

static void run_xtrim(struct client *c, const struct request *q)
{
    struct trim_parse p = {.c = c, .q = q, .i = 2};
    for (; p.i < q->n_args; p.i++) {
        enum trim_step step = parse_trim_word(&p);
        if (step == STEP_TAKEN)
            continue;
        if (step == STEP_OTHER)
            reply_syntax_error(&c->reply);
        return;
    }
    struct err err;
    if (!check_trim(&p, true))
        return;
    int64_t n = keys_xtrim(c->server->keys, c->db, q->args[1], &p.trim, &err);
    if (n < 0)
        reply_err(&c->reply, &err);
    else
        reply_int(&c->reply, n);
}

/* ---- XDEL, XLEN ------------------------------------------------------------------------------- */

static void run_xdel(struct client *c, const struct request *q)
{
    if (!keys_find(c->server->keys, c->db, q->args[1])) { /* whatever the ids are */
        reply_int(&c->reply, 0);
        return;
    }
    int n = q->n_args - 2;
    struct stream_id *ids = try_malloc(MEM_CLIENT, sizeof *ids * (size_t)n);
    if (!ids) {
        reply_error(&c->reply, "OOM no memory for %d ids", n);
        return;
    }
    struct err err;
    int i = 0;
    while (i < n && stream_id_parse(q->args[i + 2], 0, &ids[i]))
        i++;
    int64_t deleted = 0;
    if (i < n)
        reply_error(&c->reply, "ERR Invalid stream ID specified as stream command argument");
    else if ((deleted = keys_xdel(c->server->keys, c->db, q->args[1], ids, n, &err)) < 0)
        reply_err(&c->reply, &err);
    else
        reply_int(&c->reply, deleted);
    try_free(MEM_CLIENT, ids);
}

static void run_xlen(struct client *c, const struct request *q)
{
    struct key *key = keys_find_read(c->server->keys, c->db, q->args[1]);
    if (key)
        command_touch(c, key);
    reply_int(&c->reply, key ? (int64_t)key_stream(key)->n : 0);
}

/* ---- XRANGE, XREVRANGE ------------------------------------------------------------------------ */

/* COUNT is the only option; -1: absent. False: an error was written. */
static bool parse_count(struct client *c, const struct request *q, int64_t *count)
{
    *count = -1;
    for (int i = 4; i < q->n_args; i += 2) {
        if (i + 1 >= q->n_args || !bytes_equal_nocase(q->args[i], "count")) {
            reply_syntax_error(&c->reply);
            return false;
        }
        if (!parse_i64(q->args[i + 1], count)) {
            reply_not_integer(&c->reply);
            return false;
        }
        if (*count < 0)
            *count = 0;
    }
    return true;
}

static void range(struct client *c, const struct request *q, bool reverse)
{
    struct stream_id low, high;
    struct err err;
    int64_t count;
    if (stream_id_parse_range(q->args[reverse ? 3 : 2], true, &low, &err) < 0 ||
        stream_id_parse_range(q->args[reverse ? 2 : 3], false, &high, &err) < 0) {
        reply_err(&c->reply, &err);
        return;
    }
    if (!parse_count(c, q, &count))
        return;
    struct key *key = keys_find_read(c->server->keys, c->db, q->args[1]);
    if (!key) {
        reply_array(&c->reply, 0);
        return;
    }
    if (count == 0) {
        reply_null_array(&c->reply);
        return;
    }
    command_touch(c, key);
    size_t at = reply_hold(&c->reply);
    int64_t n = keys_range(key, low, high, reverse, count, reply_entry_visit, &c->reply);
    reply_array_at(&c->reply, at, n);
}

static void run_xrange(struct client *c, const struct request *q)
{
    range(c, q, false);
}

static void run_xrevrange(struct client *c, const struct request *q)
{
    range(c, q, true);
}

// clang-format off
#define ONE_KEY .first_key = 1, .last_key = 1, .key_step = 1, .categories = "stream", \
                .group = "stream"
#define TRIMMING "<strategy: MAXLEN|MINID> [<operator: =|~>] threshold [LIMIT count:integer]"
const struct command cmd_stream_table[] = {
    {.name = "xadd", .arity = -5, .flags = CMD_WRITE | CMD_DENYOOM | CMD_FAST, ONE_KEY,
     .tips = "nondeterministic_output", .since = "5.0.0", .complexity = "O(1), O(N) when trimming",
     .summary = "Appends a new message to a stream. Creates the key if it doesn't exist.",
     .syntax = "key:key [NOMKSTREAM] [" TRIMMING "] <id-selector: *|id> (field value)...",
     .private_from = 2, .run = run_xadd},
    {.name = "xdel", .arity = -3, .flags = CMD_WRITE | CMD_FAST, ONE_KEY, .key_use = "RW delete", .since = "5.0.0",
     .complexity = "O(log N) for each id", .summary = "Removes messages from a stream.",
     .syntax = "key:key id...", .run = run_xdel},
    {.name = "xlen", .arity = 2, .flags = CMD_READONLY | CMD_FAST, ONE_KEY, .key_use = "RO", .since = "5.0.0",
     .complexity = "O(1)", .summary = "Returns the number of messages in a stream.",
     .syntax = "key:key", .run = run_xlen},
    {.name = "xrange", .arity = -4, .flags = CMD_READONLY, ONE_KEY, .since = "5.0.0",
     .complexity = "O(N) with N being the number of elements being returned",
     .summary = "Returns the messages from a stream within a range of IDs.",
     .syntax = "key:key start end [COUNT count:integer]", .run = run_xrange},
    {.name = "xrevrange", .arity = -4, .flags = CMD_READONLY, ONE_KEY, .since = "5.0.0",
     .complexity = "O(N) with N being the number of elements being returned",
     .summary = "Returns the messages from a stream within a range of IDs in reverse order.",
     .syntax = "key:key end start [COUNT count:integer]", .run = run_xrevrange},
    {.name = "xtrim", .arity = -4, .flags = CMD_WRITE, ONE_KEY, .key_use = "RW delete", .tips = "nondeterministic_output",
     .since = "5.0.0", .complexity = "O(N) with N being the number of evicted entries",
     .summary = "Deletes messages from the beginning of a stream.",
     .syntax = "key:key " TRIMMING, .run = run_xtrim},
    {.name = NULL},
};
// clang-format on
