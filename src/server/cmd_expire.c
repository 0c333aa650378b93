/* cmd_expire.c - the EXPIRE family: set, read and remove the time at which a key goes.
 *
 * Four commands set it and differ in two facts (unit, relative or absolute), which stand in one
 * table; so do the four that read it. EXPIRE and PERSIST let a running generation go on; when the
 * time comes it is cancelled like by DEL. */
#include "base/clock.h"
#include "server/command.h"
#include "server/server.h"

struct unit {
    const char *name;
    int64_t ms;    /* of one unit */
    bool absolute; /* Unix time */
};
static const struct unit units[] = {
    {"expire", 1000, false},
    {"pexpire", 1, false},
    {"expireat", 1000, true},
    {"pexpireat", 1, true},
};

static const struct unit *find_unit(const struct request *q)
{
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (bytes_equal_nocase(q->args[0], units[i].name))
            return &units[i];
    ASSERT(false);
    return NULL;
}

static const struct {
    const char *word;
    int flag;
} conditions[] = {{"nx", EXPIRE_NX}, {"xx", EXPIRE_XX}, {"gt", EXPIRE_GT}, {"lt", EXPIRE_LT}};

/* -1: an error was written. */
static int parse_conditions(struct client *c, const struct request *q)
{
    int flags = 0;
    for (int i = 3; i < q->n_args; i++) {
        size_t k = 0;
        while (k < 4 && !bytes_equal_nocase(q->args[i], conditions[k].word))
            k++;
        if (k == 4) {
            struct str text = {0};
            str_append_str(&text, "ERR Unsupported option ");
            echo_append(&text, q->args[i]);
            reply_error_bytes(&c->reply, bytes_of(&text));
            str_free(&text);
            return -1;
        }
        flags |= conditions[k].flag;
    }
    if ((flags & EXPIRE_NX) && (flags & ~EXPIRE_NX)) {
        reply_error(&c->reply,
                    "ERR NX and XX, GT or LT options at the same time are not compatible");
        return -1;
    }
    if ((flags & EXPIRE_GT) && (flags & EXPIRE_LT)) {
        reply_error(&c->reply, "ERR GT and LT options at the same time are not compatible");
        return -1;
    }
    return flags;
}

static void run_expire(struct client *c, const struct request *q)
{
    const struct unit *unit = find_unit(q);
    int64_t value, ms, end;
    int flags = parse_conditions(c, q);
    if (flags < 0)
        return;
    if (!parse_i64(q->args[2], &value)) {
        reply_not_integer(&c->reply);
        return;
    }
    if (__builtin_mul_overflow(value, unit->ms, &ms) ||
        __builtin_add_overflow(ms, unit->absolute ? 0 : clock_now_ms(), &end)) {
        reply_error(&c->reply, "ERR invalid expire time in '%s' command", unit->name);
        return;
    }
    reply_int(&c->reply,
              keys_expire(c->server->keys, c->db, q->args[1], ms, unit->absolute, flags));
}

static void run_persist(struct client *c, const struct request *q)
{
    reply_int(&c->reply, keys_persist(c->server->keys, c->db, q->args[1]));
}

/* -2: no such key; -1: it stays; else milliseconds by `read`, in units rounded to the nearest. */
static void reply_time(struct client *c, const struct request *q, int64_t unit_ms,
                       int64_t (*read)(const struct key *key))
{
    struct key *key = keys_find_read(c->server->keys, c->db, q->args[1]);
    int64_t ms = key ? read(key) : -2;
    reply_int(&c->reply, ms < 0 ? ms : ms / unit_ms + (ms % unit_ms * 2 >= unit_ms));
}

static void run_ttl(struct client *c, const struct request *q)
{
    reply_time(c, q, 1000, key_ttl_ms);
}

static void run_pttl(struct client *c, const struct request *q)
{
    reply_time(c, q, 1, key_ttl_ms);
}

static void run_expiretime(struct client *c, const struct request *q)
{
    reply_time(c, q, 1000, key_expire_time_ms);
}

static void run_pexpiretime(struct client *c, const struct request *q)
{
    reply_time(c, q, 1, key_expire_time_ms);
}

// clang-format off
#define ONE_KEY .first_key = 1, .last_key = 1, .key_step = 1, .categories = "keyspace", \
                .group = "generic", .complexity = "O(1)"
#define CONDITION " [<condition: NX|XX|GT|LT>]"
const struct command cmd_expire_table[] = {
    {.name = "expire", .arity = -3, .flags = CMD_WRITE | CMD_FAST, ONE_KEY, .since = "1.0.0",
     .summary = "Sets the expiration time of a key in seconds.",
     .syntax = "key:key seconds:integer" CONDITION, .run = run_expire},
    {.name = "expireat", .arity = -3, .flags = CMD_WRITE | CMD_FAST, ONE_KEY, .since = "1.2.0",
     .summary = "Sets the expiration time of a key to a Unix timestamp.",
     .syntax = "key:key unix-time-seconds:unix-time" CONDITION, .run = run_expire},
    {.name = "expiretime", .arity = 2, .flags = CMD_READONLY | CMD_FAST, ONE_KEY, .since = "7.0.0",
     .summary = "Returns the expiration time of a key as a Unix timestamp.",
     .syntax = "key:key", .run = run_expiretime},
    {.name = "persist", .arity = 2, .flags = CMD_WRITE | CMD_FAST, ONE_KEY, .since = "2.2.0",
     .summary = "Removes the expiration time of a key.",
     .syntax = "key:key", .run = run_persist},
    {.name = "pexpire", .arity = -3, .flags = CMD_WRITE | CMD_FAST, ONE_KEY, .since = "2.6.0",
     .summary = "Sets the expiration time of a key in milliseconds.",
     .syntax = "key:key milliseconds:integer" CONDITION, .run = run_expire},
    {.name = "pexpireat", .arity = -3, .flags = CMD_WRITE | CMD_FAST, ONE_KEY, .since = "2.6.0",
     .summary = "Sets the expiration time of a key to a Unix milliseconds timestamp.",
     .syntax = "key:key unix-time-milliseconds:unix-time" CONDITION, .run = run_expire},
    {.name = "pexpiretime", .arity = 2, .flags = CMD_READONLY | CMD_FAST, ONE_KEY, .since = "7.0.0",
     .summary = "Returns the expiration time of a key as a Unix milliseconds timestamp.",
     .syntax = "key:key", .run = run_pexpiretime},
    {.name = "pttl", .arity = 2, .flags = CMD_READONLY | CMD_FAST, ONE_KEY, .since = "2.6.0",
     .tips = "nondeterministic_output",
     .summary = "Returns the expiration time in milliseconds of a key.",
     .syntax = "key:key", .run = run_pttl},
    {.name = "ttl", .arity = 2, .flags = CMD_READONLY | CMD_FAST, ONE_KEY, .since = "1.0.0",
     .tips = "nondeterministic_output",
     .summary = "Returns the expiration time in seconds of a key.",
     .syntax = "key:key", .run = run_ttl},
    {.name = NULL},
};
// clang-format on
