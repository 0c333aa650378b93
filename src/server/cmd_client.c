/* cmd_client.c - CLIENT: who is connected and under what name.
 *
 * Names end up in lines of CLIENT LIST, so they hold printable characters without blanks only. A
 * subcommand that does not exist is answered `unknown subcommand`: clients that try tracking or
 * maintenance notifications then do without. */
#include <string.h>
#include "base/mem.h"
#include "server/client_name.h"
#include "server/cmd_client.h"
#include "server/command.h"
#include "server/server.h"

static bool is_printable(struct bytes name)
{
    for (size_t i = 0; i < name.len; i++)
        if (name.data[i] < '!' || name.data[i] > '~')
            return false;
    return true;
}

static void set_text(char **field, struct bytes text)
{
    xfree(*field);
    *field = NULL;
    if (text.len == 0)
        return;
    *field = xmalloc(text.len + 1);
    memcpy(*field, text.data, text.len);
    (*field)[text.len] = '\0';
}

enum { NAME_LIMIT = 1024 }; /* every line of CLIENT LIST repeats it */

bool client_name_set(struct client *c, struct bytes name)
{
    if (name.len > NAME_LIMIT) {
        reply_error(&c->reply, "ERR Client names have at most %d bytes, not %zu", NAME_LIMIT,
                    name.len);
        return false;
    }
    if (!is_printable(name)) {
        reply_error(&c->reply,
                    "ERR Client names cannot contain spaces, newlines or special characters.");
        return false;
    }
    set_text(&c->name, name);
    return true;
}

static void run_setname(struct client *c, const struct request *q)
{
    if (client_name_set(c, q->args[2]))
        reply_ok(&c->reply);
}

static void run_getname(struct client *c, const struct request *q)
{
    if (c->name)
        reply_text(&c->reply, c->name);
    else
        reply_null(&c->reply);
}

static void run_setinfo(struct client *c, const struct request *q)
{
    bool is_name = bytes_equal_nocase(q->args[2], "lib-name");
    if (!is_name && !bytes_equal_nocase(q->args[2], "lib-ver")) {
        struct str text = {0};
        str_append_str(&text, "ERR Unrecognized option '");
        echo_append(&text, q->args[2]);
        str_append_char(&text, '\'');
        reply_error_bytes(&c->reply, bytes_of(&text));
        str_free(&text);
        return;
    }
    if (!is_printable(q->args[3]) || q->args[3].len > NAME_LIMIT) {
        reply_error(&c->reply, "ERR %s cannot contain spaces, newlines or special characters.",
                    is_name ? "lib-name" : "lib-ver");
        return;
    }
    set_text(is_name ? &c->lib_name : &c->lib_version, q->args[3]);
    reply_ok(&c->reply);
}

static void run_id(struct client *c, const struct request *q)
{
    reply_int(&c->reply, (int64_t)c->id);
}

static void run_info(struct client *c, const struct request *q)
{
    struct str text = {0};
    client_describe(c, &text);
    str_append_char(&text, '\n');
    reply_verbatim(&c->reply, bytes_of(&text));
    str_free(&text);
}

// clang-format off
enum { FLAGS = CMD_NOSCRIPT | CMD_LOADING | CMD_STALE };
static const struct command subcommands[] = {
    {.name = "caching", .arity = 3, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "6.0.0", .complexity = "O(1)",
     .summary = "Tracks the keys of the next command: an error, as without tracking.",
     .syntax = "<mode: YES|NO>",
     .run = cmd_client_caching},
    {.name = "getname", .arity = 2, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "2.6.9", .complexity = "O(1)",
     .summary = "Returns the name of the connection.", .run = run_getname},
    {.name = "getredir", .arity = 2, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "6.0.0", .complexity = "O(1)",
     .summary = "Returns the client ID to which tracking notifications go: -1.",
     .run = cmd_client_getredir},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "connection", "5.0.0", "connection"),
    {.name = "id", .arity = 2, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "5.0.0", .complexity = "O(1)",
     .summary = "Returns the unique client ID of the connection.", .run = run_id},
    {.name = "info", .arity = 2, .flags = FLAGS, .categories = "connection",
     .tips = "nondeterministic_output", .group = "connection", .since = "6.2.0",
     .complexity = "O(1)", .summary = "Returns information about the connection.", .run = run_info},
    {.name = "kill", .arity = -3, .flags = FLAGS | CMD_ADMIN, .categories = "connection",
     .group = "connection", .since = "2.4.0", .complexity = "O(N) where N is the number of client connections",
     .summary = "Terminates open connections; a waiting GEN counts as gone.",
     .syntax = "<filter: ip:port:string|(<new-format: ID client-id:integer|TYPE <client-type: NORMAL|MASTER|REPLICA|PUBSUB>|USER username|ADDR ip:port:string|LADDR ip:port:string|SKIPME <yes/no: YES|NO>>)>",
     .run = cmd_client_kill},
    {.name = "list", .arity = -2, .flags = FLAGS | CMD_ADMIN, .categories = "connection",
     .tips = "nondeterministic_output", .group = "connection", .since = "2.4.0",
     .complexity = "O(N) where N is the number of client connections",
     .summary = "Lists open connections.",
     .syntax = "[TYPE <client-type: NORMAL|MASTER|REPLICA|PUBSUB>] [ID client-id:integer...]",
     .run = cmd_client_list},
    {.name = "no-evict", .arity = 3, .flags = FLAGS | CMD_ADMIN, .categories = "connection",
     .group = "connection", .since = "7.0.0", .complexity = "O(1)",
     .summary = "Sets the client eviction mode of the connection.",
     .syntax = "<enabled: ON|OFF>",
     .run = cmd_client_no_evict},
    {.name = "no-touch", .arity = 3, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "7.2.0", .complexity = "O(1)",
     .summary = "Controls whether commands sent by the client count as use of the keys.",
     .syntax = "<enabled: ON|OFF>",
     .run = cmd_client_no_touch},
    {.name = "pause", .arity = -3, .flags = FLAGS | CMD_ADMIN, .categories = "connection",
     .group = "connection", .since = "2.9.50", .complexity = "O(1)",
     .summary = "Suspends commands processing.",
     .syntax = "timeout:integer [<mode: WRITE|ALL>]",
     .run = cmd_client_pause},
    {.name = "reply", .arity = 3, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "3.2.0", .complexity = "O(1)",
     .summary = "Instructs the server whether to reply to commands.",
     .syntax = "<action: ON|OFF|SKIP>",
     .run = cmd_client_reply},
    {.name = "setinfo", .arity = 4, .flags = FLAGS, .categories = "connection",
     .tips = "request_policy:all_nodes response_policy:all_succeeded",
     .group = "connection", .since = "7.2.0", .complexity = "O(1)",
     .summary = "Sets information specific to the client or connection.",
     .syntax = "<attr: LIB-NAME libname|LIB-VER libver>", .run = run_setinfo},
    {.name = "setname", .arity = 3, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "2.6.9", .complexity = "O(1)",
     .summary = "Sets the connection name.", .syntax = "connection-name", .run = run_setname},
    {.name = "tracking", .arity = -3, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "6.0.0", .complexity = "O(1)",
     .summary = "Controls server-assisted client-side caching: ON is an error.",
     .syntax = "<status: ON|OFF> [REDIRECT client-id:integer] [PREFIX prefix]... [BCAST] [OPTIN] [OPTOUT] [NOLOOP]",
     .run = cmd_client_tracking},
    {.name = "trackinginfo", .arity = 2, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "6.2.0", .complexity = "O(1)",
     .summary = "Returns information about server-assisted client-side caching for the connection.",
     .run = cmd_client_trackinginfo},
    {.name = "unblock", .arity = -3, .flags = FLAGS | CMD_ADMIN, .categories = "connection",
     .group = "connection", .since = "5.0.0", .complexity = "O(1)",
     .summary = "Unblocks a client blocked by a blocking command from a different connection.",
     .syntax = "client-id:integer [<unblock-type: TIMEOUT|ERROR>]",
     .run = cmd_client_unblock},
    {.name = "unpause", .arity = 2, .flags = FLAGS | CMD_ADMIN | CMD_CONTROL, .categories = "connection",
     .group = "connection", .since = "6.2.0", .complexity = "O(N) Where N is the number of paused clients",
     .summary = "Resumes processing commands from paused clients.",
     .run = cmd_client_unpause},
    {.name = NULL},
};

const struct command cmd_client_table[] = {
    {.name = "client", .arity = -2, .group = "connection",
     .since = "2.4.0", .complexity = "Depends on subcommand.",
     .summary = "A container for client connection commands.",
     .subcommands = subcommands},
    {.name = NULL},
};
// clang-format on
