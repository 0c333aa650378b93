/* cmd_config.c - CONFIG GET, SET, REWRITE over the option table; RESETSTAT.
 *
 * SET of several options is all or nothing: the old values are kept until every new one has been
 * accepted. What is set at start only says so, as Redis does. Passwords are shown to who may ask
 * (Redis does the same) and never logged. */
#include "base/log.h"
#include "base/mem.h"
#include "server/command.h"
#include "server/config_rewrite.h"
#include "server/server.h"
#include "server/stats.h"

static bool is_asked_for(const struct option *o, const struct request *q)
{
    for (int i = 2; i < q->n_args; i++)
        if (glob_match(q->args[i], bytes_from(o->name), true))
            return true;
    return false;
}

static void run_get(struct client *c, const struct request *q)
{
    size_t at = reply_hold(&c->reply);
    int n = 0;
    struct str value = {0};
    for (const struct option *o = config_options; o->name; o++) {
        if (!is_asked_for(o, q))
            continue;
        str_clear(&value);
        option_print(o, &c->server->config, &value);
        reply_text(&c->reply, o->name);
        reply_bulk(&c->reply, bytes_of(&value));
        n++;
    }
    reply_map_at(&c->reply, at, n);
    str_free(&value);
}

/* ---- SET -------------------------------------------------------------------------------------- */

static void refuse(struct client *c, struct bytes name, const char *why)
{
    struct str text = {0};
    str_append_str(&text, "ERR CONFIG SET failed (possibly related to argument '");
    echo_append(&text, name);
    str_printf(&text, "') - %s", why);
    reply_error_bytes(&c->reply, bytes_of(&text));
    str_free(&text);
}

/* False: an error was written. */
static bool find_options(struct client *c, const struct request *q, const struct option **options)
{
    for (int i = 2; i < q->n_args; i += 2) {
        const struct option *o = option_find(config_options, q->args[i]);
        if (!o) {
            struct str text = {0};
            str_append_str(&text, "ERR Unknown option or number of arguments for CONFIG SET - '");
            echo_append(&text, q->args[i]);
            str_append_char(&text, '\'');
            reply_error_bytes(&c->reply, bytes_of(&text));
            str_free(&text);
            return false;
        }
        if (o->flags & OPTION_START_ONLY) {
            refuse(c, q->args[i], "can't set immutable config");
            return false;
        }
        for (int k = 0; k < i / 2 - 1; k++) {
            if (options[k] == o) {
                refuse(c, q->args[i], "duplicate parameter");
                return false;
            }
        }
        options[i / 2 - 1] = o;
    }
    return true;
}

/* Sets them one by one; on a bad value those before it get their old values back. */
static void set_all(struct client *c, const struct request *q, const struct option **options, int n)
{
    struct config *config = &c->server->config;
    struct str *old = xcalloc((size_t)n, sizeof *old);
    struct err err;
    int done = 0;
    for (; done < n; done++) {
        option_print(options[done], config, &old[done]);
        if (config_set_option(config, options[done], q->args[2 * done + 3], &err) < 0)
            break;
    }
    if (done < n) {
        refuse(c, q->args[2 * done + 2], err.text);
        while (done-- > 0)
            (void)config_set_option(config, options[done], bytes_of(&old[done]),
                                    &err); /* was valid */
    } else {
        for (int i = 0; i < n; i++)
            log_notice(LOG_SERVER, "CONFIG SET %s by client id=%llu", options[i]->name,
                       (unsigned long long)c->id);
        server_config_changed(c->server);
        reply_ok(&c->reply);
    }
    for (int i = 0; i < n; i++)
        str_free(&old[i]);
    xfree(old);
}

static void run_set(struct client *c, const struct request *q)
{
    if (q->n_args % 2 != 0) {
        reply_syntax_error(&c->reply);
        return;
    }
    int n = q->n_args / 2 - 1, n_known = 0;
    for (const struct option *o = config_options; o->name; o++)
        n_known++;
    if (n > n_known) { /* each may stand once */
        reply_error(&c->reply, "ERR CONFIG SET of %d options, there are %d", n, n_known);
        return;
    }
    const struct option **options = xcalloc((size_t)n, sizeof *options);
    if (find_options(c, q, options))
        set_all(c, q, options, n);
    xfree(options);
}

/* ---- RESETSTAT, REWRITE ----------------------------------------------------------------------- */

static void run_resetstat(struct client *c, const struct request *q)
{
    struct server *s = c->server;
    s->stats = (struct server_stats){0};
    stats_reset(s->counts);
    if (s->keys)
        *keyspace_stats(s->keys) = (struct keyspace_stats){0};
    reply_ok(&c->reply);
}

static void run_rewrite(struct client *c, const struct request *q)
{
    const struct config *config = &c->server->config;
    struct err err;
    if (!config->file) {
        reply_error(&c->reply, "ERR The server is running without a config file");
    } else if (config_rewrite(config, config->file, &err) < 0) {
        log_warning(LOG_SERVER, "CONFIG REWRITE failed: %s", err.text);
        reply_error(&c->reply, "ERR Rewriting config file: %s", err.text);
    } else {
        log_notice(LOG_SERVER, "CONFIG REWRITE by client id=%llu: %s", (unsigned long long)c->id,
                   config->file);
        reply_ok(&c->reply);
    }
}

// clang-format off
enum { FLAGS = CMD_ADMIN | CMD_NOSCRIPT | CMD_LOADING | CMD_STALE };
static const struct command subcommands[] = {
    {.name = "get", .arity = -3, .flags = FLAGS, .group = "server", .since = "2.0.0",
     .complexity = "O(N) when N is the number of configuration parameters provided",
     .summary = "Returns the effective values of configuration parameters.",
     .syntax = "parameter...", .run = run_get},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "server", "5.0.0", NULL),
    {.name = "resetstat", .arity = 2, .flags = FLAGS, .group = "server", .since = "2.0.0",
     .complexity = "O(1)",
     .summary = "Resets the server's statistics.", .run = run_resetstat},
    {.name = "rewrite", .arity = 2, .flags = FLAGS, .group = "server", .since = "2.8.0",
     .complexity = "O(1)",
     .summary = "Persists the effective configuration to file; comments and unknown lines stay.",
     .run = run_rewrite},
    {.name = "set", .arity = -4, .flags = FLAGS, .group = "server", .since = "2.0.0",
     .tips = "request_policy:all_nodes response_policy:all_succeeded",
     .complexity = "O(N) when N is the number of configuration parameters provided",
     .summary = "Sets configuration parameters in-flight.",
     .syntax = "(parameter value)...", .private_from = 3, .is_secret = true, .run = run_set},
    {.name = NULL},
};
const struct command cmd_config_table[] = {
    {.name = "config", .arity = -2, .group = "server", .since = "2.0.0",
     .complexity = "Depends on subcommand.",
     .summary = "A container for server configuration commands.", .subcommands = subcommands},
    {.name = NULL},
};
// clang-format on
