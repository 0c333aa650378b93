/* server.h - the whole server: loop, clients, model, keys, counters. Only src/server/ sees it. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include "base/jobs.h"
#include "base/list.h"
#include "base/table.h"
#include "engine/engine.h"
#include "keyspace/keys.h"
#include "model/chat.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "runner/runner.h"
#include "server/client.h"
#include "server/config.h"
#include "server/conn.h"
#include "server/listen.h"
#include "server/pubsub.h"
#include "server/slowlog.h"
#include "server/stall.h"

/* What clients that look at redis_version may expect of us: features are gated by it. */
#define SERVER_REDIS_VERSION "7.2.4"

struct loading; /* load.c */
struct stats;   /* stats.c */
struct event;
struct event_base;

enum server_state {
    SERVER_LOADING,
    SERVER_READY,
    SERVER_STOPPING, /* no new work; running generations end, replies go out */
    SERVER_STOPPED,
};

/* CLIENT PAUSE: which commands wait. */
enum server_pause { PAUSE_NONE, PAUSE_WRITE, PAUSE_ALL };

/* What a loaded model consists of; all NULL without one. */
struct served_model {
    struct model *model;              /* owns */
    struct tokenizer *tokenizer;      /* owns */
    struct runner *runner;            /* owns */
    const struct chat_template *chat; /* NULL: not recognised */
    char chat_error[256];             /* why */
};

struct server_stats {
    uint64_t connections, rejected_connections, commands, errors, bytes_in, bytes_out;
    uint64_t protocol_errors, evicted_clients, evicted_keys;
    int64_t max_stall_us;     /* longest the main thread was away from the engine, waiting aside */
    int64_t max_stall_cpu_us; /* the same without what the kernel gave to others meanwhile */
};

struct server {
    struct config config;
    struct config_output_limit output_limit; /* read from config, since every command looks */
    struct config_output_limit pubsub_limit; /* the same, of clients that are subscribed */
    unsigned notify_flags;                   /* the same, of notify-keyspace-events */
    enum server_state state;
    char run_id[41];
    int64_t started_us, started_unix_s;
    int64_t looked_us, looked_cpu_us; /* when the main thread last looked at the engine */
    struct stall stall;               /* what it has done since */

    struct event_base *base;    /* owns */
    struct event *alarm, *tick; /* own; alarm: next timer of engine and keys; tick: 10 Hz */
    struct event *jobs_event, *runner_event; /* own */
    struct event *signals[2];                /* own; SIGTERM, SIGINT */
    struct conn_loop *loop;                  /* owns */
    struct listeners *listeners;             /* owns; NULL: closed */

    struct table *commands;       /* owns */
    struct list clients;          /* struct client: node */
    struct list attend[N_ATTEND]; /* struct client: attend_node; oldest first */
    int attend_next;              /* which of them has its turn when a slice was too short */
    struct list monitors;         /* struct client: monitor_node */
    int64_t n_clients;
    struct list *tick_at; /* the client's node at which the next tick goes on; NULL: the first */
    size_t client_bytes;  /* of their buffers, as of the end of the last turn */
    uint64_t next_client_id;

    struct jobs *jobs;       /* owns */
    struct loading *loading; /* owned by its job; NULL: nothing is loaded now */
    struct served_model served;
    struct pubsub *pubsub; /* owns */
    struct slowlog slowlog;
    struct engine *engine; /* owns; NULL without a model */
    struct keyspace *keys; /* owns; NULL while loading */

    int64_t stop_by_us; /* STOPPING: leave then, whatever still runs */
    int stop_turns;     /* turns since then */
    int exit_status;
    enum server_pause pause;
    int64_t pause_until_us; /* clock_now_us; with pause */
    int64_t http_logged_us; /* last log line about POST or Host: */
    struct server_stats stats;
    struct stats *counts; /* owns; by command and by error, rates */
};

/* Opens sockets and begins to load. argv[0] and the file only for INFO. NULL: err. */
struct server *server_new(const struct config *config, struct err *err); /* takes the strings */
void server_free(struct server *s);
int server_run(struct server *s); /* until SIGTERM or SHUTDOWN; the exit status */
/* One turn and, when nobody has work left, one wait for events; false when the server is over. Tests
 * drive it with wait false, in their own process, under their own clock. */
bool server_step(struct server *s, bool wait);
void server_stop(struct server *s, const char *why);
/* load.c, main thread: keys may be used now; or loading failed, which ends the server. */
void server_loaded(struct server *s, const struct err *failure);
void server_config_changed(struct server *s); /* after CONFIG SET */
void server_pause_end(struct server *s);      /* what was held back goes on */
int64_t server_uptime_s(const struct server *s);

/* load.c: the model's way into memory, on a job thread. */
void load_start(struct server *s);
void load_free(struct served_model *served);

/* info.c: the sections of INFO that are named; NULL: the default ones. */
void info_print(struct server *s, const struct bytes *sections, int n_sections, struct str *out);

#endif
