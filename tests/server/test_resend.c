/* test_resend.c - the end of a generation, moved over every moment of a client's retries.
 *
 * redis-py 8 sends a command up to eleven times: it waits 5 s for the reply, closes, sleeps for
 * min(10 s, jitter x 2^n s), connects, shakes hands and sends again. A generation may end at any
 * moment of that: while it waits, between its close and our seeing it, in the gap, between two lines
 * of the handshake, just before the GEN arrives again. Wherever it is, there must be one generation,
 * one end entry a branch and one answer, and the text of an undisturbed run. A moment here is a call
 * of moment(): run m lets the model go at the m-th of them. With the longest gaps the orphan timeout
 * (10 s) strikes too, and the resend resumes: with several branches those that had not finished;
 * beams are searched anew. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "tests/server/world.h"
#include "tests/unit/fake_runner.h"

enum {
    SENDS = 11,
    TIMEOUT_MS = 5000,
    SLICE_MS = 1000, /* a moment at least so often */
    FIRST = 6,       /* moment behind the first handshake: the GEN is sent */
    MADE_BEFORE = 9, /* tokens there before the model stands still */
    N_TOKENS = 40,
};
static const struct ask {
    const char *name, *gen;
    int n_branches;
    bool from_the_start; /* a resumed one makes its tokens again */
} asks[] = {
    /* Of the three branches one says its stop string at its 8th token, so before MADE_BEFORE, one at
     * its 19th, one never. */
    {"one answer", "GEN k 'tell me more' SEED 7 TEMP 1 MAXTOKENS 40 IGNOREEOS", 1, false},
    {"three branches", "GEN k 'tell me more' N 3 SEED 3 TEMP 1 MAXTOKENS 40 IGNOREEOS STOP x", 3,
     false},
    {"three beams", "GEN k 'tell me more' BEAM 3 MAXTOKENS 40 IGNOREEOS", 3, true},
};

struct trial {
    struct world *w;
    const struct ask *ask;
    int at, end_at; /* moments so far; the one at which the model goes on */
    int n_answers;
    struct str heard, text;
    const char *fault;
};

static void moment(struct trial *t)
{
    if (++t->at != t->end_at)
        return;
    world_hold(t->w, false, false);
    if (!world_rest(t->w))
        t->fault = "it never came to rest";
}

static void pass(struct trial *t, int64_t ms)
{
    for (; ms > 0; ms -= SLICE_MS) {
        world_pass_ms(t->w, ms < SLICE_MS ? ms : SLICE_MS);
        moment(t);
    }
}

static int reconnect(struct trial *t)
{
    static const char *const handshake[] = {
        "HELLO 3", "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type external-ip",
        "CLIENT SETINFO LIB-NAME redis-py", "CLIENT SETINFO LIB-VER 8.0.0"};
    int fd = world_dial(t->w, false);
    moment(t);
    for (size_t i = 0; i < sizeof handshake / sizeof *handshake; i++) {
        (void)world_ask(t->w, fd, handshake[i], &t->heard);
        moment(t);
    }
    str_clear(&t->heard);
    return fd;
}

/* The reply when it has come. */
static bool has_answer(struct trial *t, int fd)
{
    (void)world_hear(fd, &t->heard);
    if (t->heard.len == 0)
        return false;
    t->n_answers++;
    str_append(&t->text, t->heard.data, t->heard.len);
    return true;
}

/* One send; true when it was answered within the client's own timeout. */
static bool send_once(struct trial *t, bool is_first)
{
    int fd = reconnect(t);
    (void)world_say_line(t->w, fd, t->ask->gen);
    if (is_first)
        world_launch(t->w, MADE_BEFORE);
    bool answered = has_answer(t, fd);
    for (int64_t ms = 0; ms < TIMEOUT_MS && !answered; ms += SLICE_MS) {
        moment(t);
        world_pass_ms(t->w, SLICE_MS - 1);
        moment(t);
        answered = has_answer(t, fd);
        if (!answered)
            world_pass_ms(t->w, 1);
    }
    close(fd);
    moment(t); /* the server has not seen it yet */
    world_steps(t->w, 4);
    return answered;
}

static bool run_client(struct trial *t, int64_t jitter_percent)
{
    for (int i = 0; i < SENDS; i++) {
        if (send_once(t, i == 0))
            return true;
        if (i == SENDS - 1)
            break; /* it gives up */
        int64_t gap_ms = (INT64_C(2000) << i) * jitter_percent / 100;
        pass(t, gap_ms < 10000 ? gap_ms : 10000);
    }
    return false;
}

/* Of all ends but those that are resumed. */
static uint64_t n_ends(const struct engine_stats *s)
{
    return s->ends[GEN_LENGTH] + s->ends[GEN_STOP];
}

/* What the server has of it: one end entry a branch, no token made twice. */
static void check_server(struct trial *t, const struct engine_stats *before)
{
    struct engine_stats after;
    engine_stats(t->w->s->engine, &after);
    int fd = world_dial(t->w, false), n = 0;
    (void)world_ask(t->w, fd, "XRANGE k - +", &t->heard);
    for (const char *at = t->heard.data; (at = strstr(at, "\r\nfinish\r\n")) != NULL; at++)
        n++;
    if (n != t->ask->n_branches || strstr(t->heard.data, "orphaned"))
        t->fault = "not exactly one end entry a branch, ended by itself";
    uint64_t most = N_TOKENS * (uint64_t)t->ask->n_branches;
    uint64_t made = after.generated_tokens - before->generated_tokens;
    uint64_t resumed = after.ends[GEN_ORPHANED] - before->ends[GEN_ORPHANED];
    bool is_made_twice = made > most + resumed && !(t->ask->from_the_start && resumed > 0);
    if (n_ends(&after) - n_ends(before) != (uint64_t)t->ask->n_branches || is_made_twice)
        t->fault = "more than one generation";
    if (world_audit(t->w))
        t->fault = "the books do not add up";
    (void)world_ask(t->w, fd, "FLUSHALL", &t->heard);
    close(fd);
    world_pass_ms(t->w, 61000);
}

static bool run_trial(struct world *w, const struct ask *ask, int64_t jitter_percent, int end_at,
                      struct bytes expected, int *n_moments)
{
    struct engine_stats before;
    struct trial t = {.w = w, .ask = ask, .end_at = end_at};
    engine_stats(w->s->engine, &before);
    world_hold(w, true, false);
    bool answered = run_client(&t, jitter_percent);
    *n_moments = t.at;
    if (end_at == 0) {
        world_hold(w, false, false); /* never: counts the moments */
        (void)world_rest(w);
    } else if (!answered || t.n_answers != 1 || !bytes_equal(bytes_of(&t.text), expected)) {
        t.fault = "not exactly the one answer";
    }
    if (end_at != 0)
        check_server(&t, &before);
    if (t.fault)
        printf("# %s, jitter %d %%, moment %d: %s; heard '%.200s'\n", ask->name,
               (int)jitter_percent, end_at, t.fault, t.text.data ? t.text.data : "");
    str_free(&t.heard);
    str_free(&t.text);
    return t.fault == NULL;
}

static void flush_all(struct world *w, struct str *heard)
{
    int fd = world_dial(w, false);
    (void)world_ask(w, fd, "FLUSHALL", heard);
    close(fd);
    world_pass_ms(w, 61000);
}

/* What an undisturbed run answers. */
static void undisturbed(struct world *w, const struct ask *ask, struct str *text)
{
    struct str heard = {0};
    int fd = world_dial(w, false);
    (void)world_say_line(w, fd, ask->gen);
    (void)world_rest(w);
    (void)world_hear(fd, text);
    close(fd);
    flush_all(w, &heard);
    str_free(&heard);
}

/* The end at every moment; the number of trials. */
static int run_all(struct world *w, const struct ask *ask, int64_t jitter_percent, int *n_failed)
{
    struct str text = {0}, heard = {0};
    int n_moments, ignored;
    undisturbed(w, ask, &text);
    (void)run_trial(w, ask, jitter_percent, 0, bytes_of(&text), &n_moments);
    flush_all(w, &heard);
    n_moments--; /* the one behind its last close is too late for the client */
    for (int m = FIRST; m <= n_moments; m++)
        *n_failed += !run_trial(w, ask, jitter_percent, m, bytes_of(&text), &ignored);
    str_free(&text);
    str_free(&heard);
    return n_moments - FIRST + 1;
}

int main(void)
{
    static const int64_t jitters[] = {0, 40, 100};
    enum { N_JITTERS = sizeof jitters / sizeof *jitters, N_ASKS = sizeof asks / sizeof *asks };
    struct world w;
    int n_failed = 0, n_trials = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    world_open(&w, NULL, false);
    printf("1..%d\n", N_ASKS * N_JITTERS);
    for (int i = 0; i < N_ASKS * N_JITTERS; i++) {
        const struct ask *ask = &asks[i / N_JITTERS];
        int failed = 0, n = run_all(&w, ask, jitters[i % N_JITTERS], &failed);
        printf("%sok %d - %s and one answer to it, the end at each of %d moments, jitter %d %%\n",
               failed ? "not " : "", i + 1, ask->name, n, (int)jitters[i % N_JITTERS]);
        fflush(stdout);
        n_failed += failed;
        n_trials += n;
    }
    struct engine_stats t;
    engine_stats(w.s->engine, &t);
    printf("# %d ends between %d sends, %" PRIu64 " orphans resumed on the way, %d failures\n",
           n_trials, SENDS, t.ends[GEN_ORPHANED], n_failed);
    world_close(&w);
    return n_failed > 0;
}
