/* stall.h - with what the main thread was busy when it was away from the engine for long. */
#ifndef SERVER_STALL_H
#define SERVER_STALL_H

#include <stdint.h>
#include "base/str.h"

enum stall_phase {
    STALL_EVENTS,   /* sockets: commands as they come */
    STALL_JOBS,     /* what job threads have finished */
    STALL_ENGINE,   /* results, planning, callbacks */
    STALL_KEYS,     /* timers, waiters, readers, memory that goes back */
    STALL_EVICTION, /* maxmemory */
    STALL_CLIENTS,  /* flushing, parked commands, closing */
    N_STALL_PHASES
};

/* Of the time since the last look. Main thread only. */
struct stall {
    int64_t since_us; /* clock_mono_us at which the phase began that goes on */
    int64_t spent_us[N_STALL_PHASES];
};

void stall_begin(struct stall *s, int64_t now_us);
void stall_wake(struct stall *s, int64_t woke_us);
void stall_spent(struct stall *s, enum stall_phase phase, int64_t now_us);
void stall_print(const struct stall *s, int64_t cpu_us, struct str *out);

#endif
