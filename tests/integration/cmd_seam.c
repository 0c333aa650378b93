/* cmd_seam.c - SEAM: the debug twin of the server, kvasir-server-test, moves its clock and fails calls.
 *
 *     SEAM CLOCK ms           time passes at once, for everything that looks at a clock
 *     SEAM WALL ms            an operator sets the wall clock
 *     SEAM STEPS n            n more steps are launched, then none (-1: all): what runs stands still
 *                             where a test wants to look at it, however long the test takes to look
 *     SEAM STANDS             1 when all of these have been launched and have ended, 0 before
 *     SEAM JOBS n             n job threads are busy until n is 0: what is submitted behind them waits
 *     SEAM MEMORY n           the n-th allocation of a size that a client chose fails (0: none)
 *     SEAM SOCKET which n     the n-th read, write or accept fails (0: none)
 *     SEAM FILE n             the n-th call on a file fails with EIO (0: none)
 *     SEAM CALLS              calls since each of these was said: memory, read, write, accept, file
 *
 * What runs before the first client comes, reading the conf file and loading the model, is reached by
 * the environment: KVASIR_SEAM_FILE=n is a SEAM FILE n at the start.
 *
 * An idea of memcached: its tests run a twin of the server that was built for them. This file takes the
 * place of cmd_seam_none.c, everything else is the product's. It hangs from one struct here, since the
 * server has no place for it. Main thread only, but for what keeps a job thread busy. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/jobs.h"
#include "base/mem.h"
#include "server/command.h"
#include "server/server.h"

enum which { SEAM_READ, SEAM_WRITE, SEAM_ACCEPT, SEAM_N };

static struct {
    int64_t calls[SEAM_N], fails_at[SEAM_N];
    struct socket_ops ops;
    /* the real runner's, once STEPS was said */
    void (*launch)(struct runner *r, const struct plan *plan);
    bool (*poll)(struct runner *r, struct runner_done *done);
    const struct plan *waiting; /* to be launched when it may; NULL: none */
    int64_t steps;              /* that may be launched; negative: all */
    bool is_running;            /* one was launched and has not ended */
    int64_t busy;               /* job threads that read from the pipe */
    int pipe[2];                /* opened with the first of them */
} seam = {.steps = -1};

/* ---- steps that wait to be let go --------------------------------------------------------------- */

static void launch_if_let(struct runner *r)
{
    if (!seam.waiting || seam.steps == 0)
        return;
    if (seam.steps > 0)
        seam.steps--;
    seam.launch(r, seam.waiting);
    seam.waiting = NULL;
    seam.is_running = true;
}

static void seam_launch(struct runner *r, const struct plan *plan)
{
    seam.waiting = plan;
    launch_if_let(r);
}

/* Every command makes the loop ask, SEAM STEPS too. */
static bool seam_poll(struct runner *r, struct runner_done *done)
{
    launch_if_let(r);
    if (seam.waiting || !seam.poll(r, done))
        return false;
    seam.is_running = false;
    return true;
}

/* The runner whose steps are ours now; NULL, and an error replied, where there is none. */
static struct runner *take_runner(struct client *c)
{
    struct runner *r = c->server->served.runner;
    if (!r) {
        reply_error(&c->reply, "ERR no model is loaded");
        return NULL;
    }
    if (!seam.launch) {
        seam.launch = r->launch;
        seam.poll = r->poll;
        r->launch = seam_launch;
        r->poll = seam_poll;
        seam.is_running = !engine_is_idle(c->server->engine);
    }
    return r;
}

/* ---- the command -------------------------------------------------------------------------------- */

static bool number(struct client *c, struct bytes text, int64_t *value)
{
    if (parse_i64(text, value))
        return true;
    reply_not_integer(&c->reply);
    return false;
}

static void run_clock(struct client *c, const struct request *q)
{
    int64_t ms;
    if (!number(c, q->args[2], &ms))
        return;
    clock_advance_ms(ms);
    reply_ok(&c->reply);
}

static void run_wall(struct client *c, const struct request *q)
{
    int64_t ms;
    if (!number(c, q->args[2], &ms))
        return;
    clock_step_wall_ms(ms);
    reply_ok(&c->reply);
}

static void run_memory(struct client *c, const struct request *q)
{
    int64_t n;
    if (!number(c, q->args[2], &n))
        return;
    reply_ok(&c->reply);
    mem_fail_at((uint64_t)n, false);
}

static void run_steps(struct client *c, const struct request *q)
{
    int64_t n;
    if (!number(c, q->args[2], &n) || !take_runner(c))
        return;
    seam.steps = n;
    reply_ok(&c->reply);
}

static void run_stands(struct client *c, const struct request *q)
{
    reply_int(&c->reply, seam.steps == 0 && !seam.is_running);
}

/* On a job thread. Whatever comes out of the pipe, it is over. */
static void be_busy(struct job *job)
{
    char byte;
    while (read(seam.pipe[0], &byte, 1) < 0 && errno == EINTR)
        ;
}

static void be_free(struct job *job)
{
    xfree(job);
}

static void run_jobs(struct client *c, const struct request *q)
{
    int64_t n;
    if (!number(c, q->args[2], &n))
        return;
    if (!seam.pipe[1] && pipe(seam.pipe) < 0) {
        reply_error(&c->reply, "ERR no pipe: %s", strerror(errno));
        return;
    }
    for (; seam.busy > n; seam.busy--)
        if (write(seam.pipe[1], "", 1) != 1)
            break; /* the reply tells how many are still busy */
    for (; seam.busy < n; seam.busy++) {
        struct job *job = xcalloc(1, sizeof *job);
        *job = (struct job){.run = be_busy, .done = be_free};
        jobs_submit(c->server->jobs, job);
    }
    reply_int(&c->reply, seam.busy);
}

/* True when this call is the one. */
static bool fails(enum which which, int error)
{
    if (seam.fails_at[which] == 0 || ++seam.calls[which] != seam.fails_at[which])
        return false;
    errno = error;
    return true;
}

static ssize_t seam_read(int fd, void *data, size_t len)
{
    return fails(SEAM_READ, ECONNRESET) ? -1 : socket_system.read(fd, data, len);
}

static ssize_t seam_write(int fd, const void *data, size_t len)
{
    return fails(SEAM_WRITE, EPIPE) ? -1 : socket_system.write(fd, data, len);
}

static int seam_accept(int fd, struct sockaddr *address, socklen_t *len)
{
    return fails(SEAM_ACCEPT, EMFILE) ? -1 : socket_system.accept(fd, address, len);
}

static void run_socket(struct client *c, const struct request *q)
{
    static const char *const names[] = {"read", "write", "accept"};
    int64_t n;
    int which = 0;
    while (which < SEAM_N && !bytes_equal_nocase(q->args[2], names[which]))
        which++;
    if (which == SEAM_N) {
        reply_syntax_error(&c->reply);
        return;
    }
    if (!number(c, q->args[3], &n))
        return;
    seam.ops = (struct socket_ops){seam_read, seam_write, seam_accept};
    seam.calls[which] = 0;
    seam.fails_at[which] = n;
    c->server->loop->sockets = &seam.ops;
    reply_ok(&c->reply);
}

static void run_file(struct client *c, const struct request *q)
{
    int64_t n;
    if (!number(c, q->args[2], &n))
        return;
    reply_ok(&c->reply);
    file_fail_at((uint64_t)n, EIO);
}

__attribute__((constructor)) static void fail_at_start(void)
{
    const char *n = getenv("KVASIR_SEAM_FILE");
    if (n)
        file_fail_at(strtoull(n, NULL, 10), EIO);
}

static void run_calls(struct client *c, const struct request *q)
{
    reply_array(&c->reply, SEAM_N + 2);
    reply_int(&c->reply, (int64_t)mem_try_calls());
    for (int i = 0; i < SEAM_N; i++)
        reply_int(&c->reply, seam.calls[i]);
    reply_int(&c->reply, (int64_t)file_calls());
}

// clang-format off
enum { FLAGS = CMD_ADMIN | CMD_NOSCRIPT | CMD_LOADING };
static const struct command subcommands[] = {
    {.name = "calls", .arity = 2, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "O(1)", .summary = "Returns the calls since their seams were set.", .run = run_calls},
    {.name = "clock", .arity = 3, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "O(1)", .summary = "Lets time pass.", .syntax = "milliseconds:integer", .run = run_clock},
    {.name = "file", .arity = 3, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "O(1)", .summary = "Makes a call on a file fail.", .syntax = "n:integer", .run = run_file},
    COMMAND_HELP(FLAGS, "server", "0.1.0", NULL),
    {.name = "jobs", .arity = 3, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "O(1)", .summary = "Keeps job threads busy.", .syntax = "n:integer", .run = run_jobs},
    {.name = "memory", .arity = 3, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "O(1)", .summary = "Makes an allocation fail.", .syntax = "n:integer", .run = run_memory},
    {.name = "socket", .arity = 4, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "O(1)", .summary = "Makes a socket call fail.", .syntax = "which n:integer", .run = run_socket},
    {.name = "stands", .arity = 2, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "O(1)", .summary = "Whether the steps let go have ended.", .run = run_stands},
    {.name = "steps", .arity = 3, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "O(1)", .summary = "Lets so many more steps be launched.", .syntax = "n:integer", .run = run_steps},
    {.name = "wall", .arity = 3, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "O(1)", .summary = "Sets the wall clock.", .syntax = "milliseconds:integer", .run = run_wall},
    {.name = NULL},
};
const struct command cmd_seam_table[] = {
    {.name = "seam", .arity = -2, .flags = FLAGS, .group = "server", .since = "0.1.0",
     .complexity = "Depends on subcommand.", .summary = "A container for seams of tests.",
     .subcommands = subcommands},
    {.name = NULL},
};
// clang-format on
