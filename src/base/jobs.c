/* jobs.c - job threads and the one wake-up through which their results come back.
 *
 * Two intrusive lists under one lock: jobs that wait, jobs that have finished. An eventfd becomes
 * readable when the second one fills; jobs_collect, on the main thread, takes the whole list and
 * calls done() without the lock. With 0 threads jobs_collect runs what waits itself. */
#include "base/jobs.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/err.h"
#include "base/mem.h"

struct job_list {
    struct job *first, **end;
};

struct jobs {
    pthread_mutex_t lock; /* guards the lists, stopping */
    pthread_cond_t work;  /* waiting is not empty, or stopping */
    struct job_list waiting, finished;
    bool stopping;
    int fd;                   /* eventfd: finished is not empty */
    int n_threads, n_pending; /* n_pending: main thread only */
    pthread_t threads[];
};

static void list_clear(struct job_list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void list_add(struct job_list *l, struct job *job)
{
    job->next = NULL;
    *l->end = job;
    l->end = &job->next;
}

static struct job *list_take(struct job_list *l)
{
    struct job *job = l->first;
    if (job && !(l->first = job->next))
        l->end = &l->first;
    return job;
}

static void wake(struct jobs *jobs)
{
    uint64_t one = 1;
    ssize_t n = write(jobs->fd, &one, sizeof one);
    (void)n; /* fails only when the counter is full: it is readable then */
}

static void *run_jobs(void *arg)
{
    struct jobs *jobs = arg;
    pthread_mutex_lock(&jobs->lock);
    for (;;) {
        struct job *job = list_take(&jobs->waiting);
        if (!job) {
            if (jobs->stopping)
                break;
            pthread_cond_wait(&jobs->work, &jobs->lock);
            continue;
        }
        pthread_mutex_unlock(&jobs->lock);
        job->run(job);
        pthread_mutex_lock(&jobs->lock);
        list_add(&jobs->finished, job);
        wake(jobs);
    }
    pthread_mutex_unlock(&jobs->lock);
    return NULL;
}

struct jobs *jobs_new(int n_threads)
{
    struct jobs *jobs = xcalloc(1, sizeof *jobs + (size_t)n_threads * sizeof(pthread_t));
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_cond_init(&jobs->work, NULL);
    list_clear(&jobs->waiting);
    list_clear(&jobs->finished);
    jobs->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ASSERT(jobs->fd >= 0);
    for (; jobs->n_threads < n_threads; jobs->n_threads++)
        ASSERT(pthread_create(&jobs->threads[jobs->n_threads], NULL, run_jobs, jobs) == 0);
    return jobs;
}

int jobs_fd(const struct jobs *jobs)
{
    return jobs->fd;
}

int jobs_pending(const struct jobs *jobs)
{
    return jobs->n_pending;
}

void jobs_submit(struct jobs *jobs, struct job *job)
{
    jobs->n_pending++;
    pthread_mutex_lock(&jobs->lock);
    list_add(&jobs->waiting, job);
    pthread_cond_signal(&jobs->work);
    pthread_mutex_unlock(&jobs->lock);
    if (jobs->n_threads == 0)
        wake(jobs);
}

int jobs_collect(struct jobs *jobs)
{
    uint64_t count;
    ssize_t got = read(jobs->fd, &count, sizeof count);
    (void)got; /* EAGAIN: nobody has woken us; the list is looked at all the same */

    pthread_mutex_lock(&jobs->lock);
    struct job_list *from = jobs->n_threads ? &jobs->finished : &jobs->waiting;
    struct job *job = from->first;
    list_clear(from);
    pthread_mutex_unlock(&jobs->lock);

    int n = 0;
    for (struct job *next; job; job = next, n++) {
        next = job->next; /* done() frees the job */
        if (jobs->n_threads == 0)
            job->run(job);
        jobs->n_pending--;
        job->done(job);
    }
    return n;
}

void jobs_free(struct jobs *jobs)
{
    if (!jobs)
        return;
    pthread_mutex_lock(&jobs->lock);
    jobs->stopping = true;
    pthread_cond_broadcast(&jobs->work);
    pthread_mutex_unlock(&jobs->lock);
    for (int i = 0; i < jobs->n_threads; i++)
        pthread_join(jobs->threads[i], NULL);
    while (jobs_collect(jobs) > 0)
        continue;
    close(jobs->fd);
    pthread_cond_destroy(&jobs->work);
    pthread_mutex_destroy(&jobs->lock);
    xfree(jobs);
}
