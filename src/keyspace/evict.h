/* evict.h - giving keys back when memory is short: which one, and one at a time. */
#ifndef KEYSPACE_EVICT_H
#define KEYSPACE_EVICT_H

#include "keyspace/keys.h"

enum evict_policy { EVICT_NONE, EVICT_BY_TTL, EVICT_BY_USE };
enum evicted {
    EVICTED_NOTHING, /* no key may go, and none is on its way */
    EVICTED_SLICE,   /* of what has gone before: memory came back */
    EVICTED_KEY,
};
/* One slice: what has been removed is freed first, and only then another key goes. */
enum evicted keys_evict(struct keyspace *ks, enum evict_policy policy);
/* Bytes that keys, entries, ids and pieces hold, of all keyspaces of this process. */
size_t keys_memory_bytes(void);

#endif
