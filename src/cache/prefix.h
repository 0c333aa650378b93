/* prefix.h - the index: finds the block that holds these tokens after this parent. */
#ifndef CACHE_PREFIX_H
#define CACHE_PREFIX_H

#include <stdbool.h>
#include <stdint.h>
#include "cache/namespace.h"
#include "cache/pool.h"

struct block_table;
struct lineage;

/* Who promises blocks: one per generation, embedded in it by the engine, zeroed but for who. Its
 * promises are listed from it, so that they can be dropped together. It must have none when it
 * dies (releasing its tables sees to that). */
struct cache_owner {
    void *who;               /* the engine's own */
    struct lineage *lineage; /* borrows; of the conversation that it works for; NULL: of none */
    bool is_quiet;           /* promises nothing: it may take longer than those who would wait */
    int32_t first_promise;   /* prefix.c only; block number + 1, 0: none */
    int32_t n_promises;
    struct block_table *tables; /* table.c only; its open ones: the branches of a group */
};

enum prefix_kind {
    PREFIX_NONE,     /* not in the index */
    PREFIX_FULL,     /* a full block, confirmed by a finished step */
    PREFIX_TAIL,     /* the first n_ids slots are confirmed; its owner may fill above them */
    PREFIX_PROMISED, /* a full block that its owner is going to compute: found, never a hit */
};

/* Identity of a parent: a block and its serial, or a root (number < 0) and its serial. */
struct prefix_parent {
    int32_t number; /* block, or -1 - root */
    uint32_t serial;
};

struct prefix_node {
    uint8_t kind;  /* enum prefix_kind */
    int32_t n_ids; /* block_size, less in a tail */
    struct prefix_parent parent;
    uint64_t hash; /* of (parent, ids); full and promised ones only are in its bucket */
    int32_t hash_next, hash_prev; /* neighbours in the bucket of equal (parent, ids) hashes */
    uint64_t kin_hash;            /* of (parent, first id) */
    int32_t kin_next, kin_prev;   /* siblings that begin with the same id, newest first */
    struct cache_owner *owner;    /* PREFIX_PROMISED: borrowed */
    int32_t promise_next, promise_prev;
};

/* A root: one per namespace that is in use or has blocks. */
struct prefix_root {
    struct cache_namespace ns;
    uint32_t serial;    /* grows each time the slot is used anew */
    int32_t n_children; /* nodes whose parent it is */
    int32_t n_users;    /* block tables that stand in it */
    int32_t next;       /* in its bucket, or in the list of free slots; -1 at the end */
    bool is_used;
};

struct prefix {
    struct pool *pool; /* borrows */
    int32_t block_size;
    uint64_t hash_mask;        /* all ones; 255 when a test cuts the hash to 8 bits */
    uint64_t seed;             /* of the hashes: the process's own, 0 when they are cut */
    struct prefix_node *nodes; /* [n_blocks] owns; by block number */
    int32_t *ids;              /* [n_blocks * block_size] owns; ids of block b at b * block_size */
    int32_t *buckets, *kin;    /* [n_buckets] owns; heads, -1 when empty */
    uint32_t bucket_mask;      /* n_buckets - 1; a power of two, at least twice the blocks */
    struct prefix_root *roots; /* [roots_cap] owns; grows */
    int32_t roots_cap, free_root, n_roots;
    int32_t *root_buckets; /* [roots_cap] owns */
    int32_t n_kind[PREFIX_PROMISED + 1];
    uint64_t rejected; /* equal hashes, other tokens or parent */
};

void prefix_init(struct prefix *x, struct pool *pool, int32_t block_size, int32_t hash_bits);
void prefix_done(struct prefix *x);

int32_t prefix_root_find(const struct prefix *x, const struct cache_namespace *ns); /* or -1 */
int32_t prefix_root_open(struct prefix *x, const struct cache_namespace *ns); /* counts a user */
void prefix_root_close(struct prefix *x, int32_t root);
struct prefix_parent prefix_root_parent(const struct prefix *x, int32_t root);
struct prefix_parent prefix_block_parent(const struct prefix *x, int32_t block);

/* The full or promised block that holds ids [block_size] after parent; -1 when there is none. */
int32_t prefix_find(struct prefix *x, struct prefix_parent parent, const int32_t *ids);
/* The confirmed child of parent with the longest common run with ids [n]; -1 when none has one
 * token. Looks at PREFIX_KIN_MAX siblings at most. */
int32_t prefix_find_run(struct prefix *x, struct prefix_parent parent, const int32_t *ids,
                        int32_t n, int32_t *run);
/* A confirmed child of parent other than `except` that begins with all of ids [n]; -1: none. */
int32_t prefix_find_cover(struct prefix *x, struct prefix_parent parent, const int32_t *ids,
                          int32_t n, int32_t except);

void prefix_link(struct prefix *x, int32_t block, struct prefix_parent parent, const int32_t *ids,
                 int32_t n, enum prefix_kind kind, struct cache_owner *owner);
void prefix_unlink(struct prefix *x, int32_t block);       /* no-op when it is not linked */
void prefix_keep_promise(struct prefix *x, int32_t block); /* promised becomes full */
void prefix_drop_promises(struct prefix *x, struct cache_owner *owner); /* all it has left */
/* Unlinks unreferenced tails of parent that ids [n] extend. */
void prefix_drop_tails(struct prefix *x, struct prefix_parent parent, const int32_t *ids,
                       int32_t n);

static inline const int32_t *prefix_ids(const struct prefix *x, int32_t block)
{
    return x->ids + (int64_t)block * x->block_size;
}

/* Siblings with one first id that a search looks at: a chat root has thousands, a step has 1 ms. */
enum { PREFIX_KIN_MAX = 64 };

#endif
