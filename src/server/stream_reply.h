/* stream_reply.h - stream ids and entries as replies. */
#ifndef SERVER_STREAM_REPLY_H
#define SERVER_STREAM_REPLY_H

#include "keyspace/keys.h"
#include "server/reply.h"

void reply_stream_id(struct reply *r, struct stream_id id);
/* [id, [field, value, ...]] */
void reply_entry(struct reply *r, const struct read_entry *entry);
/* An entry_visit whose arg is a struct reply. */
void reply_entry_visit(void *arg, const struct read_entry *entry);

#endif
