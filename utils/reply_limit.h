/* reply_limit.h - how many elements an array of a reply may promise.
 *
 * hiredis takes the number that a header names for the truth: it allocates a pointer for each element
 * at once, and walks them all when it frees what never came. Twelve bytes would cost a client of ours
 * 16 GiB of address space and half a minute. */
#ifndef UTILS_REPLY_LIMIT_H
#define UTILS_REPLY_LIMIT_H

#include <hiredis/hiredis.h>
#include <stddef.h>

enum { REPLY_MAX_ELEMENTS = 1 << 20 }; /* as in a request to the server */

#if HIREDIS_MAJOR > 0
typedef size_t reply_count;
#else
typedef int reply_count;
#endif

/* Zero-initialised; stays for as long as the connections that use it. */
struct reply_limit {
    redisReplyObjectFunctions functions;                /* hiredis's own, but for arrays */
    void *(*array)(const redisReadTask *, reply_count); /* hiredis's own */
    size_t refused; /* what a header has asked for, over the limit; 0: none has */
};

/* From here on such a header is an error on this connection. Several may use one limit. */
void reply_limit_set(struct reply_limit *limit, redisContext *redis);

#endif
