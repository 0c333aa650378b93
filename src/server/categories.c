/* categories.c - ACL categories of commands, derived from their rows.
 *
 * Most follow from flags, as in Redis; a row names the others. The list is Redis' own, in its order:
 * GUIs show it, and a category that has no command here is simply empty. */
#include "server/categories.h"

#include <string.h>
#include <strings.h>

static const char *const names[] = {
    "keyspace", "read",   "write",       "set",       "sortedset",  "list",        "hash",
    "string",   "bitmap", "hyperloglog", "geo",       "stream",     "pubsub",      "admin",
    "fast",     "slow",   "blocking",    "dangerous", "connection", "transaction", "scripting",
};
enum { N_NAMES = sizeof names / sizeof *names };

static const struct {
    const char *name;
    unsigned flags; /* any of them */
} by_flags[] = {
    {"write", CMD_WRITE}, {"read", CMD_READONLY},     {"admin", CMD_ADMIN},
    {"fast", CMD_FAST},   {"blocking", CMD_BLOCKING}, {"dangerous", CMD_DANGEROUS | CMD_ADMIN},
};

const char *category_name(int i)
{
    return i >= 0 && i < N_NAMES ? names[i] : NULL;
}

static bool in_words(const char *words, struct bytes word)
{
    for (const char *w = words; w && *w; w += strcspn(w, " "), w += *w == ' ')
        if (strcspn(w, " ") == word.len && strncasecmp(w, word.data, word.len) == 0)
            return true;
    return false;
}

bool command_in_category(const struct command *c, struct bytes category)
{
    for (size_t i = 0; i < sizeof by_flags / sizeof *by_flags; i++)
        if ((c->flags & by_flags[i].flags) && bytes_equal_nocase(category, by_flags[i].name))
            return true;
    if (!(c->flags & CMD_FAST) && bytes_equal_nocase(category, "slow"))
        return true;
    return in_words(c->categories, category);
}
