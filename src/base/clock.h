/* clock.h - monotonic and wall time with a test offset. The main thread caches both per loop turn
 * (clock_tick), so that time stands still for the length of a command. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_mono_us(void);    /* never steps back; any thread; includes the test offset */
int64_t clock_wall_us(void);    /* Unix time; any thread; includes the test offset */
int64_t clock_wall_ms(void);    /* the same in milliseconds */
int64_t clock_cpu_us(void);     /* that this thread has used; 0 while the clock is frozen */

void clock_tick(void);          /* main thread: refresh the cached pair */
int64_t clock_now_ms(void);     /* cached wall time, main thread */
int64_t clock_now_us(void);     /* cached monotonic time, main thread */

/* Test seam: moves both clocks, or only the wall clock (a step by an operator). May be negative
 * for the wall clock only. */
void clock_advance_ms(int64_t ms);
void clock_pass_ms(int64_t ms); /* the same, but the cached pair stays: in the middle of a command */
void clock_step_wall_ms(int64_t ms);
/* Simulation: from now on time moves only by clock_advance_ms. */
void clock_freeze(int64_t wall_ms, int64_t mono_us);

#endif
