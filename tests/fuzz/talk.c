/* talk.c - clients of a server in this process that check what they hear.
 *
 * Every request has exactly one answer, in order, or its connection ends with an error line: that is
 * what the pipelines of all clients stand on. To hold the server to it, each client reads what it
 * sends with a reader of its own and keeps a list of the answers that are due; each whole reply takes
 * one from the front.
 *
 * What does not fit the count is known by name: SUBSCRIBE and its kin have an answer for each
 * channel; messages come unasked to who has subscribed; after CLIENT REPLY and MONITOR nothing is
 * counted. A connection may end after QUIT, after an error line about the protocol, and where
 * somebody asked for it (CLIENT KILL, SHUTDOWN, a planted fault, limits moved by CONFIG SET);
 * otherwise its end is a finding.
 *
 * KVASIR_FUZZ_TELL in the environment prints what is sent and heard: for reading a finding. */
#include "tests/fuzz/talk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "server/client.h"
#include "tests/fuzz/features.h"

enum {
    MAX_DEPTH = 32, /* of a reply */
    TURNS = 3,      /* after sending: read, answer, flush */
    SHOWN = 300,    /* bytes of a reply in a finding */
};

enum effect {
    PLAIN,
    SUBSCRIBES,
    CLOSES_SELF,
    CLOSES_ANY,
    LOOSENS,
    CONFIGURES,
};

/* An answer that is due. */
struct expected {
    enum effect effect;
    uint32_t name; /* features_name */
    int n;         /* SUBSCRIBES: replies left; 0: as many as there are subscriptions of the kind */
};

static const struct {
    const char *name, *sub;
    enum effect effect;
} effects[] = {
    {"subscribe", NULL, SUBSCRIBES},   {"psubscribe", NULL, SUBSCRIBES},
    {"unsubscribe", NULL, SUBSCRIBES}, {"punsubscribe", NULL, SUBSCRIBES},
    {"quit", NULL, CLOSES_SELF},       {"post", NULL, CLOSES_SELF},
    {"host:", NULL, CLOSES_SELF},      {"shutdown", NULL, CLOSES_ANY},
    {"client", "kill", CLOSES_ANY},    {"client", "reply", LOOSENS},
    {"monitor", NULL, LOOSENS},        {"config", "set", CONFIGURES},
};

void talk_fault(const struct talk *t, unsigned client, const char *what)
{
    const struct talker *c = &t->clients[client];
    fprintf(stderr, "%s: client %u, %zu answers due", what, client, c->n_expected);
    if (c->heard.len > 0)
        fprintf(stderr, ", unread: %.*s", (int)(c->heard.len < SHOWN ? c->heard.len : SHOWN),
                c->heard.data);
    fprintf(stderr, "\n");
    abort();
}

static void tell(unsigned client, const char *mark, const char *data, size_t len)
{
    if (!getenv("KVASIR_FUZZ_TELL"))
        return;
    struct str line = {0};
    str_printf(&line, "%u %s ", client, mark);
    str_append_escaped(&line, (struct bytes){data, len}, "");
    fprintf(stderr, "%s\n", line.data);
    str_free(&line);
}

/* ---- what is due ------------------------------------------------------------------------------ */

static enum effect effect_of(const struct request *q)
{
    for (size_t i = 0; i < sizeof effects / sizeof *effects; i++)
        if (bytes_equal_nocase(q->args[0], effects[i].name) &&
            (!effects[i].sub || (q->n_args > 1 && bytes_equal_nocase(q->args[1], effects[i].sub))))
            return effects[i].effect;
    return PLAIN;
}

static void expect(struct talker *c, struct expected e)
{
    if (c->first + c->n_expected == c->cap && c->first > 0) {
        memmove(c->expected, c->expected + c->first, c->n_expected * sizeof e);
        c->first = 0;
    }
    if (c->first + c->n_expected == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->expected = xrealloc(c->expected, c->cap * sizeof e);
    }
    c->expected[c->first + c->n_expected++] = e;
}

static void take(struct talk *t, struct talker *c)
{
    c->first++;
    c->n_expected--;
    t->n_answered++;
}

static void expect_request(struct talk *t, struct talker *c, const struct request *q)
{
    enum effect effect = effect_of(q);
    expect(c, (struct expected){.effect = effect,
                                .name = features_name(t->w->s->commands, q),
                                .n = effect == SUBSCRIBES ? q->n_args - 1 : 0});
    c->has_subscribed |= effect == SUBSCRIBES;
    c->may_close |= effect == CLOSES_SELF;
    c->is_loose |= effect == LOOSENS;
    t->may_close |= effect == CLOSES_ANY;
    t->is_configured |= effect == CONFIGURES;
}

/* The client's own reading of what it sends. */
static void mirror(struct talk *t, struct talker *c, const char *data, size_t len)
{
    static const struct resp_limits limits = {true, 16 << 20, 64 << 20};
    while (len > 0 && !c->is_broken) {
        struct err err;
        size_t used;
        enum resp_status s = resp_read(&c->mirror, &limits, data, len, &used, &err);
        data += used;
        len -= used;
        if (s == RESP_READY)
            expect_request(t, c, &c->mirror.request);
        if (s == RESP_BROKEN) {
            expect(c, (struct expected){.effect = PLAIN});
            c->is_broken = c->may_close = true;
        }
    }
}

/* ---- what comes ------------------------------------------------------------------------------- */

/* An id as streams have it, of these days: requests will name it. */
static void note_entry(struct facts *f, const char *data, size_t len)
{
    if (len < 15 || len >= FACTS_ID_BYTES || data[13] != '-' || data[0] < '1' || data[0] > '9' ||
        data[len - 1] < '0' || data[len - 1] > '9')
        return;
    char *entry = f->entries[f->n_entries++ % FACTS_IDS];
    memcpy(entry, data, len);
    entry[len] = '\0';
}

/* The byte behind one whole reply at `at`; NULL: there is none yet. Breaks off at a malformed one. */
static const char *skip_reply(struct facts *f, const char *at, const char *end, int depth)
{
    ASSERT(depth < MAX_DEPTH);
    const char *line = memchr(at, '\n', (size_t)(end - at));
    if (!line)
        return NULL;
    ASSERT(line > at && line[-1] == '\r' && *at && strchr("+-:,#_$=*~>%(", *at));
    const char *next = line + 1;
    int64_t n = 0;
    if (!strchr("$=*~>%", *at))
        return next;
    ASSERT(parse_i64((struct bytes){at + 1, (size_t)(line - at - 2)}, &n) && n >= -1);
    if (*at == '$' || *at == '=') {
        if (n < 0)
            return next;
        if (end - next < n + 2)
            return NULL;
        ASSERT(next[n] == '\r' && next[n + 1] == '\n');
        note_entry(f, next, (size_t)n);
        return next + n + 2;
    }
    for (n = *at == '%' ? 2 * n : n; n > 0 && next; n--)
        next = skip_reply(f, next, end, depth + 1);
    return next;
}

static bool begins(const char *at, const char *end, const char *with)
{
    size_t len = strlen(with);
    return (size_t)(end - at) >= len && memcmp(at, with, len) == 0;
}

/* The word of an answer that belongs to Pub/Sub (*3 or >3, $9, subscribe), if it is one of these;
 * NULL: it is not. */
static const char *pubsub_word(const char *at, const char *end, const char *const *words)
{
    if ((*at != '*' && *at != '>') || end - at < 9 || (at[1] != '3' && at[1] != '4'))
        return NULL;
    const char *line = memchr(at + 4, '\n', (size_t)(end - at - 4));
    for (; line && *words; words++)
        if (begins(line + 1, end, *words))
            return line + 1;
    return NULL;
}

static bool is_message(const char *at, const char *end)
{
    static const char *const words[] = {"message\r", "pmessage\r", NULL};
    return pubsub_word(at, end, words) != NULL;
}

/* Lines before a connection ends. */
static bool is_last_word(const char *at, const char *end)
{
    return begins(at, end, "-ERR Protocol error") || begins(at, end, "-ERR closing: ") ||
           begins(at, end, "-DENIED ") || begins(at, end, "-ERR max number of clients");
}

/* Subscriptions of both kinds, counted by what the confirmations say of their sum. */
static void count_names(struct talker *c, bool is_pattern, const char *end)
{
    int64_t sum = 0;
    const char *colon = end - 2;
    while (*colon != ':')
        colon--;
    ASSERT(parse_i64((struct bytes){colon + 1, (size_t)(end - 2 - colon - 1)}, &sum));
    c->n_names[is_pattern] += (int)sum - c->n_names[0] - c->n_names[1];
}

/* True when it is a confirmation. UNSUBSCRIBE from all has one for each name, at least one. */
static bool take_confirmation(struct talk *t, unsigned client, const char *at, const char *end)
{
    static const char *const words[] = {"subscribe\r", "psubscribe\r", "unsubscribe\r",
                                        "punsubscribe\r", NULL};
    struct talker *c = &t->clients[client];
    const char *word = c->has_subscribed ? pubsub_word(at, end, words) : NULL;
    if (!word)
        return false;
    if (c->n_expected == 0 || c->expected[c->first].effect != SUBSCRIBES)
        talk_fault(t, client, "a confirmation that nobody asked for");
    struct expected *e = &c->expected[c->first];
    bool is_pattern = *word == 'p';
    if (e->n == 0)
        e->n = c->n_names[is_pattern];
    count_names(c, is_pattern, end);
    if (e->n <= 1)
        take(t, c);
    else
        e->n--;
    return true;
}

static void take_answer(struct talk *t, unsigned client, const char *at, const char *end)
{
    struct talker *c = &t->clients[client];
    if (c->is_loose || (c->has_subscribed && is_message(at, end)))
        return;
    if (take_confirmation(t, client, at, end))
        return;
    if (begins(at, end, "+RESET\r"))
        c->n_names[0] = c->n_names[1] = 0;
    if (is_last_word(at, end)) {
        c->may_close = true;
        if (c->n_expected == 0 && (t->may_close || t->is_configured))
            return;
    }
    if (*at == '>' || c->n_expected == 0)
        talk_fault(t, client, "a reply that nobody asked for");
    features_note_answer(t->features, c->expected[c->first].name, at, end);
    /* inside MULTI its answers come in EXEC's */
    c->is_loose |= c->expected[c->first].effect == SUBSCRIBES && begins(at, end, "+QUEUED");
    take(t, c);
}

/* The connection has ended; was it allowed to? */
static void take_end(struct talk *t, unsigned client)
{
    struct talker *c = &t->clients[client];
    tell(client, "is closed", "", 0);
    bool is_excused = c->may_close || c->is_loose || t->may_close || t->is_configured;
    if (!is_excused)
        talk_fault(t, client, "closed without a word");
    talk_leave(t, client);
}

void talk_hear(struct talk *t, unsigned client)
{
    struct talker *c = &t->clients[client];
    if (c->fd < 0)
        return;
    bool alive = world_hear(c->fd, &c->heard);
    const char *at = c->heard.data, *end = at + c->heard.len, *next;
    while (at && at < end && (next = skip_reply(&t->facts, at, end, 0)) != NULL) {
        tell(client, "hears", at, (size_t)(next - at));
        take_answer(t, client, at, next);
        at = next;
    }
    if (at)
        str_consume(&c->heard, (size_t)(at - c->heard.data));
    if (!alive)
        take_end(t, client);
}

/* ---- connections ------------------------------------------------------------------------------ */

void talk_begin(struct talk *t, struct world *w, struct features *features)
{
    *t = (struct talk){.w = w, .features = features};
    for (unsigned i = 0; i < TALK_CLIENTS; i++)
        t->clients[i].fd = -1;
}

void talk_leave(struct talk *t, unsigned client)
{
    struct talker *c = &t->clients[client];
    if (c->fd >= 0)
        close(c->fd);
    resp_free(&c->mirror);
    str_free(&c->unsent);
    str_free(&c->heard);
    xfree(c->expected);
    *c = (struct talker){.fd = -1};
    t->facts.clients[client] = 0;
}

void talk_end(struct talk *t)
{
    for (unsigned i = 0; i < TALK_CLIENTS; i++)
        talk_leave(t, i);
}

void talk_work(struct talk *t, int n)
{
    if (t->lose_at > 0)
        mem_fail_at(t->lose_at, t->lose_all);
    world_steps(t->w, n);
    if (t->lose_at == 0)
        return;
    uint64_t calls = mem_try_calls();
    mem_fail_at(0, false);
    if (calls < t->lose_at)
        t->lose_at -= calls;
    else
        t->lose_at = t->lose_all ? 1 : 0;
}

bool talk_dial(struct talk *t, unsigned client)
{
    struct talker *c = &t->clients[client];
    uint64_t id = t->w->s->next_client_id;
    if (c->fd >= 0)
        return true;
    if ((c->fd = world_dial(t->w, false)) >= 0)
        t->facts.clients[client] = id;
    return c->fd >= 0;
}

void talk_send(struct talk *t, unsigned client, size_t n)
{
    struct talker *c = &t->clients[client];
    n = n < c->unsent.len ? n : c->unsent.len;
    tell(client, "says", c->unsent.data, n);
    mirror(t, c, c->unsent.data, n);
    for (size_t at = 0, idle = 0; at < n && idle < 20;) {
        ssize_t sent = send(c->fd, c->unsent.data + at, n - at, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            break; /* it has closed: hearing says why */
        idle = sent > 0 ? 0 : idle + 1;
        at += sent > 0 ? (size_t)sent : 0;
        if (at < n)
            talk_work(t, 1);
    }
    str_consume(&c->unsent, n);
    talk_work(t, TURNS);
}

bool talk_is_waiting(const struct talk *t, unsigned client)
{
    const struct talker *c = &t->clients[client];
    return c->fd >= 0 && c->n_expected > 0;
}

void talk_check_answered(struct talk *t, unsigned client)
{
    if (talk_is_waiting(t, client) && !t->clients[client].is_loose)
        talk_fault(t, client, "at rest, and requests have no answer");
}

struct client *talk_server_side(const struct talk *t, unsigned client)
{
    LIST_FOREACH(&t->w->s->clients, node, next) {
        struct client *c = LIST_ITEM(node, struct client, node);
        if (c->id == t->facts.clients[client])
            return c;
    }
    return NULL;
}
