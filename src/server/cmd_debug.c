/* cmd_debug.c - DEBUG AUDIT: prove the invariants of the cache, by the name of the fault.
 * Dispatch refuses all of DEBUG where enable-debug-command does not allow it. */
#include "server/command.h"
#include "server/server.h"

static void run_audit(struct client *c, const struct request *q)
{
    struct err err;
    if (c->server->engine && engine_audit(c->server->engine, &err) < 0)
        reply_error(&c->reply, "ERR audit: %s", err.text);
    else
        reply_ok(&c->reply);
}

// clang-format off
static const struct command subcommands[] = {
    {.name = "audit", .arity = 2, .flags = CMD_ADMIN | CMD_NOSCRIPT | CMD_DEBUG, .group = "server",
     .since = "0.1.0", .complexity = "O(N) with N being the number of blocks",
     .summary = "Walks the whole cache and proves its invariants, or names the fault.",
     .run = run_audit},
    COMMAND_HELP(CMD_ADMIN | CMD_NOSCRIPT | CMD_DEBUG, "server", "1.0.0", NULL),
    {.name = NULL},
};
const struct command cmd_debug_table[] = {
    {.name = "debug", .arity = -2, .flags = CMD_ADMIN | CMD_NOSCRIPT | CMD_DEBUG, .group = "server",
     .since = "1.0.0", .complexity = "Depends on subcommand.",
     .summary = "A container for debugging commands.", .subcommands = subcommands},
    {.name = NULL},
};
// clang-format on
