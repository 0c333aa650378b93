/* cmd_key.c - commands on keys of any kind: DEL UNLINK EXISTS TYPE COPY SCAN KEYS MEMORY.
 *
 * Removing a generating key cancels it first, its readers see the end, then it goes: the keyspace
 * does that for each of these alike. COPY of a conversation is FORK spelled as in Redis. */
#include "keyspace/fork.h"
#include "server/command.h"
#include "server/server.h"

static void run_del(struct client *c, const struct request *q)
{
    int64_t n = 0;
    for (int i = 1; i < q->n_args; i++)
        n += keys_delete(c->server->keys, c->db, q->args[i]);
    reply_int(&c->reply, n);
}

static void run_exists(struct client *c, const struct request *q)
{
    int64_t n = 0;
    for (int i = 1; i < q->n_args; i++)
        n += keys_find_read(c->server->keys, c->db, q->args[i]) != NULL;
    reply_int(&c->reply, n);
}

static void run_type(struct client *c, const struct request *q)
{
    struct key *key = keys_find_read(c->server->keys, c->db, q->args[1]);
    reply_status(&c->reply, key ? key_type_name(key) : "none");
}

static void run_copy(struct client *c, const struct request *q)
{
    struct fork_request fork = {.source = q->args[1],
                                .source_db = c->db,
                                .targets = &q->args[2],
                                .n_targets = 1,
                                .target_db = c->db};
    for (int i = 3; i < q->n_args; i++) {
        if (bytes_equal_nocase(q->args[i], "replace")) {
            fork.replace = true;
        } else if (bytes_equal_nocase(q->args[i], "db") && i + 1 < q->n_args) {
            if (!command_parse_db(c, q->args[++i], &fork.target_db))
                return;
        } else {
            reply_syntax_error(&c->reply);
            return;
        }
    }
    struct err err;
    int32_t n = keys_fork(c->server->keys, &fork, &err);
    if (n < 0)
        reply_err(&c->reply, &err);
    else
        reply_int(&c->reply, n);
}

/* ---- SCAN and KEYS ---------------------------------------------------------------------------- */

struct scan {
    struct bytes pattern; /* data NULL: all */
    struct bytes type;    /* data NULL: any */
    struct reply names;   /* bulk strings, apart: their number stands before them */
    int64_t n, n_seen;
};

static void visit(void *arg, struct key *key)
{
    struct scan *s = arg;
    s->n_seen++;
    if (s->pattern.data && !glob_match(s->pattern, key_name(key), false))
        return;
    if (s->type.data && !bytes_equal_nocase(s->type, key_type_name(key)))
        return;
    reply_bulk(&s->names, key_name(key));
    s->n++;
}

static bool scan_parse(struct client *c, const struct request *q, struct scan *s, int64_t *count)
{
    for (int i = 2; i < q->n_args; i += 2) {
        bool has_value = i + 1 < q->n_args;
        if (has_value && bytes_equal_nocase(q->args[i], "match")) {
            s->pattern = q->args[i + 1];
        } else if (has_value && bytes_equal_nocase(q->args[i], "type")) {
            s->type = q->args[i + 1];
        } else if (has_value && bytes_equal_nocase(q->args[i], "count")) {
            if (!parse_i64(q->args[i + 1], count)) {
                reply_not_integer(&c->reply);
                return false;
            }
            if (*count < 1) {
                reply_syntax_error(&c->reply);
                return false;
            }
        } else {
            reply_syntax_error(&c->reply);
            return false;
        }
    }
    return true;
}

static void run_scan(struct client *c, const struct request *q)
{
    struct str names = {0};
    struct scan s = {.names = {.out = &names, .protocol = c->reply.protocol}};
    uint64_t cursor;
    int64_t count = 10;
    if (!parse_u64(q->args[1], &cursor)) {
        reply_error(&c->reply, "ERR invalid cursor");
        return;
    }
    if (!scan_parse(c, q, &s, &count))
        return;
    /* as Redis: empty buckets count too, ten for each key asked for */
    int64_t buckets = count < INT64_MAX / 10 ? count * 10 : INT64_MAX;
    do {
        cursor = keys_scan(c->server->keys, c->db, cursor, visit, &s);
    } while (cursor != 0 && s.n_seen < count && --buckets > 0);
    char digits[24];
    int n_digits = snprintf(digits, sizeof digits, "%llu", (unsigned long long)cursor);
    reply_array(&c->reply, 2);
    reply_bulk(&c->reply, (struct bytes){digits, (size_t)n_digits});
    reply_array(&c->reply, s.n);
    reply_raw(&c->reply, bytes_of(&names));
    str_free(&names);
}

static void run_keys(struct client *c, const struct request *q)
{
    struct str names = {0};
    struct scan s = {.pattern = q->args[1],
                     .names = {.out = &names, .protocol = c->reply.protocol}};
    uint64_t cursor = 0;
    do {
        cursor = keys_scan(c->server->keys, c->db, cursor, visit, &s);
    } while (cursor != 0);
    reply_array(&c->reply, s.n);
    reply_raw(&c->reply, bytes_of(&names));
    str_free(&names);
}

/* ---- MEMORY ----------------------------------------------------------------------------------- */

static void run_memory_usage(struct client *c, const struct request *q)
{
    int64_t samples;
    if (q->n_args == 5 && bytes_equal_nocase(q->args[3], "samples")) {
        if (!parse_i64(q->args[4], &samples)) {
            reply_not_integer(&c->reply);
            return;
        }
        if (samples < 0) {
            reply_syntax_error(&c->reply);
            return;
        }
    } else if (q->n_args != 3) {
        reply_syntax_error(&c->reply);
        return;
    }
    struct key *key = keys_find(c->server->keys, c->db, q->args[2]);
    if (key)
        reply_int(&c->reply, (int64_t)key_memory_bytes(key));
    else
        reply_null(&c->reply);
}

// clang-format off
static const struct command memory_subcommands[] = {
    COMMAND_HELP(COMMAND_HELP_FLAGS, "server", "4.0.0", NULL),
    {.name = "usage", .arity = -3, .flags = CMD_READONLY, .first_key = 2, .last_key = 2,
     .key_step = 1, .key_use = "RO", .group = "server", .since = "4.0.0",
     .complexity = "O(N) where N is the number of samples",
     .summary = "Estimates the memory usage of a key: text, token ids and pieces, not K/V.",
     .syntax = "key:key [SAMPLES count:integer]", .run = run_memory_usage},
    {.name = NULL},
};

const struct command cmd_key_table[] = {
    {.name = "copy", .arity = -3, .flags = CMD_WRITE | CMD_DENYOOM, .first_key = 1, .last_key = 2,
     .key_step = 1, .key_use = "RO access|OW update", .categories = "keyspace", .group = "generic",
     .since = "6.2.0",
     .complexity = "O(N) where N is the number of entries",
     .summary = "Copies a key to a new key, as FORK does.",
     .syntax = "source:key destination:key [DB destination-db:integer] [REPLACE]", .run = run_copy},
    {.name = "del", .arity = -2, .flags = CMD_WRITE, .first_key = 1, .last_key = -1, .key_step = 1,
     .key_use = "RM delete", .categories = "keyspace", .tips = "request_policy:multi_shard response_policy:agg_sum",
     .group = "generic", .since = "1.0.0", .complexity = "O(N) where N is the number of keys",
     .summary = "Deletes keys; a running generation is cancelled first.",
     .syntax = "key:key...", .run = run_del},
    {.name = "exists", .arity = -2, .flags = CMD_READONLY | CMD_FAST, .first_key = 1, .last_key = -1,
     .key_step = 1, .key_use = "RO", .categories = "keyspace",
     .tips = "request_policy:multi_shard response_policy:agg_sum",
     .group = "generic", .since = "1.0.0", .complexity = "O(N) where N is the number of keys",
     .summary = "Determines whether one or more keys exist.",
     .syntax = "key:key...", .run = run_exists},
    {.name = "keys", .arity = 2, .flags = CMD_READONLY | CMD_DANGEROUS, .categories = "keyspace",
     .tips = "request_policy:all_shards nondeterministic_output_order",
     .group = "generic", .since = "1.0.0",
     .complexity = "O(N) with N being the number of keys in the database",
     .summary = "Returns all key names that match a pattern.",
     .syntax = "pattern:pattern", .run = run_keys},
    {.name = "memory", .arity = -2, .group = "server", .since = "4.0.0",
     .complexity = "Depends on subcommand.",
     .summary = "A container for memory diagnostics commands.", .subcommands = memory_subcommands},
    {.name = "scan", .arity = -2, .flags = CMD_READONLY, .categories = "keyspace",
     .tips = "nondeterministic_output request_policy:special",
     .group = "generic", .since = "2.8.0",
     .complexity = "O(1) for every call, O(N) for a complete iteration",
     .summary = "Iterates over the key names in the database.",
     .syntax = "cursor:integer [MATCH pattern:pattern] [COUNT count:integer] [TYPE type]",
     .run = run_scan},
    {.name = "type", .arity = 2, .flags = CMD_READONLY | CMD_FAST, .first_key = 1, .last_key = 1,
     .key_step = 1, .key_use = "RO", .categories = "keyspace", .group = "generic", .since = "1.0.0",
     .complexity = "O(1)", .summary = "Determines the type of value stored at a key.",
     .syntax = "key:key", .run = run_type},
    {.name = "unlink", .arity = -2, .flags = CMD_WRITE | CMD_FAST, .first_key = 1, .last_key = -1,
     .key_step = 1, .key_use = "RM delete", .categories = "keyspace",
     .tips = "request_policy:multi_shard response_policy:agg_sum",
     .group = "generic", .since = "4.0.0", .complexity = "O(1) for each key",
     .summary = "Deletes keys; their memory is given back in slices.",
     .syntax = "key:key...", .run = run_del},
    {.name = NULL},
};
// clang-format on
