/* test_leaving.c - what is still done for a client that has left, to the step.
 *
 * Comparable servers went on decoding for closed connections, noticed a disconnect only behind a
 * long prefill, computed what those had queued who were gone, and took a cancel in the last step
 * for a normal end, so that blocks stayed behind. Others crashed when a client was unblocked that
 * waited for something else, or when one reset, quit or killed itself in a state that nobody had
 * thought of. Here the model is held in the middle of a step, so that each moment is met exactly and
 * each launch counts. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/jobs.h"
#include "tests/server/trial.h"
#include "tests/server/world.h"
#include "tests/unit/fake_runner.h"

#define TEN(s) s s s s s s s s s s
#define HUNDRED(s) TEN(TEN(s))
#define LONG_TEXT HUNDRED("some letters of a long prompt, ")
#define OPTIONS " SEED 7 TEMP 1 IGNOREEOS MAXTOKENS "
#define UNBLOCKED "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"

enum { N_QUEUED = 20, LIMIT = 12, WAKES = 12 };

static const char *const orphans_end_at_once[] = {"orphan-timeout", "0", NULL};
static const char *const one_place[] = {"orphan-timeout", "0", "max-running", "1", NULL};

static struct engine_stats stats_of(const struct trial *t)
{
    struct engine_stats stats;
    engine_stats(t->w->s->engine, &stats);
    return stats;
}

static uint64_t n_ends(const struct trial *t)
{
    struct engine_stats stats = stats_of(t);
    uint64_t n = 0;
    for (int i = 0; i < GEN_N_FINISHES; i++)
        n += stats.ends[i];
    return n;
}

/* A trial in a world of its own. */
static void open_trial(struct trial *t, struct world *w, const char *const *options, bool tcp)
{
    world_open(w, options, tcp);
    trial_start(t, w, tcp);
    world_hold(w, true, false);
}

static void rest(struct trial *t)
{
    world_hold(t->w, false, false);
    if (!world_rest(t->w))
        trial_blame(t, "it never came to rest");
}

static int close_trial(struct trial *t, int number, const char *name)
{
    struct world *w = t->w;
    trial_check_nothing_is_left(t, 0, 0);
    int failures = trial_report(t, number, name);
    trial_end(t);
    world_close(w);
    return failures;
}

static int say(struct trial *t, const char *line)
{
    int fd = world_dial(t->w, t->tcp);
    if (!world_say_line(t->w, fd, line))
        trial_blame(t, "not taken: %.60s", line);
    return fd;
}

/* Everything that came on fd is this and no more. */
static void heard_is(struct trial *t, int fd, const char *when, const char *want)
{
    struct str heard = {0};
    str_append(&heard, "", 0);
    (void)world_hear(fd, &heard);
    if (strcmp(heard.data, want) != 0)
        trial_blame(t, "%s: heard '%.200s', not '%.200s'", when, heard.data, want);
    str_free(&heard);
}

/* One end a branch, all with this finish. */
static void check_ends(struct trial *t, const char *finish, int n_branches, uint64_t ends_before)
{
    int n_right, n = trial_count_ends(t, finish, &n_right);
    if (n != n_branches || n_right != n)
        trial_blame(t, "%d end entries, %d '%s'", n, n_right, finish);
    if (n_ends(t) != ends_before + (uint64_t)n_branches)
        trial_blame(t, "%d ends are counted", (int)(n_ends(t) - ends_before));
    if (stats_of(t).used_blocks != 0)
        trial_blame(t, "%d blocks are still used", stats_of(t).used_blocks);
}

/* ---- closed connections ----------------------------------------------------------------------- */

static const struct leaving {
    const char *name;
    int (*go)(struct trial *t, int fd);
    bool tcp;
} leavings[] = {
    {"closes", go_close, false}, {"closes half", go_half_close, false}, {"resets", go_reset, true}};

/* What a client has asked for when it leaves, and how many steps have been made of it. */
static const struct work {
    const char *name, *gen;
    int launches, n_branches;
} works[] = {
    {"it decodes", "GEN k 'tell me more'" OPTIONS "2000", 7, 1},
    {"its prompt is computed", "GEN k '" LONG_TEXT "'" OPTIONS "5", 2, 1},
    {"four branches decode", "GEN k 'tell me more' N 4" OPTIONS "1000", 7, 4},
    {"three beams are searched", "GEN k 'tell me more' BEAM 3 MAXTOKENS 1000", 7, 3},
    {"the prompt of four is computed", "GEN k '" LONG_TEXT "' N 4" OPTIONS "5", 2, 4},
};

/* The step that runs is the last one that is computed for it. */
static int nothing_more_is_launched(int number, const struct work *work, const struct leaving *l)
{
    struct world w;
    struct trial t;
    char name[128];
    snprintf(name, sizeof name, "whoever %s while %s: no step more", l->name, work->name);
    open_trial(&t, &w, orphans_end_at_once, l->tcp);
    int fd = say(&t, work->gen);
    world_launch(&w, work->launches);
    int32_t before = w.runner->n_launched;
    uint64_t rows = stats_of(&t).rows;
    if (before < work->launches || stats_of(&t).running != 1)
        trial_blame(&t, "%d launched, %d running", before, stats_of(&t).running);
    fd = l->go(&t, fd);
    trial_let_arrive(&t, l->tcp ? 10000 : 1);
    world_steps(&w, 4);
    rest(&t);
    if (w.runner->n_launched != before)
        trial_blame(&t, "%d steps more", w.runner->n_launched - before);
    if (stats_of(&t).rows > rows + 64)
        trial_blame(&t, "%d rows more", (int)(stats_of(&t).rows - rows));
    check_ends(&t, "orphaned", work->n_branches, 0);
    if (fd >= 0)
        close(fd);
    world_steps(&w, 4);
    return close_trial(&t, number, name);
}

static int queued_work_of_the_gone_is_not_done(int number)
{
    struct world w;
    struct trial t;
    int fds[N_QUEUED];
    open_trial(&t, &w, one_place, false);
    (void)world_ask(&w, t.other, "GEN long x ASYNC MAXTOKENS 40 IGNOREEOS", &t.heard);
    world_launch(&w, 3);
    for (int i = 0; i < N_QUEUED; i++) {
        char line[128];
        snprintf(line, sizeof line, "GEN k%d '%d bottles on the wall' MAXTOKENS 5", i, i);
        fds[i] = say(&t, line);
    }
    if (stats_of(&t).queued != N_QUEUED)
        trial_blame(&t, "%d are queued", stats_of(&t).queued);
    for (int i = 0; i < N_QUEUED; i++)
        close(fds[i]);
    world_steps(&w, 4);
    if (stats_of(&t).queued != 0)
        trial_blame(&t, "%d are still queued", stats_of(&t).queued);
    rest(&t);
    struct engine_stats stats = stats_of(&t);
    if (stats.computed_prompt_tokens != 1 || stats.ends[GEN_ORPHANED] != N_QUEUED)
        trial_blame(&t, "%d prompt tokens computed, %d orphans", (int)stats.computed_prompt_tokens,
                    (int)stats.ends[GEN_ORPHANED]);
    if (stats.ends[GEN_LENGTH] != 1)
        trial_blame(&t, "the one that runs did not end by itself");
    return close_trial(&t, number, "what the gone had queued is never prefilled");
}

/* ---- CANCEL at every step --------------------------------------------------------------------- */

/* In the middle of step n, up to two behind the last token: one end, which is what CANCEL said. */
static int cancelled_or_finished_and_never_both(int number, const char *gen, const char *answer,
                                                int n_branches)
{
    struct world w;
    struct trial t;
    int n_cancelled = 0;
    open_trial(&t, &w, NULL, false);
    for (int n = 0; n < LIMIT + 3; n++) {
        uint64_t ends = n_ends(&t);
        struct str heard = {0};
        int fd = say(&t, gen);
        if (n < LIMIT)
            world_launch(&w, n);
        else
            rest(&t);
        world_hold(&w, true, false);
        (void)world_ask(&w, t.other, "CANCEL k", &t.heard);
        bool cancelled = strcmp(t.heard.data, ":1\r\n") == 0;
        n_cancelled += cancelled;
        rest(&t);
        (void)world_hear(fd, &heard);
        if (cancelled != (strncmp(heard.data, "-CANCELLED ", 11) == 0))
            trial_blame(&t, "step %d: CANCEL said %d, the waiter heard %.40s", n, cancelled,
                        heard.data);
        if (!cancelled && strncmp(heard.data, answer, strlen(answer)) != 0)
            trial_blame(&t, "step %d: the waiter heard %.40s", n, heard.data);
        check_ends(&t, cancelled ? "cancelled" : "length", n_branches, ends);
        trial_check_books(&t, "after CANCEL");
        trial_expect(&t, "DEL k", ":1\r\n");
        world_hold(&w, true, false);
        str_free(&heard);
        close(fd);
        world_steps(&w, 4);
    }
    if (n_cancelled != LIMIT)
        trial_blame(&t, "%d of %d moments before the end were in time", n_cancelled, LIMIT);
    char name[128];
    snprintf(name, sizeof name, "CANCEL around the last token, %d branches: cancelled or finished",
             n_branches);
    return close_trial(&t, number, name);
}

/* ---- CLIENT UNBLOCK in every state ------------------------------------------------------------ */

// clang-format off
static const struct waiting {
    const char *name;
    const char *before; /* said by another client; NULL: nothing */
    const char *says;   /* raw */
    bool hold_jobs;
    int launches;
    const char *null; /* the reply to TIMEOUT; NULL: it waits for nothing that UNBLOCK ends */
    const char *then; /* how what comes later begins, before PING's reply; NULL: nothing comes */
    const char *after; /* said by another client when UNBLOCK is through; NULL: nothing */
} waitings[] = {
    {.name = "idle", .says = ""},
    {.name = "half a command", .says = "*1\r\n$4\r\nPI", .then = ""},
    {.name = "in MULTI", .says = "MULTI\r\nXLEN k\r\n", .then = "+OK\r\n+QUEUED\r\n+QUEUED\r\n"},
    {.name = "subscribed", .says = "HELLO 3\r\nSUBSCRIBE a\r\n", .then = "%7\r\n"},
    {.name = "XREAD", .says = "XREAD BLOCK 0 STREAMS k l $ $\r\n", .null = "*-1\r\n"},
    {.name = "XREAD with a timeout", .says = "XREAD BLOCK 60000 STREAMS k $\r\n", .null = "*-1\r\n"},
    {.name = "GEN that is tokenised", .says = "GEN k '" LONG_TEXT "'" OPTIONS "5\r\n", .hold_jobs = true, .null = "$-1\r\n"},
    {.name = "GEN in the queue", .before = "GEN first x ASYNC" OPTIONS "40", .says = "GEN k x" OPTIONS "5\r\n", .null = "$-1\r\n"},
    {.name = "GEN that runs", .says = "GEN k x" OPTIONS "40\r\n", .launches = 4, .null = "$-1\r\n"},
    {.name = "GEN with BLOCK", .says = "GEN k x BLOCK 60000" OPTIONS "40\r\n", .launches = 4, .null = "$-1\r\n"},
    {.name = "GEN with WITHINFO", .says = "GEN k x WITHINFO" OPTIONS "40\r\n", .launches = 4, .null = "*-1\r\n"},
    {.name = "XREAD of a key that generates", .before = "GEN k x ASYNC" OPTIONS "40", .says = "XREAD BLOCK 0 STREAMS k $\r\n", .null = "*-1\r\n"},
    {.name = "TOKENIZE in a job", .says = "TOKENIZE '" LONG_TEXT "'\r\n", .hold_jobs = true, .then = "*3100\r\n"},
    {.name = "CACHE PROBE in a job", .says = "CACHE PROBE '" LONG_TEXT "'\r\n", .hold_jobs = true, .then = "*2\r\n:3100\r\n"},
    {.name = "held back by CLIENT PAUSE", .before = "CLIENT PAUSE 100000 WRITE", .says = "XADD k 1-1 a b\r\n", .then = "$3\r\n1-1\r\n", .after = "CLIENT UNPAUSE"},
};
// clang-format on

/* Behind it one PING gets one reply, and nothing else has come. */
static void check_later(struct trial *t, int fd, const struct waiting *s)
{
    static const char pong[] = "+PONG\r\n", queued[] = "+QUEUED\r\n";
    struct str heard = {0};
    if (s->after)
        (void)world_ask(t->w, t->other, s->after, &t->heard);
    rest(t);
    (void)world_say_line(t->w, fd, s->then && !*s->then ? "NG" : "PING");
    rest(t);
    str_append(&heard, "", 0);
    if (!world_hear(fd, &heard))
        trial_blame(t, "it was closed");
    const char *last = strstr(s->says, "MULTI") ? queued : pong;
    size_t n_last = strlen(last), n_then = s->then ? strlen(s->then) : 0;
    if (heard.len < n_last || strcmp(heard.data + heard.len - n_last, last) != 0)
        trial_blame(t, "PING got '%.60s'", heard.data);
    if (!s->then && heard.len != n_last)
        trial_blame(t, "before PONG came '%.60s'", heard.data);
    if (s->then && strncmp(heard.data, s->then, n_then) != 0)
        trial_blame(t, "'%.60s' where '%s' was due", heard.data, s->then);
    str_free(&heard);
}

/* Says it; with hold_jobs, its job is there and will not be collected. */
static void say_raw(struct trial *t, int fd, const char *text, bool hold_jobs)
{
    if (!hold_jobs) {
        (void)world_say(t->w, fd, text, strlen(text));
        return;
    }
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        trial_blame(t, "not taken: %.60s", text);
    for (int i = 0; i < 10 && jobs_pending(t->w->jobs) == 0; i++)
        world_steps(t->w, 1);
    if (jobs_pending(t->w->jobs) == 0)
        trial_blame(t, "no job was made of it");
    world_hold(t->w, true, true);
}

/* The client that waits so, of id 2. */
static int enter(struct trial *t, const struct waiting *s)
{
    if (s->before)
        (void)world_ask(t->w, t->other, s->before, &t->heard);
    int fd = world_dial(t->w, false);
    say_raw(t, fd, s->says, s->hold_jobs);
    if (s->launches > 0)
        world_launch(t->w, s->launches);
    return fd;
}

static int unblock(int number, const struct waiting *s, bool with_error)
{
    struct world w;
    struct trial t;
    char name[128], line[64];
    snprintf(name, sizeof name, "CLIENT UNBLOCK %s: %s", with_error ? "ERROR" : "TIMEOUT", s->name);
    open_trial(&t, &w, one_place, false);
    int fd = enter(&t, s);
    snprintf(line, sizeof line, "CLIENT UNBLOCK 2 %s", with_error ? "ERROR" : "TIMEOUT");
    trial_expect(&t, line, s->null ? ":1\r\n" : ":0\r\n");
    if (s->null)
        heard_is(&t, fd, "unblocked", with_error ? UNBLOCKED : s->null);
    trial_expect(&t, line, ":0\r\n");
    trial_check_books(&t, "after UNBLOCK");
    check_later(&t, fd, s);
    close(fd);
    world_steps(&w, 4);
    return close_trial(&t, number, name);
}

/* Killed by another: closed at once, nothing more is computed for it, and its command has not run. */
static int killed(int number, const struct waiting *s)
{
    struct world w;
    struct trial t;
    struct str heard = {0};
    char name[128];
    snprintf(name, sizeof name, "CLIENT KILL: %s", s->name);
    open_trial(&t, &w, one_place, false);
    int fd = enter(&t, s);
    int32_t launched = w.runner->n_launched;
    trial_expect(&t, "CLIENT KILL ID 2", ":1\r\n");
    trial_check_books(&t, "after KILL");
    if (world_hear(fd, &heard))
        trial_blame(&t, "it was not closed");
    str_free(&heard);
    close(fd);
    if (s->after)
        (void)world_ask(&w, t.other, s->after, &t.heard);
    bool others_generate = s->before && strstr(s->before, "GEN");
    rest(&t);
    if (!others_generate && w.runner->n_launched != launched)
        trial_blame(&t, "%d steps more", w.runner->n_launched - launched);
    bool generates = strncmp(s->says, "GEN", 3) == 0 && !s->hold_jobs;
    int n_right, n = trial_count_ends(&t, "orphaned", &n_right);
    if (!others_generate && (n != generates || n_right != n))
        trial_blame(&t, "%d end entries, %d orphaned", n, n_right);
    if (s->after)
        trial_expect(&t, "XLEN k", ":0\r\n");
    return close_trial(&t, number, name);
}

/* ---- RESET, QUIT, CLIENT KILL of oneself ------------------------------------------------------- */

#define TWELVE "$12\r\n"

// clang-format off
static const struct state {
    const char *name;
    const char *says;   /* raw */
    int launches;
    const char *begins; /* what is heard, before the reply to the leaver */
    bool in_multi;      /* commands but RESET and QUIT are queued */
    const char *finish; /* of the generation on k; NULL: there is none */
} states[] = {
    {.name = "idle", .says = "PING\r\n", .begins = "+PONG\r\n"},
    {.name = "in MULTI", .says = "MULTI\r\nXADD k * a b\r\n", .begins = "+OK\r\n+QUEUED\r\n", .in_multi = true},
    {.name = "watching, in MULTI", .says = "WATCH k l\r\nMULTI\r\nGEN k x" OPTIONS "12\r\n", .begins = "+OK\r\n+OK\r\n+QUEUED\r\n", .in_multi = true},
    {.name = "subscribed", .says = "HELLO 3\r\nSUBSCRIBE a\r\nPSUBSCRIBE b*\r\n", .begins = "%7\r\n"},
    {.name = "behind a GEN", .says = "GEN k x" OPTIONS "12\r\n", .launches = 3, .begins = TWELVE, .finish = "length"},
    {.name = "behind an XREAD", .says = "GEN k x ASYNC" OPTIONS "12\r\nXREAD BLOCK 0 STREAMS k $\r\n", .launches = 3, .begins = "$", .finish = "length"},
    {.name = "with an ASYNC GEN", .says = "GEN k x ASYNC" OPTIONS "12\r\n", .launches = 3, .begins = "$", .finish = "length"},
    {.name = "with a GEN of EXEC", .says = "MULTI\r\nGEN k x" OPTIONS "12\r\nEXEC\r\n", .launches = 3, .begins = "+OK\r\n+QUEUED\r\n*1\r\n", .finish = "length"},
};

static const struct leaver {
    const char *says, *reply, *reply_in_multi;
    bool closes;
} leavers[] = {
    {"RESET", "+RESET\r\n", "+RESET\r\n", false},
    {"QUIT", "+OK\r\n", "+OK\r\n", true},
    {"CLIENT KILL ID 2 SKIPME no", ":1\r\n", "+QUEUED\r\n", true},
};
// clang-format on

static void check_leaver(struct trial *t, int fd, const struct state *s, const struct leaver *l)
{
    struct str heard = {0};
    const char *reply = s->in_multi ? l->reply_in_multi : l->reply;
    bool still_there;
    str_append(&heard, "", 0);
    still_there = world_hear(fd, &heard);
    size_t n = strlen(reply);
    if (strncmp(heard.data, s->begins, strlen(s->begins)) != 0)
        trial_blame(t, "heard '%.100s'", heard.data);
    if (heard.len < n || strcmp(heard.data + heard.len - n, reply) != 0)
        trial_blame(t, "'%.100s' does not end with '%s'", heard.data, reply);
    if (s->in_multi && strcmp(reply, "+QUEUED\r\n") == 0) {
        str_clear(&heard);
        (void)world_say_line(t->w, fd, "EXEC");
        rest(t);
        still_there = world_hear(fd, &heard);
        if (heard.data[0] != '*' || heard.len < 4 ||
            strcmp(heard.data + heard.len - 4, ":1\r\n") != 0)
            trial_blame(t, "EXEC: '%.100s'", heard.data);
    }
    if (still_there == l->closes)
        trial_blame(t, l->closes ? "it was not closed" : "it was closed");
    if (!l->closes) {
        (void)world_say_line(t->w, fd, "XLEN nothing"); /* no transaction, no subscription */
        heard_is(t, fd, "after RESET", ":0\r\n");
    }
    str_free(&heard);
}

static int leaves_in_state(int number, const struct state *s, const struct leaver *l)
{
    struct world w;
    struct trial t;
    char name[128];
    snprintf(name, sizeof name, "%s %s", l->says, s->name);
    open_trial(&t, &w, NULL, false);
    int fd = world_dial(&w, false);
    (void)world_say(&w, fd, s->says, strlen(s->says));
    if (s->launches > 0)
        world_launch(&w, s->launches);
    (void)world_say_line(&w, fd, l->says);
    trial_check_books(&t, "when it was said");
    rest(&t);
    check_leaver(&t, fd, s, l);
    close(fd);
    world_steps(&w, 4);
    rest(&t);
    int n_right, n = trial_count_ends(&t, s->finish, &n_right);
    bool by_exec = s->in_multi && strstr(s->says, "GEN") && strstr(l->says, "KILL");
    if (n != (s->finish || by_exec) || (!by_exec && n_right != n))
        trial_blame(&t, "%d end entries, %d '%s'", n, n_right, s->finish ? s->finish : "");
    return close_trial(&t, number, name);
}

/* ---- waking those who are gone ----------------------------------------------------------------- */

/* One entry wakes all readers of a key. Every third has closed, but the server has not seen it yet;
 * then write n of the wake fails too, for every n. The others get the entry, once. */
static int woken_neighbours_that_are_gone_harm_nobody(int number)
{
    struct world w;
    struct trial t;
    uint64_t n_calls = 1;
    open_trial(&t, &w, NULL, false);
    for (uint64_t n = 0; n <= n_calls; n++) {
        int fds[WAKES], n_served = 0;
        for (int i = 0; i < WAKES; i++)
            fds[i] = say(&t, "XREAD BLOCK 0 STREAMS k 0");
        for (int i = 0; i < WAKES; i += 3)
            close(fds[i]);
        world_fail_socket(n, WORLD_RESETS);
        int fd = t.other;
        (void)world_say_line(&w, fd, "XADD k 1-1 a b");
        world_steps(&w, 4);
        n_calls = n == 0 ? world_socket_calls() : n_calls;
        world_fail_socket(0, WORLD_SOCKETS_WORK);
        for (int i = 0; i < WAKES; i++) {
            struct str heard = {0};
            if (i % 3 == 0)
                continue;
            (void)world_hear(fds[i], &heard);
            n_served += heard.len > 0 && strstr(heard.data, "1-1") != NULL;
            str_free(&heard);
            close(fds[i]);
        }
        close(t.other);
        world_steps(&w, 6);
        t.other = world_dial(&w, false);
        (void)world_ask(&w, t.other, "DEL k", &t.heard); /* the failed call may be XADD's own */
        if (n_served < (t.heard.data[1] == '1' ? WAKES - WAKES / 3 - 1 : 0))
            trial_blame(&t, "call %d failed, %d were served", (int)n, n_served);
        trial_check_books(&t, "after the wake");
        if (w.s->n_clients != 1)
            trial_blame(&t, "call %d failed, %d clients are left", (int)n, (int)w.s->n_clients);
    }
    if (n_calls < WAKES)
        trial_blame(&t, "%d calls failed", (int)n_calls);
    return close_trial(&t, number, "readers that are gone when they are woken harm no neighbour");
}

enum {
    N_WORKS = sizeof works / sizeof *works,
    N_LEAVINGS = sizeof leavings / sizeof *leavings,
    N_WAITINGS = sizeof waitings / sizeof *waitings,
    N_STATES = sizeof states / sizeof *states,
    N_LEAVERS = sizeof leavers / sizeof *leavers,
};

int main(void)
{
    int n = 0, failures = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    printf("1..%d\n", N_WORKS * N_LEAVINGS + 3 + 3 * N_WAITINGS + N_STATES * N_LEAVERS + 1);
    for (int i = 0; i < N_WORKS * N_LEAVINGS; i++)
        failures +=
            nothing_more_is_launched(++n, &works[i / N_LEAVINGS], &leavings[i % N_LEAVINGS]);
    failures += queued_work_of_the_gone_is_not_done(++n);
    failures += cancelled_or_finished_and_never_both(++n, "GEN k x" OPTIONS "12", "$12\r\n", 1);
    failures +=
        cancelled_or_finished_and_never_both(++n, "GEN k x N 3" OPTIONS "12", "*3\r\n$12\r\n", 3);
    for (int i = 0; i < 2 * N_WAITINGS; i++)
        failures += unblock(++n, &waitings[i / 2], i % 2);
    for (int i = 0; i < N_WAITINGS; i++)
        failures += killed(++n, &waitings[i]);
    for (int i = 0; i < N_STATES * N_LEAVERS; i++)
        failures += leaves_in_state(++n, &states[i / N_LEAVERS], &leavers[i % N_LEAVERS]);
    failures += woken_neighbours_that_are_gone_harm_nobody(++n);
    return failures > 0;
}
