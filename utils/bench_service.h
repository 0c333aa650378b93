/* bench_service.h - throughput of the whole engine under paging and under reservation. */
#ifndef UTILS_BENCH_SERVICE_H
#define UTILS_BENCH_SERVICE_H

#include <stdint.h>
#include "base/err.h"
#include "utils/sim_policy.h"

struct service_options {
    const char *model, *backend, *isa, *affinity; /* as kvasir-model-bench takes them */
    int kv_type;                                  /* enum kv_type */
    int32_t threads;
    int32_t n_requests;
    int32_t scale;     /* all lengths of the load, the context and the slots over this */
    const char *trace; /* a recorded load; NULL: drawn like ShareGPT */
    int32_t rounds;    /* all policies so often, in turn */
};

enum { SERVICE_MAX_ROUNDS = 100 };
struct service_result {
    const char *policy;
    double tokens_per_s[SERVICE_MAX_ROUNDS]; /* [rounds] generated, sorted */
    double per_cpu_s[SERVICE_MAX_ROUNDS]; /* the same of the process's CPU time: for machines that
                                                others use, too, and one thread, which never spins */
    double batch, useful;                 /* means of the last round: running requests; part of
                                                the slots that hold their tokens */
    int64_t preemptions;
};
struct service_report {
    struct service_result results[SIM_N_POLICIES]; /* in the order of sim_policies */
    int32_t n_requests, n_slots, n_context;
    double prompt_mean, output_mean;
    char device[160];
};

int service_measure(const struct service_options *o, struct service_report *report,
                    struct err *err);
void service_print(const struct service_options *o, const struct service_report *report);

#endif
