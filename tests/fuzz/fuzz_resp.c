/* fuzz_resp.c - the request reader under any bytes: whole and in pieces it must say the same, and
 * it gives all memory back. The first byte chooses the limits and the size of the pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/resp.h"
#include "tests/fuzz/fuzz.h"

/* Reads all of data in pieces of n bytes; a hash of what came out. */
static uint64_t digest(const struct resp_limits *limits, const char *data, size_t size, size_t n)
{
    struct resp_reader r = {0};
    uint64_t hash = 1469598103934665603u;
    for (size_t at = 0; at < size;) {
        size_t end = at + n < size ? at + n : size, used;
        struct err err;
        enum resp_status s = resp_read(&r, limits, data + at, end - at, &used, &err);
        ASSERT(used <= end - at);
        at += used;
        if (s == RESP_BROKEN) {
            hash = (hash ^ strlen(err.text)) * 1099511628211u;
            break;
        }
        if (s == RESP_MORE)
            continue;
        for (int i = 0; i < r.request.n_args; i++)
            for (size_t k = 0; k <= r.request.args[i].len; k++)
                hash = (hash ^ (uint8_t)r.request.args[i].data[k]) * 1099511628211u;
        hash = (hash ^ (uint64_t)r.request.n_args) * 1099511628211u;
    }
    resp_free(&r);
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct resp_limits limits = {data[0] % 2 == 0, 1 << 20, 1 << 20};
    size_t piece = 1 + data[0] / 2 % 64, before = mem_bytes(MEM_CLIENT);
    const char *text = (const char *)data;
    ASSERT(digest(&limits, text, size, size) == digest(&limits, text, size, piece));
    ASSERT(mem_bytes(MEM_CLIENT) == before);
    return 0;
}
