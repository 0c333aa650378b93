/* thread.h - what a thread asks of the scheduler, and what it got. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <stdint.h>

/* The calling thread is to run as soon as it wakes, and then only briefly: short slices and, where the
 * process may, a higher priority; its policy stays. A wish: kernels before Linux 6.12 have no such
 * slices. Threads that it starts later inherit both. */
void thread_ask_to_go_first(void);

/* For how long, since it began, the calling thread could have run and others had the CPUs; 0 where
 * the kernel does not tell. Reads a file of /proc. */
int64_t thread_waited_us(void);

#endif
