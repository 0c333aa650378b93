/* pubsub.c - channels and patterns, who subscribed to them, and delivery of messages.
 *
 *     pubsub ─ names[kind] ─▶ topic ─ subscribers ─▶ subscription ◀─ names, order ─ client
 *
 * A topic is a channel or a pattern that somebody subscribed to; it exists as long as that. A
 * subscription hangs in its topic's list and in its client's table and list, so each of SUBSCRIBE,
 * UNSUBSCRIBE and leaving costs one look-up a name, however many there are.
 *
 * A message is composed once for each protocol version and copied into the output of each client.
 * What a client does not read is bounded by client-output-buffer-limit pubsub: above the hard limit
 * it is dropped (marked; client_serve frees it at the end of the turn, so a loop over subscribers
 * never loses one), above the soft one for too long it is closed by its time limits. A message to a
 * client whose own reply is just being written waits behind that reply (reply.h): never inside the
 * array of an EXEC. Main thread only. */
#include "server/pubsub.h"

#include "base/mem.h"
#include "server/client.h"
#include "server/server.h"

/* A channel or a pattern. */
struct topic {
    struct table *table;     /* borrows: the one it stands in */
    struct str name;         /* owns */
    struct list subscribers; /* of struct subscription.topic_node, oldest first */
    int64_t n;
};
struct subscription {
    struct list topic_node;  /* in topic->subscribers */
    struct list client_node; /* in client->subscriptions.of[kind].order */
    struct topic *topic;
    struct client *client; /* borrows */
};
struct pubsub {
    struct table *topics[PUBSUB_N_KINDS]; /* name -> struct topic, owns */
};

struct pubsub *pubsub_new(void)
{
    struct pubsub *p = xcalloc(1, sizeof *p);
    for (int kind = 0; kind < PUBSUB_N_KINDS; kind++)
        p->topics[kind] = table_new();
    return p;
}

void pubsub_free(struct pubsub *p)
{
    if (!p)
        return;
    for (int kind = 0; kind < PUBSUB_N_KINDS; kind++) {
        ASSERT(table_count(p->topics[kind]) == 0);
        table_free(p->topics[kind], NULL);
    }
    xfree(p);
}

/* ---- subscribing ------------------------------------------------------------------------------ */

static struct topic *topic_of(struct table *topics, struct bytes name)
{
    struct topic *t = table_get(topics, name);
    if (t)
        return t;
    t = xcalloc(1, sizeof *t);
    t->table = topics;
    str_append(&t->name, name.data, name.len);
    list_init(&t->subscribers);
    table_put(topics, name, t);
    return t;
}

/* As if nobody else had subscribed to it: the topic counts, too; 32: a slot in each of two tables. */
static size_t bytes_of_subscription(struct bytes name)
{
    return sizeof(struct subscription) + sizeof(struct topic) + 3 * name.len + 2 * 32;
}

bool pubsub_subscribe(struct client *c, enum pubsub_kind kind, struct bytes name)
{
    struct subscriptions *s = &c->subscriptions;
    if (!s->of[kind].names) {
        s->of[kind].names = table_new();
        list_init(&s->of[kind].order);
    }
    if (table_get(s->of[kind].names, name))
        return false;
    struct subscription *sub = xcalloc(1, sizeof *sub);
    sub->client = c;
    sub->topic = topic_of(c->server->pubsub->topics[kind], name);
    sub->topic->n++;
    list_push_back(&sub->topic->subscribers, &sub->topic_node);
    list_push_back(&s->of[kind].order, &sub->client_node);
    table_put(s->of[kind].names, name, sub);
    s->bytes += bytes_of_subscription(name);
    return true;
}

static void subscription_free(struct subscription *sub)
{
    struct topic *t = sub->topic;
    list_remove(&sub->topic_node);
    list_remove(&sub->client_node);
    xfree(sub);
    if (--t->n > 0)
        return;
    (void)table_remove(t->table, bytes_of(&t->name)); /* it is this topic */
    str_free(&t->name);
    xfree(t);
}

/* name may be the topic's own, which goes last. */
bool pubsub_unsubscribe(struct client *c, enum pubsub_kind kind, struct bytes name)
{
    struct subscriptions *s = &c->subscriptions;
    struct subscription *sub = s->of[kind].names ? table_remove(s->of[kind].names, name) : NULL;
    if (!sub)
        return false;
    s->bytes -= bytes_of_subscription(name);
    subscription_free(sub);
    return true;
}

bool pubsub_first(const struct client *c, enum pubsub_kind kind, struct bytes *name)
{
    if (pubsub_count_of(c, kind) == 0)
        return false;
    const struct list *order = &c->subscriptions.of[kind].order;
    *name = bytes_of(&LIST_FIRST(order, struct subscription, client_node)->topic->name);
    return true;
}

void pubsub_leave(struct client *c)
{
    struct subscriptions *s = &c->subscriptions;
    for (int kind = 0; kind < PUBSUB_N_KINDS; kind++) {
        if (!s->of[kind].names)
            continue;
        while (!list_is_empty(&s->of[kind].order))
            subscription_free(LIST_FIRST(&s->of[kind].order, struct subscription, client_node));
        table_free(s->of[kind].names, NULL);
        s->of[kind].names = NULL;
    }
    s->bytes = 0;
}

int64_t pubsub_count_of(const struct client *c, enum pubsub_kind kind)
{
    const struct table *names = c->subscriptions.of[kind].names;
    return names ? (int64_t)table_count(names) : 0;
}

int64_t pubsub_count(const struct client *c)
{
    return pubsub_count_of(c, PUBSUB_CHANNEL) + pubsub_count_of(c, PUBSUB_PATTERN);
}

/* ---- publishing ------------------------------------------------------------------------------- */

/* A message as clients of version 2 and 3 get it; composed when the first one needs it. */
struct message {
    struct bytes channel, text;
    const struct topic *pattern; /* NULL: to subscribers of the channel */
    struct str encoded[2];       /* own */
};

static struct bytes encode(struct message *m, int protocol)
{
    struct str *out = &m->encoded[protocol - 2];
    struct reply r = {.out = out, .protocol = protocol};
    if (out->len > 0)
        return bytes_of(out);
    reply_push(&r, m->pattern ? 4 : 3);
    reply_text(&r, m->pattern ? "pmessage" : "message");
    if (m->pattern)
        reply_bulk(&r, bytes_of(&m->pattern->name));
    reply_bulk(&r, m->channel);
    reply_bulk(&r, m->text);
    return bytes_of(out);
}

static int64_t deliver(const struct topic *t, struct message *m)
{
    int64_t n = 0;
    LIST_FOREACH(&t->subscribers, node, next) {
        struct client *c = LIST_ITEM(node, struct subscription, topic_node)->client;
        if (c->dead || c->closing)
            continue;
        client_push(c, encode(m, c->reply.protocol));
        n++;
    }
    str_free(&m->encoded[0]);
    str_free(&m->encoded[1]);
    return n;
}

int64_t pubsub_publish(struct pubsub *p, struct bytes channel, struct bytes text)
{
    struct message m = {.channel = channel, .text = text};
    struct topic *t = table_get(p->topics[PUBSUB_CHANNEL], channel);
    int64_t n = t ? deliver(t, &m) : 0;
    struct bytes name;
    void *value;
    size_t at = 0;
    while (table_next(p->topics[PUBSUB_PATTERN], &at, &name, &value)) {
        m.pattern = value;
        if (glob_match(bytes_of(&m.pattern->name), channel, false))
            n += deliver(m.pattern, &m);
    }
    return n;
}

bool pubsub_has_subscribers(const struct pubsub *p)
{
    return table_count(p->topics[PUBSUB_CHANNEL]) + table_count(p->topics[PUBSUB_PATTERN]) > 0;
}

int64_t pubsub_subscribers(const struct pubsub *p, struct bytes channel)
{
    const struct topic *t = table_get(p->topics[PUBSUB_CHANNEL], channel);
    return t ? t->n : 0;
}

int64_t pubsub_names(const struct pubsub *p, enum pubsub_kind kind)
{
    return (int64_t)table_count(p->topics[kind]);
}

void pubsub_each_channel(const struct pubsub *p, void (*visit)(void *arg, struct bytes name),
                         void *arg)
{
    struct bytes name;
    void *value;
    size_t at = 0;
    while (table_next(p->topics[PUBSUB_CHANNEL], &at, &name, &value))
        visit(arg, name);
}
