/* jobs.h - a pool of job threads for what would stall the main thread.
 *
 * A job owns its input until it is done. run() is called on a job thread, done() later on the main
 * thread, from jobs_collect(), in the order of submission of jobs that have finished. The wake fd
 * becomes readable when there is something to collect. With 0 threads a job runs inside
 * jobs_collect: simulation and unit tests stay single-threaded and deterministic. */
#ifndef BASE_JOBS_H
#define BASE_JOBS_H

#include <stdbool.h>

struct jobs;
struct job {
    void (*run)(struct job *job);  /* job thread */
    void (*done)(struct job *job); /* main thread; frees the job */
    struct job *next;              /* jobs.c only */
};

struct jobs *jobs_new(int n_threads);
void jobs_free(struct jobs *jobs);            /* waits for running jobs, collects all of them */
int jobs_fd(const struct jobs *jobs);         /* poll for reading */
void jobs_submit(struct jobs *jobs, struct job *job);
int jobs_collect(struct jobs *jobs);          /* number of done() calls made */
int jobs_pending(const struct jobs *jobs);    /* submitted and not collected */

#endif
