/* cmd_client.c - CLIENT: who is connected and under what name.
 *
 * Names end up in lines of CLIENT LIST, so they hold printable characters without blanks only. A
 * subcommand that does not exist is answered `unknown subcommand`: clients that try tracking or
 * maintenance notifications then do without. */
#include <string.h>
#include "base/mem.h"
#include "server/client_name.h"
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

static bool has_type(const struct client *c, struct bytes type)
{
    if (bytes_equal_nocase(type, "pubsub"))
        return pubsub_count(c) > 0;
    return bytes_equal_nocase(type, "normal") && pubsub_count(c) == 0;
}

/* Which clients CLIENT LIST shows: all, those of a type, or those whose ids stand from args[3] on. */
static bool is_wanted(const struct client *c, const struct request *q, bool by_id)
{
    if (q->n_args == 2)
        return true;
    if (!by_id)
        return has_type(c, q->args[3]);
    for (int i = 3; i < q->n_args; i++) {
        uint64_t id;
        if (parse_u64(q->args[i], &id) && id == c->id)
            return true;
    }
    return false;
}

static bool is_type(struct bytes type)
{
    static const char *const types[] = {"normal", "master", "replica", "slave", "pubsub"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (bytes_equal_nocase(type, types[i]))
            return true;
    return false;
}

static bool list_parse(struct client *c, const struct request *q, bool *by_id)
{
    *by_id = q->n_args >= 4 && bytes_equal_nocase(q->args[2], "id");
    bool by_type = q->n_args == 4 && bytes_equal_nocase(q->args[2], "type");
    if (q->n_args != 2 && !*by_id && !by_type) {
        reply_syntax_error(&c->reply);
        return false;
    }
    for (int i = 3; *by_id && i < q->n_args; i++) {
        uint64_t id;
        if (!parse_u64(q->args[i], &id)) {
            reply_error(&c->reply, "ERR Invalid client ID");
            return false;
        }
    }
    if (by_type && !is_type(q->args[3])) {
        struct str text = {0};
        str_append_str(&text, "ERR Unknown client type '");
        echo_append(&text, q->args[3]);
        str_append_char(&text, '\'');
        reply_error_bytes(&c->reply, bytes_of(&text));
        str_free(&text);
        return false;
    }
    return true;
}

static void run_list(struct client *c, const struct request *q)
{
    bool by_id;
    if (!list_parse(c, q, &by_id))
        return;
    struct str text = {0};
    LIST_FOREACH(&c->server->clients, node, next) {
        const struct client *other = LIST_ITEM(node, struct client, node);
        if (!is_wanted(other, q, by_id))
            continue;
        client_describe(other, &text);
        str_append_char(&text, '\n');
    }
    reply_verbatim(&c->reply, bytes_of(&text));
    str_free(&text);
}

// clang-format off
enum { FLAGS = CMD_NOSCRIPT | CMD_LOADING | CMD_STALE };
static const struct command subcommands[] = {
    {.name = "getname", .arity = 2, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "2.6.9", .complexity = "O(1)",
     .summary = "Returns the name of the connection.", .run = run_getname},
    {.name = "id", .arity = 2, .flags = FLAGS, .categories = "connection",
     .group = "connection", .since = "5.0.0", .complexity = "O(1)",
     .summary = "Returns the unique client ID of the connection.", .run = run_id},
    {.name = "info", .arity = 2, .flags = FLAGS, .categories = "connection",
     .tips = "nondeterministic_output", .group = "connection", .since = "6.2.0",
     .complexity = "O(1)", .summary = "Returns information about the connection.", .run = run_info},
    {.name = "list", .arity = -2, .flags = FLAGS | CMD_ADMIN, .categories = "connection",
     .tips = "nondeterministic_output", .group = "connection", .since = "2.4.0",
     .complexity = "O(N) where N is the number of client connections",
     .summary = "Lists open connections.",
     .syntax = "[TYPE <client-type: NORMAL|MASTER|REPLICA|PUBSUB>] [ID client-id:integer...]",
     .run = run_list},
    {.name = "setinfo", .arity = 4, .flags = FLAGS, .categories = "connection",
     .tips = "request_policy:all_nodes response_policy:all_succeeded",
     .group = "connection", .since = "7.2.0", .complexity = "O(1)",
     .summary = "Sets information specific to the client or connection.",
     .syntax = "<attr: LIB-NAME libname|LIB-VER libver>", .run = run_setinfo},
    {.name = "setname", .arity = 3, .flags = FLAGS, .categories = "connection",
     .tips = "request_policy:all_nodes response_policy:all_succeeded",
     .group = "connection", .since = "2.6.9", .complexity = "O(1)",
     .summary = "Sets the connection name.", .syntax = "connection-name", .run = run_setname},
    {.name = NULL},
};

const struct command cmd_client_table[] = {
    {.name = "client", .arity = -2, .categories = "connection", .group = "connection",
     .since = "2.4.0", .complexity = "Depends on subcommand.",
     .flags = FLAGS, .summary = "A container for client connection commands.",
     .subcommands = subcommands},
    {.name = NULL},
};
// clang-format on
