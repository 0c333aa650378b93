/* memory.h - maxmemory: what counts, making room, who is refused. */
#ifndef SERVER_MEMORY_H
#define SERVER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct client;
struct server;

/* Keys, entries, ids, pieces and the buffers of clients. */
size_t memory_used(const struct server *s);
/* The client's buffers may have grown or shrunk. */
void memory_count_client(struct client *c);
void memory_forget_client(struct client *c);
/* Called before a command that may take memory. False: over the limit, and nothing can be given
 * back: the command is refused. True also while there is still something to give back. */
bool memory_make_room(struct server *s);
bool memory_turn(struct server *s); /* a slice of every turn; true: there is more to do */

#endif
