/* conn.h - one connected socket: bytes in, bytes out; nothing of what they mean. */
#ifndef SERVER_CONN_H
#define SERVER_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include "base/str.h"

struct event;
struct event_base;

/* The seam for socket faults: a test hands in functions that fail, or that read one byte. */
struct socket_ops {
    ssize_t (*read)(int fd, void *data, size_t len);
    ssize_t (*write)(int fd, const void *data, size_t len);
    int (*accept)(int fd, struct sockaddr *address,
                  socklen_t *len); /* non-blocking, close on exec */
};
extern const struct socket_ops socket_system;

enum { CONN_READ_BYTES = 64 * 1024 };

struct conn;
/* Called from the loop only. Nothing may close the conn from inside: mark it, close it later. */
struct conn_events {
    void (*data)(void *owner, const char *data, size_t len); /* borrowed for the call */
    void (*ended)(void *owner);   /* the peer will send nothing more, or the socket failed */
    void (*drained)(void *owner); /* everything written is with the kernel */
};

/* What all connections of a loop share. One round of the loop handles events for a slice of time;
 * those that are left stay active, and the next round begins with them. */
struct conn_loop {
    struct event_base *base; /* borrowed */
    int64_t awake_us;        /* clock_mono_us of the first event of this round; 0: none yet */
    const struct socket_ops *sockets;
    const struct conn_events *events;
    char scratch[CONN_READ_BYTES]; /* one read, given on at once: idle connections hold no buffer */
};

struct conn {
    struct conn_loop *loop; /* borrowed */
    void *owner;
    int fd;                            /* -1 when closed */
    struct event *readable, *writable; /* owns */
    struct str out;                    /* owns; written from `sent` on */
    size_t sent;
    bool reading;
    bool ended;  /* the peer has closed its side */
    bool failed; /* reset, or a write error: nothing can be sent any more */
};

void conn_loop_enter(
    struct conn_loop *loop); /* first in every handler of an event: the clock, too */
bool conn_loop_is_over(const struct conn_loop *loop); /* its slice */

void conn_open(struct conn *c, struct conn_loop *loop, int fd, void *owner); /* takes the fd */
void conn_close(struct conn *c);
void conn_read_set(struct conn *c, bool on); /* off: back-pressure by the kernel's buffers */
/* Writes what can be written now; the rest goes when the socket allows. */
void conn_flush(struct conn *c);
static inline size_t conn_unsent(const struct conn *c)
{
    return c->out.len - c->sent;
}
/* While not reading: has the peer closed or half-closed? One system call. */
bool conn_peer_is_gone(const struct conn *c);

#endif
