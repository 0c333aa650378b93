/* timer.h - deadlines of the main thread: a binary heap of timers that live inside other structs.
 *
 * A timer belongs to whoever embeds it and must be stopped before that memory goes. Two heaps exist
 * in a keyspace: one of monotonic microseconds (everything but EXPIREAT), one of wall milliseconds.
 */
#ifndef KEYSPACE_TIMER_H
#define KEYSPACE_TIMER_H

#include <stdbool.h>
#include <stdint.h>

struct timer {
    int64_t at;                        /* in the heap's unit */
    int32_t place;                     /* index in the heap + 1; 0: not running */
    void (*fire)(struct timer *timer); /* called once, the timer is stopped before */
};

struct timers {
    struct timer **heap; /* [n] owns the array, borrows the timers; heap[0] is due first */
    int32_t n, cap;
};

/* Starts or moves it. fire must be set. */
void timer_start(struct timers *timers, struct timer *timer, int64_t at);
void timer_stop(struct timers *timers, struct timer *timer); /* harmless when not running */
static inline bool timer_is_running(const struct timer *timer)
{
    return timer->place != 0;
}
/* Fires at most max timers that are due at now; the number fired. */
int timers_run(struct timers *timers, int64_t now, int max);
int64_t timers_next(const struct timers *timers); /* INT64_MAX: none */
void timers_free(struct timers *timers);          /* the array; no timer fires */

#endif
