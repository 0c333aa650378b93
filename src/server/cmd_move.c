/* cmd_move.c - commands that give a key or a database another place: RENAME RENAMENX MOVE SWAPDB.
 *
 * All are refused with BUSYKEY while the key generates, from the arrival of its GEN on; what stands
 * under the new name of a RENAME is removed as by DEL, its generation ended first. */
#include "server/command.h"
#include "server/server.h"

static void run_rename(struct client *c, const struct request *q)
{
    struct err err;
    if (keys_rename(c->server->keys, c->db, q->args[1], q->args[2], false, &err) < 0)
        reply_err(&c->reply, &err);
    else
        reply_ok(&c->reply);
}

static void run_renamenx(struct client *c, const struct request *q)
{
    struct err err;
    int done = keys_rename(c->server->keys, c->db, q->args[1], q->args[2], true, &err);
    if (done < 0)
        reply_err(&c->reply, &err);
    else
        reply_int(&c->reply, done);
}

static void run_move(struct client *c, const struct request *q)
{
    struct err err;
    int32_t to;
    if (!command_parse_db(c, q->args[2], &to))
        return;
    int done = keys_move(c->server->keys, c->db, q->args[1], to, &err);
    if (done < 0)
        reply_err(&c->reply, &err);
    else
        reply_int(&c->reply, done);
}

static void run_swapdb(struct client *c, const struct request *q)
{
    static const char *const which[] = {"first", "second"};
    int64_t db[2];
    struct err err;
    for (int i = 0; i < 2; i++) {
        if (!parse_i64(q->args[i + 1], &db[i]) || db[i] < INT32_MIN || db[i] > INT32_MAX) {
            reply_error(&c->reply, "ERR invalid %s DB index", which[i]);
            return;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (db[i] < 0 || db[i] >= c->server->config.databases) {
            reply_error(&c->reply, "ERR DB index is out of range");
            return;
        }
    }
    if (keys_swap(c->server->keys, (int32_t)db[0], (int32_t)db[1], &err) < 0)
        reply_err(&c->reply, &err);
    else
        reply_ok(&c->reply);
}

// clang-format off
#define KEYSPACE .categories = "keyspace", .group = "generic"
const struct command cmd_move_table[] = {
    {.name = "move", .arity = 3, .flags = CMD_WRITE | CMD_FAST, .first_key = 1, .last_key = 1,
     .key_step = 1, .key_use = "RW access update", KEYSPACE, .since = "1.0.0", .complexity = "O(1)",
     .summary = "Moves a key to another database; not while it generates.",
     .syntax = "key:key db:integer", .run = run_move},
    {.name = "rename", .arity = 3, .flags = CMD_WRITE, .first_key = 1, .last_key = 2, .key_step = 1,
     .key_use = "RW access delete|OW update", KEYSPACE, .since = "1.0.0", .complexity = "O(1)",
     .summary = "Renames a key and overwrites the destination; not while it generates.",
     .syntax = "key:key newkey:key", .run = run_rename},
    {.name = "renamenx", .arity = 3, .flags = CMD_WRITE | CMD_FAST, .first_key = 1, .last_key = 2,
     .key_step = 1, .key_use = "RW access delete|OW insert", KEYSPACE, .since = "1.0.0",
     .complexity = "O(1)",
     .summary = "Renames a key only when the target key name doesn't exist.",
     .syntax = "key:key newkey:key", .run = run_renamenx},
    {.name = "swapdb", .arity = 3, .flags = CMD_WRITE | CMD_FAST | CMD_DANGEROUS,
     .categories = "keyspace", .group = "server", .since = "4.0.0",
     .complexity = "O(N) where N is the count of clients that wait for keys of both databases",
     .summary = "Swaps two databases; not while a key in one of them generates.",
     .syntax = "index1:integer index2:integer", .run = run_swapdb},
    {.name = NULL},
};
// clang-format on
