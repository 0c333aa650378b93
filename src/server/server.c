/* server.c - the whole server: its loop, its beginning and its orderly end.
 *
 * One thread, one loop. libevent says what is readable, due or signalled; what follows from that is
 * done in one place, the turn, in the order that keeps the devices busy:
 *
 *     events ─▶ jobs that are done ─▶ engine: results, next step launched, answers made
 *            ─▶ keys: timers, readers that are ready ─▶ clients: flush, parked commands, close
 *            ─▶ engine again: what these commands submitted ─▶ sleep until the next event
 *
 * So replies go out behind the launch of the next step, a GEN that arrives is planned in the same
 * turn, and no event handler ever frees a client. Events, readers and clients have 0.15 milliseconds
 * each; what is left comes first in the next round, after the engine: with a thousand readers of one
 * key the device does not wait for all of them to be served. Nor does a PING: who asked and who was
 * woken are served in turn. The loop sleeps only when nobody has work left; the alarm is set to
 * whatever is due first.
 *
 * The end: sockets closed, generations ended with `cancelled`, every waiting client answered; what
 * clients have sent by then is still read and answered; then the process ends, at the latest after
 * shutdown-timeout. */
#include "server/server.h"

#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"
#include "server/command.h"
#include "server/memory.h"
#include "server/notify.h"
#include "server/stats.h"

enum {
    TICK_MS = 100,        /* time limits of clients are checked so often */
    TICK_CLIENTS = 1000,  /* so many of them; about 0.1 ms */
    JOB_THREADS = 2,      /* one may be loading or tokenising a long prompt for seconds */
    SPARE_FILES = 64,     /* beside clients: log, model, sockets, wake-ups */
    STALL_TOLD_US = 2000, /* of CPU: twice what nothing may take */
    CLIENTS_US = 150,     /* of flushing a turn: with events, readers and planning under 1 ms */
};

static const char denied[] =
    "DENIED Kvasir is running in protected mode because protected mode is enabled and no password "
    "is set. In this mode connections are only accepted from the loopback interface. To connect "
    "from other hosts, set a password (requirepass), or turn protected mode off (CONFIG SET "
    "protected-mode no from this host, or the option at start) if the network is trusted.";

/* ---- clients come ----------------------------------------------------------------------------- */

static void refuse_fd(struct server *s, int fd, const char *line)
{
    s->stats.rejected_connections++;
    (void)!socket_system.write(fd, line, strlen(line)); /* it has no claim on more than a try */
    (void)close(fd);
}

static void on_accepted(void *owner, int fd, const struct peer *peer)
{
    struct server *s = owner;
    s->stats.connections++;
    if (s->n_clients >= s->config.maxclients) {
        refuse_fd(s, fd, "-ERR max number of clients reached\r\n");
        return;
    }
    if (!peer->is_unix)
        socket_set_options(fd, s->config.tcp_keepalive_s);
    struct client *c = client_new(s, fd, peer);
    if (s->config.protected_mode && !*s->config.requirepass && !peer->is_loopback) {
        s->stats.rejected_connections++;
        reply_begin(&c->reply);
        reply_error(&c->reply, "%s", denied);
        reply_end(&c->reply);
        client_close_soon(c, true);
    }
}

/* Files for maxclients and ourselves, or fewer clients. */
static void fit_open_files(struct server *s)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)s->config.maxclients + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need)
        return;
    struct rlimit more = limit;
    more.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
    if (setrlimit(RLIMIT_NOFILE, &more) != 0)
        more = limit;
    if (more.rlim_cur >= need)
        return;
    int64_t fit = (int64_t)more.rlim_cur - SPARE_FILES;
    s->config.maxclients = fit > 1 ? fit : 1;
    log_warning(LOG_SERVER, "maxclients lowered to %lld: only %llu files may be open (ulimit -n)",
                (long long)s->config.maxclients, (unsigned long long)more.rlim_cur);
}

/* ---- events ----------------------------------------------------------------------------------- */

/* Wake-ups say only that there is something to do; the turn finds out what. */
static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    conn_loop_enter(s->loop);
}

/* With ten thousand clients each has its turn once a second. */
static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    conn_loop_enter(s->loop);
    uint64_t totals[N_RATES] = {[RATE_COMMANDS] = s->stats.commands,
                                [RATE_BYTES_IN] = s->stats.bytes_in,
                                [RATE_BYTES_OUT] = s->stats.bytes_out};
    stats_sample(s->counts, clock_now_us(), totals);
    if (s->pause != PAUSE_NONE && clock_now_us() >= s->pause_until_us)
        server_pause_end(s);
    struct list *node = s->tick_at ? s->tick_at : s->clients.next;
    for (int n = 0; node != &s->clients && n < TICK_CLIENTS; n++) {
        struct list *next = node->next; /* nobody is freed from inside */
        client_check_time(LIST_ITEM(node, struct client, node), clock_now_us());
        node = next;
    }
    s->tick_at = node == &s->clients ? NULL : node;
}

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    server_stop(arg, number == SIGTERM ? "SIGTERM" : "SIGINT");
}

static struct event *watch(struct server *s, int fd, short what, event_callback_fn call)
{
    struct event *e = event_new(s->base, fd, what, call, s);
    ASSERT(e && event_add(e, NULL) == 0);
    return e;
}

static void watch_all(struct server *s)
{
    struct timeval tick = {0, TICK_MS * 1000};
    s->jobs_event = watch(s, jobs_fd(s->jobs), EV_READ | EV_PERSIST, on_wake);
    s->signals[0] = watch(s, SIGTERM, EV_SIGNAL | EV_PERSIST, on_signal);
    s->signals[1] = watch(s, SIGINT, EV_SIGNAL | EV_PERSIST, on_signal);
    s->alarm = evtimer_new(s->base, on_wake, s);
    s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    ASSERT(s->alarm && s->tick && event_add(s->tick, &tick) == 0);
}

/* ---- beginning -------------------------------------------------------------------------------- */

static void make_run_id(char out[41])
{
    for (int i = 0; i < 40; i += 8)
        snprintf(out + i, 9, "%08x", (unsigned)rng_entropy());
}

static int open_listeners(struct server *s, struct err *err)
{
    struct listen_config config = {.bind = s->config.bind,
                                   .port = (int)s->config.port,
                                   .backlog = (int)s->config.tcp_backlog,
                                   .unix_path = s->config.unixsocket,
                                   .unix_permission = s->config.unixsocketperm};
    s->listeners = listeners_open(s->loop, &config, on_accepted, s, err);
    if (!s->listeners)
        return -1;
    log_notice(LOG_NET, "listening on port %lld of %s%s%s", (long long)s->config.port,
               s->config.port ? s->config.bind : "nothing", *s->config.unixsocket ? " and on " : "",
               s->config.unixsocket);
    return 0;
}

/* What is looked at so often that it is not read from its text each time. */
static void read_config(struct server *s)
{
    s->output_limit = config_output_limit(&s->config, CONFIG_NORMAL);
    s->pubsub_limit = config_output_limit(&s->config, CONFIG_PUBSUB);
    bool ok = notify_parse(bytes_from(s->config.notify_keyspace_events), &s->notify_flags);
    ASSERT(ok);
}

struct server *server_new(const struct config *config, struct err *err)
{
    struct server *s = xcalloc(1, sizeof *s);
    s->config = *config;
    read_config(s);
    s->started_us = clock_mono_us();
    s->started_unix_s = clock_wall_ms() / 1000;
    s->next_client_id = 1;
    make_run_id(s->run_id);
    list_init(&s->clients);
    list_init(&s->monitors);
    for (int i = 0; i < N_ATTEND; i++)
        list_init(&s->attend[i]);
    s->commands = commands_new();
    s->pubsub = pubsub_new();
    slowlog_init(&s->slowlog);
    s->counts = stats_new();
    s->base = event_base_new();
    ASSERT(s->base);
    s->loop = xcalloc(1, sizeof *s->loop);
    s->loop->base = s->base;
    s->loop->sockets = &socket_system;
    s->loop->events = &client_conn_events;
    s->jobs = jobs_new(JOB_THREADS);
    fit_open_files(s);
    watch_all(s);
    if (open_listeners(s, err) < 0) {
        server_free(s);
        return NULL;
    }
    if (*s->config.model)
        load_start(s);
    else
        server_loaded(s, NULL);
    return s;
}

static struct keyspace_config keys_config(const struct server *s)
{
    const struct config *c = &s->config;
    const struct served_model *m = &s->served;
    struct keyspace_config k = keyspace_config_default();
    k.databases = (int32_t)c->databases;
    k.default_max_tokens = c->default_max_tokens;
    k.orphan_timeout_ms = c->orphan_timeout_ms;
    k.piece_interval_ms = c->piece_interval_ms;
    k.share_prefixes = c->share_prefixes;
    k.key_event = notify_key_event;
    k.key_event_owner = (void *)(uintptr_t)s; /* it is not ours alone to change */
    if (!s->engine)
        return k;
    k.engine = s->engine;
    k.jobs = s->jobs;
    k.tokenizer = m->tokenizer;
    k.chat = m->chat;
    k.chat_error = m->chat_error;
    k.model_digest = m->runner->info.model_digest;
    k.kv_type = m->runner->info.kv_type;
    k.n_context = m->runner->info.n_context;
    if (m->model->temperature >= 0)
        k.default_temperature = m->model->temperature;
    return k;
}

void server_loaded(struct server *s, const struct err *failure)
{
    if (failure) {
        log_warning(LOG_SERVER, "loading failed: %s", failure->text);
        s->exit_status = 1;
        s->state = SERVER_STOPPED;
        return;
    }
    struct keyspace_config k = keys_config(s);
    s->keys = keyspace_new(&k);
    if (s->engine && s->served.runner->fd >= 0)
        s->runner_event = watch(s, s->served.runner->fd, EV_READ | EV_PERSIST, on_wake);
    if (s->state != SERVER_LOADING)
        return; /* asked to stop meanwhile */
    s->state = SERVER_READY;
    s->looked_us = 0; /* what loading took is no stall */
    if (!s->engine)
        log_notice(LOG_SERVER, "no model (--model FILE.gguf): keys work, GEN is an error");
    log_notice(LOG_SERVER, "Ready to accept connections");
}

void server_config_changed(struct server *s)
{
    fit_open_files(s);
    read_config(s);
    slowlog_trim(&s->slowlog, s->config.slowlog_max_len);
    log_threshold = (enum log_level)s->config.loglevel;
    if (!s->keys)
        return;
    struct keyspace_config *k = keyspace_options(s->keys);
    k->default_max_tokens = s->config.default_max_tokens;
    k->orphan_timeout_ms = s->config.orphan_timeout_ms;
    k->piece_interval_ms = s->config.piece_interval_ms;
    k->share_prefixes = s->config.share_prefixes;
}

int64_t server_uptime_s(const struct server *s)
{
    return (clock_mono_us() - s->started_us) / 1000000;
}

/* ---- the turn --------------------------------------------------------------------------------- */

static void tell_stall(const struct server *s, int64_t cpu_us)
{
    struct str text = {0};
    stall_print(&s->stall, cpu_us, &text);
    log_notice(LOG_SERVER, "the main thread was away from the engine for %s", text.data);
    str_free(&text);
}

/* The main thread looks at the engine: how long has it been away? */
static void look(struct server *s)
{
    int64_t now_us = clock_mono_us(), cpu_us = clock_cpu_us(), busy_us = cpu_us - s->looked_cpu_us;
    int64_t since_us = s->loop->awake_us > s->looked_us ? s->loop->awake_us : s->looked_us;
    bool counts = s->looked_us > 0 && s->state == SERVER_READY; /* not the start, nor loading */
    if (counts && now_us - since_us > s->stats.max_stall_us)
        s->stats.max_stall_us = now_us - since_us;
    if (counts && busy_us > s->stats.max_stall_cpu_us) {
        s->stats.max_stall_cpu_us = busy_us;
        if (busy_us >= STALL_TOLD_US)
            tell_stall(s, busy_us);
    }
    s->looked_us = now_us;
    s->looked_cpu_us = cpu_us;
    s->loop->awake_us = 0;
    stall_begin(&s->stall, now_us);
}

static void spent(struct server *s, enum stall_phase phase)
{
    stall_spent(&s->stall, phase, clock_mono_us());
}

static bool nobody_waits(const struct list lists[N_ATTEND])
{
    for (int i = 0; i < N_ATTEND; i++)
        if (!list_is_empty(&lists[i]))
            return false;
    return true;
}

/* Each once, one of each list in turn, for a slice of time; who has had no turn comes first in the
 * next. True when somebody has more to do at once. */
static bool serve_clients(struct server *s)
{
    struct list now[N_ATTEND];
    bool more = false;
    int64_t until_us = clock_mono_us() + CLIENTS_US;
    for (int i = 0; i < N_ATTEND; i++) {
        list_init(&now[i]);
        list_splice(&now[i], &s->attend[i]);
    }
    while (!nobody_waits(now)) {
        struct list *node = now[s->attend_next].next;
        bool is_served = node != &now[s->attend_next];
        s->attend_next = (s->attend_next + 1) % N_ATTEND;
        if (!is_served)
            continue;
        list_remove(node);
        more |= client_serve(LIST_ITEM(node, struct client, attend_node));
        if (clock_mono_us() >= until_us)
            break;
    }
    if (nobody_waits(now))
        s->attend_next = ATTEND_ASKED;
    else
        more = true;
    for (int i = 0; i < N_ATTEND; i++)
        list_splice(&s->attend[i], &now[i]);
    return more;
}

/* True when there is more to do without waiting. */
static bool turn(struct server *s)
{
    bool more = false;
    clock_tick();
    stall_wake(&s->stall, s->loop->awake_us);
    spent(s, STALL_EVENTS);
    if (jobs_pending(s->jobs) > 0)
        (void)jobs_collect(s->jobs);
    if (s->state == SERVER_STOPPED)
        return false;
    spent(s, STALL_JOBS);
    look(s);
    if (s->engine)
        (void)engine_turn(s->engine);
    spent(s, STALL_ENGINE);
    if (s->keys)
        more |= keyspace_turn(s->keys);
    spent(s, STALL_KEYS);
    more |= memory_turn(s);
    spent(s, STALL_EVICTION);
    more |= serve_clients(s);
    spent(s, STALL_CLIENTS);
    look(s);
    if (s->engine) {
        (void)engine_turn(s->engine);
        more |= engine_has_to_tell(s->engine);
        more |= s->served.runner->fd < 0 && !engine_is_idle(s->engine);
    }
    return more || !nobody_waits(s->attend);
}

/* Sets the alarm to what is due first; false when that is now. */
static bool set_alarm(struct server *s)
{
    int64_t due = s->keys ? keyspace_next_us(s->keys) : INT64_MAX;
    int64_t deadline = s->engine ? engine_next_deadline_us(s->engine) : 0;
    if (deadline != 0 && deadline < due)
        due = deadline;
    if (due == INT64_MAX)
        return event_del(s->alarm) == 0;
    int64_t wait_us = due - clock_mono_us();
    if (wait_us <= 0)
        return false;
    struct timeval wait = {wait_us / 1000000, wait_us % 1000000};
    return event_add(s->alarm, &wait) == 0;
}

/* ---- the end ---------------------------------------------------------------------------------- */

/* Readers of keys that do not generate: nothing will come any more. */
static void end_reads(struct server *s)
{
    LIST_FOREACH(&s->clients, node, next) {
        struct client *c = LIST_ITEM(node, struct client, node);
        if (c->blocked == BLOCK_READ && reader_is_waiting(&c->reader_wait) &&
            list_is_empty(&c->reader_wait.ready_node)) {
            reader_leave(&c->reader_wait);
            c->reader_wait.timeout(&c->reader_wait);
        }
    }
}

void server_stop(struct server *s, const char *why)
{
    int64_t now = clock_mono_us();
    if (s->state >= SERVER_STOPPING) {
        log_notice(LOG_SERVER, "%s again: leaving without waiting", why);
        s->stop_by_us = now;
        return;
    }
    log_notice(LOG_SERVER, "%s: ending generations and answering %lld clients", why,
               (long long)s->n_clients);
    s->state = SERVER_STOPPING;
    s->stop_by_us = now + s->config.shutdown_timeout_s * 1000000;
    s->stop_turns = 0;
    server_pause_end(s);
    listeners_stop(s->listeners);
    if (s->keys) {
        keyspace_shut_down(s->keys);
        end_reads(s);
    }
}

/* Clients with nothing under way are closed, from the second turn on: in the first one what had
 * arrived is read and answered. True when everybody has left or the time is over. */
static bool stop_is_done(struct server *s)
{
    if (s->stop_turns++ == 0)
        return false;
    LIST_FOREACH(&s->clients, node, next) {
        struct client *c = LIST_ITEM(node, struct client, node);
        if (c->blocked == BLOCK_NONE && c->input_len == 0)
            client_close_soon(c, false);
    }
    return s->n_clients == 0 || clock_mono_us() >= s->stop_by_us;
}

bool server_step(struct server *s, bool wait)
{
    bool busy = turn(s);
    if (s->state == SERVER_STOPPING) {
        if (stop_is_done(s))
            return false;
        busy |= s->stop_turns == 1;
    }
    if (s->state == SERVER_STOPPED)
        return false;
    busy |= !set_alarm(s);
    busy |= !nobody_waits(s->attend);
    spent(s, STALL_ENGINE);
    look(s);
    (void)event_base_loop(s->base, EVLOOP_ONCE | (busy || !wait ? EVLOOP_NONBLOCK : 0));
    return true;
}

int server_run(struct server *s)
{
    thread_ask_to_go_first(); /* compute threads exist already, or come from others: not theirs */
    while (server_step(s, true))
        continue;
    if (s->n_clients > 0 && s->state == SERVER_STOPPING)
        log_warning(LOG_SERVER, "leaving %lld clients behind after shutdown-timeout",
                    (long long)s->n_clients);
    log_notice(LOG_SERVER, "bye");
    return s->exit_status;
}

static void event_drop(struct event *e)
{
    if (e)
        event_free(e);
}

void server_free(struct server *s)
{
    if (!s)
        return;
    jobs_free(s->jobs); /* their ends still reach clients and keys */
    LIST_FOREACH(&s->clients, node, next) {
        struct client *c = LIST_ITEM(node, struct client, node);
        client_drop(c);
        (void)client_serve(c);
    }
    if (s->keys && s->state < SERVER_STOPPING)
        keyspace_shut_down(s->keys);
    keyspace_free(s->keys);
    struct event *events[] = {s->alarm,        s->tick,       s->jobs_event,
                              s->runner_event, s->signals[0], s->signals[1]};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        event_drop(events[i]);
    if (s->served.runner) {
        s->served.runner->close(s->served.runner); /* before the engine: a step may run */
        s->served.runner = NULL;
    }
    engine_free(s->engine);
    load_free(&s->served);
    listeners_free(s->listeners);
    table_free(s->commands, NULL);
    pubsub_free(s->pubsub);
    slowlog_reset(&s->slowlog);
    stats_free(s->counts);
    xfree(s->loop);
    event_base_free(s->base);
    config_free(&s->config);
    xfree(s);
}
