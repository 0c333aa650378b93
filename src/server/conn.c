/* conn.c - one connected socket: bytes in, bytes out; nothing of what they mean.
 *
 * All connections of a loop read into one shared buffer and hand it on at once, and an output buffer
 * goes when it is empty: an idle connection costs its struct and two events, not two buffers. Each
 * readable event does one read, so that a fast sender takes turns with everybody else.
 *
 * A thousand clients may become readable at once, each with a command: the loop then breaks off after
 * 0.15 milliseconds, so that the device gets its next step and answers go out, and goes on with the
 * others in its next round.
 *
 * A conn is never closed from inside its own events. Write errors are remembered (`failed`), the
 * owner looks at them between events; so waking one client can never free another under the hands of
 * whoever walks a list (CVE-2026-23479). Main thread only.
 *
 * Own buffers rather than libevent's bufferevents: these keep 4 KiB a side while idle, and stop
 * reading at a watermark without telling when the peer has gone. */
#include "server/conn.h"

#include <errno.h>
#include <event2/event.h>
#include <poll.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"

enum {
    KEEP_OUT = 512, /* bytes of room an idle connection keeps for its next reply */
    ROUND_US = 150, /* of events: with all else of a turn under 1 ms */
};

static ssize_t system_read(int fd, void *data, size_t len)
{
    return read(fd, data, len);
}

/* MSG_NOSIGNAL: a peer that went away is an error here, not a signal. */
static ssize_t system_write(int fd, const void *data, size_t len)
{
    return send(fd, data, len, MSG_NOSIGNAL);
}

static int system_accept(int fd, struct sockaddr *address, socklen_t *len)
{
    return accept4(fd, address, len, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

const struct socket_ops socket_system = {system_read, system_write, system_accept};

static bool is_try_again(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

void conn_loop_enter(struct conn_loop *loop)
{
    clock_tick();
    if (loop->awake_us == 0)
        loop->awake_us = clock_mono_us();
}

bool conn_loop_is_over(const struct conn_loop *loop)
{
    return clock_mono_us() - loop->awake_us >= ROUND_US;
}

/* Last in every handler of a connection: ends the round when its slice is over. */
static void leave(struct conn_loop *loop)
{
    if (conn_loop_is_over(loop))
        (void)event_base_loopbreak(loop->base); /* fails for no base of ours */
}

static void read_once(struct conn *c)
{
    ssize_t n = c->loop->sockets->read(c->fd, c->loop->scratch, sizeof c->loop->scratch);
    if (n > 0) {
        c->loop->events->data(c->owner, c->loop->scratch, (size_t)n);
        return;
    }
    if (n < 0 && is_try_again(errno))
        return;
    c->ended = true;
    c->failed |= n < 0;
    conn_read_set(c, false);
    c->loop->events->ended(c->owner);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    conn_loop_enter(c->loop);
    read_once(c);
    leave(c->loop);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    conn_loop_enter(c->loop);
    conn_flush(c);
    if (c->failed)
        c->loop->events->ended(c->owner);
    else if (conn_unsent(c) == 0)
        c->loop->events->drained(c->owner);
    leave(c->loop);
}

void conn_open(struct conn *c, struct conn_loop *loop, int fd, void *owner)
{
    *c = (struct conn){.loop = loop, .fd = fd, .owner = owner};
    c->readable = event_new(loop->base, fd, EV_READ | EV_PERSIST, on_readable, c);
    c->writable = event_new(loop->base, fd, EV_WRITE, on_writable, c);
    ASSERT(c->readable && c->writable);
    conn_read_set(c, true);
}

void conn_close(struct conn *c)
{
    if (c->fd < 0)
        return;
    event_free(c->readable);
    event_free(c->writable);
    close(c->fd);
    c->fd = -1;
    c->reading = false;
    str_free(&c->out);
    c->sent = 0;
}

void conn_read_set(struct conn *c, bool on)
{
    on &= !c->ended;
    if (on == c->reading)
        return;
    c->reading = on;
    int rc = on ? event_add(c->readable, NULL) : event_del(c->readable);
    ASSERT(rc == 0);
}

static void out_rest(struct conn *c)
{
    c->sent = 0;
    if (c->out.cap > KEEP_OUT)
        str_free(&c->out);
    else
        str_clear(&c->out);
}

void conn_flush(struct conn *c)
{
    while (conn_unsent(c) > 0 && !c->failed) {
        ssize_t n = c->loop->sockets->write(c->fd, c->out.data + c->sent, conn_unsent(c));
        if (n > 0) {
            c->sent += (size_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && is_try_again(errno)) {
            break;
        } else {
            c->failed = true;
        }
    }
    if (conn_unsent(c) == 0 || c->failed) {
        out_rest(c);
        return;
    }
    /* moves the rest only when it is the smaller half: each byte moves at most once on average */
    if (c->sent > c->out.len / 2) {
        str_consume(&c->out, c->sent);
        c->sent = 0;
    }
    (void)event_add(c->writable,
                    NULL); /* fails only without memory for the epoll set: next flush */
}

bool conn_peer_is_gone(const struct conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}
