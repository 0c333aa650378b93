/* grammar.c - requests drawn from the server's own command table.
 *
 * The syntax line of each command (the tree behind COMMAND DOCS) says which arguments may come; the
 * value of each is drawn by its name or type from a pool of fitting words, from what the conversation
 * has shown (ids of entries and clients, the time), for CONFIG SET from the table of options, and now
 * and then from anywhere. So a new command, option of GEN or setting is drawn as soon as it stands in
 * its table. Beside the table there are favourites: the requests that this server is about.
 *
 * Choices that a growing table would renumber go by name: of the candidates that one is taken whose
 * name, hashed with the decision, is greatest. A new command then takes a few decisions from each of
 * the others and leaves the rest as it was, and kept inputs stay what they were kept for. */
#include "tests/fuzz/grammar.h"

#include <ctype.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "server/command.h"
#include "server/config.h"
#include "server/docs.h"

enum {
    N_SLOTS = 1024,     /* decisions of which command */
    MAX_COMMANDS = 512, /* with subcommands */
    MAX_ARGS = 128,
    LONG_TEXT = 2200, /* a job tokenises it */
    A_SET = 4,        /* so many optional arguments in a row: a few of them, in any order */
    KEYED_WEIGHT = 3, /* commands on keys are drawn so much more often than others */
};

struct entry_point {
    const struct command *command, *parent; /* parent: NULL of a plain command */
    struct docs_node *root;                 /* owns; NULL: no arguments */
    unsigned weight;
};

struct grammar {
    struct entry_point entries[MAX_COMMANDS];
    int n_entries;
    int slots[N_SLOTS]; /* index of the entry */
};

/* The request that is being made: words one behind the other. */
struct maker {
    struct input *in;
    const struct facts *facts;
    struct str text;
    struct {
        size_t at, len;
    } args[MAX_ARGS];
    int n;
    const struct option *option; /* of the parameter that stands before a value; NULL: none */
    unsigned times;              /* how often the repeated argument before stands there; 0: none */
};

/* ---- words ------------------------------------------------------------------------------------ */

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* By the name of the value or by its type; the first that fits. Words with '@' are explained below.
 * Likely ones stand there more than once. */
static const struct {
    const char *name;
    const char *const *words;
} pools[] = {
    {"key", WORDS("k", "k", "k", "k", "l", "l", "m", "{t}a", "{t}b", "", "a key")},
    {"client-id", WORDS("@client", "@client", "@client", "0", "-1", "1", "x")},
    {"integer", WORDS("0", "1", "2", "3", "4", "5", "8", "16", "50", "100", "4000", "-1", "@edge")},
    {"unix-time", WORDS("@now", "0", "1", "1700000001", "1800000000000", "4102444800", "@edge")},
    {"double", WORDS("0", "0.5", "1", "1.1", "2", "-1", "1e9", "100", "1e-300", "nan", "inf", "0x1",
                     "", "2 ", "@edge")},
    {"pattern",
     WORDS("*", "k*", "?", "[a-z]", "[", "\\", "max*", "a", "b", "__key*__:*", "", "*a*a*a*")},
    {"prompt",
     WORDS("hello", "hello", "hello", "tell me more", "", "\xc3\xa4\xe6\xbc\xa2", "\xff\xfe",
           "<|im_end|>", "abcd", "abcdefghijklmnopqrstuvwxyz0123456789 and again",
           "abcdefghijklmnopqrstuvwxyz0123456789 and once more", "@long")},
    {"role", WORDS("user", "user", "assistant", "system", "tool", "nobody", "")},
    {"field", WORDS("text", "role", "content", "piece", "finish", "a", "")},
    {"value",
     WORDS("user", "assistant", "system", "hello", "1", "", "stop", "100", "yes", "@long")},
    {"section", WORDS("server", "memory", "everything", "all", "default", "commandstats",
                      "keyspace", "nosuch")},
    {"id", WORDS("@entry", "@entry", "@now", "0", "0", "$", "*", "1-1", "2-1", "5-*", "x", "-", "+",
                 "", "18446744073709551615-18446744073709551615", "0-0", "1-", "(1-1")},
    {"entry-id", WORDS("@entry", "@entry", "@entry", "1-1", "@now", "0-1", "x", "$")},
    {"last-id", WORDS("@entry", "@now", "18446744073709551615-0", "0-0", "1-1")},
    {"max-deleted-id", WORDS("@entry", "0-0", "1-1")},
    {"start", WORDS("-", "-", "@entry", "(@entry", "0", "(1-1", "+", "@now")},
    {"end", WORDS("+", "+", "@entry", "(@entry", "1", "-", "@now")},
    {"command-name", WORDS("gen", "GET", "config|get", "fork", "nosuch", "", "xread")},
    {"command", WORDS("GEN", "FORK", "XREAD", "CACHE", "MEMORY", "nosuch")},
    {"arg", WORDS("k", "STREAMS", "a", "0", "AT", "REPLACE", "PROBE", "USAGE")},
    {"channel", WORDS("a", "b", "__keyspace@0__:k", "")},
    {"token", WORDS("one", "two", "one", "", "an id with blanks")},
    {"username", WORDS("default", "default", "x")},
    {"password", WORDS("secret", "", "x")},
    {"category", WORDS("stream", "write", "nosuch")},
    {"text", WORDS("ab", "a", "z", "e", "", "hello", "\xc3", "@long")},
    {"", WORDS("a", "hello", "", "k", "1", "default", "*", "\n", "\xff")},
};

/* Numbers near where something wraps, or that are none by Redis' rules. */
static const char *const edges[] = {
    "2147483647",
    "2147483648",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "9007199254740993",
    "1e308",
    "-0",
    "x",
    "",
    "1.5",
    " 1",
    "01",
    "+1",
    "0x10",
};

/* Texts of options that have no range. */
static const struct {
    const char *name;
    const char *const *words;
} option_texts[] = {
    {"notify-keyspace-events", WORDS("KEA", "Kxe", "Etg", "", "q")},
    {"requirepass", WORDS("secret", "", "x")},
    {"client-output-buffer-limit",
     WORDS("normal 0 0 0", "normal 1kb 1kb 1", "pubsub 1kb 1kb 1", "normal 1kb", "replica 1 1 1")},
    {"", WORDS("0", "1", "x", "")},
};

/* The requests that this server is about, more often than their share of the table. */
static const char *const favourites[] = {
    "GEN @key hello MAXTOKENS 8",
    "GEN @key hello MAXTOKENS 8 ASYNC",
    "GEN @key hello MAXTOKENS 8 BLOCK 50",
    "GEN @key",
    "GEN @key hello AS user",
    "GEN @key hello ID one MAXTOKENS 4",
    "GEN @key hello STOP a STOP bc MAXTOKENS 9",
    "GEN @key hello DEADLINE 10",
    "GEN @key @long MAXTOKENS 40 ASYNC IGNOREEOS",
    "GEN @key hello N 3 MAXTOKENS 8 ASYNC",
    "GEN @key hello N 2 SEED 1",
    "GEN @key hello BEAM 3 MAXTOKENS 6",
    "GEN @key hello BEAM 2 LENPENALTY 0.5 EARLYSTOP ASYNC",
    "GEN @key hello LOGPROBS 3 MAXTOKENS 5 WITHINFO",
    "XREAD BLOCK 100 STREAMS k l 0 $",
    "XREAD BLOCK 0 STREAMS @key @entry",
    "XREAD COUNT 2 STREAMS k l m 0 0 0",
    "FORK @key @key REPLACE",
    "FORK @key l m",
    "FORK @key @key BRANCH 1 REPLACE",
    "FORK @key @key AT @entry REPLACE",
    "CANCEL k l",
    "CANCEL @key",
    "DEL @key",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "GENINFO @key",
    "XRANGE @key - +",
    "PEXPIRE @key 20",
    "XADD @key * role user content x",
    "XADD @key * text @long",
    "XDEL @key @entry",
    "WATCH @key",
    "COPY @key @key REPLACE",
    "RENAME @key @key",
    "XTRIM @key MAXLEN 1",
    "XINFO STREAM @key FULL",
    "SUBSCRIBE a",
    "UNSUBSCRIBE",
    "PUBLISH a hello",
    "CLIENT UNBLOCK @client",
    "CLIENT UNPAUSE",
    "HELLO 3",
    "HELLO 2",
    "SELECT 0",
    "SELECT 1",
    "SWAPDB 0 1",
    "MEMORY USAGE @key",
    "CACHE PROBE hello KEY @key",
    "CACHE CLEAR",
};

#define N_OF(array) ((unsigned)(sizeof(array) / sizeof *(array)))

static const char *pick(struct input *in, const char *const *words)
{
    unsigned n = 0;
    while (words[n])
        n++;
    return words[draw(in, n)];
}

static void append_long(struct maker *m)
{
    char text[LONG_TEXT];
    size_t len = draw(m->in, 4) == 0 ? sizeof text : 40 + draw(m->in, 200);
    memset(text, 'a' + (int)draw(m->in, 3), len);
    str_append(&m->text, text, len);
}

static void append_entry(struct maker *m)
{
    const struct facts *f = m->facts;
    unsigned i = draw(m->in, FACTS_IDS);
    str_append_str(&m->text, *f->entries[i] ? f->entries[i] : "1-1");
}

/* Words that depend on the conversation. */
static void append_special(struct maker *m, const char *name)
{
    const struct facts *f = m->facts;
    if (strcmp(name, "@now") == 0)
        str_printf(&m->text, "%lld", (long long)f->now_ms + (long long)draw(m->in, 3) - 1);
    else if (strcmp(name, "@client") == 0)
        str_printf(&m->text, "%llu", (unsigned long long)f->clients[draw(m->in, FACTS_CLIENTS)]);
    else if (strcmp(name, "@entry") == 0)
        append_entry(m);
    else if (strcmp(name, "@edge") == 0)
        str_append_str(&m->text, edges[draw(m->in, N_OF(edges))]);
    else if (strcmp(name, "@key") == 0)
        str_append_str(&m->text, pick(m->in, pools[0].words));
    else if (strcmp(name, "@long") == 0)
        append_long(m);
    else
        str_append_str(&m->text, name);
}

static void begin_arg(struct maker *m)
{
    m->args[m->n].at = m->text.len;
}

static void end_arg(struct maker *m)
{
    m->args[m->n].len = m->text.len - m->args[m->n].at;
    if (m->n < MAX_ARGS - 1)
        m->n++;
}

static void add_word(struct maker *m, const char *word)
{
    const char *special = strchr(word, '@');
    begin_arg(m);
    if (special && special <= word + 1) {
        str_append(&m->text, word, (size_t)(special - word));
        append_special(m, special);
    } else {
        str_append_str(&m->text, word);
    }
    end_arg(m);
}

/* ---- arguments of the table ------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static uint64_t hash_name(uint64_t hash, const char *name)
{
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 1099511628211u;
    return hash;
}

/* One of the nodes by its name; see above. */
static const struct docs_node *node_by_name(struct input *in, struct docs_node *const *nodes, int n)
{
    uint64_t best = 0, decision = draw(in, 256);
    const struct docs_node *chosen = nodes[0];
    for (int i = 0; i < n; i++) {
        uint64_t h = mix(hash_name(decision * 0x9e3779b97f4a7c15u, nodes[i]->name.data));
        if (h > best) {
            best = h;
            chosen = nodes[i];
        }
    }
    return chosen;
}

static const char *const *pool_of(const struct docs_node *node)
{
    size_t last = N_OF(pools) - 1;
    for (size_t i = 0; i < last; i++)
        if (strcmp(pools[i].name, node->type.data) == 0 ||
            strcmp(pools[i].name, node->name.data) == 0)
            return pools[i].words;
    return pools[last].words;
}

/* The next bytes of the input themselves. */
static void add_junk(struct maker *m)
{
    size_t len = draw(m->in, 24), left = m->in->len - m->in->at;
    len = len < left ? len : left;
    begin_arg(m);
    str_append(&m->text, m->in->data + m->in->at, len);
    m->in->at += len;
    end_arg(m);
}

static void add_odd(struct maker *m, const struct docs_node *node)
{
    unsigned how = draw(m->in, 8);
    if (how < 2) {
        add_junk(m);
    } else if (how < 4) {
        add_word(m, "@edge");
    } else if (how < 6) {
        add_word(m, pick(m->in, pools[draw(m->in, N_OF(pools))].words));
    } else {
        add_word(m, pick(m->in, pool_of(node)));
        struct str *s = &m->text;
        if (m->n > 0 && m->args[m->n - 1].len > 0)
            s->data[s->len - 1] ^= (char)(1 + draw(m->in, 255));
    }
}

static void add_parameter(struct maker *m)
{
    static const char *const others[] = {"*", "max*", "nosuch", "?"};
    unsigned n = 0;
    while (config_options[n].name)
        n++;
    if (draw(m->in, 8) == 0) {
        add_word(m, others[draw(m->in, N_OF(others))]);
        return;
    }
    m->option = &config_options[draw(m->in, 256) % n];
    add_word(m, m->option->name);
}

static void add_setting(struct maker *m)
{
    static const char *const numbers[] = {"0", "1", "2", "10", "100", "1000", "1000000", "-1"};
    static const char *const sizes[] = {"0", "1", "100kb", "1mb", "2mb", "64mb", "1gb", "-1"};
    static const char *const times[] = {"0", "1ms", "20ms", "10s", "1m", "1h", "x"};
    const struct option *o = m->option;
    size_t last = N_OF(option_texts) - 1, i = 0;
    m->option = NULL;
    switch (o->type) {
    case OPTION_BOOL:
        add_word(m, draw(m->in, 2) ? "yes" : "no");
        break;
    case OPTION_CHOICE:
        add_word(m, pick(m->in, o->choices));
        break;
    case OPTION_INT:
    case OPTION_SECONDS:
        add_word(m, numbers[draw(m->in, N_OF(numbers))]);
        break;
    case OPTION_SIZE:
        add_word(m, sizes[draw(m->in, N_OF(sizes))]);
        break;
    case OPTION_TIME:
        add_word(m, times[draw(m->in, N_OF(times))]);
        break;
    case OPTION_STRING:
    case OPTION_WORDS:
        while (i < last && strcmp(option_texts[i].name, o->name) != 0)
            i++;
        add_word(m, pick(m->in, option_texts[i].words));
        break;
    }
}

static void put_value(struct maker *m, const struct docs_node *node)
{
    if (draw(m->in, 24) == 0)
        add_odd(m, node);
    else if (strcmp(node->name.data, "parameter") == 0)
        add_parameter(m);
    else if (m->option && strcmp(node->name.data, "value") == 0)
        add_setting(m);
    else
        add_word(m, pick(m->in, pool_of(node)));
}

static void put_node(struct maker *m, const struct docs_node *node);

static bool is_choice(const struct docs_node *node)
{
    return node->optional && node->name.len > 0;
}

/* In order; where many may be left out, a few of them in any order, as clients write options. */
static void put_children(struct maker *m, const struct docs_node *block)
{
    static const int counts[] = {0, 0, 1, 1, 2, 2, 3, 5};
    m->times = 0;
    for (int i = 0, run; i < block->n; i += run) {
        for (run = 0; i + run < block->n && is_choice(block->children[i + run]); run++)
            continue;
        if (run < A_SET) {
            run = 1;
            put_node(m, block->children[i]);
            continue;
        }
        for (int k = counts[draw(m->in, N_OF(counts))]; k > 0; k--) {
            struct docs_node node = *node_by_name(m->in, block->children + i, run);
            node.optional = false;
            put_node(m, &node);
        }
    }
}

static void put_once(struct maker *m, const struct docs_node *node)
{
    if (node->token.len > 0)
        add_word(m, node->token.data);
    if (node->kind == DOCS_VALUE)
        put_value(m, node);
    else if (node->kind == DOCS_ONE_OF && node->n > 0)
        put_node(m, node_by_name(m->in, node->children, node->n));
    else
        put_children(m, node);
}

/* A repeated argument behind another (STREAMS key... id...) mostly stands as often as that. */
static void put_node(struct maker *m, const struct docs_node *node)
{
    unsigned times = 1;
    if (node->optional)
        times = draw(m->in, 3) == 0;
    if (node->multiple && times > 0)
        times = m->times > 0 && draw(m->in, 8) != 0 ? m->times : 1 + draw(m->in, 3);
    for (unsigned i = 0; i < times && m->n < MAX_ARGS - 8; i++)
        put_once(m, node);
    m->times = node->multiple ? times : 0;
}

/* ---- requests --------------------------------------------------------------------------------- */

/* Commands that cost as much as many others: the server or the connection has to be made anew, a file
 * is written, the whole table is printed. A few of them will do. */
static bool is_rare(const struct entry_point *e)
{
    static const char *const names[] = {"shutdown", "rewrite", "docs", "command", "info", "quit"};
    for (size_t i = 0; i < N_OF(names); i++)
        if (strcmp(e->command->name, names[i]) == 0)
            return true;
    return false;
}

static void put_of_table(const struct grammar *g, struct maker *m)
{
    unsigned at = draw(m->in, 256) + 256 * draw(m->in, 4);
    const struct entry_point *e = &g->entries[g->slots[at]];
    if (is_rare(e) && draw(m->in, 32) != 0)
        e = &g->entries[at % (unsigned)g->n_entries];
    if (e->parent)
        add_word(m, e->parent->name);
    add_word(m, e->command->name);
    if (e->root)
        put_children(m, e->root);
}

static void put_favourite(struct maker *m)
{
    char line[128];
    char *rest = line;
    snprintf(line, sizeof line, "%s", favourites[draw(m->in, 256) % N_OF(favourites)]);
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        add_word(m, word);
}

/* A word too many, too few, twice, or in another's place. */
static void disturb(struct maker *m)
{
    int at = (int)draw(m->in, (unsigned)m->n), other = (int)draw(m->in, (unsigned)m->n);
    switch (draw(m->in, 4)) {
    case 0:
        add_word(m, "more");
        break;
    case 1:
        m->n -= m->n > 1;
        break;
    case 2:
        if (m->n < MAX_ARGS - 1)
            m->args[m->n++] = m->args[at];
        break;
    case 3: {
        __typeof__(m->args[0]) kept = m->args[at];
        m->args[at] = m->args[other];
        m->args[other] = kept;
        break;
    }
    }
}

static void append_header(struct str *out, char type, size_t n)
{
    char text[24];
    int len = format_i64(text, (int64_t)n);
    str_append_char(out, type);
    str_append(out, text, (size_t)len);
    str_append(out, "\r\n", 2);
}

static void encode(const struct maker *m, struct str *out)
{
    append_header(out, '*', (size_t)m->n);
    for (int i = 0; i < m->n; i++) {
        append_header(out, '$', m->args[i].len);
        str_append(out, m->text.data + m->args[i].at, m->args[i].len);
        str_append_str(out, "\r\n");
    }
}

/* As a person types it, in quotes where needed. */
static void encode_inline(const struct maker *m, struct str *out)
{
    for (int i = 0; i < m->n; i++) {
        const char *word = m->text.data + m->args[i].at;
        size_t len = m->args[i].len, plain = 0;
        while (plain < len &&
               (isalnum((unsigned char)word[plain]) || strchr("-*$+", word[plain])) &&
               word[plain] != '\0')
            plain++;
        bool quoted = plain < len || len == 0;
        str_append_str(out, i == 0 ? "" : " ");
        str_append_str(out, quoted ? "\"" : "");
        str_append(out, word, plain);
        for (size_t k = plain; k < len; k++)
            str_printf(out, "\\x%02x", (unsigned char)word[k]);
        str_append_str(out, quoted ? "\"" : "");
    }
    str_append_str(out, draw(m->in, 2) ? "\r\n" : "\n");
}

void grammar_put(const struct grammar *g, struct input *in, const struct facts *facts,
                 struct str *out)
{
    struct maker m = {.in = in, .facts = facts};
    if (draw(in, 3) == 0)
        put_favourite(&m);
    else
        put_of_table(g, &m);
    unsigned how = draw(in, 48);
    if (how < 2)
        disturb(&m);
    if (how == 2 || how == 3)
        encode_inline(&m, out);
    else
        encode(&m, out);
    str_free(&m.text);
}

void grammar_damage(struct input *in, struct str *out, size_t from)
{
    static const char bytes[] = {0, 1, '\n', '\r', ' ', '"', '*', '$', '-', '9', 0x7f, (char)0xff};
    for (unsigned n = 1 + draw(in, 3); n > 0 && out->len > from; n--) {
        size_t at = from + (draw(in, 256) + 256 * draw(in, 4)) % (out->len - from);
        switch (draw(in, 4)) {
        case 0:
            out->data[at] ^= (char)(1 << draw(in, 8));
            break;
        case 1:
            out->data[at] = bytes[draw(in, N_OF(bytes))];
            break;
        case 2:
            memmove(out->data + at, out->data + at + 1, out->len - at - 1);
            out->len--;
            break;
        case 3:
            str_append_char(out, '\0');
            memmove(out->data + at + 1, out->data + at, out->len - at - 1);
            out->data[at] = bytes[draw(in, N_OF(bytes))];
            break;
        }
    }
}

/* ---- the table -------------------------------------------------------------------------------- */

/* What would end the process, or print: everything else is fair. */
static bool is_left_out(const struct command *parent, const struct command *c)
{
    return parent && strcmp(parent->name, "debug") == 0 && strcmp(c->name, "audit") != 0;
}

static void add_entry(struct grammar *g, const struct command *parent, const struct command *c)
{
    if (is_left_out(parent, c))
        return;
    ASSERT(g->n_entries < MAX_COMMANDS);
    struct err err;
    bool has_keys = c->first_key > 0 || c->keys;
    g->entries[g->n_entries++] =
        (struct entry_point){.command = c,
                             .parent = parent,
                             .root = c->syntax ? docs_parse(c->syntax, &err) : NULL,
                             .weight = has_keys ? KEYED_WEIGHT : 1};
    ASSERT(g->entries[g->n_entries - 1].root || !c->syntax);
}

static int entry_of_slot(const struct grammar *g, uint64_t slot)
{
    uint64_t best = 0;
    int chosen = 0;
    for (int i = 0; i < g->n_entries; i++) {
        const struct entry_point *e = &g->entries[i];
        uint64_t name = hash_name(slot, e->parent ? e->parent->name : "");
        name = hash_name(name * 31, e->command->name);
        for (unsigned k = 0; k < e->weight; k++) {
            uint64_t h = mix(name + k * 0x9e3779b97f4a7c15u);
            if (h > best) {
                best = h;
                chosen = i;
            }
        }
    }
    return chosen;
}

struct grammar *grammar_new(void)
{
    struct grammar *g = xcalloc(1, sizeof *g);
    for (int f = 0; command_families[f]; f++)
        for (const struct command *c = command_families[f]; c->name; c++) {
            if (!c->subcommands || c->run)
                add_entry(g, NULL, c);
            for (const struct command *sub = c->subcommands; sub && sub->name; sub++)
                add_entry(g, c, sub);
        }
    for (int i = 0; i < N_SLOTS; i++)
        g->slots[i] = entry_of_slot(g, (uint64_t)i);
    return g;
}

void grammar_free(struct grammar *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n_entries; i++)
        docs_free(g->entries[i].root);
    xfree(g);
}
