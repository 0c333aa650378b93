/* client_name.h - names that a client gives itself: CLIENT SETNAME, SETINFO and HELLO SETNAME. */
#ifndef SERVER_CLIENT_NAME_H
#define SERVER_CLIENT_NAME_H

#include <stdbool.h>
#include "base/str.h"

struct client;
/* False: an error was written. An empty name takes it away. */
bool client_name_set(struct client *c, struct bytes name);

#endif
