/* test_calls.c - call n fails: memory, sockets, files, in the conversations of scripts.c.
 *
 * Each conversation runs once undisturbed, which counts its calls; then it runs again and again, and
 * each time another call fails, once. The client who meets it gets an error or is closed; the others
 * never notice, the books add up, and when all have left nothing of theirs is left: no byte, no
 * file, no block. All n with KVASIR_TEST_LONG=1, else a sample from a printed seed
 * (KVASIR_TEST_SEED takes it again). */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/server/scripts.h"
#include "tests/server/world.h"
#include "tests/unit/fake_runner.h"

enum { N_CLIENTS = 3, SAMPLE = 4 /* of each kind and conversation */, LONG_PROMPT = 3000 };

enum kind { MEMORY, MEMORY_GONE, RESET, AGAIN, SHORT_CALL, FILE_ERROR, N_KINDS };
static const char *const kind_names[] = {"memory fails once",     "memory fails from then on",
                                         "a socket is reset",     "a socket says EAGAIN",
                                         "a socket takes 1 byte", "a file fails"};

/* What runs, for the handler of a signal: the one place where a global cannot be helped. */
static char running[200];

static void on_crash(int number)
{
    ssize_t n = write(STDOUT_FILENO, running, strlen(running));
    (void)n; /* dying: nobody to tell */
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

struct run {
    struct world *w;
    int fds[N_CLIENTS + 1]; /* by client number; -1: not there */
    struct str heard;
};

static void say(struct run *r, int client, const char *line)
{
    if (r->fds[client] < 0)
        r->fds[client] = world_dial(r->w, false);
    if (r->fds[client] < 0)
        return; /* accept failed */
    (void)world_say_line(r->w, r->fds[client], line);
    str_clear(&r->heard);
    (void)world_hear(r->fds[client], &r->heard);
}

static void hang_up(struct run *r, int client)
{
    if (r->fds[client] >= 0)
        close(r->fds[client]);
    r->fds[client] = -1;
    world_steps(r->w, 2);
}

static void say_long(struct run *r, int client)
{
    struct str line = {0};
    str_append_str(&line, "GEN k '");
    while (line.len < LONG_PROMPT)
        str_append_str(&line, "long ");
    str_append_str(&line, "' MAXTOKENS 4 IGNOREEOS SEED 5");
    say(r, client, line.data);
    str_free(&line);
}

static void run_line(struct run *r, const char *line)
{
    if (strncmp(line, "hold ", 5) == 0)
        world_launch(r->w, atoi(line + 5));
    else if (strcmp(line, "go") == 0)
        world_hold(r->w, false, false), (void)world_rest(r->w);
    else if (strncmp(line, "wait ", 5) == 0)
        world_pass_ms(r->w, atoi(line + 5));
    else if (strncmp(line, "close ", 6) == 0)
        hang_up(r, atoi(line + 6));
    else if (strncmp(line, "long ", 5) == 0)
        say_long(r, atoi(line + 5));
    else
        say(r, *line - '0', line + 2);
}

static void play(struct run *r, const struct script *script)
{
    const char *at = script->text;
    world_hold(r->w, true, false);
    while (*at) {
        char line[512];
        size_t len = strcspn(at, "\n");
        ASSERT(len < sizeof line);
        memcpy(line, at, len);
        line[len] = '\0';
        run_line(r, line);
        at += len + (at[len] == '\n');
    }
}

/* ---- one call fails --------------------------------------------------------------------------- */

static void arm(enum kind kind, uint64_t n)
{
    static const enum world_socket_fault faults[N_KINDS] = {
        [RESET] = WORLD_RESETS, [AGAIN] = WORLD_AGAIN, [SHORT_CALL] = WORLD_SHORT};
    mem_fail_at(kind <= MEMORY_GONE ? n : 0, kind == MEMORY_GONE);
    world_fail_socket(faults[kind] ? n : 0, faults[kind]);
    file_fail_at(kind == FILE_ERROR ? n : 0, ENOSPC);
}

static uint64_t calls(enum kind kind)
{
    return kind <= MEMORY_GONE  ? mem_try_calls()
           : kind == FILE_ERROR ? file_calls()
                                : world_socket_calls();
}

static void disarm(void)
{
    mem_fail_at(0, false);
    world_fail_socket(0, WORLD_SOCKETS_WORK);
    file_fail_at(0, 0);
}

struct tally {
    uint64_t failed[N_KINDS], calls[N_KINDS], faults;
};

static void blame(struct tally *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void blame(struct tally *t, const char *format, ...)
{
    va_list args;
    t->faults++;
    printf("# %s: ", running);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

/* Whatever failed, a whole conf file stands: the old one or the new one. */
static void check_conf(struct run *r, struct tally *t)
{
    struct str text = {0};
    struct err err = {""};
    if (file_read(r->w->conf, 65536, &text, &err) != 0)
        blame(t, "%s", err.text);
    else if (strncmp(text.data ? text.data : "", WORLD_CONF, strlen(WORLD_CONF)) != 0)
        blame(t, "the conf file begins with '%.40s'", text.data ? text.data : "");
    str_free(&text);
}

/* All clients leave; what is left is as before, and another client is served. */
static void check(struct run *r, struct tally *t, size_t memory, int files)
{
    struct engine_stats stats;
    const char *fault = world_audit(r->w);
    if (fault)
        blame(t, "audit: %s", fault);
    check_conf(r, t);
    world_hold(r->w, false, false);
    for (int i = 1; i <= N_CLIENTS; i++)
        hang_up(r, i);
    world_pass_ms(r->w, 11000);
    if (!world_rest(r->w))
        blame(t, "it never came to rest");
    int fd = world_dial(r->w, false);
    (void)world_ask(r->w, fd, "FLUSHALL", &r->heard);
    (void)world_ask(r->w, fd, "CACHE CLEAR", &r->heard);
    (void)world_ask(r->w, fd, "DEBUG AUDIT", &r->heard);
    if (strcmp(r->heard.data, "+OK\r\n") != 0)
        blame(t, "DEBUG AUDIT: %.200s", r->heard.data);
    close(fd);
    world_pass_ms(r->w, 61000);
    engine_stats(r->w->s->engine, &stats);
    if (stats.free_blocks != stats.n_blocks)
        blame(t, "%d of %d blocks are free", stats.free_blocks, stats.n_blocks);
    if (r->w->s->n_clients != 0)
        blame(t, "%lld clients are left", (long long)r->w->s->n_clients);
    if (memory != 0 && world_memory() != memory)
        blame(t, "%zu bytes are left, %zu before", world_memory(), memory);
    if (files != 0 && world_files() != files)
        blame(t, "%d files are open, %d before", world_files(), files);
}

/* n 0: nothing fails, calls are counted. */
static void run_once(struct run *r, struct tally *t, const struct script *script, enum kind kind,
                     uint64_t n)
{
    size_t memory = world_memory();
    int files = world_files();
    snprintf(running, sizeof running, "'%s', %s, call %" PRIu64, script->name, kind_names[kind], n);
    arm(kind, n);
    play(r, script);
    if (n == 0)
        for (int k = 0; k < N_KINDS; k++)
            t->calls[k] = calls((enum kind)k);
    else
        t->failed[kind] += calls(kind) >= n;
    disarm();
    check(r, t, n > 0 ? memory : 0, n > 0 ? files : 0);
}

static void run_script(struct run *r, struct tally *t, const struct script *script, bool is_long,
                       struct rng *rng)
{
    run_once(r, t, script, MEMORY, 0);
    for (int kind = 0; kind < N_KINDS; kind++) {
        uint64_t n_calls = t->calls[kind];
        uint64_t most = is_long || n_calls < SAMPLE ? n_calls : SAMPLE;
        for (uint64_t i = 1; i <= most; i++)
            run_once(r, t, script, (enum kind)kind,
                     most == n_calls ? i : 1 + rng_below(rng, n_calls));
    }
}

int main(void)
{
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    const char *given = getenv("KVASIR_TEST_SEED"), *is_long = getenv("KVASIR_TEST_LONG");
    uint64_t seed = given ? strtoull(given, NULL, 10) : rng_entropy() % 1000000, total = 0;
    static const char *const options[] = {"max-running", "4", NULL};
    struct rng rng = rng_from(seed);
    struct tally t = {0};
    struct world w;
    struct run r = {.w = &w, .fds = {-1, -1, -1, -1}};
    int n = 0;
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        (void)signal(fatal[i], on_crash);
    (void)signal(SIGPIPE, SIG_IGN);
    printf("# seed %" PRIu64 "%s\n", seed, is_long ? ", every call" : ", a sample of the calls");
    world_open(&w, options, false);
    for (; scripts[n].name; n++) {
        uint64_t before = t.faults;
        run_script(&r, &t, &scripts[n], is_long != NULL, &rng);
        printf("%sok %d - calls fail in '%s'\n", t.faults > before ? "not " : "", n + 1,
               scripts[n].name);
        fflush(stdout);
    }
    world_close(&w);
    str_free(&r.heard);
    printf("1..%d\n", n);
    for (int k = 0; k < N_KINDS; k++) {
        printf("# %s: %" PRIu64 " times\n", kind_names[k], t.failed[k]);
        total += t.failed[k];
    }
    printf("# %d conversations, %" PRIu64
           " calls failed, crashes 0, leaks and other faults %" PRIu64 "\n",
           n, total, t.faults);
    return t.faults > 0;
}
