/* bench_load.h - what kvasir-benchmark sends: the list of requests of a workload. */
#ifndef UTILS_BENCH_LOAD_H
#define UTILS_BENCH_LOAD_H

#include <stdint.h>
#include "base/err.h"
#include "base/str.h"

enum workload { WORKLOAD_UNIQUE, WORKLOAD_SHARED, WORKLOAD_FILE, WORKLOAD_TRACE, WORKLOAD_FORK };

struct bench_options {
    const char *host, *socket, *password, *file;
    int port, n_clients, n_requests;
    enum workload workload;
    int prompt_tokens, shared_tokens; /* shared: the common beginning; the rest is unique */
    int max_tokens;
    double temperature, speed;        /* speed: trace time runs this many times faster */
    int scale;                        /* trace: lengths are divided by this */
    int64_t seed;
    int n_vocab;                      /* ids of synthetic prompts are below this */
    bool stop_at_end;                 /* let the end-of-text id end an answer */
    bool json, keep;
};

/* One request, owned by the list. */
struct bench_request {
    struct str prompt; /* text, or little-endian int32 ids */
    bool is_ids;
    int max_tokens;
    double at_s;       /* arrival from the start; 0: as soon as a client is free */
};
struct bench_load {
    struct bench_request *requests; /* [n] owns */
    int n;
};

int bench_load_make(const struct bench_options *o, struct bench_load *load, struct err *err);
void bench_load_free(struct bench_load *load);

#endif
