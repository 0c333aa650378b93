/* chat.c - kvasir-chat: a chat in the terminal with a Kvasir server.
 *
 * A line is a user's turn: GEN key line AS user ... ASYNC, which returns the id after which to
 * read. Then the reader's loop that every client can use:
 *
 *     XREAD BLOCK 4000 STREAMS key id     pieces are printed as they come, the end entry ends it
 *     nothing for 4 s?  GENINFO key       neither queued nor running: one last XREAD, stop
 *
 * The answer is printed from its pieces; what they lack is taken from the end entry, so nothing is
 * lost when the connection breaks and is opened again. Ctrl-C while an answer comes sends CANCEL on
 * a second connection, since the first one is blocked; at the prompt it ends the program.
 *
 * With stdin not a terminal every line is a turn, answers go to stdout, one line end after each,
 * and the exit status says whether all went well: a script can talk, too. On a terminal, control
 * bytes of an answer are shown as '?': a model's text shall not drive the terminal. */
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "utils/chat_link.h"

#define BLOCK_MS "4000" /* a wait that every stock client's own timeout survives */
#define MAX_PASSED 32   /* options handed on to GEN */

/* Set by the handler of SIGINT; the one thing that it can do. */
static volatile sig_atomic_t n_interrupts;

struct chat {
    struct link_address address;
    struct link link; /* owns */
    char key[256];
    char last_id[64];                /* of the entries read of this answer */
    const char *system;              /* borrows; NULL: none */
    struct bytes passed[MAX_PASSED]; /* names and values of GEN options; borrowed from argv */
    int n_passed;
    bool is_terminal;  /* stdin and stdout are one */
    bool is_cancelled; /* CANCEL was tried for this answer */
    size_t n_printed;  /* bytes of this answer */
    char last_byte;    /* printed last */
    bool failed;       /* something went wrong: the exit status */
};

/* ---- printing ------------------------------------------------------------------------------ */

static void complain(struct chat *c, const char *what)
{
    fprintf(stderr, "%s%s\n", c->is_terminal ? "! " : "kvasir-chat: ", what);
    c->failed = true;
}

static void note(const struct chat *c, const char *format, const char *what)
{
    if (c->is_terminal)
        fprintf(stderr, format, what);
}

static void print_text(struct chat *c, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)data[i];
        bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
        putchar(control && c->is_terminal ? '?' : byte);
    }
    if (len > 0)
        c->last_byte = data[len - 1];
    c->n_printed += len;
    fflush(stdout);
}

/* ---- commands ------------------------------------------------------------------------------ */

/* The reply, or NULL after a complaint: no connection, or an error of the server. */
static redisReply *ask(struct chat *c, const struct link_command *command)
{
    struct err err;
    redisReply *reply = link_ask(&c->link, command, &err);
    if (!reply) {
        complain(c, err.text);
        return NULL;
    }
    if (reply->type != REDIS_REPLY_ERROR)
        return reply;
    complain(c, reply->str);
    freeReplyObject(reply);
    return NULL;
}

static struct link_command command_of(const char *name, const char *key)
{
    struct link_command command = {0};
    link_add_text(&command, name);
    link_add_text(&command, key);
    return command;
}

static void sleep_ms(long ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&time, NULL); /* cut short by Ctrl-C: as well */
}

/* Weights are read in the background after the server begins to listen. */
static int wait_until_loaded(struct chat *c)
{
    struct link_command command = command_of("EXISTS", c->key);
    for (int i = 0; n_interrupts == 0; i++) {
        struct err err;
        redisReply *reply = link_ask(&c->link, &command, &err);
        if (!reply) {
            complain(c, err.text);
            return -1;
        }
        bool loading = reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "LOADING", 7) == 0;
        if (!loading && reply->type == REDIS_REPLY_ERROR)
            complain(c, reply->str);
        int rc = reply->type == REDIS_REPLY_ERROR ? -1 : reply->integer > 0;
        freeReplyObject(reply);
        if (!loading)
            return rc;
        note(c, i == 0 ? "the server loads its model ...%s\n" : "%s", "");
        sleep_ms(500);
    }
    return -1;
}

/* A new key begins with the system text. */
static int begin_key(struct chat *c)
{
    if (!c->system)
        return 0;
    struct link_command command = command_of("XADD", c->key);
    const char *const rest[] = {"*", "role", "system", "content", c->system};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        link_add_text(&command, rest[i]);
    redisReply *reply = ask(c, &command);
    freeReplyObject(reply);
    return reply ? 0 : -1;
}

/* name NULL: a new one. False, with a complaint, for a name that is no key of ours. */
static bool set_key(struct chat *c, const char *name)
{
    if (name && (!*name || strlen(name) >= sizeof c->key)) {
        complain(c, "a key's name has 1 to 255 bytes here");
        return false;
    }
    if (name)
        snprintf(c->key, sizeof c->key, "%s", name);
    else
        snprintf(c->key, sizeof c->key, "chat:%016llx", (unsigned long long)rng_entropy());
    return true;
}

/* Called from the wait for a reply, so the connection of the answer is in use. A CANCEL that does
 * not get through leaves the second Ctrl-C. */
static void look_for_interrupt(void *arg)
{
    struct chat *c = arg;
    struct err err;
    struct link second = {0};
    if (n_interrupts == 0)
        return;
    if (c->is_cancelled)
        exit(130); /* asked twice: the server ends what nobody reads */
    n_interrupts = 0;
    c->is_cancelled = true;
    if (link_open(&second, &c->address, &err) < 0)
        return;
    struct link_command command = command_of("CANCEL", c->key);
    redisReply *reply = link_ask(&second, &command, &err);
    freeReplyObject(reply);
    link_close(&second);
}

/* ---- one answer ---------------------------------------------------------------------------- */

/* The value of a field of an entry [id, [name, value, ...]]; NULL when absent. */
static const redisReply *field(const redisReply *entry, const char *name)
{
    const redisReply *fields = entry->elements == 2 ? entry->element[1] : NULL;
    for (size_t i = 0; fields && i + 1 < fields->elements; i += 2)
        if (strcmp(fields->element[i]->str, name) == 0)
            return fields->element[i + 1];
    return NULL;
}

/* What the pieces lacked, and how it ended. */
static void print_end(struct chat *c, const redisReply *entry)
{
    const redisReply *text = field(entry, "content"), *finish = field(entry, "finish");
    const redisReply *error = field(entry, "error");
    if (!text)
        text = field(entry, "text");
    if (text && text->len > c->n_printed)
        print_text(c, text->str + c->n_printed, text->len - c->n_printed);
    if (c->n_printed == 0 || c->last_byte != '\n')
        putchar('\n');
    fflush(stdout);
    if (error)
        complain(c, error->str);
    else if (strcmp(finish->str, "stop") != 0)
        note(c, "[%s]\n", finish->str);
}

/* True when the answer is over. */
static bool print_entry(struct chat *c, const redisReply *entry)
{
    const redisReply *piece = field(entry, "piece");
    snprintf(c->last_id, sizeof c->last_id, "%s", entry->element[0]->str);
    if (field(entry, "finish")) {
        print_end(c, entry);
        return true;
    }
    if (piece)
        print_text(c, piece->str, piece->len);
    return false;
}

enum read_result { READ_FAILED, READ_NOTHING, READ_MORE, READ_END };

static enum read_result read_entries(struct chat *c, bool block)
{
    struct link_command command = {0};
    link_add_text(&command, "XREAD");
    if (block) {
        link_add_text(&command, "BLOCK");
        link_add_text(&command, BLOCK_MS);
    }
    link_add_text(&command, "STREAMS");
    link_add_text(&command, c->key);
    link_add_text(&command, c->last_id);
    redisReply *reply = ask(c, &command);
    if (!reply)
        return READ_FAILED;
    enum read_result result = READ_NOTHING;
    const redisReply *stream =
        reply->type == REDIS_REPLY_ARRAY && reply->elements == 1 ? reply->element[0] : NULL;
    const redisReply *entries = stream && stream->elements == 2 ? stream->element[1] : NULL;
    for (size_t i = 0; entries && i < entries->elements && result != READ_END; i++)
        result = print_entry(c, entries->element[i]) ? READ_END : READ_MORE;
    freeReplyObject(reply);
    return result;
}

/* Is an answer still to come? Asked when XREAD brought nothing. */
static bool is_alive(struct chat *c)
{
    struct link_command command = command_of("GENINFO", c->key);
    redisReply *reply = ask(c, &command);
    bool alive = false;
    for (size_t i = 0; reply && i + 1 < reply->elements; i += 2) {
        const redisReply *name = reply->element[i], *value = reply->element[i + 1];
        if (name->str && value->str && strcmp(name->str, "state") == 0)
            alive = strcmp(value->str, "queued") == 0 || strcmp(value->str, "running") == 0;
    }
    freeReplyObject(reply);
    return alive;
}

static void follow_answer(struct chat *c)
{
    enum read_result result;
    do {
        result = read_entries(c, true);
        if (result == READ_NOTHING && !is_alive(c)) {
            while ((result = read_entries(c, false)) == READ_MORE)
                ;
            if (result == READ_NOTHING)
                complain(c, "the answer's end is not there: was the key deleted?");
            break;
        }
    } while (result == READ_MORE || result == READ_NOTHING);
}

static void take_turn(struct chat *c, struct bytes text)
{
    struct link_command command = command_of("GEN", c->key);
    link_add(&command, text);
    link_add_text(&command, "AS");
    link_add_text(&command, "user");
    for (int i = 0; i < c->n_passed; i++)
        link_add(&command, c->passed[i]);
    link_add_text(&command, "ASYNC");
    n_interrupts = 0;
    c->is_cancelled = false;
    c->n_printed = 0;
    redisReply *reply = ask(c, &command);
    if (reply) {
        snprintf(c->last_id, sizeof c->last_id, "%s", reply->str ? reply->str : "0");
        follow_answer(c);
    }
    freeReplyObject(reply);
    n_interrupts = 0;
}

/* ---- lines that begin with a slash --------------------------------------------------------- */

static void slash_fork(struct chat *c, const char *name)
{
    char before[sizeof c->key];
    memcpy(before, c->key, sizeof before);
    if (!set_key(c, name))
        return;
    struct link_command command = command_of("FORK", before);
    link_add_text(&command, c->key);
    redisReply *reply = ask(c, &command);
    if (reply && reply->integer == 1) {
        note(c, "now on %s\n", c->key);
    } else {
        memcpy(c->key, before, sizeof before);
        if (reply)
            complain(c, "not forked: that key exists, or nothing has been said yet");
    }
    freeReplyObject(reply);
}

static void slash_new(struct chat *c, const char *name)
{
    if (!set_key(c, *name ? name : NULL))
        return;
    if (wait_until_loaded(c) == 0)
        (void)begin_key(c);
    note(c, "now on %s\n", c->key);
}

static void slash_help(struct chat *c, const char *name)
{
    (void)name;
    note(c, "%s",
         "/fork KEY   branch the conversation and go on in KEY\n"
         "/new [KEY]  begin another conversation\n"
         "/quit       leave (so does Ctrl-D)\n"
         "//text      a message that begins with /\n"
         "Ctrl-C      stop the answer\n");
}

static const struct slash {
    const char *name;
    void (*run)(struct chat *c, const char *rest);
} SLASHES[] = {{"/fork", slash_fork}, {"/new", slash_new}, {"/help", slash_help}};

static void run_slash(struct chat *c, char *line)
{
    size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    for (size_t i = 0; i < sizeof SLASHES / sizeof *SLASHES; i++) {
        if (strlen(SLASHES[i].name) == n && strncmp(SLASHES[i].name, line, n) == 0) {
            SLASHES[i].run(c, rest);
            return;
        }
    }
    complain(c, "unknown command; /help lists them, // begins a message with /");
}

/* False at the end of the input, /quit, or Ctrl-C at the prompt. */
static bool take_line(struct chat *c, char **line, size_t *cap)
{
    note(c, "%s", "> ");
    ssize_t n = getline(line, cap, stdin);
    if (n < 0 || n_interrupts > 0) {
        note(c, "%s", "\n");
        return false;
    }
    if (n > 0 && (*line)[n - 1] == '\n')
        (*line)[--n] = '\0';
    if (strcmp(*line, "/quit") == 0)
        return false;
    if ((*line)[0] == '/' && (*line)[1] != '/')
        run_slash(c, *line);
    else if (n > 0)
        take_turn(c, (struct bytes){*line + ((*line)[0] == '/'), (size_t)n - ((*line)[0] == '/')});
    return true;
}

/* ---- options ------------------------------------------------------------------------------- */

/* Options that go to GEN as they are; the server says what is wrong with a value. */
static const struct passed {
    const char *name, *gen;
} PASSED[] = {
    {"temp", "TEMP"},           {"top-k", "TOPK"},        {"top-p", "TOPP"},
    {"min-p", "MINP"},          {"repeat", "REPEAT"},     {"presence", "PRESENCE"},
    {"frequency", "FREQUENCY"}, {"seed", "SEED"},         {"max-tokens", "MAXTOKENS"},
    {"stop", "STOP"},           {"deadline", "DEADLINE"},
};
enum { N_PASSED = sizeof PASSED / sizeof *PASSED, OPT_KEY = 256, OPT_SYSTEM, OPT_HELP, OPT_PASSED };

static void usage(FILE *out)
{
    fputs("kvasir-chat [options]: a chat in the terminal with a Kvasir server\n"
          "  -h, --host HOST      127.0.0.1       -s, --socket PATH   Unix socket instead\n"
          "  -p, --port PORT      6379            -a, --pass PASSWORD\n"
          "  --key KEY            the conversation to begin or go on with; default: a new one\n"
          "  --system TEXT        system text of a new conversation\n"
          "  --temp T --top-k K --top-p P --min-p P --repeat P --presence P --frequency P\n"
          "  --seed S --max-tokens N --stop TEXT --deadline MS    as in GEN\n"
          "In the chat, /help lists the commands.\n",
          out);
}

static void pass_on(struct chat *c, const char *name, const char *value)
{
    if (c->n_passed + 2 > MAX_PASSED) {
        fprintf(stderr, "kvasir-chat: at most %d options for GEN\n", MAX_PASSED / 2);
        exit(2);
    }
    c->passed[c->n_passed++] = bytes_from(name);
    c->passed[c->n_passed++] = bytes_from(value);
}

static int parse_port(const char *text)
{
    int64_t port;
    if (parse_i64(bytes_from(text), &port) && port >= 1 && port <= 65535)
        return (int)port;
    fprintf(stderr, "kvasir-chat: port %s is not a number from 1 to 65535\n", text);
    exit(2);
}

static void take_option(struct chat *c, int option)
{
    switch (option) {
    case 'h':
        c->address.host = optarg;
        break;
    case 'p':
        c->address.port = parse_port(optarg);
        break;
    case 's':
        c->address.socket = optarg;
        break;
    case 'a':
        c->address.password = optarg;
        break;
    case OPT_KEY:
        if (!set_key(c, optarg))
            exit(2);
        break;
    case OPT_SYSTEM:
        c->system = optarg;
        break;
    case OPT_HELP:
        usage(stdout);
        exit(0);
    default:
        if (option >= OPT_PASSED && option < OPT_PASSED + N_PASSED) {
            pass_on(c, PASSED[option - OPT_PASSED].gen, optarg);
            break;
        }
        usage(stderr);
        exit(2);
    }
}

static void parse(struct chat *c, int argc, char **argv)
{
    struct option options[8 + N_PASSED] = {
        {"host", required_argument, NULL, 'h'},    {"port", required_argument, NULL, 'p'},
        {"socket", required_argument, NULL, 's'},  {"pass", required_argument, NULL, 'a'},
        {"key", required_argument, NULL, OPT_KEY}, {"system", required_argument, NULL, OPT_SYSTEM},
        {"help", no_argument, NULL, OPT_HELP},
    };
    for (int i = 0; i < N_PASSED; i++)
        options[7 + i] = (struct option){PASSED[i].name, required_argument, NULL, OPT_PASSED + i};
    for (int option; (option = getopt_long(argc, argv, "h:p:s:a:", options, NULL)) != -1;)
        take_option(c, option);
    if (optind < argc) {
        fprintf(stderr, "kvasir-chat: '%s' is no option; messages are typed or piped in\n",
                argv[optind]);
        exit(2);
    }
}

/* ---- main ---------------------------------------------------------------------------------- */

static void on_interrupt(int number)
{
    (void)number;
    n_interrupts = n_interrupts + 1;
}

/* Without SA_RESTART: poll and getline must come back. */
static void catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    (void)sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed connection is an error of write, and opened again */
}

static int start(struct chat *c)
{
    struct err err;
    if (link_open(&c->link, &c->address, &err) < 0) {
        complain(c, err.text);
        return -1;
    }
    c->link.while_waiting = look_for_interrupt;
    c->link.arg = c;
    int exists = wait_until_loaded(c);
    if (exists < 0)
        return -1;
    note(c,
         exists ? "going on with %s; /help lists the commands\n"
                : "conversation %s; /help lists the commands\n",
         c->key);
    return exists ? 0 : begin_key(c);
}

int main(int argc, char **argv)
{
    struct chat chat = {.address = {.host = "127.0.0.1", .port = 6379}};
    char *line = NULL;
    size_t cap = 0;
    chat.is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    (void)set_key(&chat, NULL);
    parse(&chat, argc, argv);
    catch_interrupts();
    if (start(&chat) == 0)
        while (take_line(&chat, &line, &cap))
            ;
    free(line); /* getline's own */
    link_close(&chat.link);
    return chat.failed ? 1 : 0;
}
