/* cmd_debug.c - DEBUG AUDIT: prove the invariants of the cache, by the name of the fault. */
#include "server/command.h"
#include "server/server.h"

static bool is_allowed(struct client *c)
{
    int setting = c->server->config.enable_debug_command;
    if (setting == CONFIG_DEBUG_YES || (setting == CONFIG_DEBUG_LOCAL && c->peer.is_loopback))
        return true;
    reply_error(&c->reply,
                "ERR DEBUG command not allowed. If the enable-debug-command option is set to "
                "\"local\", you can run it from a local connection, otherwise you need to set this "
                "option in the configuration file, and then restart the server.");
    return false;
}

static void run_audit(struct client *c, const struct request *q)
{
    struct err err;
    if (!is_allowed(c))
        return;
    if (c->server->engine && engine_audit(c->server->engine, &err) < 0)
        reply_error(&c->reply, "ERR audit: %s", err.text);
    else
        reply_ok(&c->reply);
}

// clang-format off
static const struct command subcommands[] = {
    {.name = "audit", .arity = 2, .flags = CMD_ADMIN | CMD_NOSCRIPT, .group = "server",
     .since = "0.1.0", .complexity = "O(N) with N being the number of blocks",
     .summary = "Walks the whole cache and proves its invariants, or names the fault.",
     .run = run_audit},
    {.name = NULL},
};
const struct command cmd_debug_table[] = {
    {.name = "debug", .arity = -2, .flags = CMD_ADMIN | CMD_NOSCRIPT, .group = "server",
     .since = "1.0.0", .complexity = "Depends on subcommand.",
     .summary = "A container for debugging commands.", .subcommands = subcommands},
    {.name = NULL},
};
// clang-format on
