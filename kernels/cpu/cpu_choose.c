/* cpu_choose.c - the next id of every sample, the samples dealt out over the threads.
 *
 * The rules are choose.c's, shared with ref; the passes over the vocabulary are this backend's. At a
 * vocabulary of 49,152 a sample costs some 40 us, all in those passes, so that a batch of 32 would
 * cost a tenth of its step on one thread. */
#include "kernels/cpu/cpu_backend.h"

struct choose_job {
    const struct cpu *c;
    const float *logits;
    struct chosen *out;
};

static void choose_work(void *arg, int thread, int n_threads)
{
    const struct choose_job *job = arg;
    const struct cpu *c = job->c;
    int first, end;
    cpu_share(c->plan->n_samples, thread, n_threads, &first, &end);
    for (int i = first; i < end; i++) {
        const struct plan_sample *s = &c->plan->samples[i];
        const float *row = job->logits + (size_t)i * c->config.n_vocab;
        struct choose_scratch *scratch = &c->threads[thread].choose;
        choose_row(c->plan, s, row, &c->kernel->passes, scratch, &job->out[i]);
        if (s->n_best > 0)
            choose_best(c->plan, s, row, &c->kernel->passes, scratch,
                        job->out + c->plan->n_samples + s->best_at);
    }
}

/* logits [R, V] -> out [R + n_best] */
void cpu_choose(struct backend *b, const float *logits, struct chosen *out)
{
    struct cpu *c = (struct cpu *)b;
    int n = c->plan->n_samples, n_threads = n < c->step_threads ? n : c->step_threads;
    struct choose_job job = {c, logits, out};
    if (n > 0)
        cpu_pool_run(c->pool, n_threads, choose_work, &job);
}
