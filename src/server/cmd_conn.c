/* cmd_conn.c - PING ECHO HELLO AUTH SELECT QUIT RESET: what clients send before anything else.
 *
 * Three of the common clients give up when HELLO fails, and every command of a pipelined handshake
 * must get exactly one reply, a failing AUTH in the middle too. A HELLO that fails leaves protocol
 * and authentication as they were. */
#include <string.h>
#include "base/mem.h"
#include "server/client_name.h"
#include "server/command.h"
#include "server/password.h"
#include "server/server.h"

/* To a version 2 client that is subscribed, everything is a message. */
static void reply_pong_message(struct client *c, struct bytes text)
{
    reply_array(&c->reply, 2);
    reply_text(&c->reply, "pong");
    reply_bulk(&c->reply, text);
}

static void run_ping(struct client *c, const struct request *q)
{
    if (q->n_args > 2)
        reply_error(&c->reply, "ERR wrong number of arguments for 'ping' command");
    else if (c->reply.protocol < 3 && pubsub_count(c) > 0)
        reply_pong_message(c, q->n_args == 2 ? q->args[1] : BYTES(""));
    else if (q->n_args == 2)
        reply_bulk(&c->reply, q->args[1]);
    else
        reply_status(&c->reply, "PONG");
}

static void run_echo(struct client *c, const struct request *q)
{
    reply_bulk(&c->reply, q->args[1]);
}

/* There is one user so far, "default", whose password is requirepass. */
static bool is_right(const struct client *c, struct bytes user, struct bytes password)
{
    const char *expected = c->server->config.requirepass;
    return bytes_equal(user, BYTES("default")) &&
           (!*expected || password_matches(password, bytes_from(expected)));
}

static void reply_wrong_password(struct client *c)
{
    reply_error(&c->reply, "WRONGPASS invalid username-password pair or user is disabled.");
}

static void run_auth(struct client *c, const struct request *q)
{
    if (q->n_args > 3) {
        reply_syntax_error(&c->reply);
        return;
    }
    if (q->n_args == 2 && !*c->server->config.requirepass) {
        reply_error(&c->reply,
                    "ERR AUTH <password> called without any password configured for the default "
                    "user. Are you sure your configuration is correct?");
        return;
    }
    struct bytes user = q->n_args == 3 ? q->args[1] : BYTES("default");
    if (!is_right(c, user, q->args[q->n_args - 1])) {
        reply_wrong_password(c);
        return;
    }
    c->authenticated = true;
    reply_ok(&c->reply);
}

/* ---- HELLO ------------------------------------------------------------------------------------ */

struct hello {
    int64_t protocol;
    bool has_auth, has_name;
    struct bytes user, password, name;
};

/* False: an error was written. */
static bool hello_parse(struct client *c, const struct request *q, struct hello *h)
{
    h->protocol = c->reply.protocol;
    if (q->n_args > 1 && !parse_i64(q->args[1], &h->protocol)) {
        reply_error(&c->reply, "ERR Protocol version is not an integer or out of range");
        return false;
    }
    if (h->protocol < 2 || h->protocol > 3) {
        reply_error(&c->reply, "NOPROTO unsupported protocol version");
        return false;
    }
    for (int i = 2; i < q->n_args;) {
        if (bytes_equal_nocase(q->args[i], "auth") && i + 2 < q->n_args) {
            h->has_auth = true;
            h->user = q->args[i + 1];
            h->password = q->args[i + 2];
            i += 3;
        } else if (bytes_equal_nocase(q->args[i], "setname") && i + 1 < q->n_args) {
            h->has_name = true;
            h->name = q->args[i + 1];
            i += 2;
        } else {
            struct str text = {0};
            str_append_str(&text, "ERR Syntax error in HELLO option '");
            echo_append(&text, q->args[i]);
            str_append_char(&text, '\'');
            reply_error_bytes(&c->reply, bytes_of(&text));
            str_free(&text);
            return false;
        }
    }
    return true;
}

static void hello_reply(struct client *c)
{
    struct reply *r = &c->reply;
    reply_map(r, 7);
    reply_text(r, "server");
    reply_text(r, "redis"); /* clients compare it */
    reply_text(r, "version");
    reply_text(r, SERVER_REDIS_VERSION);
    reply_text(r, "proto");
    reply_int(r, r->protocol);
    reply_text(r, "id");
    reply_int(r, (int64_t)c->id);
    reply_text(r, "mode");
    reply_text(r, "standalone");
    reply_text(r, "role");
    reply_text(r, "master");
    reply_text(r, "modules");
    reply_array(r, 0);
}

static void run_hello(struct client *c, const struct request *q)
{
    struct hello h = {0};
    if (!hello_parse(c, q, &h))
        return;
    if (h.has_auth && !is_right(c, h.user, h.password)) {
        reply_wrong_password(c);
        return;
    }
    if (!h.has_auth && !c->authenticated) {
        reply_error(&c->reply,
                    "NOAUTH HELLO must be called with the client already authenticated, otherwise "
                    "the HELLO AUTH <user> <pass> option can be used to authenticate the "
                    "client and select the RESP protocol version at the same time");
        return;
    }
    if (h.has_name && !client_name_set(c, h.name))
        return;
    c->authenticated |= h.has_auth;
    c->reply.protocol = (int)h.protocol;
    hello_reply(c);
}

/* ---- SELECT, QUIT, RESET ---------------------------------------------------------------------- */

static void run_select(struct client *c, const struct request *q)
{
    if (command_parse_db(c, q->args[1], &c->db))
        reply_ok(&c->reply);
}

static void run_quit(struct client *c, const struct request *q)
{
    pubsub_leave(c); /* no message behind the last reply */
    reply_ok(&c->reply);
    client_close_soon(c, false);
}

static void run_reset(struct client *c, const struct request *q)
{
    client_reset(c);
    reply_status(&c->reply, "RESET");
}

// clang-format off
enum { CONN = CMD_NOSCRIPT | CMD_LOADING | CMD_STALE | CMD_FAST };
const struct command cmd_conn_table[] = {
    {.name = "auth", .arity = -2, .flags = CONN | CMD_NO_AUTH,
     .categories = "connection", .group = "connection", .since = "1.0.0", .complexity = "O(1)",
     .summary = "Authenticates the connection.",
     .syntax = "[username] password", .private_from = 1, .is_secret = true, .run = run_auth},
    {.name = "echo", .arity = 2, .flags = CMD_LOADING | CMD_STALE | CMD_FAST,
     .categories = "connection", .group = "connection", .since = "1.0.0", .complexity = "O(1)",
     .summary = "Returns the given string.",
     .syntax = "message", .run = run_echo},
    {.name = "hello", .arity = -1, .flags = CONN | CMD_NO_AUTH,
     .categories = "connection", .group = "connection", .since = "6.0.0", .complexity = "O(1)",
     .summary = "Handshakes with the server: protocol, authentication and name.",
     .syntax = "[protover:integer [AUTH username password] [SETNAME clientname]]",
     .private_from = 2, .is_secret = true, .run = run_hello},
    {.name = "ping", .arity = -1, .flags = CMD_FAST | CMD_SUBSCRIBED,
     .categories = "connection", .tips = "request_policy:all_shards response_policy:all_succeeded",
     .group = "connection", .since = "1.0.0", .complexity = "O(1)",
     .summary = "Returns the server's liveliness response.",
     .syntax = "[message]", .run = run_ping},
    {.name = "quit", .arity = -1, .flags = CONN | CMD_NO_AUTH | CMD_IN_MULTI | CMD_SUBSCRIBED,
     .categories = "connection", .group = "connection", .since = "1.0.0", .complexity = "O(1)",
     .summary = "Closes the connection.",
     .syntax = "", .run = run_quit},
    {.name = "reset", .arity = 1, .flags = CONN | CMD_NO_AUTH | CMD_IN_MULTI | CMD_SUBSCRIBED,
     .categories = "connection", .group = "connection", .since = "6.2.0", .complexity = "O(1)",
     .summary = "Resets the connection.",
     .syntax = "", .run = run_reset},
    {.name = "select", .arity = 2, .flags = CMD_LOADING | CMD_STALE | CMD_FAST,
     .categories = "connection", .group = "connection", .since = "1.0.0", .complexity = "O(1)",
     .summary = "Changes the selected database.",
     .syntax = "index:integer", .run = run_select},
    {.name = NULL},
};
// clang-format on
