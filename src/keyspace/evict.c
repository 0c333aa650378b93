/* evict.c - which key goes when memory is short.
 *
 *     allkeys-lru    of a few keys drawn from all databases, the one that nobody used for longest
 *     volatile-ttl   of the keys next in the heaps of timers, the one with the least time to live
 *
 * The samples are Redis' idea: an exact order of use would cost every read a list operation. For
 * times to live the heaps are there anyway, and their tops hold the nearest. A key that generates
 * never goes: somebody waits for it, and its text grows again. What a removed key held may be freed
 * in slices later, and counts until then; so those slices come before the next key, or one large
 * stream would drag small ones along. Entries that several keys share come back with the last of
 * them: the caller goes on until enough is free. Main thread only. */
#include "keyspace/evict.h"

#include "base/mem.h"
#include "base/rng.h"
#include "keyspace/keyspace.h"

enum {
    SAMPLES = 5, /* as Redis' maxmemory-samples: near enough to the true order */
    DRAWS = 64,  /* until so many: there may be many keys that may not go */
    TIMERS = 64, /* of the top of a heap: six levels of those that are due first */
};

size_t keys_memory_bytes(void)
{
    return mem_bytes(MEM_KEY);
}

static bool may_go(const struct key *key)
{
    return key->generation == NULL && !key->unborn && !key->removing && !key->db->is_flushed;
}

/* A key of any database, each as likely as any other; NULL: there is none. */
static struct key *draw(struct keyspace *ks, uint64_t random)
{
    struct bytes name;
    size_t total = 0;
    for (int32_t i = 0; i < ks->n_databases; i++)
        total += table_count(ks->databases[i]->keys);
    size_t at = total > 0 ? random % total : 0;
    for (int32_t i = 0; i < ks->n_databases; i++) {
        struct table *keys = ks->databases[i]->keys;
        if (at < table_count(keys))
            return table_random(keys, rng_at(random, 0, (uint32_t)i), &name);
        at -= table_count(keys);
    }
    return NULL;
}

static struct key *least_used(struct keyspace *ks)
{
    struct key *found = NULL;
    uint64_t seed = rng_entropy();
    for (uint32_t i = 0, n = 0; i < DRAWS && n < SAMPLES; i++) {
        struct key *key = draw(ks, rng_at(seed, 1, i));
        if (key == NULL)
            break;
        if (!may_go(key))
            continue;
        n++;
        if (found == NULL || key->used_us < found->used_us)
            found = key;
    }
    return found;
}

/* The heap holds other timers, too; it is searched on until there is a key. */
static struct key *nearest_of(const struct timers *timers, struct key *best)
{
    for (int32_t i = 0; i < timers->n && (i < TIMERS || best == NULL); i++) {
        struct key *key = expiry_key(timers->heap[i]);
        if (key != NULL && may_go(key) && (best == NULL || key_ttl_ms(key) < key_ttl_ms(best)))
            best = key;
    }
    return best;
}

static struct key *nearest_to_expiry(struct keyspace *ks)
{
    return nearest_of(&ks->wall_timers, nearest_of(&ks->timers, NULL));
}

static struct key *none(struct keyspace *ks)
{
    return NULL;
}

static struct key *(*const choose[])(struct keyspace *ks) = {
    [EVICT_NONE] = none, [EVICT_BY_TTL] = nearest_to_expiry, [EVICT_BY_USE] = least_used};

enum evicted keys_evict(struct keyspace *ks, enum evict_policy policy)
{
    if (keyspace_collect_garbage(ks))
        return EVICTED_SLICE;
    struct key *key = choose[policy](ks);
    if (key == NULL)
        return EVICTED_NOTHING;
    key_remove(key, KEY_EVENT_EVICTED);
    return EVICTED_KEY;
}
