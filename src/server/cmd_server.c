/* cmd_server.c - INFO, MONITOR, SHUTDOWN, and the commands that act on whole databases. */
#include "server/command.h"
#include "server/monitor.h"
#include "server/server.h"

static void run_info(struct client *c, const struct request *q)
{
    struct str text = {0};
    info_print(c->server, q->args + 1, q->n_args - 1, &text);
    reply_verbatim(&c->reply, bytes_of(&text));
    str_free(&text);
}

static void run_monitor(struct client *c, const struct request *q)
{
    monitor_start(c);
    reply_ok(&c->reply);
}

/* Nothing is saved, so all words but ABORT ask for the same. The reply of a successful SHUTDOWN is
 * the end of the connection. */
static void run_shutdown(struct client *c, const struct request *q)
{
    static const char *const words[] = {"nosave", "save", "now", "force", "abort"};
    unsigned given = 0;
    for (int i = 1; i < q->n_args; i++) {
        size_t w = 0;
        while (w < 5 && !bytes_equal_nocase(q->args[i], words[w]))
            w++;
        if (w == 5) {
            reply_syntax_error(&c->reply);
            return;
        }
        given |= 1u << w;
    }
    bool both = (given & 3) == 3, abort_with_more = (given & 16) && given != 16;
    if (both || abort_with_more) {
        reply_syntax_error(&c->reply);
    } else if (given & 16) {
        reply_error(&c->reply, "ERR No shutdown in progress.");
    } else {
        server_stop(c->server, "SHUTDOWN");
        client_close_soon(c, false);
    }
}

static void run_dbsize(struct client *c, const struct request *q)
{
    reply_int(&c->reply, (int64_t)keys_count(c->server->keys, c->db));
}

/* ASYNC and SYNC are the same here: memory goes back in slices either way. */
static bool flush_words_ok(struct client *c, const struct request *q)
{
    bool ok = q->n_args == 1 || (q->n_args == 2 && (bytes_equal_nocase(q->args[1], "async") ||
                                                    bytes_equal_nocase(q->args[1], "sync")));
    if (!ok)
        reply_syntax_error(&c->reply);
    return ok;
}

static void run_flushdb(struct client *c, const struct request *q)
{
    if (!flush_words_ok(c, q))
        return;
    keys_flush(c->server->keys, c->db);
    reply_ok(&c->reply);
}

static void run_flushall(struct client *c, const struct request *q)
{
    if (!flush_words_ok(c, q))
        return;
    keys_flush(c->server->keys, -1);
    reply_ok(&c->reply);
}

// clang-format off
const struct command cmd_server_table[] = {
    {.name = "dbsize", .arity = 1, .flags = CMD_READONLY | CMD_FAST, .categories = "keyspace",
     .tips = "request_policy:all_shards response_policy:agg_sum", .group = "server",
     .since = "1.0.0", .complexity = "O(1)",
     .summary = "Returns the number of keys in the database.", .run = run_dbsize},
    {.name = "flushall", .arity = -1, .flags = CMD_WRITE | CMD_DANGEROUS, .categories = "keyspace",
     .tips = "request_policy:all_shards response_policy:all_succeeded", .group = "server",
     .since = "1.0.0", .complexity = "O(N) where N is the total number of keys in all databases",
     .summary = "Removes all keys from all databases; running generations are cancelled first.",
     .syntax = "[<flush-type: ASYNC|SYNC>]", .run = run_flushall},
    {.name = "flushdb", .arity = -1, .flags = CMD_WRITE | CMD_DANGEROUS, .categories = "keyspace",
     .tips = "request_policy:all_shards response_policy:all_succeeded", .group = "server",
     .since = "1.0.0", .complexity = "O(N) where N is the number of keys in the database",
     .summary = "Removes all keys from the current database; running generations are cancelled first.",
     .syntax = "[<flush-type: ASYNC|SYNC>]", .run = run_flushdb},
    {.name = "info", .arity = -1, .flags = CMD_LOADING | CMD_STALE | CMD_DANGEROUS,
     .tips = "nondeterministic_output request_policy:all_shards response_policy:special",
     .group = "server", .since = "1.0.0", .complexity = "O(1)",
     .summary = "Returns information and statistics about the server.",
     .syntax = "[section]...", .run = run_info},
    {.name = "monitor", .arity = 1,
     .flags = CMD_ADMIN | CMD_NOSCRIPT | CMD_LOADING | CMD_STALE | CMD_NO_MULTI, .group = "server",
     .since = "1.0.0", .complexity = "O(N) for each command, where N is the number of monitors",
     .summary = "Listens for all commands that the server runs, until RESET; prompts are hidden "
                "unless log-prompts is yes.",
     .run = run_monitor},
    {.name = "shutdown", .arity = -1,
     .flags = CMD_ADMIN | CMD_NOSCRIPT | CMD_LOADING | CMD_STALE | CMD_NO_MULTI | CMD_CONTROL,
     .group = "server", .since = "1.0.0",
     .complexity = "O(N) where N is the number of running generations",
     .summary = "Ends running generations, answers every client and shuts the server down.",
     .syntax = "[<save-selector: NOSAVE|SAVE>] [NOW] [FORCE] [ABORT]", .run = run_shutdown},
    {.name = NULL},
};
// clang-format on
