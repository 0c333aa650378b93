/* pubsub.h - channels and patterns, who subscribed to them, and delivery of messages.
 *
 * A message goes to subscribers of its channel first, then to those of matching patterns, each in
 * the order in which they subscribed. */
#ifndef SERVER_PUBSUB_H
#define SERVER_PUBSUB_H

#include <stdbool.h>
#include <stdint.h>
#include "base/list.h"
#include "base/str.h"
#include "base/table.h"

struct client;
struct pubsub;

enum pubsub_kind { PUBSUB_CHANNEL, PUBSUB_PATTERN, PUBSUB_N_KINDS };

/* What one client subscribed to; embedded in it, zero-initialised. */
struct subscriptions {
    struct {
        struct table *names; /* name -> struct subscription, owns; NULL: none */
        struct list order;   /* the same, oldest first; valid while names is set */
    } of[PUBSUB_N_KINDS];
    size_t bytes; /* memory held */
};

struct pubsub *pubsub_new(void);
void pubsub_free(struct pubsub *p); /* accepts NULL; nobody may be subscribed any more */

/* False: it was subscribed already. */
bool pubsub_subscribe(struct client *c, enum pubsub_kind kind, struct bytes name);
bool pubsub_unsubscribe(struct client *c, enum pubsub_kind kind, struct bytes name);
/* The name that c has been subscribed to longest; false: none. Borrowed until it unsubscribes. */
bool pubsub_first(const struct client *c, enum pubsub_kind kind, struct bytes *name);
void pubsub_leave(struct client *c); /* unsubscribes from all without a reply; harmless twice */
int64_t pubsub_count_of(const struct client *c, enum pubsub_kind kind);
int64_t pubsub_count(const struct client *c); /* channels and patterns */

/* The number of deliveries. Clients that are over their limit are dropped at the end of the turn. */
int64_t pubsub_publish(struct pubsub *p, struct bytes channel, struct bytes message);
/* Is there anybody at all? Saves composing messages that nobody can get. */
bool pubsub_has_subscribers(const struct pubsub *p);

/* ---- for PUBSUB and INFO ---- */
int64_t pubsub_subscribers(const struct pubsub *p, struct bytes channel);
int64_t pubsub_names(const struct pubsub *p, enum pubsub_kind kind); /* different ones */
void pubsub_each_channel(const struct pubsub *p, void (*visit)(void *arg, struct bytes name),
                         void *arg);

#endif
