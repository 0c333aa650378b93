/* categories.h - ACL categories of commands, derived from their rows. */
#ifndef SERVER_CATEGORIES_H
#define SERVER_CATEGORIES_H

#include <stdbool.h>
#include "server/command.h"

const char *category_name(int i); /* without '@'; NULL behind the last */
bool command_in_category(const struct command *c, struct bytes category); /* in any case */

#endif
