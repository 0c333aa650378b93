/* fuzz_commands.c - whole conversations with a whole server, drawn from the commands' own grammar.
 *
 * The input is a string of decisions: each byte chooses among what may come next, so that every
 * input is a conversation and a mutation of it is a similar one. Up to four clients send pipelines of
 * requests (grammar.h), whole, damaged, or cut anywhere while others speak. In between the model is
 * held and let go, time passes, clients leave, a call for memory or for a socket fails. Each request
 * must have its one answer (talk.h), the books add up all along, and at the end the next client is
 * served, nothing of the others is left, and every block and byte has come back.
 *
 * The server outlives inputs, which makes them cheap: some 10 microseconds a request. What a
 * conversation has moved is put back (options), and after a number of them the server is closed: then
 * the heap and the open files must be what they were when one of the first was closed. */
#include <event2/event.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/client.h"
#include "tests/fuzz/features.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/grammar.h"
#include "tests/fuzz/talk.h"
#include "tests/server/world.h"
#include "tests/unit/fake_runner.h"

enum {
    MAX_OPS = 1000,
    MAX_TRIES = 20,     /* of a client behind others' parked requests */
    PIPELINE = 16,      /* requests sent together, at most */
    AUDIT_OPS = 8,      /* between two looks into the books */
    WORLD_INPUTS = 100, /* of one server */
    WARM_WORLDS = 3,    /* libraries keep what they make for the first ones */
    MAX_OPTIONS = 64,
    HEAP_SLACK = 512 * 1024, /* freed blocks that malloc keeps at hand; what leaks adds up */
    SEEDS = 24,
    SEED_BYTES = 4000,
};

const uint64_t fuzz_rounds = 500;
const size_t fuzz_drawn_bytes = 16000;

/* What lives from one input to the next: a fuzz target has no other place for it. */
static struct {
    bool is_open;
    struct world world;
    struct grammar *grammar;
    struct str options[MAX_OPTIONS]; /* own; as they were when the server was opened */
    int n_inputs;                    /* of this server */
    uint64_t n_answered;             /* ever */
    int n_closed;                    /* servers */
    size_t heap_bytes;               /* in use when the last of the warm servers was closed */
    int n_files;
    struct features features; /* of all inputs */
} fuzz;

uint64_t fuzz_requests(void)
{
    return fuzz.n_answered;
}

uint64_t fuzz_features(void)
{
    return fuzz.features.n;
}

/* ---- the server ------------------------------------------------------------------------------- */

/* So small a pool that generations are preempted, to host memory too, and evict each other. */
static void open_world(void)
{
    static const char *const options[] = {"default-max-tokens",
                                          "24",
                                          "max-running",
                                          "8",
                                          "max-queue",
                                          "4",
                                          "kv-cache-size",
                                          "6kb",
                                          "preemption-mode",
                                          "swap",
                                          "swap-space",
                                          "1kb",
                                          "max-batch-tokens",
                                          "64",
                                          NULL};
    struct err err;
    if (!fuzz.grammar) {
        (void)signal(SIGPIPE, SIG_IGN);
        fuzz.grammar = grammar_new();
        int rc = log_open("/dev/null", LOG_WARNING + 1, &err); /* CONFIG SET loglevel debug */
        ASSERT(rc == 0);
    }
    world_open(&fuzz.world, options, false);
    for (int i = 0; i < 2; i++) /* who stops the fuzzer means all of it */
        (void)event_del(fuzz.world.s->signals[i]);
    for (int i = 0; config_options[i].name; i++) {
        ASSERT(i < MAX_OPTIONS);
        str_clear(&fuzz.options[i]);
        option_print(&config_options[i], &fuzz.world.s->config, &fuzz.options[i]);
    }
    fuzz.is_open = true;
    fuzz.n_inputs = 0;
}

static void put_options_back(struct server *s)
{
    struct str text = {0};
    struct err err;
    for (int i = 0; config_options[i].name; i++) {
        str_clear(&text);
        option_print(&config_options[i], &s->config, &text);
        if (bytes_equal(bytes_of(&text), bytes_of(&fuzz.options[i])))
            continue;
        int rc = option_set(&config_options[i], &s->config, bytes_of(&fuzz.options[i]), &err);
        ASSERT(rc == 0);
    }
    str_free(&text);
    server_config_changed(s);
    log_threshold = LOG_WARNING + 1;
}

/* Zero where a sanitizer has its own heap, which looks for leaks itself. */
static size_t heap_in_use(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void close_world(void)
{
    world_close(&fuzz.world);
    fuzz.is_open = false;
    size_t heap = heap_in_use();
    int files = world_files();
    if (++fuzz.n_closed <= WARM_WORLDS) {
        fuzz.heap_bytes = heap;
        fuzz.n_files = files;
    }
    if (files != fuzz.n_files || heap > fuzz.heap_bytes + HEAP_SLACK) {
        fprintf(stderr, "a closed server leaves %zu bytes and %d files, at first %zu and %d\n",
                heap, files, fuzz.heap_bytes, fuzz.n_files);
        abort();
    }
}

/* ---- what happens ----------------------------------------------------------------------------- */

static bool is_ready(const struct talk *t)
{
    return t->w->s->state == SERVER_READY;
}

static void let_go(struct talk *t, unsigned client, struct input *in)
{
    world_hold(t->w, false, false);
    talk_work(t, 4 + (int)draw(in, 8));
}

static void leave(struct talk *t, unsigned client, struct input *in)
{
    talk_hear(t, client);
    talk_leave(t, client);
    talk_work(t, (int)draw(in, 3));
}

static void say_to(struct talk *t, const char *command, unsigned client)
{
    for (unsigned other = 0; other < TALK_CLIENTS; other++) {
        if (other == client || talk_is_waiting(t, other) || !talk_dial(t, other))
            continue;
        if (t->clients[other].unsent.len > 0 || !resp_is_idle(&t->clients[other].mirror))
            continue;
        str_printf(&t->clients[other].unsent, "%s %llu\r\n", command,
                   (unsigned long long)t->facts.clients[client]);
        talk_send(t, other, SIZE_MAX);
        talk_hear(t, other);
        return;
    }
}

/* Who waits is mostly helped on, or everybody would wait soon. */
static void help(struct talk *t, unsigned client, struct input *in)
{
    switch (draw(in, 6)) {
    case 0: /* behind what it waits for, requests pile up */
        break;
    case 1:
        say_to(t, "CLIENT UNBLOCK", client);
        break;
    case 2:
        leave(t, client, in);
        break;
    case 3:
        server_pause_end(t->w->s);
        talk_work(t, 2);
        break;
    default:
        let_go(t, client, in);
        break;
    }
    talk_hear(t, client);
}

static void speak(struct talk *t, unsigned client, struct input *in)
{
    struct talker *c = &t->clients[client];
    if (talk_is_waiting(t, client))
        help(t, client, in);
    if (!talk_dial(t, client))
        return;
    size_t from = c->unsent.len;
    t->facts.now_ms = clock_now_ms();
    for (unsigned n = 1 + draw(in, PIPELINE); n > 0; n--)
        grammar_put(fuzz.grammar, in, &t->facts, &c->unsent);
    if (draw(in, 32) == 0)
        grammar_damage(in, &c->unsent, from);
    size_t n = SIZE_MAX;
    if (draw(in, 8) == 0)
        n = (size_t)(draw(in, 256) + 256 * draw(in, 4)) % (c->unsent.len + 1);
    talk_send(t, client, n);
    talk_hear(t, client);
}

static void listen_to_all(struct talk *t, unsigned client, struct input *in)
{
    talk_work(t, 1 + (int)draw(in, 8));
    for (unsigned i = 0; i < TALK_CLIENTS; i++)
        talk_hear(t, i);
}

static void hold(struct talk *t, unsigned client, struct input *in)
{
    world_hold(t->w, true, draw(in, 8) == 0);
    world_launch(t->w, (int)draw(in, 6));
}

static void wait_some(struct talk *t, unsigned client, struct input *in)
{
    static const int64_t ms[] = {1, 10, 30, 100, 1000, 11000, 61000};
    world_pass_ms(t->w, ms[draw(in, sizeof ms / sizeof *ms)]);
    listen_to_all(t, client, in);
}

static void lose_memory(struct talk *t, unsigned client, struct input *in)
{
    t->may_close = true;
    t->lose_at = 1 + draw(in, 32);
    t->lose_all = draw(in, 8) == 0;
}

static void find_memory(struct talk *t, unsigned client, struct input *in)
{
    t->lose_at = 0;
}

static void lose_socket(struct talk *t, unsigned client, struct input *in)
{
    static const enum world_socket_fault faults[] = {WORLD_SHORT, WORLD_AGAIN, WORLD_RESETS};
    unsigned fault = draw(in, 3);
    t->may_close |= faults[fault] == WORLD_RESETS;
    world_fail_socket(1 + draw(in, 16), faults[fault]);
}

static void fail_step(struct talk *t, unsigned client, struct input *in)
{
    t->w->runner->fail = "told to fail";
}

static void (*const ops[])(struct talk *t, unsigned client, struct input *in) = {
    speak,       speak,       speak,       speak, speak,       speak,     speak,         speak,
    speak,       speak,       speak,       speak, speak,       speak,     speak,         speak,
    speak,       speak,       hold,        hold,  let_go,      let_go,    listen_to_all, wait_some,
    lose_memory, find_memory, find_memory, leave, lose_socket, fail_step,
};

/* ---- one input -------------------------------------------------------------------------------- */

static void audit(struct talk *t)
{
    const char *fault = world_audit(t->w);
    if (!fault)
        return;
    fprintf(stderr, "audit: %s\n", fault);
    abort();
}

/* What parked requests of the others may do to the server, undone. */
static void calm(struct server *s)
{
    put_options_back(s);
    server_pause_end(s);
}

/* A client of its own asks. The others' parked requests may run first, and pause or kill it, so it
 * tries again; but sooner or later it is answered. */
static void expect_line(struct talk *t, const char *line, const char *answer)
{
    struct str heard = {0};
    for (int n = 0; n < MAX_TRIES && is_ready(t); n++) {
        calm(t->w->s);
        int fd = world_dial(t->w, false);
        (void)world_ask(t->w, fd, line, &heard); /* what became of it is heard */
        close(fd);
        world_steps(t->w, 2);
        if (strcmp(heard.data, answer) == 0)
            break;
    }
    if (is_ready(t) && strcmp(heard.data, answer) != 0) {
        fprintf(stderr, "%s is answered %s\n", line, heard.data);
        abort();
    }
    str_free(&heard);
}

static void rest(struct talk *t)
{
    calm(t->w->s);
    ASSERT(world_rest(t->w));
}

/* Sends on who waits for a generation, for entries or for the end of a pause; false: nobody did. */
static bool send_on(struct talk *t)
{
    bool did = false;
    expect_line(t, "FLUSHALL", "+OK\r\n");
    rest(t);
    for (unsigned i = 0; i < TALK_CLIENTS; i++) {
        char line[64];
        struct client *c = talk_server_side(t, i);
        if (c && c->blocked == BLOCK_READ) {
            snprintf(line, sizeof line, "CLIENT UNBLOCK %llu", (unsigned long long)c->id);
            expect_line(t, line, ":1\r\n");
            rest(t);
            did = true;
        }
        talk_hear(t, i);
    }
    return did;
}

/* Behind what somebody waits for there may stand the next to wait for. */
static void check_answers(struct talk *t)
{
    for (int n = 0; send_on(t); n++)
        ASSERT(n < MAX_OPS * PIPELINE);
    (void)send_on(t); /* everybody has been heard */
    for (unsigned i = 0; i < TALK_CLIENTS && is_ready(t); i++)
        talk_check_answered(t, i);
}

/* The next client must find all in order. */
static void check_end(struct talk *t)
{
    mem_fail_at(0, false);
    world_fail_socket(0, WORLD_SOCKETS_WORK);
    t->lose_at = 0;
    t->w->runner->fail = NULL;
    world_hold(t->w, false, false);
    world_steps(t->w, 4);
    audit(t);
    check_answers(t);
    talk_end(t);
    world_steps(t->w, 4);
    rest(t);
    expect_line(t, "FLUSHALL", "+OK\r\n");
    rest(t);
    world_pass_ms(t->w, 61000);
    expect_line(t, "DEBUG AUDIT", "+OK\r\n");
    slowlog_reset(&t->w->s->slowlog);
    if (!is_ready(t))
        return;
    ASSERT(t->w->s->n_clients == 0 && mem_bytes(MEM_CLIENT) == 0 && mem_bytes(MEM_KEY) == 0);
    struct engine_stats stats;
    engine_stats(t->w->s->engine, &stats);
    ASSERT(stats.used_blocks == 0 && stats.promised_blocks == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size, 0};
    struct talk t;
    struct engine_stats before, after;
    rng_fix_entropy(1); /* an input does the same wherever it stands */
    if (!fuzz.is_open)
        open_world();
    talk_begin(&t, &fuzz.world, &fuzz.features);
    engine_stats(fuzz.world.s->engine, &before);
    world_hold(t.w, true, false);
    for (int i = 0; i < MAX_OPS && in.at < in.len && is_ready(&t); i++) {
        unsigned client = draw(&in, TALK_CLIENTS);
        ops[draw(&in, sizeof ops / sizeof *ops)](&t, client, &in);
        if (i % AUDIT_OPS == AUDIT_OPS - 1)
            audit(&t);
    }
    if (is_ready(&t))
        check_end(&t);
    engine_stats(fuzz.world.s->engine, &after);
    features_note_engine(&fuzz.features, &before, &after);
    bool is_over = !is_ready(&t);
    fuzz.n_answered += t.n_answered;
    talk_end(&t);
    if (is_over || ++fuzz.n_inputs == WORLD_INPUTS)
        close_world();
    return 0;
}

void fuzz_more_seeds(fuzz_add add, void *arg)
{
    struct rng rng = rng_from(7);
    for (int i = 0; i < SEEDS; i++) {
        uint8_t data[SEED_BYTES];
        char name[32];
        for (size_t k = 0; k < sizeof data; k++)
            data[k] = (uint8_t)rng_next(&rng);
        snprintf(name, sizeof name, "drawn %d", i);
        add(arg, name, data, sizeof data);
    }
}
