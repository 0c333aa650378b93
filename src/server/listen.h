/* listen.h - the sockets that clients connect to: TCP addresses and a Unix socket. */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "server/conn.h"

struct listeners;

enum { PEER_TEXT = 128 };
/* Who has connected. */
struct peer {
    bool is_unix;
    bool is_loopback;        /* 127.0.0.0/8, ::1 or the Unix socket */
    char address[PEER_TEXT]; /* "127.0.0.1:4711", "[::1]:4711", "/run/kvasir.sock:0" */
    char local[PEER_TEXT];   /* our end */
};

struct listen_config {
    const char *bind; /* words */
    int port;         /* 0: no TCP */
    int backlog;
    const char *unix_path;       /* "": none */
    const char *unix_permission; /* octal; "": as the umask says */
};

/* accepted takes the fd. Partly opened sockets are closed again on an error. */
struct listeners *listeners_open(struct conn_loop *loop, const struct listen_config *config,
                                 void (*accepted)(void *owner, int fd, const struct peer *peer),
                                 void *owner, struct err *err);
void listeners_stop(struct listeners *l); /* no more clients; the Unix socket's file goes */
void listeners_free(struct listeners *l); /* accepts NULL */

void socket_set_options(int fd, int64_t keepalive_s); /* TCP: no delay, keep-alive */

#endif
