/* cmd_slowlog.c - SLOWLOG, and LATENCY as far as clients ask for it.
 *
 * LATENCY HISTOGRAM has the times of commands on the main thread, as INFO latencystats. There is no
 * latency monitor: no event is ever sampled, so the other answers of LATENCY are those of a Redis
 * whose monitor is off. INFO has the times of steps. */
#include "server/command.h"
#include "server/latency.h"
#include "server/server.h"
#include "server/slowlog.h"
#include "server/stats.h"

static void run_slowlog_get(struct client *c, const struct request *q)
{
    int64_t count = 10;
    if (q->n_args > 3)
        reply_subcommand_words(c, q);
    else if (q->n_args == 3 && (!parse_i64(q->args[2], &count) || count < -1))
        reply_error(&c->reply, "ERR count should be greater than or equal to -1");
    else
        slowlog_reply(&c->server->slowlog, &c->reply, count);
}

static void run_slowlog_len(struct client *c, const struct request *q)
{
    reply_int(&c->reply, c->server->slowlog.n);
}

static void run_slowlog_reset(struct client *c, const struct request *q)
{
    slowlog_reset(&c->server->slowlog);
    reply_ok(&c->reply);
}

static void run_latency_empty(struct client *c, const struct request *q)
{
    reply_array(&c->reply, 0);
}

/* Powers of two, each with the calls that took at most so many microseconds; as in Redis only those
 * that add calls to the one before. */
static void reply_histogram(struct reply *r, const struct latency *l)
{
    uint64_t before = 0;
    reply_map(r, 2);
    reply_text(r, "calls");
    reply_int(r, (int64_t)l->n);
    reply_text(r, "histogram_usec");
    size_t at = reply_hold(r);
    int n = 0;
    for (int64_t us = 1; before < l->n; us *= 2) {
        uint64_t calls = latency_count_up_to(l, us);
        if (calls == before)
            continue;
        reply_int(r, us);
        reply_int(r, (int64_t)calls);
        before = calls;
        n++;
    }
    reply_map_at(r, at, n);
}

/* The command and its subcommands, those that were called. The number of them. */
static int reply_histograms(struct client *c, const struct command *command)
{
    const struct latency *l = stats_latency(c->server->counts, command);
    int n = 0;
    if (l) {
        struct str name = {0};
        command_full_name(command, &name);
        reply_bulk(&c->reply, bytes_of(&name));
        str_free(&name);
        reply_histogram(&c->reply, l);
        n++;
    }
    for (const struct command *sub = command->subcommands; sub && sub->name; sub++)
        n += reply_histograms(c, sub);
    return n;
}

static void run_latency_histogram(struct client *c, const struct request *q)
{
    size_t at = reply_hold(&c->reply);
    int n = 0;
    for (const struct command *const *f = command_families; *f && q->n_args == 2; f++)
        for (const struct command *command = *f; command->name; command++)
            n += reply_histograms(c, command);
    for (int i = 2; i < q->n_args; i++) {
        const struct command *command = command_find_full(c->server->commands, q->args[i]);
        if (command)
            n += reply_histograms(c, command);
    }
    reply_map_at(&c->reply, at, n);
}

static void run_latency_reset(struct client *c, const struct request *q)
{
    reply_int(&c->reply, 0);
}

static void run_latency_doctor(struct client *c, const struct request *q)
{
    reply_verbatim(&c->reply,
                   BYTES("Latency is not monitored by event here. SLOWLOG GET has the commands "
                         "that held the main thread, LATENCY HISTOGRAM and INFO LATENCYSTATS how "
                         "long all of them did, INFO ENGINE the times of steps.\n"));
}

// clang-format off
enum { FLAGS = CMD_ADMIN | CMD_LOADING | CMD_STALE };
#define SERVER_GROUP .group = "server", .complexity = "O(1)"
static const struct command slowlog_subcommands[] = {
    {.name = "get", .arity = -2, .flags = FLAGS, .group = "server", .since = "2.2.12",
     .tips = "request_policy:all_nodes nondeterministic_output",
     .complexity = "O(N) where N is the number of entries returned",
     .summary = "Returns the newest entries of the slow log: id, time, microseconds on the main "
                "thread, arguments, address and name of the client.",
     .syntax = "[count:integer]", .run = run_slowlog_get},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "server", "6.2.0", NULL),
    {.name = "len", .arity = 2, .flags = FLAGS, SERVER_GROUP, .since = "2.2.12",
     .tips = "request_policy:all_nodes response_policy:agg_sum nondeterministic_output",
     .summary = "Returns the number of entries in the slow log.", .run = run_slowlog_len},
    {.name = "reset", .arity = 2, .flags = FLAGS, .group = "server", .since = "2.2.12",
     .tips = "request_policy:all_nodes response_policy:all_succeeded",
     .complexity = "O(N) where N is the number of entries in the slow log",
     .summary = "Clears all entries from the slow log.", .run = run_slowlog_reset},
    {.name = NULL},
};
#define LATENCY_TIPS "nondeterministic_output request_policy:all_nodes response_policy:special"
static const struct command latency_subcommands[] = {
    {.name = "doctor", .arity = 2, .flags = FLAGS | CMD_NOSCRIPT, SERVER_GROUP, .since = "2.8.13",
     .tips = LATENCY_TIPS, .summary = "Says where times of this server are to be found.",
     .run = run_latency_doctor},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "server", "2.8.13", NULL),
    {.name = "histogram", .arity = -2, .flags = FLAGS | CMD_NOSCRIPT, .group = "server",
     .since = "7.0.0", .tips = LATENCY_TIPS,
     .complexity = "O(N) where N is the number of commands with calls",
     .summary = "Returns how many calls of commands held the main thread for how long.",
     .syntax = "[command]...", .run = run_latency_histogram},
    {.name = "history", .arity = 3, .flags = FLAGS | CMD_NOSCRIPT, SERVER_GROUP, .since = "2.8.13",
     .tips = LATENCY_TIPS, .summary = "Returns no samples: latency events are not monitored.",
     .syntax = "event", .run = run_latency_empty},
    {.name = "latest", .arity = 2, .flags = FLAGS | CMD_NOSCRIPT, SERVER_GROUP, .since = "2.8.13",
     .tips = LATENCY_TIPS, .summary = "Returns no samples: latency events are not monitored.",
     .run = run_latency_empty},
    {.name = "reset", .arity = -2, .flags = FLAGS | CMD_NOSCRIPT, SERVER_GROUP, .since = "2.8.13",
     .tips = "request_policy:all_nodes response_policy:all_succeeded",
     .summary = "Returns 0: there are no latency events to reset.", .syntax = "[event]...",
     .run = run_latency_reset},
    {.name = NULL},
};
const struct command cmd_slowlog_table[] = {
    {.name = "latency", .arity = -2, .group = "server", .since = "2.8.13",
     .complexity = "Depends on subcommand.",
     .summary = "A container for latency diagnostics commands.",
     .subcommands = latency_subcommands},
    {.name = "slowlog", .arity = -2, .group = "server", .since = "2.2.12",
     .complexity = "Depends on subcommand.", .summary = "A container for slow log commands.",
     .subcommands = slowlog_subcommands},
    {.name = NULL},
};
// clang-format on
