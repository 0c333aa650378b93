/* timer.c - a binary heap of intrusive timers.
 *
 * Each timer knows its place, so that moving and stopping cost log n and nothing is searched.
 * Places are counted from 1 in the timer, so that zeroed memory is a timer at rest. Tens of
 * thousands of blocked readers and keys with a time to live each have one here; a sampled sweep, as
 * Redis does, would find expired keys late and spend time where nothing is due.
 *
 *     heap[i] is due before heap[2i + 1] and heap[2i + 2]
 *
 * Main thread only. */
#include "keyspace/timer.h"

#include "base/err.h"
#include "base/mem.h"

static void set_place(struct timers *timers, int32_t i, struct timer *timer)
{
    timers->heap[i] = timer;
    timer->place = i + 1;
}

static void move_up(struct timers *timers, int32_t i)
{
    struct timer *timer = timers->heap[i];
    while (i > 0 && timers->heap[(i - 1) / 2]->at > timer->at) {
        set_place(timers, i, timers->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    set_place(timers, i, timer);
}

static void move_down(struct timers *timers, int32_t i)
{
    struct timer *timer = timers->heap[i];
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= timers->n)
            break;
        if (child + 1 < timers->n && timers->heap[child + 1]->at < timers->heap[child]->at)
            child++;
        if (timers->heap[child]->at >= timer->at)
            break;
        set_place(timers, i, timers->heap[child]);
        i = child;
    }
    set_place(timers, i, timer);
}

void timer_start(struct timers *timers, struct timer *timer, int64_t at)
{
    ASSERT(timer->fire != NULL);
    timer->at = at;
    if (timer->place == 0) {
        if (timers->n == timers->cap) {
            timers->cap = timers->cap ? timers->cap * 2 : 16;
            timers->heap = xrealloc(timers->heap, (size_t)timers->cap * sizeof *timers->heap);
        }
        set_place(timers, timers->n, timer);
        timers->n++;
    }
    move_up(timers, timer->place - 1);
    move_down(timers, timer->place - 1);
}

void timer_stop(struct timers *timers, struct timer *timer)
{
    if (timer->place == 0)
        return;
    int32_t i = timer->place - 1;
    ASSERT(i < timers->n && timers->heap[i] == timer);
    struct timer *last = timers->heap[--timers->n];
    timer->place = 0;
    if (last == timer)
        return;
    set_place(timers, i, last);
    move_up(timers, i);
    move_down(timers, last->place - 1);
}

int timers_run(struct timers *timers, int64_t now, int max)
{
    int n_fired = 0;
    while (n_fired < max && timers->n > 0 && timers->heap[0]->at <= now) {
        struct timer *timer = timers->heap[0];
        timer_stop(timers, timer);
        timer->fire(timer);
        n_fired++;
    }
    return n_fired;
}

int64_t timers_next(const struct timers *timers)
{
    return timers->n > 0 ? timers->heap[0]->at : INT64_MAX;
}

void timers_free(struct timers *timers)
{
    xfree(timers->heap);
    *timers = (struct timers){0};
}
