/* client.c - one client: its connection, protocol state, blocked state and transaction.
 *
 *     bytes ──▶ reader ──▶ command_dispatch ──▶ reply.out ──▶ flush at the end of the turn
 *       │                        │
 *       └─▶ input (parked) ◀─────┘ blocked, or too many unread replies
 *
 * A client that waits for a generation parses nothing: what it sends meanwhile is parked up to
 * client-query-buffer-limit, then its socket is read no further and the kernel holds the sender back.
 * The same happens above 1 MiB of replies that it does not read. Whether it has gone is then asked of
 * the kernel ten times a second (half-closed counts as gone: it starts the orphan clock).
 *
 * Clients are freed in one place, client_serve, at the end of a turn. Everything else marks: dead
 * (now) or closing (when its replies are sent). After an error in the middle of a request there are
 * bytes left that nobody will read; closing at once would make the kernel send a reset that can
 * overtake the error line, so such a client lingers: we send our end, throw away what comes, and
 * close a second later at the latest. Main thread only. */
#include "server/client.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/command.h"
#include "server/memory.h"
#include "server/monitor.h"
#include "server/server.h"
#include "server/stats.h"
#include "server/xread.h"

enum {
    SLICE_US = 100,         /* of commands of one client before others have their turn */
    CLOCK_COMMANDS = 4,     /* commands between looks at the clock: 25 ns each */
    AUTH_UNREAD_MAX = 1024, /* CVE-2025-21605: a client that never authenticates and never reads */
    AUTH_TIME_US = 10 * 1000 * 1000,
    LINGER_US = 1000 * 1000,
};

/* ---- life ------------------------------------------------------------------------------------- */

struct client *client_new(struct server *s, int fd, const struct peer *peer)
{
    struct client *c = xcalloc(1, sizeof *c);
    c->server = s;
    c->peer = *peer;
    c->id = s->next_client_id++;
    c->created_us = c->active_us = clock_now_us();
    c->authenticated = !*s->config.requirepass;
    list_init(&c->attend_node);
    list_init(&c->monitor_node);
    gen_waiter_init(&c->waiter);
    list_init(&c->reader_wait.ready_node);
    conn_open(&c->conn, s->loop, fd, c);
    c->reply = (struct reply){.out = &c->conn.out, .protocol = 2};
    list_push_back(&s->clients, &c->node);
    s->n_clients++;
    memory_count_client(c);
    return c;
}

/* The generation loses a waiter here: its orphan clock may start. */
void client_leave_waits(struct client *c)
{
    if (gen_waiter_is_waiting(&c->waiter))
        gen_waiter_leave(&c->waiter);
    if (reader_is_waiting(&c->reader_wait))
        reader_leave(&c->reader_wait);
    xread_free(c->xread);
    c->xread = NULL;
    c->blocked = BLOCK_NONE;
}

static void client_free(struct client *c)
{
    client_leave_waits(c);
    pubsub_leave(c);
    monitor_leave(c);
    guard_clear(&c->guard);
    client_discard_multi(c);
    if (c->server->tick_at == &c->node)
        c->server->tick_at = c->node.next != &c->server->clients ? c->node.next : NULL;
    list_remove(&c->node);
    list_remove(&c->attend_node);
    c->server->n_clients--;
    memory_forget_client(c);
    conn_close(&c->conn);
    resp_free(&c->reader);
    try_free(MEM_CLIENT, c->input);
    str_free(&c->reply.behind);
    xfree(c->name);
    xfree(c->lib_name);
    xfree(c->lib_version);
    xfree(c);
}

static void attend(struct client *c, enum client_attend as)
{
    if (list_is_empty(&c->attend_node))
        list_push_back(&c->server->attend[as], &c->attend_node);
}

void client_attend(struct client *c)
{
    attend(c, ATTEND_ASKED);
}

void client_close_soon(struct client *c, bool linger)
{
    c->closing = true;
    c->linger |= linger;
    client_attend(c);
}

/* It is gone from now on: an answer that comes before the end of the turn was not heard by it. */
void client_drop(struct client *c)
{
    client_leave_waits(c);
    c->dead = true;
    client_attend(c);
}

void client_discard_multi(struct client *c)
{
    if (!c->multi)
        return;
    for (int i = 0; i < c->multi->n; i++)
        request_free(&c->multi->queue[i]);
    try_free(MEM_CLIENT, c->multi->queue);
    xfree(c->multi);
    c->multi = NULL;
}

void client_reset(struct client *c)
{
    client_discard_multi(c);
    guard_clear(&c->guard);
    pubsub_leave(c);
    monitor_leave(c);
    c->reply_off = c->mute = c->mute_next = c->no_evict = c->no_touch = false;
    c->reply.protocol = 2;
    c->db = 0;
    c->authenticated = !*c->server->config.requirepass;
    xfree(c->name);
    c->name = NULL;
}

/* ---- input ------------------------------------------------------------------------------------ */

struct resp_limits client_limits(const struct client *c)
{
    return (struct resp_limits){.authenticated = c->authenticated,
                                .max_bulk_bytes = c->server->config.proto_max_bulk_len,
                                .max_query_bytes = c->server->config.client_query_buffer_limit};
}

static bool may_parse(const struct client *c)
{
    return c->blocked == BLOCK_NONE && !c->closing && !c->dead &&
           conn_unsent(&c->conn) <= CLIENT_UNREAD_MAX;
}

static void refuse_protocol(struct client *c, const struct err *err)
{
    log_info(LOG_NET, "client id=%llu addr=%s: %s", (unsigned long long)c->id, c->peer.address,
             err->text);
    c->server->stats.protocol_errors++;
    reply_begin(&c->reply);
    reply_error(&c->reply, "ERR %s", err->text);
    reply_end(&c->reply);
    client_close_soon(c, true);
}

/* Before AUTH replies are small and read at once, or the client has to go. */
static void bound_unread_before_auth(struct client *c)
{
    if (c->authenticated || conn_unsent(&c->conn) <= AUTH_UNREAD_MAX)
        return;
    conn_flush(&c->conn);
    if (conn_unsent(&c->conn) > AUTH_UNREAD_MAX) {
        log_info(LOG_NET, "client id=%llu addr=%s: closed, over %d bytes unread before AUTH",
                 (unsigned long long)c->id, c->peer.address, AUTH_UNREAD_MAX);
        client_drop(c);
    }
}

/* Runs requests out of data until there is none, the client may not go on, or its time is up. The
 * number of bytes used. */
static size_t run_requests(struct client *c, const char *data, size_t len)
{
    size_t at = 0;
    int64_t start_us = clock_mono_us();
    for (int n = 1; at < len && may_parse(c); n++) {
        struct resp_limits limits = client_limits(c);
        struct err err;
        size_t used;
        enum resp_status s = resp_read(&c->reader, &limits, data + at, len - at, &used, &err);
        at += used;
        if (s == RESP_BROKEN)
            refuse_protocol(c, &err);
        else if (s == RESP_READY)
            command_dispatch(c, &c->reader.request);
        bound_unread_before_auth(c);
        if (n % CLOCK_COMMANDS == 0 && clock_mono_us() - start_us > SLICE_US)
            break;
    }
    return at;
}

static void input_free(struct client *c)
{
    try_free(MEM_CLIENT, c->input);
    c->input = NULL;
    c->input_at = c->input_len = c->input_cap = 0;
}

static size_t input_limit(const struct client *c)
{
    return c->authenticated ? c->server->config.client_query_buffer_limit : RESP_AUTH_QUERY;
}

/* Makes room for len more bytes behind what is parked. */
static bool input_room(struct client *c, size_t len)
{
    if (c->input_at + c->input_len + len <= c->input_cap)
        return true;
    if (c->input_at > 0) {
        memmove(c->input, c->input + c->input_at, c->input_len);
        c->input_at = 0;
    }
    size_t cap = c->input_cap ? c->input_cap : 1024;
    while (cap < c->input_len + len)
        cap *= 2;
    char *input = try_realloc(MEM_CLIENT, c->input, cap);
    if (!input)
        return false;
    c->input = input;
    c->input_cap = cap;
    return true;
}

/* Keeps what cannot be parsed yet. At the limit the socket is read no further. */
static void park(struct client *c, const char *data, size_t len)
{
    if (!input_room(c, len)) {
        log_warning(LOG_NET, "client id=%llu: closed, no memory for %zu more bytes of input",
                    (unsigned long long)c->id, len);
        client_drop(c);
        return;
    }
    memcpy(c->input + c->input_at + c->input_len, data, len);
    c->input_len += len;
    if (c->input_len >= input_limit(c))
        conn_read_set(&c->conn, false);
}

/* The rest of a slice stays where it is: what is parked may be 64 MiB, a slice is a few KiB. */
static void unpark(struct client *c)
{
    if (c->input_len == 0 || !may_parse(c))
        return;
    size_t used = run_requests(c, c->input + c->input_at, c->input_len);
    c->input_at += used;
    c->input_len -= used;
    if (c->input_len == 0)
        input_free(c);
    if (c->input_len < input_limit(c))
        conn_read_set(&c->conn, true);
}

static void on_data(void *owner, const char *data, size_t len)
{
    struct client *c = owner;
    c->active_us = clock_now_us();
    c->server->stats.bytes_in += len;
    client_attend(c);
    if (c->closing || c->dead)
        return; /* lingering: thrown away */
    size_t used = c->input_len == 0 ? run_requests(c, data, len) : 0;
    if (used < len && !c->closing && !c->dead)
        park(c, data + used, len - used);
}

static void on_ended(void *owner)
{
    struct client *c = owner;
    /* a waiting client is gone, also when only half-closed; otherwise parked commands run first */
    if (c->conn.failed || c->blocked != BLOCK_NONE || c->linger)
        client_drop(c);
    else if (c->input_len == 0)
        client_close_soon(c, false);
    else
        client_attend(c);
}

static void on_drained(void *owner)
{
    client_attend(owner);
}

const struct conn_events client_conn_events = {on_data, on_ended, on_drained};

/* ---- the end of a turn ------------------------------------------------------------------------ */

static void start_linger(struct client *c)
{
    c->linger_us = clock_now_us() + LINGER_US;
    (void)shutdown(c->conn.fd, SHUT_WR); /* an error means that it is closed already: also good */
    conn_read_set(&c->conn, true);
}

static bool should_free(struct client *c)
{
    if (c->dead || c->conn.failed)
        return true;
    if (!c->closing || conn_unsent(&c->conn) > 0)
        return false;
    if (!c->linger || c->conn.ended)
        return true;
    if (c->linger_us == 0)
        start_linger(c);
    return false;
}

static void flush(struct client *c)
{
    size_t unsent = conn_unsent(&c->conn);
    conn_flush(&c->conn);
    c->server->stats.bytes_out += unsent - conn_unsent(&c->conn);
}

/* The request that was held back; it is judged anew, since another pause may have begun. */
static void end_pause(struct client *c)
{
    if (c->blocked != BLOCK_PAUSE || c->dead || c->server->pause != PAUSE_NONE)
        return;
    c->blocked = BLOCK_NONE;
    command_dispatch(c, &c->reader.request);
}

bool client_serve(struct client *c)
{
    end_pause(c);
    unpark(c);
    if (c->conn.ended && c->input_len == 0 && c->blocked == BLOCK_NONE)
        c->closing = true;
    if (c->conn.ended && c->blocked != BLOCK_NONE)
        c->dead = true;
    flush(c);
    if (should_free(c)) {
        client_free(c);
        return false;
    }
    if (c->blocked != BLOCK_PAUSE)
        resp_rest(&c->reader);
    memory_count_client(c);
    bool more = c->input_len > 0 && may_parse(c);
    if (more)
        client_attend(c);
    return more;
}

/* Subscribed, or a monitor: it may be silent for ever, and has its own limits of unread bytes. */
static bool listens(const struct client *c)
{
    return c->is_monitor || pubsub_count(c) > 0;
}

/* Many messages come in one turn, and who reads fast must not be dropped for that: the limit holds
 * for what the kernel does not take. */
void client_push(struct client *c, struct bytes message)
{
    struct reply *r = &c->reply;
    uint64_t limit = c->server->pubsub_limit.hard_bytes;
    str_append(r->is_open ? &r->behind : r->out, message.data, message.len);
    attend(c, ATTEND_WOKEN);
    if (limit == 0 || conn_unsent(&c->conn) + r->behind.len <= limit)
        return;
    if (!r->is_open)
        flush(c);
    if (conn_unsent(&c->conn) + r->behind.len <= limit)
        return;
    log_notice(LOG_NET, "client id=%llu addr=%s: closed, over %llu bytes of messages unread",
               (unsigned long long)c->id, c->peer.address, (unsigned long long)limit);
    c->server->stats.evicted_clients++;
    client_drop(c);
}

void client_answer_begin(struct client *c)
{
    reply_begin(&c->reply);
}

bool client_is_muted(const struct client *c)
{
    return c->reply_off || c->mute;
}

void client_finish_reply(struct client *c)
{
    if (client_is_muted(c))
        c->reply.out->len = c->reply.mark;
    reply_follow(&c->reply);
}

void client_answer_end(struct client *c)
{
    struct reply *r = &c->reply;
    reply_end(r);
    struct bytes answer = {r->out->data + r->mark, r->out->len - r->mark};
    if (answer.len > 0 && answer.data[0] == '-') {
        stats_count_error(c->server->counts, answer);
        stats_count_failed(c->server->counts, c->last_command);
    }
    client_finish_reply(c);
    attend(c, ATTEND_WOKEN);
}

void client_unblock(struct client *c)
{
    c->blocked = BLOCK_NONE;
    c->active_us = clock_now_us(); /* waiting was not idling */
    attend(c, ATTEND_WOKEN);
}

/* ---- time limits ------------------------------------------------------------------------------ */

/* Tells why where the peer reads, then closes. */
static void time_over(struct client *c, const char *why)
{
    log_info(LOG_NET, "client id=%llu addr=%s: closed, %s", (unsigned long long)c->id,
             c->peer.address, why);
    reply_begin(&c->reply);
    reply_error(&c->reply, "ERR closing: %s", why);
    reply_end(&c->reply);
    client_close_soon(c, true);
}

/* Who does not read for too long is closed; the generation and its entries stay. */
static void check_output(struct client *c, int64_t now_us)
{
    struct config_output_limit limit =
        listens(c) ? c->server->pubsub_limit : c->server->output_limit;
    bool over = limit.soft_bytes > 0 && conn_unsent(&c->conn) > limit.soft_bytes;
    if (!over)
        c->soft_since_us = 0;
    else if (c->soft_since_us == 0)
        c->soft_since_us = now_us;
    else if (now_us - c->soft_since_us > limit.soft_s * 1000000) {
        log_notice(LOG_NET, "client id=%llu addr=%s: closed, %zu bytes unread for %lld s",
                   (unsigned long long)c->id, c->peer.address, conn_unsent(&c->conn),
                   (long long)limit.soft_s);
        c->server->stats.evicted_clients++;
        client_drop(c);
    }
}

void client_check_time(struct client *c, int64_t now_us)
{
    const struct config *config = &c->server->config;
    check_output(c, now_us);
    if (c->closing) {
        /* a peer that neither reads its last reply nor closes has no claim on us */
        int64_t until = c->linger_us ? c->linger_us : c->active_us + 10 * LINGER_US;
        if (now_us > until)
            client_drop(c);
        return;
    }
    if (!c->conn.reading && conn_peer_is_gone(&c->conn) && c->blocked != BLOCK_NONE)
        client_drop(c);
    else if (!c->authenticated && c->blocked != BLOCK_PAUSE && /* its AUTH may be held back */
             now_us - c->created_us > AUTH_TIME_US)
        time_over(c, "no AUTH within 10 s");
    else if (config->timeout_s > 0 && c->blocked == BLOCK_NONE && !listens(c) &&
             now_us - c->active_us > config->timeout_s * 1000000)
        time_over(c, "idle for longer than timeout");
}

/* ---- what CLIENT LIST shows ------------------------------------------------------------------- */

size_t client_bytes(const struct client *c)
{
    return sizeof *c + c->conn.out.cap + c->input_cap + resp_bytes(&c->reader) +
           c->subscriptions.bytes + c->guard.bytes + c->reply.behind.cap +
           (c->multi ? c->multi->bytes : 0);
}

static void flags_append(const struct client *c, struct str *out)
{
    size_t before = out->len;
    if (c->blocked != BLOCK_NONE)
        str_append_char(out, 'b');
    if (c->multi)
        str_append_char(out, 'x');
    if (pubsub_count(c) > 0)
        str_append_char(out, 'P');
    if (c->is_monitor)
        str_append_char(out, 'O');
    if (c->guard.is_spoiled)
        str_append_char(out, 'd');
    if (c->closing)
        str_append_char(out, 'c');
    if (c->peer.is_unix)
        str_append_char(out, 'U');
    if (c->no_evict)
        str_append_char(out, 'e');
    if (c->no_touch)
        str_append_char(out, 'T');
    if (out->len == before)
        str_append_char(out, 'N');
}

/* Redis' fields in Redis' order: clients look for each by its name, redis-py fails without one. */
void client_describe(const struct client *c, struct str *out)
{
    int64_t now = clock_now_us();
    str_printf(out, "id=%llu addr=%s laddr=%s fd=%d name=%s age=%lld idle=%lld flags=",
               (unsigned long long)c->id, c->peer.address, c->peer.local, c->conn.fd,
               c->name ? c->name : "", (long long)((now - c->created_us) / 1000000),
               (long long)((now - c->active_us) / 1000000));
    flags_append(c, out);
    str_printf(out,
               " db=%d sub=%lld psub=%lld ssub=0 multi=%d qbuf=%zu qbuf-free=%zu argv-mem=%zu "
               "multi-mem=%zu rbs=0 rbp=0",
               c->db, (long long)pubsub_count_of(c, PUBSUB_CHANNEL),
               (long long)pubsub_count_of(c, PUBSUB_PATTERN), c->multi ? c->multi->n : -1,
               c->input_len, c->input_cap - c->input_at - c->input_len, resp_bytes(&c->reader),
               c->multi ? c->multi->bytes : 0);
    str_printf(out, " obl=0 oll=0 omem=%zu tot-mem=%zu events=%s cmd=", c->conn.out.cap,
               client_bytes(c),
               conn_unsent(&c->conn) ? "rw"
               : c->conn.reading     ? "r"
                                     : "");
    if (c->last_command)
        command_full_name(c->last_command, out);
    else
        str_append_str(out, "NULL");
    str_printf(out, " user=%s redir=-1 resp=%d lib-name=%s lib-ver=%s",
               c->authenticated ? "default" : "(not authenticated)", c->reply.protocol,
               c->lib_name ? c->lib_name : "", c->lib_version ? c->lib_version : "");
}
