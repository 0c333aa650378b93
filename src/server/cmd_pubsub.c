/* cmd_pubsub.c - SUBSCRIBE PSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE PUBLISH PUBSUB.
 *
 * The four that subscribe are one shape: kind and direction stand in a table. Each name gets one
 * confirmation with the number of subscriptions that the client then has, an array in version 2, a
 * push in version 3, and there is no other reply. While a version 2 client has a subscription, its
 * connection carries messages, so only commands whose replies cannot be taken for one are allowed
 * (CMD_SUBSCRIBED, checked by dispatch); version 3 tells pushes apart and allows all.
 *
 * Inside MULTI they are queued as any command; EXEC then writes the confirmations in the place of
 * the one reply, as Redis does. */
#include "server/command.h"
#include "server/pubsub.h"
#include "server/server.h"

static const struct verb {
    const char *name;
    enum pubsub_kind kind;
} verbs[] = {
    {"subscribe", PUBSUB_CHANNEL},
    {"psubscribe", PUBSUB_PATTERN},
    {"unsubscribe", PUBSUB_CHANNEL},
    {"punsubscribe", PUBSUB_PATTERN},
};

static const struct verb *find_verb(const struct request *q)
{
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (bytes_equal_nocase(q->args[0], verbs[i].name))
            return &verbs[i];
    ASSERT(false);
    return NULL;
}

/* name data NULL: there was nothing to unsubscribe from. It is a message, so that REPLY OFF lets it
 * through, as Redis does. */
static void confirm(struct client *c, const struct verb *verb, struct bytes name)
{
    struct reply message = {.out = &c->reply.behind, .protocol = c->reply.protocol};
    struct reply *r = client_is_muted(c) ? &message : &c->reply;
    reply_push(r, 3);
    reply_text(r, verb->name);
    if (name.data)
        reply_bulk(r, name);
    else
        reply_null(r);
    reply_int(r, pubsub_count(c));
}

/* An error in the place of the confirmations would leave the client waiting for them for ever. */
static void drop_when_over(struct client *c)
{
    if (c->reply.over)
        client_drop(c);
}

static void run_subscribe(struct client *c, const struct request *q)
{
    const struct verb *verb = find_verb(q);
    for (int i = 1; i < q->n_args; i++) {
        (void)pubsub_subscribe(c, verb->kind, q->args[i]); /* again is confirmed again */
        confirm(c, verb, q->args[i]);
    }
    drop_when_over(c);
}

static void unsubscribe_all(struct client *c, const struct verb *verb)
{
    struct bytes name;
    struct str kept = {0};
    if (!pubsub_first(c, verb->kind, &name))
        confirm(c, verb, (struct bytes){NULL, 0});
    while (pubsub_first(c, verb->kind, &name)) {
        str_clear(&kept);
        str_append(&kept, name.data, name.len);
        (void)pubsub_unsubscribe(c, verb->kind, bytes_of(&kept)); /* it was */
        confirm(c, verb, bytes_of(&kept));
    }
    str_free(&kept);
}

static void run_unsubscribe(struct client *c, const struct request *q)
{
    const struct verb *verb = find_verb(q);
    if (q->n_args == 1)
        unsubscribe_all(c, verb);
    for (int i = 1; i < q->n_args; i++) {
        (void)pubsub_unsubscribe(c, verb->kind, q->args[i]); /* or it was not: confirmed as well */
        confirm(c, verb, q->args[i]);
    }
    drop_when_over(c);
}

static void run_publish(struct client *c, const struct request *q)
{
    reply_int(&c->reply, pubsub_publish(c->server->pubsub, q->args[1], q->args[2]));
}

/* ---- PUBSUB ----------------------------------------------------------------------------------- */

struct listing {
    struct reply *reply;
    struct bytes pattern; /* data NULL: all */
    int64_t n;
};

static void list_channel(void *arg, struct bytes name)
{
    struct listing *l = arg;
    if (l->pattern.data && !glob_match(l->pattern, name, false))
        return;
    reply_bulk(l->reply, name);
    l->n++;
}

static void run_channels(struct client *c, const struct request *q)
{
    struct listing l = {.reply = &c->reply};
    if (q->n_args > 3) {
        reply_subcommand_words(c, q);
        return;
    }
    if (q->n_args == 3)
        l.pattern = q->args[2];
    size_t at = reply_hold(&c->reply);
    pubsub_each_channel(c->server->pubsub, list_channel, &l);
    reply_array_at(&c->reply, at, l.n);
}

static void run_numsub(struct client *c, const struct request *q)
{
    reply_array(&c->reply, (q->n_args - 2) * 2);
    for (int i = 2; i < q->n_args; i++) {
        reply_bulk(&c->reply, q->args[i]);
        reply_int(&c->reply, pubsub_subscribers(c->server->pubsub, q->args[i]));
    }
}

static void run_numpat(struct client *c, const struct request *q)
{
    reply_int(&c->reply, pubsub_names(c->server->pubsub, PUBSUB_PATTERN));
}

// clang-format off
enum { FLAGS = CMD_PUBSUB | CMD_LOADING | CMD_STALE };
enum { SUBSCRIBING = FLAGS | CMD_NOSCRIPT | CMD_SUBSCRIBED };
static const struct command subcommands[] = {
    {.name = "channels", .arity = -2, .flags = FLAGS, .categories = "pubsub", .group = "pubsub",
     .since = "2.8.0", .complexity = "O(N) where N is the number of active channels",
     .summary = "Returns the active channels.", .syntax = "[pattern:pattern]", .run = run_channels},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "pubsub", "6.2.0", NULL),
    {.name = "numpat", .arity = 2, .flags = FLAGS, .categories = "pubsub", .group = "pubsub",
     .since = "2.8.0", .complexity = "O(1)",
     .summary = "Returns the number of different patterns that clients are subscribed to.",
     .run = run_numpat},
    {.name = "numsub", .arity = -2, .flags = FLAGS, .categories = "pubsub", .group = "pubsub",
     .since = "2.8.0", .complexity = "O(N) where N is the number of channels asked for",
     .summary = "Returns the number of subscribers of each channel, patterns aside.",
     .syntax = "[channel]...", .run = run_numsub},
    {.name = NULL},
};
const struct command cmd_pubsub_table[] = {
    {.name = "psubscribe", .arity = -2, .flags = SUBSCRIBING, .categories = "pubsub",
     .group = "pubsub", .since = "2.0.0", .complexity = "O(N) where N is the number of patterns",
     .summary = "Listens for messages to channels that match one or more patterns.",
     .syntax = "pattern:pattern...", .run = run_subscribe},
    {.name = "publish", .arity = 3, .flags = FLAGS | CMD_FAST, .categories = "pubsub",
     .group = "pubsub", .since = "2.0.0",
     .complexity = "O(N+M) where N is the number of the channel's subscribers and M that of all patterns",
     .summary = "Posts a message to a channel.", .syntax = "channel message", .run = run_publish},
    {.name = "pubsub", .arity = -2, .group = "pubsub", .since = "2.8.0",
     .complexity = "Depends on subcommand.", .summary = "A container for Pub/Sub commands.",
     .subcommands = subcommands},
    {.name = "punsubscribe", .arity = -1, .flags = SUBSCRIBING, .categories = "pubsub",
     .group = "pubsub", .since = "2.0.0", .complexity = "O(N) where N is the number of patterns",
     .summary = "Stops listening to messages to channels that match patterns.",
     .syntax = "[pattern:pattern]...", .run = run_unsubscribe},
    {.name = "subscribe", .arity = -2, .flags = SUBSCRIBING, .categories = "pubsub",
     .group = "pubsub", .since = "2.0.0", .complexity = "O(N) where N is the number of channels",
     .summary = "Listens for messages to channels.", .syntax = "channel...", .run = run_subscribe},
    {.name = "unsubscribe", .arity = -1, .flags = SUBSCRIBING, .categories = "pubsub",
     .group = "pubsub", .since = "2.0.0", .complexity = "O(N) where N is the number of channels",
     .summary = "Stops listening to messages to channels.", .syntax = "[channel]...",
     .run = run_unsubscribe},
    {.name = NULL},
};
// clang-format on
