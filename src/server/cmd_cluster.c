/* cmd_cluster.c - CLUSTER and MODULE: what clients ask for to learn that there is none.
 *
 * Cluster clients try CLUSTER SLOTS, SHARDS or NODES at connect and take the error below, word for
 * word, for a server of its own. Every subcommand gets it, known or not; the rows are those that
 * clients send and redis-cli completes. */
#include "server/command.h"
#include "server/server.h"

static void run_cluster(struct client *c, const struct request *q)
{
    reply_error(&c->reply, "ERR This instance has cluster support disabled");
}

static void run_module_list(struct client *c, const struct request *q)
{
    reply_array(&c->reply, 0);
}

// clang-format off
#define CLUSTER_ROW(NAME, ARITY, FLAGS, TIPS, SINCE, SYNTAX) \
    {.name = NAME, .arity = ARITY, .flags = CMD_STALE | (FLAGS), .tips = TIPS, .group = "cluster", .since = SINCE, \
     .complexity = "O(1)", .summary = "Is an error: cluster support is disabled.", \
     .syntax = SYNTAX, .run = run_cluster}
#define ANY "nondeterministic_output"
static const struct command cluster_subcommands[] = {
    CLUSTER_ROW("countkeysinslot", 3, 0, NULL, "3.0.0", "slot:integer"),
    CLUSTER_ROW("getkeysinslot", 4, 0, ANY, "3.0.0", "slot:integer count:integer"),
    COMMAND_HELP(COMMAND_HELP_FLAGS, "cluster", "5.0.0", NULL),
    CLUSTER_ROW("info", 2, 0, ANY, "3.0.0", ""),
    CLUSTER_ROW("keyslot", 3, 0, NULL, "3.0.0", "key"),
    CLUSTER_ROW("links", 2, 0, ANY, "7.0.0", ""),
    CLUSTER_ROW("myid", 2, 0, NULL, "3.0.0", ""),
    CLUSTER_ROW("nodes", 2, 0, ANY, "3.0.0", ""),
    CLUSTER_ROW("replicas", 3, CMD_ADMIN, ANY, "5.0.0", "node-id"),
    CLUSTER_ROW("shards", 2, 0, ANY, "7.0.0", ""),
    CLUSTER_ROW("slaves", 3, CMD_ADMIN, ANY, "3.0.0", "node-id"),
    CLUSTER_ROW("slots", 2, 0, ANY, "3.0.0", ""),
    {.name = NULL},
};
static const struct command module_subcommands[] = {
    COMMAND_HELP(COMMAND_HELP_FLAGS, "server", "5.0.0", NULL),
    {.name = "list", .arity = 2, .flags = CMD_ADMIN | CMD_NOSCRIPT, .group = "server",
     .since = "4.0.0", .tips = "nondeterministic_output_order", .complexity = "O(1)",
     .summary = "Returns all loaded modules: there are none.", .run = run_module_list},
    {.name = NULL},
};
const struct command cmd_cluster_table[] = {
    {.name = "cluster", .arity = -2, .group = "cluster", .since = "3.0.0",
     .complexity = "O(1)", .summary = "A container for cluster commands, all of which are errors.",
     .subcommands = cluster_subcommands, .run = run_cluster},
    {.name = "module", .arity = -2, .group = "server", .since = "4.0.0",
     .complexity = "Depends on subcommand.", .summary = "A container for module commands.",
     .subcommands = module_subcommands},
    {.name = NULL},
};
// clang-format on
