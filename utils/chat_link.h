/* chat_link.h - kvasir-chat's side of the wire: commands over a connection that comes back. */
#ifndef UTILS_CHAT_LINK_H
#define UTILS_CHAT_LINK_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include "base/err.h"
#include "base/str.h"
#include "utils/reply_limit.h"

enum { LINK_MAX_ARGS = 96 };

struct link_address {
    const char *host;
    int port;
    const char *socket;   /* path; NULL: host and port */
    const char *password; /* NULL: none */
};

/* One command: its arguments, borrowed. */
struct link_command {
    int n;
    const char *args[LINK_MAX_ARGS];
    size_t lens[LINK_MAX_ARGS];
};
void link_add(struct link_command *command, struct bytes arg);
void link_add_text(struct link_command *command, const char *arg);

struct link {
    const struct link_address *address; /* borrows */
    redisContext *redis;                /* owns; NULL: not connected */
    struct reply_limit limit;           /* of redis */
    void (*while_waiting)(void *arg);   /* called several times a second; may be NULL */
    void *arg;
};
int link_open(struct link *l, const struct link_address *address, struct err *err);
void link_close(struct link *l);
/* The reply, to be freed; an error reply of the server is a reply too. A connection that breaks is
 * opened again and the command sent once more: Kvasir takes a resent GEN as the same one. NULL: the
 * server can not be reached. */
redisReply *link_ask(struct link *l, const struct link_command *command, struct err *err);

#endif
