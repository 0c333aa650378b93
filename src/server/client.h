/* client.h - one client: its connection, protocol state, blocked state and transaction. */
#ifndef SERVER_CLIENT_H
#define SERVER_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/list.h"
#include "keyspace/generate.h"
#include "keyspace/guard.h"
#include "keyspace/watch.h"
#include "server/conn.h"
#include "server/listen.h"
#include "server/pubsub.h"
#include "server/reply.h"
#include "server/resp.h"

struct server;
struct command;
struct xread; /* cmd_stream.c */

enum { CLIENT_UNREAD_MAX = 1024 * 1024 }; /* unread replies above which nothing more is parsed */

enum client_block {
    BLOCK_NONE,
    BLOCK_GEN,   /* for a generation: client.waiter */
    BLOCK_READ,  /* XREAD: client.reader_wait */
    BLOCK_JOB,   /* for a job thread, which knows the client by its id */
    BLOCK_PAUSE, /* CLIENT PAUSE: for its end; the request waits in the reader */
};

/* Commands between MULTI and EXEC. */
struct multi {
    struct request *queue; /* [n] owns */
    int n, cap;
    size_t bytes;   /* counted against client-query-buffer-limit */
    unsigned flags; /* of all commands in the queue */
    bool broken;    /* a command was refused: EXEC answers EXECABORT */
};

/* Owned by the server's list, freed only by client_serve, at the end of a turn of the loop: nobody
 * who walks a list, answers a waiter or runs a command can find a client gone under his hands. */
struct client {
    struct server *server; /* borrowed */
    struct conn conn;
    struct list node;        /* in server->clients */
    struct list attend_node; /* in one of server->attend while there is something to do for it */
    uint64_t id;
    struct peer peer;
    char *name, *lib_name, *lib_version; /* own; NULL: not set */
    int64_t created_us, active_us;       /* clock_now_us; active: last bytes from the peer */
    int64_t soft_since_us; /* its unread replies have been over the soft limit since; 0: are not */

    struct resp_reader reader;
    struct reply reply;
    char *input; /* owns; read but not parsed: what stands behind a blocking command */
    size_t input_at, input_len, input_cap; /* bytes [at, at + len) of cap */
    const struct request *request;         /* the one that runs; NULL between commands */
    const struct command *last_command;
    uint64_t n_commands;

    int32_t db;
    bool authenticated;
    uint64_t user;       /* of cache namespaces; 0: the default user, the only one so far */
    struct multi *multi; /* owns; NULL outside MULTI */
    bool in_exec;        /* EXEC runs: nothing may block */
    struct guard guard;  /* WATCH */
    struct subscriptions subscriptions;
    struct list monitor_node; /* in server->monitors when is_monitor */
    bool is_monitor;

    size_t counted_bytes; /* of its buffers, in server->client_bytes */
    enum client_block blocked;
    bool blocked_info; /* GEN WITHINFO, N or BEAM: a null is then *-1 */
    struct gen_waiter waiter;
    struct reader reader_wait;
    struct xread *xread; /* owns; what a blocked XREAD asked for */

    bool reply_off;       /* CLIENT REPLY OFF */
    bool mute, mute_next; /* SKIP: the reply to this command, and to the next, is thrown away */
    bool no_evict;        /* as CLIENT LIST shows it */
    bool no_touch;        /* commands on keys do not count as use, but TOUCH */

    bool closing;      /* no more commands; closed when its replies are sent */
    bool linger;       /* and after the peer has had time to read them: its own bytes are unread */
    int64_t linger_us; /* until then what it sends is thrown away; 0: not yet */
    bool dead;         /* freed at the end of the turn */
};

struct client *client_new(struct server *s, int fd, const struct peer *peer);
extern const struct conn_events client_conn_events;

/* Something is to be sent, parsed or closed: client_serve comes at the end of the turn. Those who
 * asked for it and those who were woken take turns: a thousand readers of one key delay no PING. */
enum client_attend { ATTEND_ASKED, ATTEND_WOKEN, N_ATTEND };
void client_attend(struct client *c); /* it asked; or its connection is ending */
/* Flushes, goes on with parked input, closes and frees. True when more input waits for the next
 * turn. c may be gone afterwards. */
bool client_serve(struct client *c);
/* Closes when the replies are sent. linger: the peer may be in the middle of sending. */
void client_close_soon(struct client *c, bool linger);
void client_drop(struct client *c); /* closes at the end of this turn, whatever is unsent */
/* Ends the blocked state after its reply has been written; parked commands go on. */
void client_unblock(struct client *c);
/* Leaves whatever it waits for, unanswered: a generation may have lost its last waiter. */
void client_leave_waits(struct client *c);
/* A deferred reply of a blocked client stands between these. */
void client_answer_begin(struct client *c);
void client_answer_end(struct client *c);
/* A message that it subscribed to: goes out behind the reply that is being written, if any. Over
 * client-output-buffer-limit pubsub the client is dropped. */
void client_push(struct client *c, struct bytes message);
/* Ten times a second for each client: time limits. */
void client_check_time(struct client *c, int64_t now_us);

struct resp_limits client_limits(const struct client *c);
void client_discard_multi(struct client *c); /* harmless outside MULTI */
/* Behind reply_end: drops the reply under REPLY OFF and SKIP; messages that came meanwhile follow. */
void client_finish_reply(struct client *c);
bool client_is_muted(const struct client *c);
void client_reset(struct client *c);                           /* RESET: as just connected */
size_t client_bytes(const struct client *c);                   /* memory held */
void client_describe(const struct client *c, struct str *out); /* a line of CLIENT LIST */

#endif
