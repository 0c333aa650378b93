/* config_rewrite.h - CONFIG REWRITE: the running configuration into its file. */
#ifndef SERVER_CONFIG_REWRITE_H
#define SERVER_CONFIG_REWRITE_H

#include "server/config.h"

int config_rewrite(const struct config *c, const char *path, struct err *err);

#endif
