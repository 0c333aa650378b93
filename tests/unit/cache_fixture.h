/* cache_fixture.h - a small cache and sequences over it, for the tests of the cache's rules.
 *
 * A seq is what the engine keeps of a branch: ids, table, owner. Steps are played by hand: admit,
 * finish (landed and advance), release. Every helper ends in an audit with all seqs as holders. */
#ifndef TESTS_UNIT_CACHE_FIXTURE_H
#define TESTS_UNIT_CACHE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "cache/cache.h"

enum { SEQ_IDS = 400, MAX_SEQS = 16 };

struct seq {
    struct block_table table;
    struct cache_owner owner;
    struct cache_found found;
    struct cache_copy copy; /* pending until finish */
    int32_t ids[SEQ_IDS];
    int32_t n_ids;
};

struct rig {
    struct cache *cache;
    struct seq seqs[MAX_SEQS];
    int32_t n_seqs;
};

static inline void rig_audit(struct rig *r)
{
    const struct block_table *tables[MAX_SEQS];
    int32_t pins[MAX_SEQS], n_tables = 0, n_pins = 0;
    for (int32_t i = 0; i < r->n_seqs; i++) {
        if (r->seqs[i].table.is_open)
            tables[n_tables++] = &r->seqs[i].table;
        if (r->seqs[i].copy.n_tokens > 0)
            pins[n_pins++] = r->seqs[i].copy.src;
    }
    struct cache_holders holders = {
        .tables = tables, .n_tables = n_tables, .pins = pins, .n_pins = n_pins};
    struct err err = {""};
    if (cache_audit(r->cache, &holders, &err) < 0)
        fail_msg("audit: %s", err.text);
}

static inline struct rig rig_new(int32_t n_blocks, int32_t block_size, int32_t hash_bits)
{
    struct cache_config config = {
        .n_blocks = n_blocks, .block_size = block_size, .hash_bits = hash_bits};
    return (struct rig){.cache = cache_new(&config)};
}

static inline void rig_free(struct rig *r)
{
    for (int32_t i = 0; i < r->n_seqs; i++) {
        cache_copy_done(r->cache, &r->seqs[i].copy);
        cache_release(r->cache, &r->seqs[i].table, r->seqs[i].ids);
        cache_close(r->cache, &r->seqs[i].table);
    }
    cache_free(r->cache);
}

static inline struct seq *seq_new_of(struct rig *r, uint64_t user, const int32_t *ids, int32_t n)
{
    struct seq *s = &r->seqs[r->n_seqs++];
    struct cache_namespace ns = {.model_digest = 7, .user = user};
    cache_open(r->cache, &s->table, &ns, &s->owner, SEQ_IDS);
    memcpy(s->ids, ids, (size_t)n * sizeof *ids);
    s->n_ids = n;
    return s;
}
#define seq_new(r, ...)                                                                            \
    seq_new_of(r, 0, (const int32_t[]){__VA_ARGS__},                                               \
               (int32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))

static inline const struct cache_found *seq_look(struct rig *r, struct seq *s)
{
    cache_look(r->cache, &s->table, s->ids, s->n_ids, &s->found);
    rig_audit(r);
    return &s->found;
}

static inline bool seq_reserve(struct rig *r, struct seq *s, int32_t keep)
{
    bool ok = cache_reserve(r->cache, &s->table, s->ids, s->n_ids, &s->found, keep, &s->copy);
    rig_audit(r);
    return ok;
}

static inline bool seq_admit(struct rig *r, struct seq *s, int32_t keep)
{
    return !seq_look(r, s)->promised_by && seq_reserve(r, s, keep);
}

/* The step is done: n_rows tokens behind what was copied. */
static inline void seq_step(struct rig *r, struct seq *s, int32_t n_rows)
{
    cache_copy_done(r->cache, &s->copy);
    s->copy = (struct cache_copy){0};
    cache_landed(r->cache, &s->table);
    cache_advance(r->cache, &s->table, s->ids, n_rows);
    rig_audit(r);
}

static inline void seq_prefill(struct rig *r, struct seq *s)
{
    seq_step(r, s, s->n_ids - s->table.computed - s->table.ahead);
}

/* One decode: the id joins, room is made, the step is done. */
static inline void seq_decode(struct rig *r, struct seq *s, int32_t id)
{
    s->ids[s->n_ids++] = id;
    cache_write_room(r->cache, &s->table, &s->copy);
    rig_audit(r);
    seq_step(r, s, 1);
}

static inline void seq_release(struct rig *r, struct seq *s)
{
    cache_release(r->cache, &s->table, s->ids);
    rig_audit(r);
}

/* Computes ids and lets them go: they are in the cache. */
#define seq_cached(r, ...)                                                                         \
    do {                                                                                           \
        struct seq *cached_ = seq_new(r, __VA_ARGS__);                                             \
        assert_true(seq_admit(r, cached_, 0));                                                     \
        seq_prefill(r, cached_);                                                                   \
        seq_release(r, cached_);                                                                   \
    } while (0)

static inline struct cache_stats rig_stats(const struct rig *r)
{
    struct cache_stats stats;
    cache_stats(r->cache, &stats);
    return stats;
}

static inline int32_t rig_probe(struct rig *r, const int32_t *ids, int32_t n)
{
    struct cache_namespace ns = {.model_digest = 7};
    return cache_probe(r->cache, &ns, ids, n);
}
#define probe(r, ...)                                                                              \
    rig_probe(r, (const int32_t[]){__VA_ARGS__},                                                   \
              (int32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))

#endif
