/* guard.h - WATCH: a set of key names whose every change spoils one transaction.
 *
 * A guard names keys, also missing ones, of any database. From guard_add on it is spoiled by
 * whatever changes, makes, removes or overwrites one of them; pieces of a running generation change
 * nothing. EXEC asks guard_is_spoiled and runs only when it is not. */
#ifndef KEYSPACE_GUARD_H
#define KEYSPACE_GUARD_H

#include "keyspace/keys.h"

/* Embedded in the server's client, zero-initialised; must be cleared before that memory goes. */
struct guard {
    struct keyspace *ks; /* borrowed; NULL: guards nothing */
    struct table *names; /* database and name -> struct guard_key, owns; NULL: none */
    size_t bytes;        /* memory held */
    bool is_spoiled;
};

void guard_add(struct keyspace *ks, struct guard *guard, int32_t db, struct bytes name);
/* Also when one of its keys has expired and nobody has noticed yet. */
bool guard_is_spoiled(struct guard *guard);
void guard_clear(struct guard *guard);          /* guards nothing, is not spoiled */
int64_t guard_count(const struct guard *guard); /* names it guards */

/* Something happened to this name. */
void guard_spoil(struct keyspace *ks, int32_t db, struct bytes name);
/* A database is emptied, or its keys change places with those of another (else -1): names that
 * exist in neither see no change. Called before it happens. */
void guard_spoil_all(struct keyspace *ks, int32_t db, int32_t other);

#endif
