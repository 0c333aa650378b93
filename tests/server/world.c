/* world.c - a whole server in this process; world.h says what for.
 *
 * The server is opened without a model; then the scripted one takes the place of none, in the same
 * way in which load.c hands over a real one. */
#include "tests/server/world.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "keyspace/generate.h"
#include "server/client.h"
#include "tests/unit/fake_runner.h"

enum {
    IM_START = 256, /* bytes are tokens by their own numbers */
    IM_END,
    END_OF_TEXT,
    N_VOCAB,
    N_CONTEXT = 4096,
    N_BLOCKS = 512,
    BLOCK_SIZE = 16,
    BLOCK_BYTES = BLOCK_SIZE * sizeof(uint64_t), /* of the scripted model */
    N_END_IDS = 4,
    MAX_TURNS = 20000,
    MAX_PORTS = 10,         /* tried before giving up */
    LOOK_US = 100,          /* between two looks at a TCP connection */
    TCP_IS_ESTABLISHED = 1, /* of tcpi_state; named in a header that excludes linux/tcp.h */
    WALL_MS_HIGH = 1700000, /* thousands of seconds: where the frozen clock starts */
};

/* ---- sockets that fail ------------------------------------------------------------------------ */

static struct {
    uint64_t n, fail_at;
    enum world_socket_fault fault;
} seam;

/* True when this call is the one. */
static bool is_due(void)
{
    return ++seam.n == seam.fail_at;
}

static ssize_t fail_with(void)
{
    errno = seam.fault == WORLD_RESETS ? ECONNRESET : EAGAIN;
    return -1;
}

static ssize_t seam_read(int fd, void *data, size_t len)
{
    bool due = is_due();
    if (due && seam.fault != WORLD_SHORT)
        return fail_with();
    return socket_system.read(fd, data, due ? 1 : len);
}

static ssize_t seam_write(int fd, const void *data, size_t len)
{
    bool due = is_due();
    if (due && seam.fault != WORLD_SHORT)
        return fail_with();
    return socket_system.write(fd, data, due ? 1 : len);
}

/* An aborted handshake, not an error that makes the listener rest for a while of real time. */
static int seam_accept(int fd, struct sockaddr *address, socklen_t *len)
{
    if (!is_due() || seam.fault == WORLD_SHORT)
        return socket_system.accept(fd, address, len);
    errno = seam.fault == WORLD_RESETS ? ECONNABORTED : EAGAIN;
    return -1;
}

static const struct socket_ops seam_ops = {seam_read, seam_write, seam_accept};

void world_fail_socket(uint64_t n, enum world_socket_fault fault)
{
    seam.n = 0;
    seam.fail_at = n;
    seam.fault = fault;
}

uint64_t world_socket_calls(void)
{
    return seam.n;
}

/* ---- life ------------------------------------------------------------------------------------- */

static void set_option(struct config *c, const char *name, const char *value)
{
    struct err err = {""};
    const struct option *option = option_find(config_options, bytes_from(name));
    if (!option || option_set(option, c, bytes_from(value), &err) != 0) {
        fprintf(stderr, "option %s %s: %s\n", name, value, err.text);
        abort();
    }
}

/* A port that was free a moment ago; another program may have it before the server does. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT(fd >= 0 && bind(fd, (struct sockaddr *)&a, len) == 0 &&
           getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    close(fd);
    return ntohs(a.sin_port);
}

/* A conf file that CONFIG REWRITE may write over. */
static char *make_conf(struct world *w)
{
    struct err err = {""};
    snprintf(w->conf, sizeof w->conf, "%s.conf", w->path);
    if (file_replace(w->conf, WORLD_CONF, sizeof WORLD_CONF - 1, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return xstrdup(w->conf);
}

static struct tokenizer *make_tokenizer(void)
{
    static struct bytes texts[N_VOCAB];
    static char singles[256], kinds[N_VOCAB];
    struct err err;
    for (int i = 0; i < 256; i++) {
        singles[i] = (char)i;
        texts[i] = (struct bytes){singles + i, 1};
    }
    memset(kinds, 'n', 256);
    texts[IM_START] = BYTES("<|im_start|>");
    texts[IM_END] = BYTES("<|im_end|>");
    texts[END_OF_TEXT] = BYTES("<|endoftext|>");
    memcpy(kinds + IM_START, "cee", 3);
    struct tokenizer *t = tokenizer_build(
        &(struct tokenizer_spec){
            .n_vocab = N_VOCAB, .texts = texts, .kinds = kinds, .pre = "gpt-2", .bos = -1},
        &err);
    ASSERT(t);
    return t;
}

static struct model *make_model(void)
{
    struct model *m = xcalloc(1, sizeof *m);
    snprintf(m->name, sizeof m->name, "scripted");
    m->n_vocab = N_VOCAB;
    m->n_context = N_CONTEXT;
    m->temperature = -1;
    return m;
}

/* What load.c does with a real model. */
static void take_model(struct world *w)
{
    struct server *s = w->s;
    const struct config *c = &s->config;
    struct err err;
    keyspace_shut_down(s->keys);
    keyspace_free(s->keys);
    s->keys = NULL;
    uint64_t n_blocks = c->kv_cache_size > 0 ? c->kv_cache_size / BLOCK_BYTES : N_BLOCKS;
    w->runner = fake_runner_new((int32_t)n_blocks, BLOCK_SIZE, N_CONTEXT, N_VOCAB,
                                (int32_t)c->max_batch_tokens, (int32_t)c->max_running);
    w->runner->end_id = IM_END;
    w->runner->base.info.block_bytes = BLOCK_BYTES;
    w->runner->base.info.kv_type_name = "scripted";
    if (c->preemption_mode == CONFIG_SWAP)
        fake_runner_host(w->runner, (int32_t)(c->swap_space / BLOCK_BYTES));
    snprintf(w->runner->base.info.description, sizeof w->runner->base.info.description, "scripted");
    s->served = (struct served_model){.model = make_model(),
                                      .tokenizer = make_tokenizer(),
                                      .runner = &w->runner->base,
                                      .chat = chat_find("chatml", &err)};
    s->engine = engine_new(&(struct engine_config){.runner = &w->runner->base,
                                                   .tokenizer = s->served.tokenizer,
                                                   .max_batch_tokens = (int32_t)c->max_batch_tokens,
                                                   .max_chunk = (int32_t)c->max_chunk,
                                                   .max_running = (int32_t)c->max_running,
                                                   .max_queue = (int32_t)c->max_queue,
                                                   .swap = c->preemption_mode == CONFIG_SWAP},
                           &err);
    if (!s->engine) {
        fprintf(stderr, "engine: %s\n", err.text);
        abort();
    }
    server_loaded(s, NULL);
}

/* Jobs that run inside the turn: no thread, no race. */
static void take_jobs(struct world *w)
{
    struct server *s = w->s;
    event_free(s->jobs_event);
    s->jobs_event = NULL;
    jobs_free(s->jobs);
    s->jobs = w->jobs = jobs_new(0);
    w->none = jobs_new(0);
}

static struct server *new_server(struct world *w, const char *const *options, struct err *err)
{
    struct config c;
    config_default(&c);
    c.port = w->port;
    c.file = make_conf(w);
    set_option(&c, "unixsocket", w->path);
    set_option(&c, "bind", "127.0.0.1");
    set_option(&c, "loglevel", "warning");
    set_option(&c, "max-batch-tokens", "64"); /* prompts take several steps */
    set_option(&c, "max-running", "8");
    for (; options && *options; options += 2)
        set_option(&c, options[0], options[1]);
    return server_new(&c, err);
}

void world_open(struct world *w, const char *const *options, bool tcp)
{
    struct err err;
    *w = (struct world){0};
    world_fail_socket(0, WORLD_SOCKETS_WORK);
    mem_fail_at(0, false);
    file_fail_at(0, 0);
    clock_freeze((int64_t)WALL_MS_HIGH * 1000 * 1000, 1000000);
    log_threshold = LOG_WARNING + 1; /* what tests provoke is no news */
    snprintf(w->path, sizeof w->path, "/tmp/kvasir-world-%d", (int)getpid());
    for (int i = 0; !w->s && i < MAX_PORTS; i++) {
        w->port = tcp ? free_port() : 0;
        w->s = new_server(w, options, &err);
    }
    if (!w->s) {
        fprintf(stderr, "server: %s\n", err.text);
        abort();
    }
    w->s->loop->sockets = &seam_ops;
    take_jobs(w);
    take_model(w);
}

void world_close(struct world *w)
{
    world_fail_socket(0, WORLD_SOCKETS_WORK);
    mem_fail_at(0, false);
    world_hold(w, false, false);
    server_stop(w->s, "test");
    for (int i = 0; i < MAX_TURNS && server_step(w->s, false); i++)
        clock_advance_ms(100);
    server_free(w->s);
    jobs_free(w->none);
    (void)unlink(w->conf); /* it may have gone */
    *w = (struct world){0};
}

/* ---- turning the loop ------------------------------------------------------------------------- */

void world_steps(struct world *w, int n)
{
    while (n-- > 0)
        (void)server_step(w->s, false);
}

static bool is_at_rest(const struct world *w)
{
    return keys_n_generating(w->s->keys) == 0 && list_is_empty(&w->s->attend[ATTEND_ASKED]) &&
           list_is_empty(&w->s->attend[ATTEND_WOKEN]) && jobs_pending(w->jobs) == 0 &&
           engine_is_idle(w->s->engine);
}

bool world_rest(struct world *w)
{
    world_steps(w, 3);
    for (int i = 0; i < MAX_TURNS; i++) {
        bool rested = is_at_rest(w);
        world_steps(w, 1); /* the last end may be told only in the turn behind it */
        if (rested && is_at_rest(w))
            return true;
    }
    return false;
}

void world_launch(struct world *w, int n)
{
    int32_t until = w->runner->n_launched + n + (w->runner->plan ? 0 : 1);
    w->runner->hold = n == 0;
    w->runner->hold_at = until; /* a turn of the loop may end two steps */
    for (int i = 0; i < MAX_TURNS && w->runner->n_launched < until; i++) {
        if (keys_n_generating(w->s->keys) == 0)
            break;
        world_steps(w, 1);
    }
    w->runner->hold = true;
    w->runner->hold_at = 0;
}

void world_hold(struct world *w, bool model, bool jobs)
{
    w->runner->hold = model;
    w->s->jobs = jobs ? w->none : w->jobs;
    while (!jobs && jobs_collect(w->none) > 0) /* what was held is done now */
        continue;
}

void world_pass_ms(struct world *w, int64_t ms)
{
    clock_advance_ms(ms);
    event_active(w->s->tick, EV_TIMEOUT, 0);
    world_steps(w, 4);
}

/* ---- what TCP carries ------------------------------------------------------------------------- */

/* What is written to a Unix socket is there when write returns. What TCP carries goes through the
 * kernel's queues, which a busy machine works off when it comes to it: a turn of the loop right
 * behind the write may see nothing, or half. So whoever has said something on TCP waits, in real
 * time, until the kernel says that it is there. */

int world_port(int fd)
{
    struct sockaddr_in a = {0};
    socklen_t len = sizeof a;
    return getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.sin_family == AF_INET
               ? ntohs(a.sin_port)
               : 0;
}

/* The server's side of the connection from this port; NULL: it has none. */
static const struct client *other_side(const struct world *w, int port)
{
    LIST_FOREACH(&w->s->clients, node, next) {
        const struct client *c = LIST_ITEM(node, struct client, node);
        struct sockaddr_in a = {0};
        socklen_t len = sizeof a;
        if (c->conn.fd >= 0 && getpeername(c->conn.fd, (struct sockaddr *)&a, &len) == 0 &&
            a.sin_family == AF_INET && ntohs(a.sin_port) == port)
            return c;
    }
    return NULL;
}

static struct tcp_info info_of(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    (void)getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len); /* of a dead one all is 0 */
    return info;
}

static bool is_under_way(const struct tcp_info *from, const struct tcp_info *to)
{
    return from->tcpi_bytes_sent - from->tcpi_bytes_retrans > to->tcpi_bytes_received;
}

/* Replies of more than a TCP window are not waited for: who asks may not be reading. */
static bool is_settled(const struct client *c, int fd)
{
    struct tcp_info ours = info_of(fd), theirs = info_of(c->conn.fd);
    bool will_be_read = ours.tcpi_notsent_bytes > 0 && c->conn.reading;
    return !will_be_read && !is_under_way(&ours, &theirs) && !is_under_way(&theirs, &ours);
}

static void look_again(struct world *w)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_US * 1000}, NULL);
    world_steps(w, 1);
}

void world_settle(struct world *w, int fd)
{
    const struct client *c;
    int port = world_port(fd);
    for (int us = 0; port != 0 && us < WORLD_PATIENCE_MS * 1000; us += LOOK_US) {
        if ((c = other_side(w, port)) == NULL || is_settled(c, fd))
            return;
        look_again(w);
    }
}

void world_await_end(struct world *w, int port, int ms)
{
    const struct client *c;
    for (int us = 0; port != 0 && us < ms * 1000; us += LOOK_US) {
        c = other_side(w, port);
        if (c == NULL || info_of(c->conn.fd).tcpi_state != TCP_IS_ESTABLISHED)
            return;
        look_again(w);
    }
}

/* ---- clients ---------------------------------------------------------------------------------- */

static int connect_unix(const struct world *w)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", w->path);
    ASSERT(fd >= 0);
    return connect(fd, (struct sockaddr *)&a, sizeof a) == 0 ? fd : (close(fd), -1);
}

static int connect_tcp(const struct world *w)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)w->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    ASSERT(fd >= 0);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* else it says things later */
    return connect(fd, (struct sockaddr *)&a, sizeof a) == 0 ? fd : (close(fd), -1);
}

/* A connection stands for us before the server may accept it. */
static void await_accept(struct world *w, int fd)
{
    for (int us = 0; other_side(w, world_port(fd)) == NULL && us < WORLD_PATIENCE_MS * 1000;
         us += LOOK_US)
        look_again(w);
}

int world_dial(struct world *w, bool tcp)
{
    int fd = tcp ? connect_tcp(w) : connect_unix(w);
    if (fd >= 0)
        ASSERT(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    world_steps(w, 3);
    if (fd >= 0 && tcp)
        await_accept(w, fd);
    return fd;
}

bool world_say(struct world *w, int fd, const char *data, size_t len)
{
    int idle = 0;
    while (len > 0 && idle < 20) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            break;
        idle = n > 0 ? 0 : idle + 1;
        data += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
        world_settle(w, fd);
        world_steps(w, 1);
    }
    world_settle(w, fd);
    world_steps(w, 3);
    world_settle(w, fd); /* the answer */
    return len == 0;
}

bool world_say_line(struct world *w, int fd, const char *line)
{
    struct str text = {0};
    str_printf(&text, "%s\r\n", line);
    bool ok = world_say(w, fd, text.data, text.len);
    str_free(&text);
    return ok;
}

bool world_hear(int fd, struct str *out)
{
    char data[65536];
    for (;;) {
        ssize_t n = read(fd, data, sizeof data);
        if (n <= 0)
            return n < 0 && errno == EAGAIN;
        str_append(out, data, (size_t)n);
    }
}

bool world_ask(struct world *w, int fd, const char *line, struct str *out)
{
    str_clear(out);
    str_append(out, "", 0);
    (void)world_say_line(w, fd, line); /* what became of it is heard */
    return world_hear(fd, out);
}

/* ---- what must be in order -------------------------------------------------------------------- */

const char *world_audit(struct world *w)
{
    static struct err err;
    return engine_audit(w->s->engine, &err) < 0 ? err.text : NULL;
}

size_t world_memory(void)
{
    return mem_bytes(MEM_CLIENT) + mem_bytes(MEM_KEY) + mem_bytes(MEM_OTHER);
}

int world_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    ASSERT(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}
