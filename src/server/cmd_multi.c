/* cmd_multi.c - MULTI EXEC DISCARD WATCH UNWATCH.
 *
 * Between MULTI and EXEC commands are checked (name, arity, authentication, loading) and queued; one
 * refusal makes EXEC answer EXECABORT. EXEC runs the queue without anything in between. Nothing in it
 * blocks: GEN submits and replies with the id to read after, XREAD BLOCK answers null. redis-py's
 * pipelines are transactions by default, so this is a road, not a side path.
 *
 * WATCH makes EXEC answer null when one of the keys was written, made, removed or has expired since:
 * also by a GEN's prompt and its end, not by its pieces. EXEC, DISCARD and RESET forget what was
 * watched. */
#include "base/mem.h"
#include "server/command.h"
#include "server/server.h"

static void run_multi(struct client *c, const struct request *q)
{
    if (c->multi) {
        reply_error(&c->reply, "ERR MULTI calls can not be nested");
        return;
    }
    c->multi = xcalloc(1, sizeof *c->multi);
    reply_ok(&c->reply);
}

static void run_discard(struct client *c, const struct request *q)
{
    if (!c->multi) {
        reply_error(&c->reply, "ERR DISCARD without MULTI");
        return;
    }
    client_discard_multi(c);
    guard_clear(&c->guard);
    reply_ok(&c->reply);
}

/* ---- WATCH ------------------------------------------------------------------------------------ */

static void run_watch(struct client *c, const struct request *q)
{
    if (c->multi) {
        reply_error(&c->reply, "ERR WATCH inside MULTI is not allowed");
        return;
    }
    for (int i = 1; i < q->n_args; i++) {
        if (c->server->keys)
            guard_add(c->server->keys, &c->guard, c->db, q->args[i]);
        else
            c->guard.is_spoiled = true; /* LOADING: there is nothing yet that could be watched */
    }
    reply_ok(&c->reply);
}

static void run_unwatch(struct client *c, const struct request *q)
{
    guard_clear(&c->guard);
    reply_ok(&c->reply);
}

/* ---- EXEC ------------------------------------------------------------------------------------- */

/* A command was accepted when it was queued; options set since then, or the end of the server, may
 * still refuse it, each on its own as Redis does. */
static void run_queued(struct client *c, const struct request *q)
{
    struct str error = {0};
    const struct command *command = command_resolve(c->server->commands, q, &error);
    if (!command)
        reply_error_bytes(&c->reply, bytes_of(&error));
    else if (c->server->state >= SERVER_STOPPING && (command->flags & CMD_WRITE))
        reply_error(&c->reply, "ERR the server is shutting down");
    else
        command_call(c, command, q);
    str_free(&error);
}

static void run_exec(struct client *c, const struct request *q)
{
    if (!c->multi) {
        reply_error(&c->reply, "ERR EXEC without MULTI");
        return;
    }
    bool is_broken = c->multi->broken, is_spoiled = guard_is_spoiled(&c->guard);
    guard_clear(&c->guard);
    if (is_broken || is_spoiled)
        client_discard_multi(c);
    if (is_broken) {
        reply_error(&c->reply, "EXECABORT Transaction discarded because of previous errors.");
        return;
    }
    if (is_spoiled) {
        reply_null_array(&c->reply);
        return;
    }
    struct multi *m = c->multi;
    c->multi = NULL; /* so that the commands run instead of being queued again */
    c->in_exec = true;
    reply_array(&c->reply, m->n);
    for (int i = 0; i < m->n; i++)
        run_queued(c, &m->queue[i]);
    c->in_exec = false;
    c->multi = m;
    client_discard_multi(c);
}

// clang-format off
enum { FLAGS = CMD_NOSCRIPT | CMD_LOADING | CMD_STALE | CMD_IN_MULTI };
enum { UNWATCH = CMD_NOSCRIPT | CMD_LOADING | CMD_STALE | CMD_FAST };
const struct command cmd_multi_table[] = {
    {.name = "discard", .arity = 1, .flags = FLAGS | CMD_FAST, .categories = "transaction",
     .group = "transactions", .since = "2.0.0", .complexity = "O(N) where N is the number of queued commands",
     .summary = "Discards a transaction.", .run = run_discard},
    {.name = "exec", .arity = 1, .flags = FLAGS | CMD_SKIP_SLOWLOG, .categories = "transaction",
     .group = "transactions", .since = "1.2.0", .complexity = "Depends on commands in the transaction",
     .summary = "Executes all commands in a transaction.", .run = run_exec},
    {.name = "multi", .arity = 1, .flags = FLAGS | CMD_FAST, .categories = "transaction",
     .group = "transactions", .since = "1.2.0", .complexity = "O(1)",
     .summary = "Starts a transaction.", .run = run_multi},
    {.name = "unwatch", .arity = 1, .flags = UNWATCH, .categories = "transaction",
     .group = "transactions", .since = "2.2.0", .complexity = "O(N) where N is the number of watched keys",
     .summary = "Forgets all watched keys.", .run = run_unwatch},
    {.name = "watch", .arity = -2, .flags = UNWATCH | CMD_IN_MULTI, .first_key = 1, .last_key = -1,
     .key_step = 1, .key_use = "RO", .categories = "transaction", .group = "transactions", .since = "2.2.0",
     .complexity = "O(1) for every key.",
     .summary = "Lets the next EXEC answer null if one of the keys has changed by then.",
     .syntax = "key:key...", .run = run_watch},
    {.name = NULL},
};
// clang-format on
