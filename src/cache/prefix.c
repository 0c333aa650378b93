/* prefix.c - the index: finds the block that holds these tokens after this parent.
 *
 * A tree, kept as one node per block. A node's identity is its block number and the serial that the
 * block got when it was taken; its parent is named so too, so a stale parent never matches and
 * nothing needs to be walked when a block is reused. Roots are namespaces, with serials of their
 * own.
 *
 *      root (model, user, ...)          buckets:  hash(parent, all ids) -> full and promised nodes
 *       |- block 7  [10 10 10 10]       kin:      hash(parent, first id) -> all children of a
 * parent |    |- block 9  [11 12 13 14]            that begin with one id, newest first; a copy |
 * `- block 3  [11 12] tail             source is looked for there
 *       `- block 4  [20 ...
 *
 * XXH3 finds, tokens decide: a digest is never an identity, since one can be made to collide (an
 * 80-byte message has a known pair that meets once in 2^27 seeds). Equal hashes of other tokens are
 * counted as rejected. Tests cut the hash to 8 bits to see all of that happen.
 *
 * Idea of a radix tree over blocks with hashed edges: SGLang, vLLM; written from the rules. Main
 * thread only; allocates at start and when the number of namespaces doubles. */
#include "cache/prefix.h"

#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"
#include "base/rng.h"
#include "base/table.h"

static bool parent_equal(struct prefix_parent a, struct prefix_parent b)
{
    return a.number == b.number && a.serial == b.serial;
}

/* The parent goes into the seed: one pass over the ids is enough. The odd factor spreads
 * neighbouring parents over the seed's bits; the process's own part keeps clients from choosing ids
 * that meet. */
static uint64_t hash_ids(const struct prefix *x, struct prefix_parent parent, const int32_t *ids,
                         int32_t n)
{
    uint64_t key = (uint64_t)(uint32_t)parent.number << 32 | parent.serial;
    uint64_t seed = x->seed + key * 0x9e3779b97f4a7c15u;
    return hash_bytes(ids, (size_t)n * sizeof *ids, seed) & x->hash_mask;
}

static bool ids_equal(const int32_t *a, const int32_t *b, int32_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static int32_t common_run(const int32_t *a, const int32_t *b, int32_t n)
{
    int32_t run = 0;
    while (run < n && a[run] == b[run])
        run++;
    return run;
}

static uint32_t power_of_two(uint32_t at_least)
{
    uint32_t n = 16;
    while (n < at_least)
        n *= 2;
    return n;
}

static void fill_empty(int32_t *heads, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        heads[i] = -1;
}

void prefix_init(struct prefix *x, struct pool *pool, int32_t block_size, int32_t hash_bits)
{
    ASSERT(block_size > 0 && hash_bits > 0 && hash_bits <= 64);
    *x = (struct prefix){.pool = pool, .block_size = block_size, .free_root = -1};
    x->hash_mask = UINT64_MAX >> (64 - hash_bits);
    x->seed = hash_bits == 64 ? rng_entropy() : 0; /* a test's collisions repeat */
    x->nodes = xcalloc((size_t)pool->n_blocks, sizeof *x->nodes);
    size_t n_ids;
    ASSERT(mul_ok((size_t)pool->n_blocks, (size_t)block_size, &n_ids));
    x->ids = xcalloc(n_ids, sizeof *x->ids);
    uint32_t n_buckets = power_of_two(2 * (uint32_t)pool->n_blocks);
    x->bucket_mask = n_buckets - 1;
    x->buckets = xcalloc(n_buckets, sizeof *x->buckets);
    x->kin = xcalloc(n_buckets, sizeof *x->kin);
    fill_empty(x->buckets, n_buckets);
    fill_empty(x->kin, n_buckets);
    x->n_kind[PREFIX_NONE] = pool->n_blocks;
}

void prefix_done(struct prefix *x)
{
    xfree(x->nodes);
    xfree(x->ids);
    xfree(x->buckets);
    xfree(x->kin);
    xfree(x->roots);
    xfree(x->root_buckets);
    *x = (struct prefix){0};
}

/* ---- roots ----------------------------------------------------------------------------------- */

/* Only finds: field by field decides. */
static uint32_t root_hash(const struct cache_namespace *ns)
{
    const uint64_t fields[] = {ns->model_digest, ns->user, (uint32_t)ns->kv_type, ns->epoch};
    return (uint32_t)hash_bytes(fields, sizeof fields, 0);
}

static bool root_matches(const struct prefix_root *root, const struct cache_namespace *ns)
{
    if (PLANTED(NAMESPACE_MET))
        return root->ns.model_digest == ns->model_digest;
    return cache_namespace_equal(&root->ns, ns);
}

static int32_t *root_bucket(const struct prefix *x, const struct cache_namespace *ns)
{
    if (PLANTED(NAMESPACE_MET))
        return &x->root_buckets[0];
    return &x->root_buckets[root_hash(ns) & ((uint32_t)x->roots_cap - 1)];
}

/* Doubles the slots and deals all roots out anew: rare, and there are as many as users. */
static void grow_roots(struct prefix *x)
{
    int32_t old_cap = x->roots_cap;
    x->roots_cap = old_cap ? 2 * old_cap : 16;
    x->roots = xrealloc(x->roots, (size_t)x->roots_cap * sizeof *x->roots);
    x->root_buckets = xrealloc(x->root_buckets, (size_t)x->roots_cap * sizeof *x->root_buckets);
    fill_empty(x->root_buckets, (uint32_t)x->roots_cap);
    for (int32_t r = 0; r < old_cap; r++) {
        int32_t *head = root_bucket(x, &x->roots[r].ns);
        x->roots[r].next = *head;
        *head = r;
    }
    for (int32_t r = x->roots_cap - 1; r >= old_cap; r--) {
        x->roots[r] = (struct prefix_root){.next = x->free_root};
        x->free_root = r;
    }
}

int32_t prefix_root_find(const struct prefix *x, const struct cache_namespace *ns)
{
    if (x->roots_cap == 0)
        return -1;
    for (int32_t r = *root_bucket(x, ns); r >= 0; r = x->roots[r].next)
        if (root_matches(&x->roots[r], ns))
            return r;
    return -1;
}

int32_t prefix_root_open(struct prefix *x, const struct cache_namespace *ns)
{
    int32_t r = prefix_root_find(x, ns);
    if (r >= 0) {
        x->roots[r].n_users++;
        return r;
    }
    if (x->free_root < 0)
        grow_roots(x);
    r = x->free_root;
    struct prefix_root *root = &x->roots[r];
    x->free_root = root->next;
    int32_t *head = root_bucket(x, ns);
    *root = (struct prefix_root){
        .ns = *ns, .serial = root->serial + 1, .n_users = 1, .next = *head, .is_used = true};
    *head = r;
    x->n_roots++;
    return r;
}

/* Gives the slot back when nobody stands in it and nothing hangs from it. */
static void root_settle(struct prefix *x, int32_t r)
{
    struct prefix_root *root = &x->roots[r];
    if (root->n_users > 0 || root->n_children > 0)
        return;
    int32_t *at = root_bucket(x, &root->ns);
    while (*at != r)
        at = &x->roots[*at].next;
    *at = root->next;
    root->is_used = false;
    root->next = x->free_root;
    x->free_root = r;
    x->n_roots--;
}

void prefix_root_close(struct prefix *x, int32_t root)
{
    ASSERT(x->roots[root].n_users > 0);
    x->roots[root].n_users--;
    root_settle(x, root);
}

struct prefix_parent prefix_root_parent(const struct prefix *x, int32_t root)
{
    return (struct prefix_parent){-1 - root, x->roots[root].serial};
}

struct prefix_parent prefix_block_parent(const struct prefix *x, int32_t block)
{
    return (struct prefix_parent){block, x->pool->blocks[block].serial};
}

static void count_child(struct prefix *x, struct prefix_parent parent, int32_t change)
{
    if (parent.number >= 0) {
        pool_add_child(x->pool, parent.number, change);
        return;
    }
    int32_t root = -1 - parent.number;
    x->roots[root].n_children += change;
    root_settle(x, root);
}

/* ---- finding --------------------------------------------------------------------------------- */

int32_t prefix_find(struct prefix *x, struct prefix_parent parent, const int32_t *ids)
{
    uint64_t hash = hash_ids(x, parent, ids, x->block_size);
    for (int32_t b = x->buckets[hash & x->bucket_mask]; b >= 0; b = x->nodes[b].hash_next) {
        const struct prefix_node *node = &x->nodes[b];
        if (node->hash != hash)
            continue;
        if (PLANTED(HASH_ALONE))
            return b;
        if (parent_equal(node->parent, parent) && ids_equal(prefix_ids(x, b), ids, x->block_size))
            return b;
        x->rejected++;
    }
    return -1;
}

/* The next child of parent from b on (b included) that begins with `first`; -1 at the end. */
static int32_t kin_from(const struct prefix *x, int32_t b, struct prefix_parent parent,
                        int32_t first)
{
    while (b >= 0 && !(parent_equal(x->nodes[b].parent, parent) && *prefix_ids(x, b) == first))
        b = x->nodes[b].kin_next;
    return b;
}

static int32_t kin_first(const struct prefix *x, struct prefix_parent parent, int32_t first)
{
    return kin_from(x, x->kin[hash_ids(x, parent, &first, 1) & x->bucket_mask], parent, first);
}

int32_t prefix_find_run(struct prefix *x, struct prefix_parent parent, const int32_t *ids,
                        int32_t n, int32_t *run)
{
    int32_t best = -1;
    *run = 0;
    if (n <= 0)
        return -1;
    int32_t b = kin_first(x, parent, ids[0]);
    for (int32_t looked = 0; b >= 0 && looked < PREFIX_KIN_MAX; looked++) {
        const struct prefix_node *node = &x->nodes[b];
        if (node->kind != PREFIX_PROMISED) {
            int32_t common = common_run(prefix_ids(x, b), ids, node->n_ids < n ? node->n_ids : n);
            if (common > *run && !(PLANTED(RUN_SHORT) && best >= 0)) {
                *run = common;
                best = b;
            }
        }
        b = kin_from(x, node->kin_next, parent, ids[0]);
    }
    return best;
}

int32_t prefix_find_cover(struct prefix *x, struct prefix_parent parent, const int32_t *ids,
                          int32_t n, int32_t except)
{
    int32_t b = kin_first(x, parent, ids[0]);
    for (int32_t looked = 0; b >= 0 && looked < PREFIX_KIN_MAX; looked++) {
        const struct prefix_node *node = &x->nodes[b];
        if (b != except && node->kind != PREFIX_PROMISED && node->n_ids >= n &&
            ids_equal(prefix_ids(x, b), ids, n))
            return b;
        b = kin_from(x, node->kin_next, parent, ids[0]);
    }
    return -1;
}

/* ---- linking --------------------------------------------------------------------------------- */

static void hash_insert(struct prefix *x, int32_t b)
{
    struct prefix_node *node = &x->nodes[b];
    int32_t *head = &x->buckets[node->hash & x->bucket_mask];
    node->hash_prev = -1;
    node->hash_next = *head;
    if (*head >= 0)
        x->nodes[*head].hash_prev = b;
    *head = b;
}

static void hash_remove(struct prefix *x, int32_t b)
{
    struct prefix_node *node = &x->nodes[b];
    if (node->hash_prev >= 0)
        x->nodes[node->hash_prev].hash_next = node->hash_next;
    else
        x->buckets[node->hash & x->bucket_mask] = node->hash_next;
    if (node->hash_next >= 0)
        x->nodes[node->hash_next].hash_prev = node->hash_prev;
}

static void kin_insert(struct prefix *x, int32_t b)
{
    struct prefix_node *node = &x->nodes[b];
    int32_t *head = &x->kin[node->kin_hash & x->bucket_mask];
    node->kin_prev = -1;
    node->kin_next = *head;
    if (*head >= 0)
        x->nodes[*head].kin_prev = b;
    *head = b;
}

static void kin_remove(struct prefix *x, int32_t b)
{
    struct prefix_node *node = &x->nodes[b];
    if (node->kin_prev >= 0)
        x->nodes[node->kin_prev].kin_next = node->kin_next;
    else
        x->kin[node->kin_hash & x->bucket_mask] = node->kin_next;
    if (node->kin_next >= 0)
        x->nodes[node->kin_next].kin_prev = node->kin_prev;
}

/* Newest first: dropping all from the front takes children before their parents. */
static void promise_insert(struct prefix *x, int32_t b, struct cache_owner *owner)
{
    struct prefix_node *node = &x->nodes[b];
    node->owner = owner;
    node->promise_prev = -1;
    node->promise_next = owner->first_promise - 1;
    if (node->promise_next >= 0)
        x->nodes[node->promise_next].promise_prev = b;
    owner->first_promise = b + 1;
    owner->n_promises++;
}

static void promise_remove(struct prefix *x, int32_t b)
{
    struct prefix_node *node = &x->nodes[b];
    if (node->promise_prev >= 0)
        x->nodes[node->promise_prev].promise_next = node->promise_next;
    else
        node->owner->first_promise = node->promise_next + 1;
    if (node->promise_next >= 0)
        x->nodes[node->promise_next].promise_prev = node->promise_prev;
    node->owner->n_promises--;
    node->owner = NULL;
}

static void set_kind(struct prefix *x, int32_t b, enum prefix_kind kind)
{
    x->n_kind[x->nodes[b].kind]--;
    x->n_kind[kind]++;
    x->nodes[b].kind = (uint8_t)kind;
}

void prefix_link(struct prefix *x, int32_t block, struct prefix_parent parent, const int32_t *ids,
                 int32_t n, enum prefix_kind kind, struct cache_owner *owner)
{
    struct prefix_node *node = &x->nodes[block];
    ASSERT(node->kind == PREFIX_NONE && kind != PREFIX_NONE && n > 0);
    ASSERT((n == x->block_size) == (kind != PREFIX_TAIL));
    ASSERT((kind == PREFIX_PROMISED) == (owner != NULL));
    set_kind(x, block, kind);
    node->n_ids = n;
    node->parent = parent;
    memcpy(x->ids + (int64_t)block * x->block_size, ids, (size_t)n * sizeof *ids);
    node->kin_hash = hash_ids(x, parent, ids, 1);
    kin_insert(x, block);
    if (kind != PREFIX_TAIL) {
        node->hash = hash_ids(x, parent, ids, n);
        hash_insert(x, block);
    }
    if (owner)
        promise_insert(x, block, owner);
    count_child(x, parent, 1);
    pool_set_findable(x->pool, block, true);
}

void prefix_unlink(struct prefix *x, int32_t block)
{
    struct prefix_node *node = &x->nodes[block];
    if (node->kind == PREFIX_NONE)
        return;
    kin_remove(x, block);
    if (node->kind != PREFIX_TAIL)
        hash_remove(x, block);
    if (node->kind == PREFIX_PROMISED)
        promise_remove(x, block);
    set_kind(x, block, PREFIX_NONE);
    pool_set_findable(x->pool, block, false);
    count_child(x, node->parent, -1);
}

void prefix_keep_promise(struct prefix *x, int32_t block)
{
    ASSERT(x->nodes[block].kind == PREFIX_PROMISED);
    promise_remove(x, block);
    set_kind(x, block, PREFIX_FULL);
}

void prefix_drop_promises(struct prefix *x, struct cache_owner *owner)
{
    while (owner->first_promise > 0)
        prefix_unlink(x, owner->first_promise - 1);
}

void prefix_drop_tails(struct prefix *x, struct prefix_parent parent, const int32_t *ids, int32_t n)
{
    int32_t b = kin_first(x, parent, ids[0]);
    for (int32_t looked = 0; b >= 0 && looked < PREFIX_KIN_MAX; looked++) {
        const struct prefix_node *node = &x->nodes[b];
        int32_t next = kin_from(x, node->kin_next, parent, ids[0]);
        if (node->kind == PREFIX_TAIL && node->n_ids <= n && !pool_is_held(x->pool, b) &&
            ids_equal(prefix_ids(x, b), ids, node->n_ids))
            prefix_unlink(x, b);
        b = next;
    }
}
