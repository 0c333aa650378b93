/* stall.c - with what the main thread was busy when it was away from the engine for long.
 *
 * Nothing in the main thread may take more than a millisecond, and what breaks that rule shows as one
 * number in INFO, which says nothing of the cause. So the turn notes how long each of its parts took;
 * the parts are read from the clock that costs 25 ns, not from the thread's CPU clock, which is a
 * system call. When the CPU time between two looks at the engine is the longest so far, the parts are
 * told. Main thread only. */
#include "server/stall.h"

void stall_begin(struct stall *s, int64_t now_us)
{
    *s = (struct stall){.since_us = now_us};
}

/* It has slept until then, which is no part of what it did. woke_us 0: nothing has woken it. */
void stall_wake(struct stall *s, int64_t woke_us)
{
    if (woke_us > s->since_us)
        s->since_us = woke_us;
}

/* What has happened since the last call was this. */
void stall_spent(struct stall *s, enum stall_phase phase, int64_t now_us)
{
    s->spent_us[phase] += now_us - s->since_us;
    s->since_us = now_us;
}

/* "3.8 ms of CPU: events 0.1 ms, keys 3.6 ms", what took less than 0.05 ms left out. */
void stall_print(const struct stall *s, int64_t cpu_us, struct str *out)
{
    static const char *const names[N_STALL_PHASES] = {
        [STALL_EVENTS] = "events", [STALL_JOBS] = "jobs",         [STALL_ENGINE] = "engine",
        [STALL_KEYS] = "keys",     [STALL_EVICTION] = "eviction", [STALL_CLIENTS] = "clients"};
    const char *between = ": ";
    str_printf(out, "%.1f ms of CPU", (double)cpu_us / 1000);
    for (int i = 0; i < N_STALL_PHASES; i++) {
        if (s->spent_us[i] < 50)
            continue;
        str_printf(out, "%s%s %.1f ms", between, names[i], (double)s->spent_us[i] / 1000);
        between = ", ";
    }
}
