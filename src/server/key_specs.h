/* key_specs.h - where the keys of a command stand and what it does with them, for COMMAND. */
#ifndef SERVER_KEY_SPECS_H
#define SERVER_KEY_SPECS_H

#include "server/command.h"

/* The ninth element of COMMAND INFO. */
void reply_key_specs(struct reply *r, const struct command *c);
/* What happens to the n-th key (from 0), as a set of words. */
void reply_key_use(struct reply *r, const struct command *c, int n);

#endif
