/* cmd_role.c - TIME ROLE WAIT READONLY READWRITE ACL: what a server that stands alone answers.
 *
 * Drivers, GUIs and exporters ask these before they trust a server. There are no replicas, so WAIT
 * has nothing to wait for and says 0 at once, whatever its time; there is no cluster, so READONLY
 * and READWRITE are Redis' error for that; there is one user, "default", who may do everything. */
#include <string.h>
#include "base/clock.h"
#include "server/categories.h"
#include "server/command.h"
#include "server/server.h"

static void run_time(struct client *c, const struct request *q)
{
    /* read here: the time of a command stands still, and its resolution is a millisecond */
    int64_t us = clock_wall_us();
    reply_array(&c->reply, 2);
    reply_bulk_int(&c->reply, us / 1000000);
    reply_bulk_int(&c->reply, us % 1000000);
}

static void run_role(struct client *c, const struct request *q)
{
    reply_array(&c->reply, 3);
    reply_text(&c->reply, "master");
    reply_int(&c->reply, 0);
    reply_array(&c->reply, 0);
}

static void run_wait(struct client *c, const struct request *q)
{
    int64_t n, timeout_ms;
    if (!parse_i64(q->args[1], &n))
        reply_not_integer(&c->reply);
    else if (!parse_i64(q->args[2], &timeout_ms))
        reply_error(&c->reply, "ERR timeout is not an integer or out of range");
    else if (timeout_ms < 0)
        reply_error(&c->reply, "ERR timeout is negative");
    else
        reply_int(&c->reply, 0);
}

static void run_readonly(struct client *c, const struct request *q)
{
    reply_error(&c->reply, "ERR This instance has cluster support disabled");
}

/* ---- ACL -------------------------------------------------------------------------------------- */

static void run_whoami(struct client *c, const struct request *q)
{
    reply_text(&c->reply, "default");
}

static void cat_all(struct client *c)
{
    int n = 0;
    while (category_name(n))
        n++;
    reply_array(&c->reply, n);
    for (int i = 0; i < n; i++)
        reply_text(&c->reply, category_name(i));
}

static bool is_category(struct bytes name)
{
    for (int i = 0; category_name(i); i++)
        if (bytes_equal_nocase(name, category_name(i)))
            return true;
    return false;
}

static void cat_full_name(struct client *c, const struct command *command)
{
    struct str name = {0};
    command_full_name(command, &name);
    reply_bulk(&c->reply, bytes_of(&name));
    str_free(&name);
}

static int cat_one(struct client *c, const struct command *command, struct bytes category)
{
    int n = 0;
    if (command->subcommands) {
        for (const struct command *sub = command->subcommands; sub->name; sub++)
            n += cat_one(c, sub, category);
    }
    if ((!command->subcommands || command->run) && command_in_category(command, category)) {
        cat_full_name(c, command);
        n++;
    }
    return n;
}

static void run_cat(struct client *c, const struct request *q)
{
    if (q->n_args > 3) {
        reply_error(&c->reply, "ERR wrong number of arguments for 'acl|cat' command");
        return;
    }
    if (q->n_args == 2) {
        cat_all(c);
        return;
    }
    if (!is_category(q->args[2])) {
        reply_error_echo(&c->reply, "ERR Unknown category '", q->args[2], "'");
        return;
    }
    size_t at = reply_hold(&c->reply);
    int n = 0;
    for (const struct command *const *family = command_families; *family; family++)
        for (const struct command *command = *family; command->name; command++)
            n += cat_one(c, command, q->args[2]);
    reply_array_at(&c->reply, at, n);
}

// clang-format off
enum { META = CMD_NOSCRIPT | CMD_LOADING | CMD_STALE };
static const struct command acl_subcommands[] = {
    {.name = "cat", .arity = -2, .flags = META, .group = "server", .since = "6.0.0",
     .complexity = "O(1) since the categories and commands are a fixed set.",
     .summary = "Lists the ACL categories, or the commands inside a category.",
     .syntax = "[category]", .run = run_cat},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "server", "6.0.0", NULL),
    {.name = "whoami", .arity = 2, .flags = META, .group = "server", .since = "6.0.0",
     .complexity = "O(1)", .summary = "Returns the authenticated username of the current connection.",
     .run = run_whoami},
    {.name = NULL},
};
const struct command cmd_role_table[] = {
    {.name = "acl", .arity = -2, .group = "server", .since = "6.0.0",
     .complexity = "Depends on subcommand.", .summary = "A container for Access List Control commands.",
     .subcommands = acl_subcommands},
    {.name = "readonly", .arity = 1, .flags = CMD_FAST | CMD_LOADING | CMD_STALE,
     .categories = "connection", .group = "cluster", .since = "3.0.0", .complexity = "O(1)",
     .summary = "Enables read-only queries for a connection to a cluster replica node; an error here.",
     .run = run_readonly},
    {.name = "readwrite", .arity = 1, .flags = CMD_FAST | CMD_LOADING | CMD_STALE,
     .categories = "connection", .group = "cluster", .since = "3.0.0", .complexity = "O(1)",
     .summary = "Enables read-write queries for a connection to a cluster replica node; an error here.",
     .run = run_readonly},
    {.name = "role", .arity = 1, .flags = CMD_NOSCRIPT | CMD_LOADING | CMD_STALE | CMD_FAST,
     .categories = "admin dangerous", .group = "server", .since = "2.8.12", .complexity = "O(1)",
     .summary = "Returns the replication role: always a master without replicas.", .run = run_role},
    {.name = "time", .arity = 1, .flags = CMD_LOADING | CMD_STALE | CMD_FAST,
     .tips = "nondeterministic_output", .group = "server", .since = "2.6.0", .complexity = "O(1)",
     .summary = "Returns the server time: seconds of Unix time and microseconds.", .run = run_time},
    {.name = "wait", .arity = 3, .flags = CMD_NOSCRIPT, .categories = "connection",
     .tips = "request_policy:all_shards response_policy:agg_min", .group = "generic",
     .since = "3.0.0", .complexity = "O(1)",
     .summary = "Returns the number of replicas that have the writes so far: 0, at once.",
     .syntax = "numreplicas:integer timeout:integer", .run = run_wait},
    {.name = NULL},
};
// clang-format on
