/* cmd_client.h - the subcommands of CLIENT that have files of their own. */
#ifndef SERVER_CMD_CLIENT_H
#define SERVER_CMD_CLIENT_H

#include "server/command.h"

/* cmd_client_kill.c: which clients */
void cmd_client_kill(struct client *c, const struct request *q);
void cmd_client_list(struct client *c, const struct request *q);
void cmd_client_unblock(struct client *c, const struct request *q);

/* cmd_client_mode.c: how a connection behaves, and whether anybody's commands run */
void cmd_client_reply(struct client *c, const struct request *q);
void cmd_client_no_evict(struct client *c, const struct request *q);
void cmd_client_no_touch(struct client *c, const struct request *q);
void cmd_client_pause(struct client *c, const struct request *q);
void cmd_client_unpause(struct client *c, const struct request *q);
void cmd_client_tracking(struct client *c, const struct request *q);
void cmd_client_trackinginfo(struct client *c, const struct request *q);
void cmd_client_caching(struct client *c, const struct request *q);
void cmd_client_getredir(struct client *c, const struct request *q);

#endif
