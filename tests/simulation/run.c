/* run.c - runs scripts in a process of their own, so that an assertion is a finding like another.
 *
 * The child writes what it does into shared memory before it does it: whatever kills it, the parent
 * knows seed and operation. */
#include "run.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/table.h"

static void add_figures(struct run_result *r, const struct world *w)
{
    struct engine_stats s;
    engine_stats(w->engine, &s);
    r->n_steps += w->toy.n_steps;
    r->n_rows += w->toy.n_rows;
    r->n_accepted += w->n_accepted;
    r->n_hits += s.hits_full;
    r->n_copies += s.copies;
    r->n_evictions += s.evictions;
    r->n_preemptions += s.preemptions;
    r->n_merged += s.merged;
    r->n_rejected += s.rejected_matches;
    r->n_branches += w->n_branches;
    r->n_swapped_out += s.swapped_out_blocks;
    r->n_swapped_in += s.swapped_in_blocks;
    r->n_swap_full += s.swap_full;
    r->drains.n += w->drains.n;
    r->drains.n_turns += w->drains.n_turns;
    r->drains.n_allowed += w->drains.n_allowed;
    if (w->drains.worst > r->drains.worst)
        r->drains.worst = w->drains.worst;
}

/* In the child. A world that is wrong is left as it is: freeing it might fail too. */
static void play(const struct script *s, const struct tokenizer *t, bool trace,
                 struct run_result *r)
{
    const struct rig *rig = s->config.n_keys > 0 ? &keys_rig : &engine_rig;
    alarm(300); /* for this world */
    void *it = rig->make(&s->config, t);
    struct world *w = rig->world(it);
    r->n_worlds++;
    for (r->at = 0; r->at < s->n_ops && !world_is_wrong(w); r->at++) {
        r->n_ops++;
        if (trace) {
            printf("%4d ", r->at);
            script_print_op(&s->ops[r->at], stdout);
            fflush(stdout);
        }
        rig->apply(it, &s->ops[r->at]);
        if (trace) {
            printf("   | ");
            world_print(w, stdout);
        }
    }
    rig->drain(it);
    add_figures(r, w);
    if (world_is_wrong(w)) {
        r->is_wrong = true;
        memcpy(r->fault, w->fault, sizeof r->fault);
        return;
    }
    rig->free(it);
}

/* What the child is to do. */
struct job {
    const struct script *script; /* or NULL: worlds */
    enum draw_kind kind;
    uint64_t seed;
    int64_t n_ops;
    int32_t ops_each;
    bool trace;
};

static void work(const struct job *job, struct run_result *r)
{
    struct tokenizer *t = world_tokenizer();
    if (!t)
        abort();
    clock_freeze(1700000000000, 1000000);
    hash_seed_set(1); /* else the order of keys in a flushed table is another in each process */
    clock_tick();
    if (job->script) {
        play(job->script, t, job->trace, r);
    } else {
        for (r->seed = job->seed; r->n_ops < job->n_ops && !r->is_wrong; r->seed++) {
            struct script s;
            script_draw(&s, job->kind, r->seed, job->ops_each);
            play(&s, t, job->trace, r);
            script_free(&s);
            if (r->is_wrong)
                break;
        }
    }
    tokenizer_free(t);
}

static void run_job(const struct job *job, bool quiet, struct run_result *result)
{
    struct run_result *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    if (shared == MAP_FAILED)
        abort();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (quiet && !freopen("/dev/null", "w", stderr))
            _exit(2);
        if (quiet)
            (void)log_open("/dev/null", LOG_WARNING, NULL); /* else assertions go to stdout */
        log_threshold = LOG_WARNING + 1;                    /* failing steps are daily bread here */
        work(job, shared);
        fflush(NULL);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        abort();
    *result = *shared;
    munmap(shared, sizeof *shared);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        result->is_wrong = true;
        snprintf(result->fault, sizeof result->fault, "the process died by %s",
                 WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "an error of its own");
    }
}

void run_worlds(enum draw_kind kind, uint64_t seed, int64_t n_ops, int32_t ops_each, bool quiet,
                struct run_result *result)
{
    struct job job = {.kind = kind, .seed = seed, .n_ops = n_ops, .ops_each = ops_each};
    run_job(&job, quiet, result);
}

void run_script(const struct script *s, bool trace, bool quiet, struct run_result *result)
{
    struct job job = {.script = s, .trace = trace};
    run_job(&job, quiet, result);
}

static void drop(struct script *s, int32_t from, int32_t n)
{
    memmove(s->ops + from, s->ops + from + n, (size_t)(s->n_ops - from - n) * sizeof *s->ops);
    s->n_ops -= n;
}

/* One pass over the script from its end, n operations at a time. True: some were dropped. */
static bool shrink_by(struct script *s, int32_t n, int32_t *n_tries)
{
    bool did = false;
    for (int32_t from = s->n_ops - n; from >= 0 && *n_tries > 0; from -= n, --*n_tries) {
        struct run_result result;
        struct script shorter;
        script_copy(&shorter, s);
        drop(&shorter, from, n);
        run_script(&shorter, false, true, &result);
        if (result.is_wrong) {
            script_free(s);
            *s = shorter;
            did = true;
        } else {
            script_free(&shorter);
        }
    }
    return did;
}

void run_shrink(struct script *s, int32_t at, int32_t n_tries)
{
    if (at < s->n_ops)
        s->n_ops = at;
    for (int32_t n = s->n_ops / 2 + 1; n > 1; n /= 2)
        (void)shrink_by(s, n, &n_tries);
    while (shrink_by(s, 1, &n_tries))
        continue;
}
