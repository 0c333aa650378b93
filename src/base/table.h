/* table.h - hash table from byte strings to pointers (XXH3 with a per-process seed).
 *
 * Keys are copied. Growth is done in slices, a few buckets an operation, so that no single call
 * stalls the main thread.
 * table_scan is a stable cursor walk as Redis' SCAN promises: every key that is there for the
 * whole walk is returned at least once, also across growth. */
#ifndef BASE_TABLE_H
#define BASE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/str.h"

struct table;

struct table *table_new(void);
void table_free(struct table *t, void (*free_value)(void *value));
/* Frees a part of it, with at most max entries and empty places looked at; true: it is gone. From the
 * first call on only this may be called. */
bool table_free_slice(struct table *t, int max, void (*free_value)(void *value));
size_t table_count(const struct table *t);
void *table_get(const struct table *t, struct bytes key);          /* NULL when absent */
/* Sets and returns the value that was there before, or NULL. value must not be NULL. */
void *table_put(struct table *t, struct bytes key, void *value);
void *table_remove(struct table *t, struct bytes key);             /* the value, or NULL */
/* A pseudo-random entry; NULL when empty. */
void *table_random(const struct table *t, uint64_t random, struct bytes *key);

/* Iteration in no order; the table must not change meanwhile. at starts as 0. */
bool table_next(const struct table *t, size_t *at, struct bytes *key, void **value);
#define TABLE_FOREACH(t, key, value)                                                              \
    for (size_t at_##value = 0; table_next((t), &at_##value, &(key), (void **)&(value));)

/* Visits one bucket from cursor and returns the next cursor, 0 at the end. The table must not change
 * meanwhile: the visitor collects. */
uint64_t table_scan(const struct table *t, uint64_t cursor,
                    void (*visit)(void *arg, struct bytes key, void *value), void *arg);

uint64_t hash_bytes(const void *data, size_t len, uint64_t seed); /* XXH3 64 bits */
void hash_seed_set(uint64_t seed); /* tests make the process seed fixed */

#endif
