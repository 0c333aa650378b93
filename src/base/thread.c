/* thread.c - what a thread asks of the scheduler, and what it got.
 *
 * The main thread shares the cores with compute threads that never sleep. Which of the two runs when
 * it wakes is the scheduler's choice: Linux 6.6 and later prefer whose deadline comes first, and a
 * deadline is one time slice away, so a thread with short slices goes first as long as it has not
 * had more than its share. Measured with two compute threads on two cores: half the wait per wake-up.
 * A higher priority moves the deadline closer still and makes the share one that the main thread never
 * uses up. It is for who may (root, CAP_SYS_NICE, a limit on nice) and costs the compute threads
 * nothing, as they lose the time that the main thread works either way. Niceness of the compute threads
 * was tried instead: it bought no more than short slices, and cost a fifth of their speed beside other
 * programs. */
#include "base/thread.h"

#include <fcntl.h>
#include <linux/sched/types.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SLICE_NS = 100 * 1000, /* the least that Linux takes; the default is a millisecond or more */
    LESS_NICE = 10,        /* than the others: nine times the weight of a compute thread */
    LEAST_NICE = -20
};

void thread_ask_to_go_first(void)
{
    struct sched_attr a = {.size = sizeof a};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0)
        return;
    if (a.sched_policy != 0 /* SCHED_OTHER: the only one with slices of this kind */)
        return;
    int nice = a.sched_nice;
    a.sched_runtime = SLICE_NS;
    a.sched_nice = nice - LESS_NICE > LEAST_NICE ? nice - LESS_NICE : LEAST_NICE;
    if (syscall(SYS_sched_setattr, 0, &a, 0) == 0)
        return;
    a.sched_nice = nice;                        /* it may not */
    (void)syscall(SYS_sched_setattr, 0, &a, 0); /* a wish */
}

/* The file has "ran waited switches", times in nanoseconds. */
int64_t thread_waited_us(void)
{
    char text[96];
    unsigned long long ran, waited = 0;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    (void)close(fd); /* nothing was written */
    text[n > 0 ? n : 0] = '\0';
    return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? (int64_t)(waited / 1000) : 0;
}
