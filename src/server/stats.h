/* stats.h - what INFO counts: calls and errors by name, rates of the last seconds. */
#ifndef SERVER_STATS_H
#define SERVER_STATS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/str.h"

struct command;
struct latency;
struct stats;

enum stats_rate { RATE_COMMANDS, RATE_BYTES_IN, RATE_BYTES_OUT, N_RATES };

struct stats *stats_new(void);
void stats_free(struct stats *s); /* accepts NULL */
void stats_reset(struct stats *s);

void stats_count_call(struct stats *s, const struct command *c, int64_t usec, bool failed);
void stats_count_failed(struct stats *s, const struct command *c);   /* its answer came later */
void stats_count_rejected(struct stats *s, const struct command *c); /* it did not run */
void stats_count_error(struct stats *s, struct bytes reply); /* "-ERR ...": by its first word */

/* Ten times a second: the totals since the start. */
void stats_sample(struct stats *s, int64_t now_us, const uint64_t totals[N_RATES]);
uint64_t stats_per_second(const struct stats *s, enum stats_rate rate);

void stats_print_commands(const struct stats *s, struct str *out);
void stats_print_latencies(const struct stats *s, struct str *out);
/* NULL when it was never called. */
const struct latency *stats_latency(const struct stats *s, const struct command *c);
void stats_print_errors(const struct stats *s, struct str *out);

#endif
