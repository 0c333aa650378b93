/* mem.c - allocators, bytes per tag and the nth-call-fails seam.
 *
 * Live bytes are counted with malloc_usable_size, so that nothing is stored beside a block and any
 * pointer of a tag can be measured again when it is freed. The counters are atomics because job
 * threads allocate too; nothing orders on them. */
#include "base/mem.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "base/log.h"

static atomic_size_t live_bytes[MEM_N_TAGS];
/* The seam: calls since it was armed, and the call that fails. Test state of this file only. */
static atomic_uint_fast64_t try_calls, fail_call;
static atomic_bool fail_onwards;

/* glibc keeps small freed pieces in lists of their own, unjoined, until some call with a large one
 * joins them all: 40 ms behind 100,000 keys that went. Without these lists each free joins its piece;
 * the few that each thread caches stay, so that most calls are as quick as before. */
void mem_tame_allocator(void)
{
    (void)mallopt(M_MXFAST, 0); /* fails for no value that small; a sanitizer has its own */
}

_Noreturn static void out_of_memory(size_t size_bytes)
{
    log_write(LOG_WARNING, LOG_SERVER, "out of memory: %zu bytes could not be allocated",
              size_bytes);
    abort();
}

static void *must(void *p, size_t size_bytes)
{
    if (!p)
        out_of_memory(size_bytes);
    return p;
}

void *xmalloc(size_t size_bytes)
{
    return must(malloc(size_bytes ? size_bytes : 1), size_bytes);
}

void *xcalloc(size_t n, size_t size_bytes)
{
    size_t total;
    if (!mul_ok(n, size_bytes, &total))
        out_of_memory(SIZE_MAX);
    return must(calloc(1, total ? total : 1), total);
}

void *xrealloc(void *p, size_t size_bytes)
{
    return must(realloc(p, size_bytes ? size_bytes : 1), size_bytes);
}

char *xstrdup(const char *s)
{
    return xmemdup(s, strlen(s) + 1);
}

void *xmemdup(const void *p, size_t size_bytes)
{
    void *copy = xmalloc(size_bytes);
    if (size_bytes)
        memcpy(copy, p, size_bytes);
    return copy;
}

void *xaligned(size_t align, size_t size_bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, align, size_bytes ? size_bytes : 1) != 0)
        out_of_memory(size_bytes);
    memset(p, 0, size_bytes);
    return p;
}

void xfree(void *p)
{
    free(p);
}

/* True when the seam says that this call fails. */
static bool call_fails(void)
{
    uint64_t call = atomic_fetch_add(&try_calls, 1) + 1, at = atomic_load(&fail_call);
    return at && (call == at || (call > at && atomic_load(&fail_onwards)));
}

void *try_malloc(enum mem_tag tag, size_t size_bytes)
{
    void *p = call_fails() ? NULL : malloc(size_bytes ? size_bytes : 1);
    if (p)
        atomic_fetch_add(&live_bytes[tag], malloc_usable_size(p));
    return p;
}

void *must_malloc(enum mem_tag tag, size_t size_bytes)
{
    void *p = xmalloc(size_bytes);
    atomic_fetch_add(&live_bytes[tag], malloc_usable_size(p));
    return p;
}

void *try_realloc(enum mem_tag tag, void *p, size_t size_bytes)
{
    if (call_fails())
        return NULL;
    size_t before = p ? malloc_usable_size(p) : 0;
    void *q = realloc(p, size_bytes ? size_bytes : 1);
    if (q) {
        atomic_fetch_sub(&live_bytes[tag], before);
        atomic_fetch_add(&live_bytes[tag], malloc_usable_size(q));
    }
    return q;
}

void try_free(enum mem_tag tag, void *p)
{
    if (p)
        atomic_fetch_sub(&live_bytes[tag], malloc_usable_size(p));
    free(p);
}

void mem_count(enum mem_tag tag, ptrdiff_t bytes)
{
    atomic_fetch_add(&live_bytes[tag], (size_t)bytes); /* a negative one wraps back */
}

size_t mem_bytes(enum mem_tag tag)
{
    return atomic_load(&live_bytes[tag]);
}

size_t mem_rss_bytes(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%*d %ld", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* The number in a one-value file of /sys, or SIZE_MAX ("max", no such file). */
static size_t read_limit(const char *path)
{
    unsigned long long value;
    FILE *f = fopen(path, "re");
    if (!f)
        return SIZE_MAX;
    int n = fscanf(f, "%llu", &value);
    fclose(f);
    return n == 1 ? (size_t)value : SIZE_MAX;
}

static size_t cgroup_rest(void)
{
    static const char *const files[][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t limit = read_limit(files[i][0]), used = read_limit(files[i][1]);
        if (limit != SIZE_MAX && used != SIZE_MAX)
            return used < limit ? limit - used : 0;
    }
    return SIZE_MAX;
}

size_t mem_available_bytes(void)
{
    unsigned long long kb = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu", &kb) != 1)
        continue;
    if (f)
        fclose(f);
    size_t system = kb ? (size_t)kb * 1024 : SIZE_MAX, rest = cgroup_rest();
    return system < rest ? system : rest;
}

void mem_fail_at(uint64_t n, bool from_then_on)
{
    atomic_store(&try_calls, 0);
    atomic_store(&fail_onwards, from_then_on);
    atomic_store(&fail_call, n);
}

uint64_t mem_try_calls(void)
{
    return atomic_load(&try_calls);
}
