/* namespace.h - what roots a tree of the prefix index. Compared field by field, never by a digest.
 */
#ifndef CACHE_NAMESPACE_H
#define CACHE_NAMESPACE_H

#include <stdbool.h>
#include <stdint.h>

struct cache_namespace {
    uint64_t model_digest;
    uint64_t user; /* the authenticated one; 0 when prefixes are shared across users */
    int32_t kv_type;
    uint32_t epoch; /* grows when the weights are loaded anew */
};

static inline bool cache_namespace_equal(const struct cache_namespace *a,
                                         const struct cache_namespace *b)
{
    return a->model_digest == b->model_digest && a->user == b->user && a->kv_type == b->kv_type &&
           a->epoch == b->epoch;
}

#endif
