/* memory.c - maxmemory: what counts, making room, who is refused.
 *
 * Counted is what clients can make grow: keys with their entries, ids, pieces and the
 * log-probabilities of what runs (by the allocators, MEM_KEY), and the buffers of clients (looked at
 * whenever a client was served). The model, the cache of K and V and the engine have sizes of their
 * own, fixed at the start.
 *
 * Over the limit, keys go by maxmemory-policy, a slice of time a turn, and a slice before each
 * command that may take memory. As in Redis such a command runs while eviction has something to
 * give back, and is refused when it has not (noeviction, or nothing that may go). CANCEL, DEL and
 * reads are never refused: they are what makes room. Main thread only. */
#include "server/memory.h"

#include "base/clock.h"
#include "base/log.h"
#include "keyspace/evict.h"
#include "server/client.h"
#include "server/server.h"

enum {
    SLICE_US = 200, /* of eviction: about a hundred small keys */
};

size_t memory_used(const struct server *s)
{
    return keys_memory_bytes() + s->client_bytes;
}

void memory_count_client(struct client *c)
{
    size_t now = client_bytes(c);
    c->server->client_bytes += now - c->counted_bytes; /* may wrap, and wraps back */
    c->counted_bytes = now;
}

void memory_forget_client(struct client *c)
{
    c->server->client_bytes -= c->counted_bytes;
    c->counted_bytes = 0;
}

static bool is_over(const struct server *s)
{
    return s->config.maxmemory > 0 && memory_used(s) > s->config.maxmemory;
}

/* True: it is done, or something came back and there may be more. */
static bool evict_slice(struct server *s)
{
    int64_t until_us = clock_mono_us() + SLICE_US;
    uint64_t before = s->stats.evicted_keys;
    enum evicted last = EVICTED_SLICE;
    while (is_over(s) && last != EVICTED_NOTHING && clock_mono_us() < until_us) {
        last = keys_evict(s->keys, (enum evict_policy)s->config.maxmemory_policy);
        s->stats.evicted_keys += last == EVICTED_KEY;
    }
    if (s->stats.evicted_keys > before)
        log_debug(LOG_KEYS, "maxmemory: evicted %llu keys, %zu bytes used",
                  (unsigned long long)(s->stats.evicted_keys - before), memory_used(s));
    return last != EVICTED_NOTHING;
}

bool memory_make_room(struct server *s)
{
    return !is_over(s) || s->keys == NULL || evict_slice(s);
}

bool memory_turn(struct server *s)
{
    if (!is_over(s) || s->keys == NULL)
        return false;
    return evict_slice(s) && is_over(s);
}
