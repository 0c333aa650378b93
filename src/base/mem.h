/* mem.h - memory: aborting and trying allocators, bytes per tag, the nth-call-fails seam.
 *
 * xmalloc and friends abort when memory is gone: for sizes that are ours. try_malloc returns NULL:
 * for every size that a client chose. Both count live bytes under a tag (malloc_usable_size), from
 * any thread. A test arms mem_fail_at(n) and the n-th try_ call from then on returns NULL. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mem_tag { MEM_OTHER, MEM_CLIENT, MEM_KEY, MEM_MODEL, MEM_CACHE, MEM_ENGINE, MEM_N_TAGS };

/* At start, before there are threads: no call of free or malloc may take milliseconds. */
void mem_tame_allocator(void);

void *xmalloc(size_t size_bytes);
void *xcalloc(size_t n, size_t size_bytes);               /* zeroed; the product is checked */
void *xrealloc(void *p, size_t size_bytes);
char *xstrdup(const char *s);
void *xmemdup(const void *p, size_t size_bytes);
void *xaligned(size_t align, size_t size_bytes);          /* zeroed; free with xfree */
void xfree(void *p);                                      /* accepts NULL */

void *try_malloc(enum mem_tag tag, size_t size_bytes);    /* NULL when memory is gone or armed */
/* For what is counted under a tag, but of a size that is ours: aborts. try_free. */
void *must_malloc(enum mem_tag tag, size_t size_bytes);
void *try_realloc(enum mem_tag tag, void *p, size_t size_bytes);
void try_free(enum mem_tag tag, void *p);                 /* accepts NULL */

/* What was allocated otherwise (a growing array, a struct) and belongs to a tag; may be negative. */
void mem_count(enum mem_tag tag, ptrdiff_t bytes);
size_t mem_bytes(enum mem_tag tag); /* live bytes of try_ allocations, and what was counted */
size_t mem_rss_bytes(void);                               /* resident set of the process */
size_t mem_available_bytes(void);                         /* smaller of system and cgroup rest */

/* Test seam: the n-th try_ call from now on (1 = the next) fails once, or always from then on;
 * n = 0 disarms. mem_try_calls counts calls since the last mem_fail_at. */
void mem_fail_at(uint64_t n, bool from_then_on);
uint64_t mem_try_calls(void);

/* *out = a * b; false when it does not fit. */
static inline bool mul_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool add_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#endif
