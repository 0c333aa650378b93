/* cmd_object.c - OBJECT TOUCH RANDOMKEY, and GET on what is never a string.
 *
 * Asking about a key is not using it: OBJECT leaves its idle time alone. GET is here because
 * drivers ask for keys of their own (a tie-breaker) before the first command of their user: nil for
 * a key that is not there, WRONGTYPE for a conversation. */
#include "server/command.h"
#include "server/server.h"

/* NULL: null was written, as Redis 7 answers for a missing key. */
static struct key *find(struct client *c, const struct request *q)
{
    struct key *key = keys_find(c->server->keys, c->db, q->args[2]);
    if (!key)
        reply_null(&c->reply);
    return key;
}

static void run_encoding(struct client *c, const struct request *q)
{
    struct key *key = find(c, q);
    if (key)
        reply_text(&c->reply, key_encoding_name(key));
}

static void run_idletime(struct client *c, const struct request *q)
{
    struct key *key = find(c, q);
    if (key)
        reply_int(&c->reply, key_idle_ms(key) / 1000);
}

/* A key has one owner; it is the entries that are shared. */
static void run_refcount(struct client *c, const struct request *q)
{
    if (find(c, q))
        reply_int(&c->reply, 1);
}

static void run_freq(struct client *c, const struct request *q)
{
    if (find(c, q))
        reply_error(&c->reply,
                    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. "
                    "Please note that when switching between policies at runtime LRU and LFU data "
                    "will take some time to adjust.");
}

static void run_touch(struct client *c, const struct request *q)
{
    int64_t n = 0;
    for (int i = 1; i < q->n_args; i++) {
        struct key *key = keys_find_read(c->server->keys, c->db, q->args[i]);
        if (!key)
            continue;
        key_touch(key); /* also under NO-TOUCH: this is what was asked for */
        n++;
    }
    reply_int(&c->reply, n);
}

static void run_randomkey(struct client *c, const struct request *q)
{
    struct key *key = keys_random(c->server->keys, c->db);
    if (key)
        reply_bulk(&c->reply, key_name(key));
    else
        reply_null(&c->reply);
}

static void run_get(struct client *c, const struct request *q)
{
    if (keys_find_read(c->server->keys, c->db, q->args[1]))
        reply_error(&c->reply, "WRONGTYPE Operation against a key holding the wrong kind of value");
    else
        reply_null(&c->reply);
}

// clang-format off
#define OBJECT .flags = CMD_READONLY, .first_key = 2, .last_key = 2, .key_step = 1, \
               .key_use = "RO", .categories = "keyspace", .tips = "nondeterministic_output", \
               .group = "generic", .complexity = "O(1)", .syntax = "key:key"
static const struct command subcommands[] = {
    {.name = "encoding", .arity = 3, OBJECT, .since = "2.2.3",
     .summary = "Returns the internal encoding of a key's value.", .run = run_encoding},
    {.name = "freq", .arity = 3, OBJECT, .since = "4.0.0",
     .summary = "Returns the logarithmic access frequency counter of a key: an error, as without LFU.",
     .run = run_freq},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "generic", "6.2.0", "keyspace"),
    {.name = "idletime", .arity = 3, OBJECT, .since = "2.2.3",
     .summary = "Returns the seconds since a key was last used.", .run = run_idletime},
    {.name = "refcount", .arity = 3, OBJECT, .since = "2.2.3",
     .summary = "Returns the reference count of a key's value.", .run = run_refcount},
    {.name = NULL},
};
const struct command cmd_object_table[] = {
    {.name = "get", .arity = 2, .flags = CMD_READONLY | CMD_FAST, .first_key = 1, .last_key = 1,
     .key_step = 1, .categories = "string", .group = "string", .since = "1.0.0",
     .complexity = "O(1)",
     .summary = "Returns the string value of a key: null, or WRONGTYPE since none is a string.",
     .syntax = "key:key", .run = run_get},
    {.name = "object", .arity = -2, .group = "generic", .since = "2.2.3", .complexity = "Depends on subcommand.",
     .summary = "A container for object introspection commands.", .subcommands = subcommands},
    {.name = "randomkey", .arity = 1, .flags = CMD_READONLY, .categories = "keyspace",
     .tips = "request_policy:all_shards nondeterministic_output",
     .group = "generic", .since = "1.0.0", .complexity = "O(1)",
     .summary = "Returns a random key name from the database.", .run = run_randomkey},
    {.name = "touch", .arity = -2, .flags = CMD_READONLY | CMD_FAST, .first_key = 1,
     .last_key = -1, .key_step = 1, .key_use = "RO", .categories = "keyspace",
     .tips = "request_policy:multi_shard response_policy:agg_sum", .group = "generic",
     .since = "3.2.1", .complexity = "O(N) where N is the number of keys",
     .summary = "Returns the number of existing keys out of those given, and counts them as used.",
     .syntax = "key:key...", .run = run_touch},
    {.name = NULL},
};
// clang-format on
