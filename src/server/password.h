/* password.h - compares a password without telling how much of it was right. */
#ifndef SERVER_PASSWORD_H
#define SERVER_PASSWORD_H

#include <stdbool.h>
#include "base/str.h"

bool password_matches(struct bytes given, struct bytes expected);

#endif
