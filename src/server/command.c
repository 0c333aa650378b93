/* command.c - one table for all commands: look-up, checks, dispatch.
 *
 * A command is a row of a family's table (cmd_*.c): name, arity, flags, key positions, ACL
 * categories, tips, documentation and handler. Dispatch, COMMAND, COMMAND DOCS, HELP and the key
 * finder all read these rows, so that they cannot disagree.
 *
 * The order of the checks is that of Redis, because clients depend on it: unknown command and arity
 * before authentication; authentication before loading; then MULTI queues what is left. Every request
 * gets exactly one reply, whatever happens: the replies of a pipeline never shift.
 *
 * Only a line of HTTP closes without a reply: a browser that was tricked into posting to our port
 * must not see anything, and the lines of its body must not run as commands. */
#include "server/command.h"

#include <ctype.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/memory.h"
#include "server/monitor.h"
#include "server/server.h"
#include "server/slowlog.h"
#include "server/stats.h"

enum {
    NAME_MAX_BYTES = 64,
    HTTP_LOG_US = 60 * 1000 * 1000,
    DESCRIBE_MAX = 512, /* bytes of a request in a log line */
};

// clang-format off
const struct command *const command_families[] = {
    cmd_conn_table,
    cmd_client_table,
    cmd_command_table,
    cmd_config_table,
    cmd_server_table,
    cmd_multi_table,
    cmd_key_table,
    cmd_expire_table,
    cmd_stream_table,
    cmd_xread_table,
    cmd_gen_table,
    cmd_fork_table,
    cmd_cache_table,
    cmd_debug_table,
    cmd_pubsub_table,
    cmd_slowlog_table,
    cmd_cluster_table,
    cmd_move_table,
    cmd_object_table,
    cmd_role_table,
    cmd_xinfo_table,
    cmd_seam_table,
    NULL,
};
// clang-format on

/* ---- the table -------------------------------------------------------------------------------- */

struct table *commands_new(void)
{
    struct table *t = table_new();
    for (const struct command *const *family = command_families; *family; family++) {
        for (const struct command *c = *family; c->name; c++) {
            void *before = table_put(t, bytes_from(c->name), (void *)(uintptr_t)c);
            ASSERT(!before);
        }
    }
    return t;
}

int commands_count(void)
{
    int n = 0;
    for (const struct command *const *family = command_families; *family; family++)
        for (const struct command *c = *family; c->name; c++)
            n++;
    return n;
}

const struct command *command_find(const struct table *commands, struct bytes name)
{
    char lower[NAME_MAX_BYTES];
    if (name.len >= sizeof lower)
        return NULL;
    for (size_t i = 0; i < name.len; i++)
        lower[i] =
            (char)(name.data[i] >= 'A' && name.data[i] <= 'Z' ? name.data[i] + 32 : name.data[i]);
    return table_get(commands, (struct bytes){lower, name.len});
}

const struct command *command_find_sub(const struct command *parent, struct bytes name)
{
    for (const struct command *c = parent->subcommands; c && c->name; c++)
        if (bytes_equal_nocase(name, c->name))
            return c;
    return NULL;
}

const struct command *command_find_full(const struct table *commands, struct bytes name)
{
    const char *bar = memchr(name.data, '|', name.len);
    if (!bar)
        return command_find(commands, name);
    size_t len = (size_t)(bar - name.data);
    const struct command *parent = command_find(commands, (struct bytes){name.data, len});
    return parent ? command_find_sub(parent, (struct bytes){bar + 1, name.len - len - 1}) : NULL;
}

const struct command *command_container(const struct command *command)
{
    for (const struct command *const *family = command_families; *family; family++)
        for (const struct command *c = *family; c->name; c++)
            for (const struct command *sub = c->subcommands; sub && sub->name; sub++)
                if (sub == command)
                    return c;
    return NULL;
}

const char *command_parent(const struct command *command)
{
    const struct command *container = command_container(command);
    return container ? container->name : NULL;
}

void command_full_name(const struct command *command, struct str *out)
{
    const char *parent = command_parent(command);
    if (parent)
        str_printf(out, "%s|", parent);
    str_append_str(out, command->name);
}

/* ---- errors ----------------------------------------------------------------------------------- */

static void append_upper(struct str *out, const char *name)
{
    for (; *name; name++)
        str_append_char(out, (char)toupper((unsigned char)*name));
}

void reply_syntax_error(struct reply *r)
{
    reply_error(r, "ERR syntax error");
}

void reply_not_integer(struct reply *r)
{
    reply_error(r, "ERR value is not an integer or out of range");
}

void reply_subcommand_words(struct client *c, const struct request *q)
{
    struct str text = {0};
    str_append_str(&text, "ERR unknown subcommand or wrong number of arguments for '");
    echo_append(&text, q->args[1]);
    str_append_str(&text, "'. Try ");
    append_upper(&text, command_parent(c->last_command));
    str_append_str(&text, " HELP.");
    reply_error_bytes(&c->reply, bytes_of(&text));
    str_free(&text);
}

void reply_err(struct reply *r, const struct err *err)
{
    reply_error_bytes(r, bytes_from(err->text));
}

void reply_error_echo(struct reply *r, const char *before, struct bytes arg, const char *after)
{
    struct str text = {0};
    str_append_str(&text, before);
    echo_append(&text, arg);
    str_append_str(&text, after);
    reply_error_bytes(r, bytes_of(&text));
    str_free(&text);
}

static void unknown_text(const struct request *q, struct str *error)
{
    str_append_str(error, "ERR unknown command '");
    echo_append(error, q->args[0]);
    str_append_str(error, "', with args beginning with: ");
    size_t start = error->len;
    for (int i = 1; i < q->n_args && error->len - start < REPLY_ECHO_MAX; i++) {
        size_t left = REPLY_ECHO_MAX - (error->len - start);
        str_append_char(error, '\'');
        str_append(error, q->args[i].data, q->args[i].len < left ? q->args[i].len : left);
        str_append_str(error, "' ");
    }
}

const struct command *command_resolve(const struct table *commands, const struct request *q,
                                      struct str *error)
{
    const struct command *c = command_find(commands, q->args[0]);
    if (!c) {
        unknown_text(q, error);
        return NULL;
    }
    if (!c->subcommands || q->n_args < 2)
        return c;
    const struct command *sub = command_find_sub(c, q->args[1]);
    bool takes_any = c->run && c->arity < -1; /* COMMAND's own row is that of COMMAND alone */
    if (sub || takes_any)
        return sub ? sub : c;
    str_append_str(error, "ERR unknown subcommand '");
    echo_append(error, q->args[1]);
    str_append_str(error, "'. Try ");
    append_upper(error, c->name);
    str_append_str(error, " HELP.");
    return NULL;
}

bool command_arity_ok(const struct command *command, int n_args)
{
    return command->arity >= 0 ? n_args == command->arity : n_args >= -command->arity;
}

/* ---- keys ------------------------------------------------------------------------------------- */

void key_positions_add(struct key_positions *p, int at)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? p->cap * 2 : 8;
        p->at = xrealloc(p->at, sizeof *p->at * (size_t)p->cap);
    }
    p->at[p->n++] = at;
}

bool command_keys(const struct command *command, const struct request *q,
                  struct key_positions *positions)
{
    if (command->keys)
        return command->keys(q, positions);
    if (command->first_key == 0)
        return true;
    int last = command->last_key < 0 ? q->n_args + command->last_key : command->last_key;
    for (int i = command->first_key; i <= last && i < q->n_args; i += command->key_step)
        key_positions_add(positions, i);
    return true;
}

bool command_parse_db(struct client *c, struct bytes text, int32_t *db)
{
    int64_t number;
    if (!parse_i64(text, &number)) {
        reply_not_integer(&c->reply);
        return false;
    }
    if (number < INT32_MIN || number > INT32_MAX) {
        reply_error(&c->reply, "ERR value is out of range, value must between %d and %d", INT32_MIN,
                    INT32_MAX);
        return false;
    }
    if (number < 0 || number >= c->server->config.databases) {
        reply_error(&c->reply, "ERR DB index is out of range");
        return false;
    }
    *db = (int32_t)number;
    return true;
}

void command_touch(const struct client *c, struct key *key)
{
    if (!c->no_touch)
        key_touch(key);
}

/* ---- dispatch --------------------------------------------------------------------------------- */

static bool is_http(const struct request *q)
{
    return bytes_equal_nocase(q->args[0], "post") || bytes_equal_nocase(q->args[0], "host:");
}

static void refuse_http(struct client *c)
{
    struct server *s = c->server;
    if (s->http_logged_us == 0 || clock_now_us() - s->http_logged_us > HTTP_LOG_US) {
        log_warning(LOG_NET,
                    "possible attack: client %s sends POST or Host:, as a browser that was tricked "
                    "into talking to this port would; closed",
                    c->peer.address);
        s->http_logged_us = clock_now_us();
    }
    client_drop(c);
}

/* Messages come unasked on its connection, and version 2 cannot tell them from replies. */
static bool is_listening(const struct client *c)
{
    return c->reply.protocol < 3 && pubsub_count(c) > 0;
}

static void refuse_listening(struct client *c, const struct command *command)
{
    struct str text = {0};
    str_append_str(&text, "ERR Can't execute '");
    command_full_name(command, &text);
    str_append_str(&text, "': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
                          "allowed in this context");
    reply_error_bytes(&c->reply, bytes_of(&text));
    str_free(&text);
}

static bool is_exec(const struct client *c, const struct command *command)
{
    return c->multi && strcmp(command->name, "exec") == 0;
}

/* EXEC takes what its commands take. */
static bool takes_memory(const struct client *c, const struct command *command)
{
    return (command->flags & CMD_DENYOOM) ||
           (is_exec(c, command) && (c->multi->flags & CMD_DENYOOM));
}

/* An EXEC that is refused ends its transaction, as in Redis. */
static void refuse_exec(struct client *c, const char *why)
{
    client_discard_multi(c);
    guard_clear(&c->guard);
    reply_error(&c->reply, "EXECABORT Transaction discarded because of: %s", why);
}

static void refuse_memory(struct client *c, const struct command *command)
{
    static const char text[] = "OOM command not allowed when used memory > 'maxmemory'.";
    if (is_exec(c, command))
        refuse_exec(c, text);
    else
        reply_error(&c->reply, "%s", text);
}

static void refuse_arity(struct client *c, const struct command *command)
{
    struct str text = {0};
    str_append_str(&text, "wrong number of arguments for '");
    command_full_name(command, &text);
    str_append_str(&text, "' command");
    if (strcmp(command->name, "exec") == 0) /* in Redis also without MULTI */
        refuse_exec(c, text.data);
    else
        reply_error(&c->reply, "ERR %s", text.data);
    str_free(&text);
}

static bool debug_is_allowed(const struct client *c)
{
    int setting = c->server->config.enable_debug_command;
    return setting == CONFIG_DEBUG_YES || (setting == CONFIG_DEBUG_LOCAL && c->peer.is_loopback);
}

/* Checks that need no state of the command itself. True: an error was written. */
static bool refuse(struct client *c, const struct command *command)
{
    struct server *s = c->server;
    bool may_run_stopping = (command->flags & CMD_CONTROL) || !(command->flags & CMD_WRITE);
    if (!c->authenticated && !(command->flags & CMD_NO_AUTH))
        reply_error(&c->reply, "NOAUTH Authentication required.");
    else if (is_listening(c) && !(command->flags & CMD_SUBSCRIBED))
        refuse_listening(c, command);
    else if (s->state == SERVER_LOADING && !(command->flags & CMD_LOADING))
        reply_error(&c->reply, "LOADING Kvasir is loading the model into memory");
    else if (s->state >= SERVER_STOPPING && !may_run_stopping)
        reply_error(&c->reply, "ERR the server is shutting down");
    else if ((command->flags & CMD_DEBUG) && !debug_is_allowed(c))
        reply_error(&c->reply,
                    "ERR DEBUG command not allowed. If the enable-debug-command option is set to "
                    "\"local\", you can run it from a local connection, otherwise you need to set "
                    "this option in the configuration file, and then restart the server.");
    else if (c->multi && (command->flags & CMD_NO_MULTI))
        reply_error(&c->reply, "ERR Command not allowed inside a transaction");
    else if (takes_memory(c, command) && !memory_make_room(s))
        refuse_memory(c, command);
    else
        return false;
    return true;
}

static bool queue_push(struct multi *m, struct request q, size_t bytes)
{
    if (m->n == m->cap) {
        int cap = m->cap ? m->cap * 2 : 8;
        struct request *queue = try_realloc(MEM_CLIENT, m->queue, sizeof *queue * (size_t)cap);
        if (!queue)
            return false;
        m->queue = queue;
        m->cap = cap;
    }
    m->queue[m->n++] = q;
    m->bytes += bytes;
    return true;
}

/* Takes the request out of the reader. */
static void enqueue(struct client *c, const struct command *command)
{
    struct multi *m = c->multi;
    size_t bytes = resp_bytes(&c->reader) + sizeof(struct request);
    size_t limit = client_limits(c).max_query_bytes;
    if (m->bytes + bytes > limit) {
        m->broken = true;
        reply_error(&c->reply, "ERR the transaction is over client-query-buffer-limit (%zu bytes)",
                    limit);
        return;
    }
    struct request q = resp_take(&c->reader);
    if (queue_push(m, q, bytes)) {
        m->flags |= command->flags;
        reply_status(&c->reply, "QUEUED");
        return;
    }
    request_free(&q);
    m->broken = true;
    reply_error(&c->reply, "OOM no memory to queue the command");
}

/* ---- logs ------------------------------------------------------------------------------------- */

bool command_hides(const struct command *command, int i, struct bytes arg, bool show_prompts,
                   struct str *out)
{
    bool is_private = command->private_from > 0 && i >= command->private_from;
    if (!is_private || (show_prompts && !command->is_secret))
        return false;
    if (command->is_secret)
        str_append_str(out, "(redacted)"); /* the length of a password is secret, too */
    else
        str_printf(out, "(%zu bytes)", arg.len);
    return true;
}

/* The request as a log line shows it: hidden words replaced, others cut and quoted. */
static void describe(const struct command *command, const struct request *q, bool show_prompts,
                     struct str *out)
{
    for (int i = 0; i < q->n_args; i++) {
        if (i > 0)
            str_append_char(out, ' ');
        if (command_hides(command, i, q->args[i], show_prompts, out))
            continue;
        str_append_char(out, '"');
        echo_append(out, q->args[i]);
        str_append_char(out, '"');
        if (out->len > DESCRIBE_MAX) {
            str_printf(out, " ... %d words in all", q->n_args);
            break;
        }
    }
}

static void trace(struct client *c, const struct command *command, const struct request *q)
{
    struct str text = {0};
    describe(command, q, c->server->config.log_prompts, &text);
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] == '\0') /* the line ends there otherwise */
            text.data[i] = '?';
    log_debug(LOG_NET, "client id=%llu: %s", (unsigned long long)c->id, text.data);
    str_free(&text);
}

void command_call(struct client *c, const struct command *command, const struct request *q)
{
    const struct request *outer = c->request;
    c->request = q;
    c->last_command = command;
    c->n_commands++;
    if (log_threshold <= LOG_DEBUG)
        trace(c, command, q);
    struct server *s = c->server;
    struct str *out = c->reply.out;
    size_t at = out->len;
    int64_t start_us = clock_mono_us();
    s->stats.commands++;
    command->run(c, q);
    int64_t took_us = clock_mono_us() - start_us;
    bool failed = !c->reply.over && out->len > at && out->data[at] == '-';
    stats_count_call(s->counts, command, took_us, failed);
    if (failed)
        stats_count_error(s->counts, (struct bytes){out->data + at, out->len - at});
    if (!(command->flags & CMD_SKIP_SLOWLOG))
        slowlog_note(c, command, q, took_us);
    monitor_feed(c, command, q);
    c->request = outer;
}

/* CLIENT PAUSE. EXEC writes when one of its commands does. */
static bool is_held_back(const struct client *c, const struct command *command)
{
    enum server_pause pause = c->server->pause;
    if (pause == PAUSE_NONE || (command->flags & CMD_CONTROL))
        return false;
    unsigned flags = command->flags | (is_exec(c, command) ? c->multi->flags : 0);
    return pause == PAUSE_ALL || (flags & CMD_WRITE);
}

static void count_refused(struct client *c, const struct command *command)
{
    struct reply *r = &c->reply;
    stats_count_error(c->server->counts,
                      (struct bytes){r->out->data + r->mark, r->out->len - r->mark});
    if (command)
        stats_count_rejected(c->server->counts, command);
}

static void dispatch(struct client *c, struct request *q)
{
    struct str error = {0};
    const struct command *command = command_resolve(c->server->commands, q, &error);
    bool refused = true;
    if (!command) {
        reply_error_bytes(&c->reply, bytes_of(&error));
    } else if (!command_arity_ok(command, q->n_args)) {
        refuse_arity(c, command);
    } else {
        refused = refuse(c, command);
    }
    str_free(&error);
    if (refused && c->multi)
        c->multi->broken = true;
    if (refused) {
        count_refused(c, command);
        return;
    }
    if (is_held_back(c, command)) {
        c->blocked = BLOCK_PAUSE;
        c->mute_next = c->mute; /* it comes here once more */
        return;
    }
    if (c->multi && !(command->flags & CMD_IN_MULTI))
        enqueue(c, command);
    else
        command_call(c, command, q);
}

void command_dispatch(struct client *c, struct request *q)
{
    if (is_http(q)) {
        refuse_http(c);
        return;
    }
    c->reply.limit = c->server->output_limit.hard_bytes;
    uint64_t errors = c->reply.errors;
    c->mute = c->mute_next;
    c->mute_next = false;
    reply_begin(&c->reply);
    dispatch(c, q);
    reply_end(&c->reply);
    client_finish_reply(c);
    c->server->stats.errors += c->reply.errors - errors;
    client_attend(c);
}
