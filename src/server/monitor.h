/* monitor.h - MONITOR: every command that runs, as a line to those who asked to see them. */
#ifndef SERVER_MONITOR_H
#define SERVER_MONITOR_H

struct client;
struct command;
struct request;

void monitor_start(struct client *c); /* harmless twice */
void monitor_leave(struct client *c); /* harmless when it does not monitor */
/* A command of c has run. Cheap when nobody monitors. */
void monitor_feed(const struct client *c, const struct command *command, const struct request *q);

#endif
