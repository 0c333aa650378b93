/* cmd_xinfo.c - XINFO and XSETID: what a stream is made of, and its last id set by hand.
 *
 * Streams here have no consumer groups: GROUPS is the empty list of a stream without any, and
 * CONSUMERS is NOGROUP whatever the group. The names of radix trees stay for readers that look for
 * them. Asking is not using: XINFO leaves the idle time alone. */
#include "server/command.h"
#include "server/server.h"
#include "server/stream_reply.h"

/* ---- XINFO ------------------------------------------------------------------------------------ */

static void reply_edge_entry(struct reply *r, const struct stream *s, bool last)
{
    if (s->n == 0) {
        reply_null(r);
        return;
    }
    struct read_entry entry = read_entry_of(stream_entry(s, last ? s->n - 1 : 0));
    reply_entry(r, &entry);
}

static void reply_counters(struct reply *r, const struct stream *s)
{
    reply_text(r, "length");
    reply_int(r, (int64_t)s->n);
    reply_text(r, "radix-tree-keys"); /* there is no such tree; readers want the names */
    reply_int(r, s->n > 0);
    reply_text(r, "radix-tree-nodes");
    reply_int(r, 1 + (s->n > 0));
    reply_text(r, "last-generated-id");
    reply_stream_id(r, s->last_id);
    reply_text(r, "max-deleted-entry-id");
    reply_stream_id(r, s->max_deleted);
    reply_text(r, "entries-added");
    reply_int(r, (int64_t)s->entries_added);
    reply_text(r, "recorded-first-entry-id");
    reply_stream_id(r, s->n > 0 ? stream_entry(s, 0)->id : STREAM_ID_MIN);
}

static void xinfo_full(struct reply *r, const struct stream *s, int64_t count)
{
    size_t n = count > 0 && (uint64_t)count < s->n ? (size_t)count : s->n;
    reply_map(r, 9);
    reply_counters(r, s);
    reply_text(r, "entries");
    reply_array(r, (int64_t)n);
    for (size_t i = 0; i < n; i++) {
        struct read_entry entry = read_entry_of(stream_entry(s, i));
        reply_entry(r, &entry);
    }
    reply_text(r, "groups");
    reply_array(r, 0);
}

static void xinfo_short(struct reply *r, const struct stream *s)
{
    reply_map(r, 10);
    reply_counters(r, s);
    reply_text(r, "groups");
    reply_int(r, 0);
    reply_text(r, "first-entry");
    reply_edge_entry(r, s, false);
    reply_text(r, "last-entry");
    reply_edge_entry(r, s, true);
}

static void run_xinfo_stream(struct client *c, const struct request *q)
{
    bool full = q->n_args > 3 && bytes_equal_nocase(q->args[3], "full");
    bool has_count = q->n_args == 6 && bytes_equal_nocase(q->args[4], "count");
    int64_t count = 10;
    struct key *key = keys_find_read(c->server->keys, c->db, q->args[2]);
    if (!key)
        reply_error(&c->reply, "ERR no such key");
    else if (q->n_args != 3 && (!full || (q->n_args != 4 && !has_count)))
        reply_subcommand_words(c, q);
    else if (has_count && !parse_i64(q->args[5], &count))
        reply_not_integer(&c->reply);
    else if (full)
        xinfo_full(&c->reply, key_stream(key), count);
    else
        xinfo_short(&c->reply, key_stream(key));
}

static void run_xinfo_groups(struct client *c, const struct request *q)
{
    if (keys_find_read(c->server->keys, c->db, q->args[2]))
        reply_array(&c->reply, 0);
    else
        reply_error(&c->reply, "ERR no such key");
}

static void run_xinfo_consumers(struct client *c, const struct request *q)
{
    if (!keys_find_read(c->server->keys, c->db, q->args[2])) {
        reply_error(&c->reply, "ERR no such key");
        return;
    }
    struct str text = {0};
    str_append_str(&text, "NOGROUP No such consumer group '");
    echo_append(&text, q->args[3]);
    str_append_str(&text, "' for key name '");
    echo_append(&text, q->args[2]);
    str_append_char(&text, '\'');
    reply_error_bytes(&c->reply, bytes_of(&text));
    str_free(&text);
}

/* ---- XSETID ----------------------------------------------------------------------------------- */

/* False: an error was written. */
static bool parse_set_id(struct client *c, const struct request *q, struct set_id *set)
{
    static const char invalid[] = "ERR Invalid stream ID specified as stream command argument";
    int64_t added;
    if (!stream_id_parse(q->args[2], 0, &set->last)) {
        reply_error(&c->reply, "%s", invalid);
        return false;
    }
    for (int i = 3; i < q->n_args; i += 2) {
        bool has_value = i + 1 < q->n_args;
        if (has_value && bytes_equal_nocase(q->args[i], "entriesadded")) {
            if (!parse_i64(q->args[i + 1], &added)) {
                reply_not_integer(&c->reply);
                return false;
            }
            if (added < 0) {
                reply_error(&c->reply, "ERR entries_added must be positive");
                return false;
            }
            set->has_added = true;
            set->entries_added = (uint64_t)added;
        } else if (has_value && bytes_equal_nocase(q->args[i], "maxdeletedid")) {
            if (!stream_id_parse(q->args[i + 1], 0, &set->max_deleted)) {
                reply_error(&c->reply, "%s", invalid);
                return false;
            }
        } else {
            reply_syntax_error(&c->reply);
            return false;
        }
    }
    return true;
}

static void run_xsetid(struct client *c, const struct request *q)
{
    struct set_id set = {0};
    struct err err;
    if (!parse_set_id(c, q, &set))
        return;
    if (keys_set_id(c->server->keys, c->db, q->args[1], &set, &err) < 0)
        reply_err(&c->reply, &err);
    else
        reply_ok(&c->reply);
}

// clang-format off
#define ABOUT .flags = CMD_READONLY, .first_key = 2, .last_key = 2, .key_step = 1, \
              .categories = "stream", .group = "stream", .since = "5.0.0"
static const struct command xinfo_subcommands[] = {
    {.name = "consumers", .arity = 4, ABOUT, .tips = "nondeterministic_output", .complexity = "O(1)",
     .summary = "Returns a list of the consumers in a consumer group: there are no groups here.",
     .syntax = "key:key group", .run = run_xinfo_consumers},
    {.name = "groups", .arity = 3, ABOUT, .complexity = "O(1)",
     .summary = "Returns a list of the consumer groups of a stream: always empty.",
     .syntax = "key:key", .run = run_xinfo_groups},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "stream", "5.0.0", "stream"),
    {.name = "stream", .arity = -3, ABOUT, .complexity = "O(1), O(N) with FULL",
     .summary = "Returns information about a stream.",
     .syntax = "key:key [FULL [COUNT count:integer]]", .run = run_xinfo_stream},
    {.name = NULL},
};
const struct command cmd_xinfo_table[] = {
    {.name = "xinfo", .arity = -2, .group = "stream",
     .since = "5.0.0", .complexity = "Depends on subcommand.",
     .summary = "A container for stream introspection commands.", .subcommands = xinfo_subcommands},
    {.name = "xsetid", .arity = -3, .flags = CMD_WRITE | CMD_DENYOOM | CMD_FAST, .first_key = 1,
     .last_key = 1, .key_step = 1, .categories = "stream", .group = "stream", .since = "5.0.0",
     .complexity = "O(1)", .summary = "Sets the last ID of a stream; not while its key generates.",
     .syntax = "key:key last-id [ENTRIESADDED entries-added:integer] [MAXDELETEDID max-deleted-id]",
     .run = run_xsetid},
    {.name = NULL},
};
// clang-format on
