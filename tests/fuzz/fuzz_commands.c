/* fuzz_commands.c - whole conversations with a whole server, drawn from the commands' own grammar.
 *
 * The input is a string of decisions: each byte chooses among what may come next, so that every
 * input is a conversation and a mutation of it is a similar one. Up to three clients say commands of
 * the table, whose arguments are drawn by the syntax line of each (the tree behind COMMAND DOCS) and
 * by kind: keys, ids, numbers at the edges, texts, junk; whole, cut in the middle, or as raw bytes.
 * In between the loop turns, the model is held and let go, time passes, clients leave, a call for
 * memory fails. Replies must be well-formed, the books add up after each conversation, the last
 * client is served and nothing of the others is left.
 *
 * The server outlives inputs, and is opened anew where one may have changed its options. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/command.h"
#include "server/docs.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/world.h"
#include "tests/unit/fake_runner.h"

enum {
    N_CLIENTS = 3,
    MAX_OPS = 200,
    MAX_ENTRIES = 512, /* commands and subcommands */
    MAX_DEPTH = 32,    /* of a reply */
    LONG_TEXT = 2200,  /* a job tokenises it */
    SEEDS = 48,
    SEED_BYTES = 400,
};

const uint64_t fuzz_rounds = 1500;

/* One command with its grammar. */
struct entry_point {
    const struct command *command;
    struct str parent;      /* "" of a plain command */
    struct docs_node *root; /* NULL: no arguments */
};

/* What lives from one input to the next: a fuzz target has no other place for it. */
static struct {
    bool is_open, is_dirty;
    struct world world;
    struct entry_point entries[MAX_ENTRIES];
    int n_entries;
} fuzz;

/* ---- decisions -------------------------------------------------------------------------------- */

struct input {
    const uint8_t *data;
    size_t len, at;
};

static unsigned draw(struct input *in, unsigned n)
{
    return in->at < in->len ? in->data[in->at++] % n : 0;
}

/* ---- arguments -------------------------------------------------------------------------------- */

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* By the name of the value or by its type; the first that fits. */
static const struct {
    const char *name;
    const char *const *words;
} pools[] = {
    {"key", WORDS("k", "k", "k", "l", "m", "{t}a", "", "a key")},
    {"integer", WORDS("0", "1", "2", "3", "-1", "16", "100", "4000", "2147483647", "2147483648",
                      "9223372036854775807", "-9223372036854775808", "18446744073709551615", "x",
                      "", "1.5", " 1", "01", "+1")},
    {"unix-time", WORDS("0", "1", "1700000001", "1700000001000", "9223372036854775807", "-1", "x")},
    {"double", WORDS("0", "0.5", "1", "1.1", "-1", "1e9", "100", "nan", "inf", "0x1", "", "2 ")},
    {"pattern", WORDS("*", "k*", "?", "[a-z]", "[", "\\", "max*", "")},
    {"prompt", WORDS("hello", "hello", "tell me more", "", "\xc3\xa4\xe6\xbc\xa2", "\xff\xfe",
                     "<|im_end|>", "abcdefghijklmnopqrstuvwxyz0123456789 and again")},
    {"role", WORDS("user", "assistant", "system", "tool", "nobody", "")},
    {"field", WORDS("text", "role", "content", "piece", "finish", "a", "")},
    {"value", WORDS("user", "assistant", "system", "hello", "1", "", "stop", "100", "yes")},
    {"parameter", WORDS("maxclients", "requirepass", "maxmemory", "timeout", "orphan-timeout", "*",
                        "piece-interval", "default-max-tokens", "log-prompts", "nosuch", "port",
                        "notify-keyspace-events", "maxmemory-policy", "slowlog-log-slower-than")},
    {"id", WORDS("0", "0", "$", "*", "1-1", "2-1", "1700000000000-0", "5-*", "x", "-", "+", "",
                 "18446744073709551615-18446744073709551615", "0-0", "1-", "(1-1")},
    {"entry-id", WORDS("1-1", "1700000000000-0", "1700000000001-0", "0-1", "x", "$")},
    {"start", WORDS("-", "0", "(1-1", "1-1", "x", "+")},
    {"end", WORDS("+", "1", "(2-1", "-", "x")},
    {"command-name", WORDS("gen", "GET", "config|get", "fork", "nosuch", "")},
    {"command", WORDS("GEN", "FORK", "XREAD", "CACHE", "MEMORY", "nosuch")},
    {"arg", WORDS("k", "STREAMS", "a", "0", "AT", "REPLACE", "PROBE", "USAGE")},
    {"channel", WORDS("a", "b", "__keyspace@0__:k", "")},
    {"token", WORDS("one", "two", "one", "", "an id with blanks")},
    {"password", WORDS("secret", "", "x")},
    {"text", WORDS("ab", "a", "z", "", "hello", "\xc3")},
    {"", WORDS("a", "hello", "", "k", "1", "default", "*", "\n", "\xff")},
};

static void add_arg(struct str *out, int *n, const void *data, size_t len)
{
    str_printf(out, "$%zu\r\n", len);
    str_append(out, data, len);
    str_append_str(out, "\r\n");
    ++*n;
}

static const char *const *pool_of(const struct docs_node *node)
{
    size_t last = sizeof pools / sizeof *pools - 1;
    for (size_t i = 0; i < last; i++)
        if (strcmp(pools[i].name, node->type.data) == 0 ||
            (node->name.len > 0 && strcmp(pools[i].name, node->name.data) == 0))
            return pools[i].words;
    return pools[last].words;
}

static void put_value(struct input *in, const struct docs_node *node, struct str *out, int *n)
{
    unsigned how = draw(in, 32);
    if (how == 0) { /* junk: the next bytes of the input themselves */
        size_t len = draw(in, 24);
        len = len < in->len - in->at ? len : in->len - in->at;
        add_arg(out, n, in->data + in->at, len);
        in->at += len;
        return;
    }
    if (how == 1) {
        char text[LONG_TEXT];
        memset(text, 'a' + (int)draw(in, 26), sizeof text);
        add_arg(out, n, text, sizeof text);
        return;
    }
    const char *const *words = pool_of(node);
    unsigned n_words = 0;
    while (words[n_words])
        n_words++;
    const char *word = words[draw(in, n_words)];
    add_arg(out, n, word, strlen(word));
}

static void put_node(struct input *in, const struct docs_node *node, struct str *out, int *n);

static void put_once(struct input *in, const struct docs_node *node, struct str *out, int *n)
{
    if (node->token.len > 0)
        add_arg(out, n, node->token.data, node->token.len);
    if (node->kind == DOCS_VALUE)
        put_value(in, node, out, n);
    else if (node->kind == DOCS_ONE_OF && node->n > 0)
        put_node(in, node->children[draw(in, (unsigned)node->n)], out, n);
    else
        for (int i = 0; i < node->n; i++)
            put_node(in, node->children[i], out, n);
}

static void put_node(struct input *in, const struct docs_node *node, struct str *out, int *n)
{
    unsigned times = 1;
    if (node->optional)
        times = draw(in, 4) == 0;
    if (node->multiple && times > 0)
        times = 1 + draw(in, 3);
    while (times-- > 0)
        put_once(in, node, out, n);
}

/* One request of the grammar; now and then an argument too many or one too few in its header. */
static void put_command(struct input *in, const struct entry_point *e, struct str *out)
{
    struct str body = {0};
    int n = 0;
    if (e->parent.len > 0)
        add_arg(&body, &n, e->parent.data, e->parent.len);
    add_arg(&body, &n, e->command->name, strlen(e->command->name));
    for (int i = 0; e->root && i < e->root->n; i++)
        put_node(in, e->root->children[i], &body, &n);
    if (draw(in, 32) == 0)
        add_arg(&body, &n, "more", 4);
    str_printf(out, "*%d\r\n", n);
    str_append(out, body.data, body.len);
    str_free(&body);
}

/* ---- the table -------------------------------------------------------------------------------- */

/* What would end the process, or print: everything else is fair. */
static bool is_left_out(const struct command *parent, const struct command *c)
{
    return parent && strcmp(parent->name, "debug") == 0 && strcmp(c->name, "audit") != 0;
}

static void add_entry(const struct command *parent, const struct command *c)
{
    if (is_left_out(parent, c))
        return;
    ASSERT(fuzz.n_entries < MAX_ENTRIES);
    struct entry_point *e = &fuzz.entries[fuzz.n_entries++];
    struct err err;
    e->command = c;
    str_append_str(&e->parent, parent ? parent->name : "");
    e->root = c->syntax ? docs_parse(c->syntax, &err) : NULL;
    ASSERT(e->root || !c->syntax);
}

static void add_entries(void)
{
    for (int f = 0; command_families[f]; f++)
        for (const struct command *c = command_families[f]; c->name; c++) {
            if (!c->subcommands)
                add_entry(NULL, c);
            for (const struct command *sub = c->subcommands; sub && sub->name; sub++)
                add_entry(c, sub);
        }
}

/* Commands after which the server is not the one that it was. */
static bool is_lasting(const struct entry_point *e)
{
    static const char *const names[] = {"config", "client", "acl", "slowlog", "latency", "script"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(e->parent.data, names[i]) == 0)
            return true;
    return strcmp(e->command->name, "shutdown") == 0;
}

/* ---- replies ---------------------------------------------------------------------------------- */

/* The byte behind one whole reply at `at`; NULL: there is none yet. Breaks off at a malformed one. */
static const char *skip_reply(const char *at, const char *end, int depth)
{
    ASSERT(depth < MAX_DEPTH);
    const char *line = memchr(at, '\n', (size_t)(end - at));
    if (!line)
        return NULL;
    ASSERT(line > at && line[-1] == '\r' && strchr("+-:,#_$=*~>%(", *at));
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
        return next + n + 2;
    }
    for (n = *at == '%' ? 2 * n : n; n > 0 && next; n--)
        next = skip_reply(next, end, depth + 1);
    return next;
}

struct talk {
    struct world *w;
    int fds[N_CLIENTS];
    struct str heard[N_CLIENTS];
};

static void hear(struct talk *t, unsigned client)
{
    struct str *heard = &t->heard[client];
    if (t->fds[client] < 0)
        return;
    bool alive = world_hear(t->fds[client], heard);
    const char *at = heard->data, *end = at + heard->len, *next = at;
    while (at && at < end && (next = skip_reply(at, end, 0)) != NULL)
        at = next;
    if (at)
        str_consume(heard, (size_t)(at - heard->data));
    if (!alive) {
        close(t->fds[client]);
        t->fds[client] = -1;
        str_clear(heard);
    }
}

/* ---- what happens ----------------------------------------------------------------------------- */

static bool is_connected(struct talk *t, unsigned client)
{
    if (t->fds[client] < 0)
        t->fds[client] = world_dial(t->w, false);
    return t->fds[client] >= 0;
}

static void say_drawn(struct talk *t, unsigned client, struct input *in, bool is_cut)
{
    struct str request = {0};
    unsigned at = draw(in, 256) + 256 * draw(in, 2);
    const struct entry_point *e = &fuzz.entries[at % (unsigned)fuzz.n_entries];
    put_command(in, e, &request);
    fuzz.is_dirty |= is_lasting(e);
    size_t len = is_cut ? request.len * (1 + draw(in, 7)) / 8 : request.len;
    if (is_connected(t, client))
        (void)world_say(t->w, t->fds[client], request.data, len);
    str_free(&request);
    hear(t, client);
}

static void say(struct talk *t, unsigned client, struct input *in)
{
    say_drawn(t, client, in, false);
}

static void say_half(struct talk *t, unsigned client, struct input *in)
{
    say_drawn(t, client, in, true);
}

/* The commands that this server is about, more often than their share of the table. */
static void say_gen(struct talk *t, unsigned client, struct input *in)
{
    static const char *const lines[] = {
        "GEN k hello MAXTOKENS 8",
        "GEN k hello MAXTOKENS 8 ASYNC",
        "GEN k hello MAXTOKENS 8 BLOCK 50",
        "GEN k",
        "GEN l hello AS user",
        "XREAD BLOCK 100 STREAMS k l 0 $",
        "FORK k l REPLACE",
        "FORK l m k2",
        "CANCEL k l",
        "DEL k",
        "MULTI",
        "EXEC",
        "GENINFO k",
        "XRANGE k - +",
        "PEXPIRE k 20",
        "GEN k hello ID one MAXTOKENS 4",
        "XADD k * role user content x",
        "GEN k hello STOP a STOP bc MAXTOKENS 9",
        "WATCH k",
        "COPY k m REPLACE",
        "RENAME k l",
        "SUBSCRIBE a",
        "XTRIM k MAXLEN 1",
        "GEN k hello DEADLINE 10",
    };
    if (is_connected(t, client))
        (void)world_say_line(t->w, t->fds[client], lines[draw(in, sizeof lines / sizeof *lines)]);
    hear(t, client);
}

static void say_raw(struct talk *t, unsigned client, struct input *in)
{
    size_t len = draw(in, 32);
    len = len < in->len - in->at ? len : in->len - in->at;
    if (is_connected(t, client))
        (void)world_say(t->w, t->fds[client], (const char *)in->data + in->at, len);
    in->at += len;
    fuzz.is_dirty = true; /* whatever it was */
    hear(t, client);
}

static void turn(struct talk *t, unsigned client, struct input *in)
{
    world_steps(t->w, 1 + (int)draw(in, 8));
}

static void launch(struct talk *t, unsigned client, struct input *in)
{
    world_hold(t->w, true, draw(in, 8) == 0);
    if (t->w->s->state == SERVER_READY)
        world_launch(t->w, (int)draw(in, 6));
}

static void let_go(struct talk *t, unsigned client, struct input *in)
{
    world_hold(t->w, false, false);
    world_steps(t->w, 4);
}

static void wait_some(struct talk *t, unsigned client, struct input *in)
{
    static const int64_t ms[] = {1, 10, 30, 100, 1000, 11000, 61000};
    world_pass_ms(t->w, ms[draw(in, sizeof ms / sizeof *ms)]);
}

static void leave(struct talk *t, unsigned client, struct input *in)
{
    hear(t, client);
    if (t->fds[client] >= 0)
        close(t->fds[client]);
    t->fds[client] = -1;
    str_clear(&t->heard[client]);
    world_steps(t->w, (int)draw(in, 3));
}

static void lose_memory(struct talk *t, unsigned client, struct input *in)
{
    mem_fail_at(1 + draw(in, 16), draw(in, 4) == 0);
}

static void find_memory(struct talk *t, unsigned client, struct input *in)
{
    mem_fail_at(0, false);
}

static void fail_step(struct talk *t, unsigned client, struct input *in)
{
    t->w->runner->fail = "told to fail";
}

static void (*const ops[])(struct talk *t, unsigned client, struct input *in) = {
    say,    say,    say,    say,  say,   say_gen,   say_gen,     say_gen,     say_half,  say_raw,
    launch, let_go, let_go, turn, leave, wait_some, lose_memory, find_memory, fail_step,
};

/* ---- one input -------------------------------------------------------------------------------- */

static void open_world(void)
{
    static const char *const options[] = {"default-max-tokens", "24", "max-running", "4",
                                          "max-queue",          "4",  NULL};
    if (fuzz.n_entries == 0) {
        (void)signal(SIGPIPE, SIG_IGN);
        add_entries();
    }
    world_open(&fuzz.world, options, false);
    fuzz.is_open = true;
    fuzz.is_dirty = false;
}

static void audit(struct talk *t)
{
    const char *fault = world_audit(t->w);
    if (!fault)
        return;
    fprintf(stderr, "audit: %s\n", fault);
    abort();
}

/* The next client must find all in order. A server whose options were changed may refuse him. */
static void check_end(struct talk *t)
{
    struct str heard = {0};
    mem_fail_at(0, false);
    t->w->runner->fail = NULL;
    world_hold(t->w, false, false);
    for (unsigned c = 0; c < N_CLIENTS; c++) {
        hear(t, c);
        if (t->fds[c] >= 0)
            close(t->fds[c]);
        str_free(&t->heard[c]);
    }
    world_steps(t->w, 5);
    audit(t);
    if (fuzz.is_dirty) {
        world_close(&fuzz.world);
        fuzz.is_open = false;
        return;
    }
    int fd = world_dial(t->w, false);
    (void)world_ask(t->w, fd, "FLUSHALL", &heard);
    ASSERT(strcmp(heard.data, "+OK\r\n") == 0);
    ASSERT(world_rest(t->w));
    world_pass_ms(t->w, 61000);
    (void)world_ask(t->w, fd, "DEBUG AUDIT", &heard);
    ASSERT(strcmp(heard.data, "+OK\r\n") == 0);
    close(fd);
    world_steps(t->w, 4);
    ASSERT(t->w->s->n_clients == 0 && mem_bytes(MEM_CLIENT) == 0 && mem_bytes(MEM_KEY) == 0);
    struct engine_stats stats;
    engine_stats(t->w->s->engine, &stats);
    ASSERT(stats.used_blocks == 0 && stats.promised_blocks == 0);
    str_free(&heard);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!fuzz.is_open)
        open_world();
    struct input in = {data, size, 0};
    struct talk t = {.w = &fuzz.world, .fds = {-1, -1, -1}};
    world_hold(t.w, true, false);
    for (int i = 0; i < MAX_OPS && in.at < in.len && t.w->s->state == SERVER_READY; i++) {
        unsigned client = draw(&in, N_CLIENTS);
        ops[draw(&in, sizeof ops / sizeof *ops)](&t, client, &in);
        if (i % 8 == 7)
            audit(&t);
    }
    fuzz.is_dirty |= t.w->s->state != SERVER_READY;
    check_end(&t);
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
