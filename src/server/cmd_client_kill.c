/* cmd_client_kill.c - CLIENT LIST, KILL and UNBLOCK: which clients, and what becomes of them.
 *
 * Who is killed or unblocked while it waits for a generation has left it: when it was the last one,
 * the orphan clock starts, and an answer that had just become ready stays undelivered, for the same
 * GEN to fetch. A client that kills itself gets its reply first, others are closed as they are, at
 * the end of this turn: nobody who walks a list finds a client gone under his hands. */
#include "server/cmd_client.h"
#include "server/server.h"

/* ---- types ------------------------------------------------------------------------------------ */

/* There are no replicas and no masters here; both are valid questions. */
static const char *const types[] = {"normal", "master", "replica", "slave", "pubsub", NULL};

static const char *type_find(struct bytes name)
{
    int i = 0;
    while (types[i] && !bytes_equal_nocase(name, types[i]))
        i++;
    return types[i];
}

static const char *type_of(const struct client *c)
{
    return pubsub_count(c) > 0 ? types[4] : types[0];
}

/* NULL: an error was written. */
static const char *type_parse(struct client *c, struct bytes name)
{
    const char *type = type_find(name);
    if (!type)
        reply_error_echo(&c->reply, "ERR Unknown client type '", name, "'");
    return type;
}

/* ---- LIST ------------------------------------------------------------------------------------- */

static bool is_listed(const struct client *c, const struct request *q)
{
    for (int i = 3; i < q->n_args; i++) {
        uint64_t id;
        if (parse_u64(q->args[i], &id) && id == c->id)
            return true;
    }
    return false;
}

/* False: an error was written. */
static bool list_parse(struct client *c, const struct request *q, bool *by_id, const char **type)
{
    *by_id = q->n_args >= 4 && bytes_equal_nocase(q->args[2], "id");
    *type = NULL;
    if (q->n_args == 4 && bytes_equal_nocase(q->args[2], "type"))
        return (*type = type_parse(c, q->args[3])) != NULL;
    if (q->n_args != 2 && !*by_id) {
        reply_syntax_error(&c->reply);
        return false;
    }
    for (int i = 3; *by_id && i < q->n_args; i++) {
        int64_t id; /* none is negative, and it may be asked for */
        if (!parse_i64(q->args[i], &id)) {
            reply_error(&c->reply, "ERR Invalid client ID");
            return false;
        }
    }
    return true;
}

void cmd_client_list(struct client *c, const struct request *q)
{
    bool by_id;
    const char *type;
    if (!list_parse(c, q, &by_id, &type))
        return;
    struct str text = {0};
    LIST_FOREACH(&c->server->clients, node, next) {
        const struct client *other = LIST_ITEM(node, struct client, node);
        if ((by_id && !is_listed(other, q)) || (type && type_of(other) != type))
            continue;
        client_describe(other, &text);
        str_append_char(&text, '\n');
    }
    reply_verbatim(&c->reply, bytes_of(&text));
    str_free(&text);
}

/* ---- KILL ------------------------------------------------------------------------------------- */

struct filter {
    uint64_t id;                 /* 0: any */
    struct bytes address, local; /* data NULL: any */
    const char *type;            /* NULL: any */
    bool skip_me;
};

/* One NAME value pair; false: an error was written. */
static bool filter_set(struct client *c, struct bytes name, struct bytes value, struct filter *f)
{
    if (bytes_equal_nocase(name, "id")) {
        int64_t id;
        if (parse_i64(value, &id) && id > 0) {
            f->id = (uint64_t)id;
            return true;
        }
        reply_error(&c->reply, "ERR client-id should be greater than 0");
        return false;
    }
    if (bytes_equal_nocase(name, "type"))
        return (f->type = type_parse(c, value)) != NULL;
    if (bytes_equal_nocase(name, "addr")) {
        f->address = value;
        return true;
    }
    if (bytes_equal_nocase(name, "laddr")) {
        f->local = value;
        return true;
    }
    if (bytes_equal_nocase(name, "user")) {
        if (bytes_equal(value, BYTES("default"))) /* the only one: everybody's */
            return true;
        reply_error_echo(&c->reply, "ERR No such user '", value, "'");
        return false;
    }
    bool yes = bytes_equal_nocase(value, "yes");
    if (bytes_equal_nocase(name, "skipme") && (yes || bytes_equal_nocase(value, "no"))) {
        f->skip_me = yes;
        return true;
    }
    reply_syntax_error(&c->reply);
    return false;
}

static bool matches(const struct client *c, const struct filter *f)
{
    if (c->dead || c->closing)
        return false;
    if (f->id > 0 && c->id != f->id)
        return false;
    if (f->type && type_of(c) != f->type)
        return false;
    if (f->address.data && !bytes_equal(f->address, bytes_from(c->peer.address)))
        return false;
    return !f->local.data || bytes_equal(f->local, bytes_from(c->peer.local));
}

static int64_t kill_all(struct client *c, const struct filter *f)
{
    int64_t n = 0;
    LIST_FOREACH(&c->server->clients, node, next) {
        struct client *other = LIST_ITEM(node, struct client, node);
        if (!matches(other, f) || (f->skip_me && other == c))
            continue;
        if (other == c)
            client_close_soon(c, false);
        else
            client_drop(other);
        n++;
    }
    return n;
}

void cmd_client_kill(struct client *c, const struct request *q)
{
    if (q->n_args == 3) { /* CLIENT KILL address:port, as before 2.8.12 */
        struct filter f = {.address = q->args[2]};
        if (kill_all(c, &f) > 0)
            reply_ok(&c->reply);
        else
            reply_error(&c->reply, "ERR No such client");
        return;
    }
    struct filter f = {.skip_me = true};
    if (q->n_args % 2 != 0) {
        reply_syntax_error(&c->reply);
        return;
    }
    for (int i = 2; i < q->n_args; i += 2)
        if (!filter_set(c, q->args[i], q->args[i + 1], &f))
            return;
    reply_int(&c->reply, kill_all(c, &f));
}

/* ---- UNBLOCK ---------------------------------------------------------------------------------- */

static struct client *client_find(struct server *s, uint64_t id)
{
    LIST_FOREACH(&s->clients, node, next) {
        struct client *c = LIST_ITEM(node, struct client, node);
        if (c->id == id && !c->dead)
            return c;
    }
    return NULL;
}

static void unblock(struct client *c, bool with_error)
{
    bool as_array = c->blocked == BLOCK_READ || c->blocked_info;
    client_leave_waits(c);
    client_answer_begin(c);
    if (with_error)
        reply_error(&c->reply, "UNBLOCKED client unblocked via CLIENT UNBLOCK");
    else if (as_array)
        reply_null_array(&c->reply);
    else
        reply_null(&c->reply);
    client_answer_end(c);
    client_unblock(c);
}

void cmd_client_unblock(struct client *c, const struct request *q)
{
    int64_t id;
    bool with_error = q->n_args == 4 && bytes_equal_nocase(q->args[3], "error");
    if (q->n_args > 4) {
        reply_subcommand_words(c, q);
        return;
    }
    if (q->n_args == 4 && !with_error && !bytes_equal_nocase(q->args[3], "timeout")) {
        reply_error(&c->reply, "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
        return;
    }
    if (!parse_i64(q->args[2], &id)) {
        reply_not_integer(&c->reply);
        return;
    }
    struct client *other = id > 0 ? client_find(c->server, (uint64_t)id) : NULL;
    bool waits = other && (other->blocked == BLOCK_GEN || other->blocked == BLOCK_READ);
    if (waits)
        unblock(other, with_error);
    reply_int(&c->reply, waits);
}
