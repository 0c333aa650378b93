/* table.c - hash table from byte strings to pointers.
 *
 * Chained buckets, a power of two of them, in two arrays while it grows: every operation then moves
 * a few buckets from the old to the new one, so that no single call pays for all. Chains (and not
 * open addressing) because a scan must be stable across growth: with bucket numbers whose bits are
 * counted from the top ("reverse binary" cursor, the idea of Redis' dictScan by Pieter Noordhuis),
 * a bucket of the small table is exactly the set of buckets of the large one that share its low
 * bits, and a walk that goes on after the growth still meets every key that was there throughout.
 *
 * Invariants: a key lives in the old array only while growing and only in a bucket >= moved;
 * count <= 2 x buckets of the newest array. The table grows and never shrinks: a keyspace that was
 * large once is expected to be so again. */
#include "base/table.h"

#include <string.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"

#define FIRST_BUCKETS 4
#define MOVE_BUCKETS 4 /* per operation: growth is over long before the next one is due */

struct entry {
    struct entry *next;
    uint64_t hash;
    void *value;
    size_t len;
    char key[];
};

struct buckets {
    struct entry **heads; /* [n] owns */
    size_t n;             /* 0 or a power of two */
};

struct table {
    struct buckets now, old; /* old.n != 0 while growing */
    size_t moved;            /* buckets of old that are empty for good */
    size_t count;
    size_t n_freed; /* buckets of both arrays that table_free_slice has emptied */
};

/* The process' seed: an attacker must not be able to choose colliding keys. */
static uint64_t process_seed;

void hash_seed_set(uint64_t seed)
{
    process_seed = seed ? seed : 1;
}

uint64_t hash_bytes(const void *data, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}

static uint64_t hash_key(struct bytes key)
{
    return hash_bytes(key.data, key.len, process_seed);
}

struct table *table_new(void)
{
    if (!process_seed)
        hash_seed_set(rng_entropy());
    struct table *t = xcalloc(1, sizeof *t);
    t->now.n = FIRST_BUCKETS;
    t->now.heads = xcalloc(t->now.n, sizeof *t->now.heads);
    return t;
}

static void free_buckets(struct buckets *b, void (*free_value)(void *value))
{
    for (size_t i = 0; i < b->n; i++) {
        for (struct entry *e = b->heads[i], *next; e; e = next) {
            next = e->next;
            if (free_value)
                free_value(e->value);
            xfree(e);
        }
    }
    xfree(b->heads);
    *b = (struct buckets){0};
}

void table_free(struct table *t, void (*free_value)(void *value))
{
    if (!t)
        return;
    free_buckets(&t->now, free_value);
    free_buckets(&t->old, free_value);
    xfree(t);
}

bool table_free_slice(struct table *t, int max, void (*free_value)(void *value))
{
    for (; t->n_freed < t->now.n + t->old.n; t->n_freed++) {
        size_t i = t->n_freed;
        struct entry **head = i < t->now.n ? &t->now.heads[i] : &t->old.heads[i - t->now.n];
        for (struct entry *e; (e = *head) != NULL && max > 0; max--) {
            *head = e->next;
            free_value(e->value);
            xfree(e);
        }
        if (*head || max-- <= 0)
            return false;
    }
    xfree(t->now.heads);
    xfree(t->old.heads);
    xfree(t);
    return true;
}

size_t table_count(const struct table *t)
{
    return t->count;
}

/* The link that points at the entry of key, or at the NULL where a chain without it ends. */
static struct entry **find_in(const struct buckets *b, struct bytes key, uint64_t hash)
{
    struct entry **link = &b->heads[hash & (b->n - 1)];
    while (*link && ((*link)->hash != hash || (*link)->len != key.len ||
                     memcmp((*link)->key, key.data, key.len) != 0))
        link = &(*link)->next;
    return link;
}

static struct entry **find(const struct table *t, struct bytes key, uint64_t hash)
{
    if (t->old.n && (hash & (t->old.n - 1)) >= t->moved) {
        struct entry **link = find_in(&t->old, key, hash);
        if (*link)
            return link;
    }
    return find_in(&t->now, key, hash);
}

void *table_get(const struct table *t, struct bytes key)
{
    struct entry *e = *find(t, key, hash_key(key));
    return e ? e->value : NULL;
}

static void move_some(struct table *t)
{
    for (int i = 0; t->old.n && i < MOVE_BUCKETS; i++) {
        for (struct entry *e = t->old.heads[t->moved], *next; e; e = next) {
            struct entry **head = &t->now.heads[e->hash & (t->now.n - 1)];
            next = e->next;
            e->next = *head;
            *head = e;
        }
        t->old.heads[t->moved] = NULL;
        if (++t->moved == t->old.n) {
            xfree(t->old.heads);
            t->old = (struct buckets){0};
            t->moved = 0;
        }
    }
}

static void grow_if_full(struct table *t)
{
    if (t->old.n || t->count < t->now.n)
        return;
    t->old = t->now;
    t->now.n *= 2;
    t->now.heads = xcalloc(t->now.n, sizeof *t->now.heads);
}

void *table_put(struct table *t, struct bytes key, void *value)
{
    ASSERT(value);
    uint64_t hash = hash_key(key);
    move_some(t);
    struct entry *e = *find(t, key, hash);
    if (e) {
        void *before = e->value;
        e->value = value;
        return before;
    }
    grow_if_full(t);
    e = xmalloc(sizeof *e + key.len);
    struct entry **head = &t->now.heads[hash & (t->now.n - 1)];
    *e = (struct entry){.next = *head, .hash = hash, .value = value, .len = key.len};
    if (key.len)
        memcpy(e->key, key.data, key.len);
    *head = e;
    t->count++;
    return NULL;
}

void *table_remove(struct table *t, struct bytes key)
{
    uint64_t hash = hash_key(key);
    move_some(t);
    struct entry **link = find(t, key, hash), *e = *link;
    if (!e)
        return NULL;
    void *value = e->value;
    *link = e->next;
    t->count--;
    xfree(e);
    return value;
}

/* The n-th entry of a chain, counted round. */
static struct entry *chain_pick(struct entry *head, uint64_t n)
{
    uint64_t length = 0;
    for (struct entry *e = head; e; e = e->next)
        length++;
    struct entry *e = head;
    for (n %= length; n > 0; n--)
        e = e->next;
    return e;
}

void *table_random(const struct table *t, uint64_t random, struct bytes *key)
{
    if (t->count == 0)
        return NULL;
    size_t all = t->now.n + t->old.n;
    for (size_t i = random % all;; i = (i + 1) % all) {
        struct entry *head = i < t->now.n ? t->now.heads[i] : t->old.heads[i - t->now.n];
        if (!head)
            continue;
        struct entry *e = chain_pick(head, random >> 32);
        *key = (struct bytes){e->key, e->len};
        return e->value;
    }
}

/* *at packs bucket << 20 | place in the chain: chains are short, and a table has < 2^44 buckets. */
bool table_next(const struct table *t, size_t *at, struct bytes *key, void **value)
{
    size_t bucket = *at >> 20, place = *at & 0xfffff, all = t->now.n + t->old.n;
    for (; bucket < all; bucket++, place = 0) {
        struct entry *e =
            bucket < t->now.n ? t->now.heads[bucket] : t->old.heads[bucket - t->now.n];
        for (size_t i = 0; e && i < place; i++)
            e = e->next;
        if (e) {
            *key = (struct bytes){e->key, e->len};
            *value = e->value;
            *at = bucket << 20 | (place + 1);
            return true;
        }
    }
    return false;
}

/* Neighbours change places, then pairs, then fours; then the bytes. Twice a bucket of a scan. */
static uint64_t reverse_bits(uint64_t x)
{
    x = (x >> 1 & 0x5555555555555555) | (x & 0x5555555555555555) << 1;
    x = (x >> 2 & 0x3333333333333333) | (x & 0x3333333333333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0f) | (x & 0x0f0f0f0f0f0f0f0f) << 4;
    return __builtin_bswap64(x);
}

/* The next cursor for masks of n buckets: the bits above the mask are set, so that adding 1 to the
 * reversed number carries into the mask's highest bit. */
static uint64_t next_cursor(uint64_t cursor, size_t n)
{
    return reverse_bits(reverse_bits(cursor | ~(uint64_t)(n - 1)) + 1);
}

/* The visitor may remove the entry it is given, so the next one is taken first. */
static void visit_bucket(struct entry *e, void (*visit)(void *, struct bytes, void *), void *arg)
{
    for (struct entry *next; e; e = next) {
        next = e->next;
        visit(arg, (struct bytes){e->key, e->len}, e->value);
    }
}

uint64_t table_scan(const struct table *t, uint64_t cursor,
                    void (*visit)(void *arg, struct bytes key, void *value), void *arg)
{
    const struct buckets *small = t->old.n ? &t->old : &t->now;
    uint64_t from = cursor & (small->n - 1);
    visit_bucket(small->heads[from], visit, arg);
    if (t->old.n) { /* and all buckets of the large table that the small one expands to */
        for (size_t high = 0; high < t->now.n; high += t->old.n)
            visit_bucket(t->now.heads[from | high], visit, arg);
    }
    return next_cursor(cursor, small->n);
}
