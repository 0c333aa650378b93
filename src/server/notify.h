/* notify.h - keyspace notifications: events of keys as messages of Pub/Sub. */
#ifndef SERVER_NOTIFY_H
#define SERVER_NOTIFY_H

#include <stdbool.h>
#include "base/str.h"
#include "keyspace/event.h"

/* Value of notify-keyspace-events as a set of flags; false: it has a letter that is none. */
bool notify_parse(struct bytes text, unsigned *flags);
void notify_print(unsigned flags, struct str *out); /* the one canonical spelling */

/* keyspace_config.key_event with the server as owner. */
void notify_key_event(void *server, int32_t db, struct bytes name, enum key_event event);

#endif
