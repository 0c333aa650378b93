/* slowlog.h - the last commands that took long, for SLOWLOG. */
#ifndef SERVER_SLOWLOG_H
#define SERVER_SLOWLOG_H

#include <stdint.h>
#include "base/list.h"
#include "server/reply.h"

struct client;
struct command;
struct request;
struct server;

/* Part of the server, zero-initialised; slowlog_init before use. */
struct slowlog {
    struct list entries; /* of struct slow_entry, newest first, own */
    int64_t n;
    int64_t next_id;
};

void slowlog_init(struct slowlog *log);
/* A command of c ran this long on the main thread. */
void slowlog_note(struct client *c, const struct command *command, const struct request *q,
                  int64_t took_us);
void slowlog_trim(struct slowlog *log, int64_t max_len);
void slowlog_reset(struct slowlog *log);
void slowlog_reply(const struct slowlog *log, struct reply *r, int64_t count); /* -1: all */

#endif
