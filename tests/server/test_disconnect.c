/* test_disconnect.c - the disconnect matrix: every state of a request x every manner of going, on a
 * Unix socket and on TCP.
 *
 * One server; for each cell a client is brought into a state that is then held (the model stands
 * still in the middle of a step, a job is not collected), goes in its manner, and time passes until
 * its orphan would be ended. Afterwards each cell must leave: books that add up, all blocks given
 * back, exactly the end entries that its state promises or none, no bytes and no files of the
 * client, and a server that answers. Where the generation was orphaned, the same GEN from somebody
 * else must give the text of an undisturbed run, in one end entry a branch. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "server/client.h"
#include "tests/server/trial.h"
#include "tests/server/world.h"
#include "tests/unit/fake_runner.h"

#define TEN(s) s s s s s s s s s s
#define HUNDRED(s) TEN(TEN(s))
#define GEN_WITH(prompt) "GEN k '" prompt "' SEED 7 TEMP 1 MAXTOKENS 40 IGNOREEOS"
#define GEN GEN_WITH("tell me more")
/* One branch says x at its 8th token, one at its 19th, one never. */
#define GEN_GROUP "GEN k 'tell me more' N 3 SEED 3 TEMP 1 MAXTOKENS 40 IGNOREEOS STOP x"
#define GEN_BEAM "GEN k 'tell me more' BEAM 3 MAXTOKENS 40 IGNOREEOS"
#define SEED_OF_HELD 99
#define GEN_HELD "GEN k 'tell me more' SEED 99 TEMP 1 MAXTOKENS 40 IGNOREEOS STOP END"

enum {
    TO_THE_END = -1, /* launches: the model is not held */
    /* Over the query buffer limit of 1 MiB, so that the server reads no further; but no more than a
     * receive window above it, or TCP keeps the FIN back behind what can not be sent. */
    FLOOD_BYTES = (1 << 20) + (32 << 10),
    UNREAD_BYTES = 8 << 20, /* replies that neither a kernel buffer nor the server takes */
    ORPHANED_AFTER_MS = 10000,
};

enum extra { NO_EXTRA, NEEDS_AUTH, FLOODS, UNREAD, SENT_TWICE };

struct state {
    const char *name;
    const char *before; /* said by another client; NULL: nothing */
    const char *says;   /* raw: lines end with CR LF where they end */
    enum extra extra;
    int launches; /* steps of the model before it is held */
    bool hold_jobs;
    const char *then; /* said by another client when the state is reached */
    const char *is;   /* what GENINFO says of the key in this state */
    const char *gone,
        *stays;        /* finish of its end entry when the client goes or stays; NULL: none */
    const char *again; /* the GEN that resumes an orphan */
    int n_branches;    /* 0: one */
    bool is_mixed;     /* a branch has, or may have, stopped by itself before */
};

// clang-format off
static const struct state states[] = {
    {.name = "connected", .says = "", .is = "none"},
    {.name = "half a command", .says = "*3\r\n$3\r\nGEN\r\n$1\r\nk\r\n$5\r\nhel", .is = "none"},
    {.name = "in HELLO", .says = "HELLO 3\r\n*2\r\n$5\r\nHEL", .is = "none"},
    {.name = "in AUTH", .says = "AUTH sec", .extra = NEEDS_AUTH, .is = "none"},
    {.name = "queued", .before = "GEN other x N 3 ASYNC MAXTOKENS 40 IGNOREEOS", .says = GEN "\r\n",
     .is = "queued", .gone = "orphaned", .stays = "length", .again = GEN},
    {.name = "tokenising", .says = GEN_WITH(HUNDRED("a long prompt, in a job. ")) "\r\n",
     .hold_jobs = true, .is = "queued", .gone = "orphaned", .stays = "length",
     .again = GEN_WITH(HUNDRED("a long prompt, in a job. "))},
    {.name = "prefill", .says = GEN_WITH(TEN("some twenty letters ")) "\r\n", .launches = 1,
     .is = "running", .gone = "orphaned", .stays = "length",
     .again = GEN_WITH(TEN("some twenty letters "))},
    {.name = "decode", .says = GEN "\r\n", .launches = 9, .is = "running", .gone = "orphaned",
     .stays = "length", .again = GEN},
    {.name = "text held back", .says = GEN_HELD "\r\n", .launches = 7, .is = "running",
     .gone = "orphaned", .stays = "length", .again = GEN_HELD},
    {.name = "1 MiB behind a GEN", .says = GEN "\r\n", .extra = FLOODS, .launches = 4,
     .is = "running", .gone = "orphaned", .stays = "length", .again = GEN},
    {.name = "paused by unread output", .says = "", .extra = UNREAD, .is = "none"},
    {.name = "blocked in XREAD", .before = GEN " ASYNC", .says = "XREAD BLOCK 0 STREAMS k $\r\n",
     .launches = 5, .is = "running", .gone = "length", .stays = "length"},
    {.name = "XREAD of a quiet key", .says = "XREAD BLOCK 60000 STREAMS k quiet $ $\r\n",
     .is = "none"},
    {.name = "GEN with BLOCK", .says = GEN " BLOCK 60000\r\n", .launches = 5, .is = "running",
     .gone = "orphaned", .stays = "length", .again = GEN},
    {.name = "attached by a resend", .says = GEN "\r\n", .extra = SENT_TWICE, .launches = 5,
     .is = "running", .gone = "orphaned", .stays = "length", .again = GEN},
    {.name = "ASYNC", .says = GEN " ASYNC\r\n", .launches = 5, .is = "running", .gone = "length",
     .stays = "length"},
    {.name = "in MULTI", .says = "MULTI\r\n" GEN "\r\nXADD k * text more\r\n", .is = "none"},
    {.name = "after EXEC", .says = "MULTI\r\n" GEN "\r\nEXEC\r\n", .launches = 5, .is = "running",
     .gone = "length", .stays = "length"},
    {.name = "during FORK", .says = GEN "\r\n", .launches = 5, .then = "FORK k child child2",
     .is = "running", .gone = "orphaned", .stays = "length", .again = GEN},
    {.name = "during CANCEL", .says = GEN "\r\n", .launches = 5, .then = "CANCEL k", .is = "idle",
     .gone = "cancelled", .stays = "cancelled"},
    {.name = "during DEL", .says = GEN "\r\n", .launches = 5, .then = "DEL k", .is = "none"},
    {.name = "ended, not read", .says = GEN "\r\n", .launches = TO_THE_END, .is = "idle",
     .gone = "length", .stays = "length"},
    {.name = "prefill of a group", .says = GEN_GROUP "\r\n", .launches = 1, .is = "running",
     .gone = "orphaned", .stays = "stop", .again = GEN_GROUP, .n_branches = 3, .is_mixed = true},
    {.name = "some branches are done", .says = GEN_GROUP "\r\n", .launches = 12, .is = "running",
     .gone = "orphaned", .stays = "stop", .again = GEN_GROUP, .n_branches = 3, .is_mixed = true},
    {.name = "one branch is left", .says = GEN_GROUP " BLOCK 60000\r\n", .launches = 25,
     .is = "running", .gone = "orphaned", .stays = "stop", .again = GEN_GROUP, .n_branches = 3,
     .is_mixed = true},
    {.name = "a group that ended, not read", .says = GEN_GROUP "\r\n", .launches = TO_THE_END,
     .is = "idle", .gone = "stop", .stays = "stop", .n_branches = 3, .is_mixed = true},
    {.name = "FORK of a branch", .says = GEN_GROUP "\r\n", .launches = 12,
     .then = "FORK k child child2 BRANCH 1", .is = "running", .gone = "orphaned", .stays = "stop",
     .again = GEN_GROUP, .n_branches = 3, .is_mixed = true},
    {.name = "beams", .says = GEN_BEAM "\r\n", .launches = 9, .is = "running", .gone = "orphaned",
     .stays = "length", .again = GEN_BEAM, .n_branches = 3},
};
// clang-format on

/* ---- into the state --------------------------------------------------------------------------- */

static void say_repeated(struct trial *c, int fd, const char *line, size_t n_bytes)
{
    struct str all = {0};
    while (all.len < n_bytes)
        str_append_str(&all, line);
    (void)world_say(c->w, fd, all.data, all.len); /* the server stops reading somewhere */
    world_steps(c->w, 40);                        /* a read takes 64 KiB */
    str_free(&all);
}

/* The client that came last: does the server read from it? */
static bool is_read(const struct trial *c)
{
    return LIST_ITEM(c->w->s->clients.prev, struct client, node)->conn.reading;
}

static int enter(struct trial *c, const struct state *state)
{
    world_hold(c->w, true, state->hold_jobs);
    if (state->extra == NEEDS_AUTH)
        trial_expect(c, "CONFIG SET requirepass secret", "+OK\r\n");
    if (state->before)
        (void)world_ask(c->w, c->other, state->before, &c->heard);
    int first = state->extra == SENT_TWICE ? world_dial(c->w, c->tcp) : -1;
    if (first >= 0)
        (void)world_say(c->w, first, state->says, strlen(state->says));
    int fd = world_dial(c->w, c->tcp);
    (void)world_say(c->w, fd, state->says, strlen(state->says));
    int port = first >= 0 ? world_port(first) : 0;
    if (first >= 0)
        close(first);
    world_await_end(c->w, port, WORLD_PATIENCE_MS);
    if (state->extra == FLOODS)
        say_repeated(c, fd, "PING\r\n", FLOOD_BYTES);
    if (state->extra == FLOODS && is_read(c))
        trial_blame(c, "the server still reads");
    if (state->extra == UNREAD)
        say_repeated(c, fd,
                     "ECHO " TEN(TEN(TEN("sixty-four letters, or rather more than that, "))) "\r\n",
                     UNREAD_BYTES);
    if (state->launches == TO_THE_END) {
        world_hold(c->w, false, false);
        (void)world_rest(c->w);
    } else {
        world_launch(c->w, state->launches);
    }
    if (state->then)
        (void)world_ask(c->w, c->other, state->then, &c->heard);
    struct str is = {0};
    str_printf(&is, "$%zu\r\n%s\r\n", strlen(state->is), state->is);
    (void)world_ask(c->w, c->other, "GENINFO k", &c->heard);
    if (!strstr(c->heard.data, is.data))
        trial_blame(c, "the state was not reached: %.60s", c->heard.data);
    str_free(&is);
    return fd;
}

/* ---- manners of going; each returns the fd that is still open, or -1 -------------------------- */

/* The client is a process of its own that owns the connection, and is killed. */
static int kill_it(struct trial *c, int fd)
{
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    close(fd);
    if (child < 0 || kill(child, SIGKILL) != 0 || waitpid(child, NULL, 0) != child)
        trial_blame(c, "no process to kill: %s", strerror(errno));
    return -1;
}

/* More commands whose replies it never reads. */
static int stop_reading(struct trial *c, int fd)
{
    say_repeated(c, fd, "ECHO " TEN(TEN("a hundred times of this ")) "\r\n", 65536);
    return fd;
}

/* A command whose rest never comes; where there is half a one already, it gets a byte longer. */
static int stop_writing(struct trial *c, int fd)
{
    (void)world_say(c->w, fd, "*", 1);
    return fd;
}

static const struct manner {
    const char *name;
    int (*go)(struct trial *c, int fd);
    bool is_gone; /* the server can know */
} manners[] = {
    {"FIN", go_close, true},
    {"half-close", go_half_close, true},
    {"RST", go_reset, true},
    {"kill -9", kill_it, true},
    {"stops reading", stop_reading, false},
    {"stops writing", stop_writing, false},
};

/* ---- what must be left ------------------------------------------------------------------------ */

static int n_branches(const struct state *state)
{
    return state->n_branches ? state->n_branches : 1;
}

static void check_ends(struct trial *c, const struct state *state, const char *finish)
{
    int n_right, n = trial_count_ends(c, finish, &n_right);
    bool are_right = n_right == n || (state->is_mixed && n_right > 0);
    if (n != (finish ? n_branches(state) : 0) || !are_right)
        trial_blame(c, "%d end entries, %d of them '%s': %.300s", n, n_right,
                    finish ? finish : "none", c->heard.data);
}

/* The same GEN again: the answer of an undisturbed run, in one end entry a branch. */
static void check_resend(struct trial *c, const struct state *state)
{
    const char *gen = state->again;
    struct str first = {0}, alone = {0};
    int fd = world_dial(c->w, c->tcp), n_right;
    (void)world_say_line(c->w, fd, gen);
    (void)world_rest(c->w);
    world_settle(c->w, fd);
    (void)world_hear(fd, &first);
    if (trial_count_ends(c, "orphaned", &n_right) != n_branches(state) || n_right != 0)
        trial_blame(c, "after the resend: %.300s", c->heard.data);
    trial_expect(c, "DEL k", ":1\r\n");
    (void)world_say_line(c->w, fd, gen);
    (void)world_rest(c->w);
    world_settle(c->w, fd);
    (void)world_hear(fd, &alone);
    if (first.len < 8 || first.len != alone.len || memcmp(first.data, alone.data, alone.len) != 0)
        trial_blame(c, "the resend got '%.60s', an undisturbed run '%.60s'",
                    first.data ? first.data : "", alone.data ? alone.data : "");
    str_free(&first);
    str_free(&alone);
    close(fd);
    world_steps(c->w, 4);
    trial_let_arrive(c, 10000);
}

static void run_cell(struct trial *c, const struct state *state, const struct manner *manner)
{
    size_t memory = world_memory();
    int files = world_files();
    *c->fault = '\0';
    int fd = enter(c, state), port = world_port(fd);
    fd = manner->go(c, fd);
    if (manner->is_gone) /* the end of who has unread output may wait behind what cannot be sent */
        world_await_end(c->w, port, state->extra == UNREAD ? 200 : WORLD_PATIENCE_MS);
    for (int i = 0; i < 10; i++)
        world_pass_ms(c->w, 100); /* the tick asks whether paused clients are still there */
    trial_check_books(c, "after it went");
    world_hold(c->w, true, false);
    world_steps(c->w, 3);
    world_pass_ms(c->w, ORPHANED_AFTER_MS);
    trial_check_books(c, "after the orphan timeout");
    world_hold(c->w, false, false);
    if (!world_rest(c->w))
        trial_blame(c, "it never came to rest");
    if (state->extra == NEEDS_AUTH)
        trial_expect(c, "CONFIG SET requirepass ''", "+OK\r\n");
    const char *finish = manner->is_gone ? state->gone : state->stays;
    check_ends(c, state, finish);
    if (fd >= 0)
        close(fd);
    world_steps(c->w, 4);
    trial_let_arrive(c, 10000);
    if (finish && strcmp(finish, "orphaned") == 0)
        check_resend(c, state);
    trial_check_books(c, "at the end");
    trial_check_nothing_is_left(c, memory, files);
}

enum { N_STATES = sizeof states / sizeof *states, N_MANNERS = sizeof manners / sizeof *manners };

static int run_all(struct world *w, bool tcp, int *number)
{
    struct trial c;
    int failures = 0;
    trial_start(&c, w, tcp);
    for (int s = 0; s < N_STATES; s++)
        for (int m = 0; m < N_MANNERS; m++) {
            char name[128];
            snprintf(name, sizeof name, "%s x %s, %s", states[s].name, manners[m].name,
                     tcp ? "TCP" : "Unix socket");
            run_cell(&c, &states[s], &manners[m]);
            failures += trial_report(&c, ++*number, name);
        }
    trial_end(&c);
    return failures;
}

int main(void)
{
    static const int32_t held[] = {'E', 'N'};
    static const char *const options[] = {"max-running", "3", "client-query-buffer-limit", "1mb",
                                          NULL};
    struct world w;
    int n = 0, failures = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    world_open(&w, options, true);
    fake_force(w.runner, SEED_OF_HELD, (int32_t)strlen("tell me more") + 5, held, 2);
    printf("1..%d\n", 2 * N_STATES * N_MANNERS);
    failures += run_all(&w, false, &n);
    failures += run_all(&w, true, &n);
    world_close(&w);
    printf("# disconnect matrix: %d states x %d manners x 2 transports = %d cells, %d failures\n",
           N_STATES, N_MANNERS, n, failures);
    return failures > 0;
}
