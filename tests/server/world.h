/* world.h - a whole server in this process, over a scripted model and moved clocks.
 *
 * Real connections on real sockets, but the test turns the loop (world_steps), time passes only when
 * it says so, the model is a hash (tests/unit/fake_runner.h) that stands still in the middle of a
 * step while it is held, and each socket call can fail. So every state of a request can be held
 * exactly, for as long as it takes to do something to it. No threads: jobs run inside the turn. */
#ifndef TESTS_SERVER_WORLD_H
#define TESTS_SERVER_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/str.h"
#include "server/server.h"

struct fake_runner;

#define WORLD_CONF "# written by a test\n"
enum { WORLD_PATIENCE_MS = 10000 }; /* of real time, with what TCP carries */

enum world_socket_fault {
    WORLD_SOCKETS_WORK,
    WORLD_RESETS, /* the call says ECONNRESET */
    WORLD_AGAIN,  /* EAGAIN, once */
    WORLD_SHORT,  /* one byte */
};

struct world {
    struct server *s;           /* owns */
    struct fake_runner *runner; /* the server's */
    struct jobs *jobs, *none; /* jobs: the server's own; none: owns, stands in for it while held */
    char path[64];            /* of the Unix socket */
    char conf[80];            /* a conf file, for CONFIG REWRITE */
    int port;                 /* of TCP; 0: none */
};

/* options: pairs of name and value, ended by NULL; may be NULL. */
void world_open(struct world *w, const char *const *options, bool tcp);
void world_close(struct world *w);

void world_steps(struct world *w, int n);
/* Until nothing generates and nothing is left to do; false: it never came to rest. */
bool world_rest(struct world *w);
/* Lets the model make n more steps, then holds it in the middle of the next; fewer when it has no
 * more to do. */
void world_launch(struct world *w, int n);
void world_hold(struct world *w, bool model, bool jobs);
/* Time passes, and the server's tick sees it. */
void world_pass_ms(struct world *w, int64_t ms);

/* A connection, non-blocking, accepted. -1: the server did not take it. */
int world_dial(struct world *w, bool tcp);
/* Sends all of it and lets the server work. False: the connection is gone, or the server does not
 * read on. */
bool world_say(struct world *w, int fd, const char *data, size_t len);
bool world_say_line(struct world *w, int fd, const char *line); /* CR LF is added */
/* Appends what has come until now; false: the connection has ended. */
bool world_hear(int fd, struct str *out);
/* Says a line and hears the answer; out is cleared before. */
bool world_ask(struct world *w, int fd, const char *line, struct str *out);

/* Of TCP; on a Unix socket there is nothing to wait for, and its port is 0. World_say and world_ask
 * settle what they said and what was answered at once. */
int world_port(int fd);
/* Until all that either side has written has come to the other. */
void world_settle(struct world *w, int fd);
/* Until the end of the connection from this port has come to the server; at most ms. */
void world_await_end(struct world *w, int port, int ms);

/* Call number n of read, write or accept from now on does this; 0 disarms. */
void world_fail_socket(uint64_t n, enum world_socket_fault fault);
uint64_t world_socket_calls(void); /* since world_fail_socket */

/* What is wrong with the engine's books; NULL: nothing. Borrowed until the next call. */
const char *world_audit(struct world *w);
size_t world_memory(void); /* live bytes that clients and keys have asked for */
int world_files(void);     /* open file descriptors of this process */

#endif
