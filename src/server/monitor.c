/* monitor.c - MONITOR: every command that runs, as a line to those who asked to see them.
 *
 *     +1339518083.107412 [0 127.0.0.1:60866] "GEN" "chat:7" "(31 bytes)" "(9 bytes)" "(2 bytes)"
 *
 * The line is Redis', quoted as redis-cli prints strings, since programs parse it. As there,
 * administrative commands are not shown, and a transaction's commands stand before its EXEC. Prompts,
 * texts and passwords are hidden as in all logs (command_hides).
 *
 * A line is bounded: an argument of half a gigabyte would hold the main thread for a second. What is
 * cut says how much is missing. A monitor that does not read is bounded as a subscriber is
 * (client_push): over client-output-buffer-limit pubsub it is dropped. Main thread only. */
#include "server/monitor.h"

#include "base/clock.h"
#include "server/command.h"
#include "server/server.h"

enum {
    ARG_BYTES = 1024, /* of an argument that are shown */
    LINE_BYTES = 16 * 1024,
};

void monitor_start(struct client *c)
{
    c->is_monitor = true;
    if (list_is_empty(&c->monitor_node))
        list_push_back(&c->server->monitors, &c->monitor_node);
}

void monitor_leave(struct client *c)
{
    c->is_monitor = false;
    list_remove(&c->monitor_node);
}

/* ---- the line --------------------------------------------------------------------------------- */

static void append_arg(struct str *out, struct bytes arg)
{
    size_t len = arg.len < ARG_BYTES ? arg.len : ARG_BYTES;
    str_append_escaped(out, (struct bytes){arg.data, len}, ESCAPES_OF_REPLIES);
    if (arg.len > len)
        str_printf(out, "... (%zu more bytes)", arg.len - len);
}

static void append_request(struct str *out, const struct command *command, const struct request *q,
                           bool show_prompts)
{
    for (int i = 0; i < q->n_args; i++) {
        str_append_str(out, " \"");
        if (out->len > LINE_BYTES) {
            str_printf(out, "... (%d more arguments)\"", q->n_args - i);
            return;
        }
        if (!command_hides(command, i, q->args[i], show_prompts, out))
            append_arg(out, q->args[i]);
        str_append_char(out, '"');
    }
}

/* Where the client comes from, as Redis writes it here. */
static void append_source(struct str *out, const struct client *c)
{
    int64_t us = clock_wall_us();
    str_printf(out, "+%lld.%06lld [%d ", (long long)(us / 1000000), (long long)(us % 1000000),
               c->db);
    if (c->peer.is_unix)
        str_printf(out, "unix:%s]", c->server->config.unixsocket);
    else
        str_printf(out, "%s]", c->peer.address);
}

void monitor_feed(const struct client *c, const struct command *command, const struct request *q)
{
    struct server *s = c->server;
    if (list_is_empty(&s->monitors) || (command->flags & CMD_ADMIN))
        return;
    struct str line = {0};
    append_source(&line, c);
    append_request(&line, command, q, s->config.log_prompts);
    str_append_str(&line, "\r\n");
    LIST_FOREACH(&s->monitors, node, next) {
        struct client *monitor = LIST_ITEM(node, struct client, monitor_node);
        if (!monitor->dead && !monitor->closing)
            client_push(monitor, bytes_of(&line));
    }
    str_free(&line);
}
