/* trial.c - one test case in a world; trial.h says how. */
#include "tests/server/trial.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "server/client.h"
#include "server/server.h"

void trial_start(struct trial *t, struct world *w, bool tcp)
{
    *t = (struct trial){.w = w, .tcp = tcp, .other = world_dial(w, tcp)};
    str_append(&t->heard, "", 0);
    (void)world_ask(w, t->other, "PING", &t->heard);
}

void trial_end(struct trial *t)
{
    close(t->other);
    world_steps(t->w, 4);
    str_free(&t->heard);
}

void trial_blame(struct trial *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!*t->fault)
        vsnprintf(t->fault, sizeof t->fault, format, args);
    va_end(args);
}

void trial_expect(struct trial *t, const char *line, const char *answer)
{
    (void)world_ask(t->w, t->other, line, &t->heard);
    if (strcmp(t->heard.data, answer) != 0)
        trial_blame(t, "%s: '%.200s' where '%.100s' was due", line, t->heard.data, answer);
}

void trial_check_books(struct trial *t, const char *when)
{
    const char *fault = world_audit(t->w);
    if (fault)
        trial_blame(t, "audit %s: %s", when, fault);
    trial_expect(t, "PING", "+PONG\r\n");
}

void trial_check_nothing_is_left(struct trial *t, size_t memory, int files)
{
    struct engine_stats e;
    engine_stats(t->w->s->engine, &e);
    if (e.used_blocks != 0 || e.promised_blocks != 0 || e.running != 0 || e.queued != 0)
        trial_blame(t, "%d blocks used, %d promised, %d running, %d queued", e.used_blocks,
                    e.promised_blocks, e.running, e.queued);
    if (t->w->s->n_clients != 1)
        trial_blame(t, "%lld clients are left", (long long)t->w->s->n_clients);
    (void)world_ask(t->w, t->other, "FLUSHALL", &t->heard);
    (void)world_ask(t->w, t->other, "CACHE CLEAR", &t->heard);
    world_pass_ms(t->w, 61000); /* what FLUSHALL ended is remembered for a minute */
    engine_stats(t->w->s->engine, &e);
    if (e.free_blocks != e.n_blocks)
        trial_blame(t, "%d of %d blocks are free", e.free_blocks, e.n_blocks);
    if (memory != 0 && world_memory() != memory)
        trial_blame(t, "%zu bytes are left of %zu", world_memory(), memory);
    if (files != 0 && world_files() != files)
        trial_blame(t, "%d files are open of %d", world_files(), files);
}

int trial_count_ends(struct trial *t, const char *finish, int *n_right)
{
    static const char name[] = "\r\nfinish\r\n$";
    int n = 0;
    (void)world_ask(t->w, t->other, "XRANGE k - +", &t->heard);
    *n_right = 0;
    for (const char *at = t->heard.data; (at = strstr(at, name)) != NULL; n++) {
        at = strstr(at + sizeof name - 1, "\r\n") + 2;
        *n_right += finish && strncmp(at, finish, strlen(finish)) == 0;
    }
    return n;
}

void trial_let_arrive(struct trial *t, int ms)
{
    for (; ms > 0 && t->w->s->n_clients > 1; ms--) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        world_steps(t->w, 1);
    }
}

int trial_report(struct trial *t, int number, const char *name)
{
    printf("%sok %d - %s\n", *t->fault ? "not " : "", number, name);
    for (char *at = t->fault; *at; at++)
        *at = *at == '\n' || *at == '\r' ? ' ' : *at;
    if (*t->fault)
        printf("# %s\n", t->fault);
    fflush(stdout); /* a child process must not print it again */
    return *t->fault != '\0';
}

int go_close(struct trial *t, int fd)
{
    close(fd);
    return -1;
}

int go_half_close(struct trial *t, int fd)
{
    (void)shutdown(fd, SHUT_WR); /* fails where the server has closed */
    return fd;
}

int go_reset(struct trial *t, int fd)
{
    struct linger at_once = {1, 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
    return -1;
}
