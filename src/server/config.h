/* config.h - every option of the server in one typed table. */
#ifndef SERVER_CONFIG_H
#define SERVER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/option.h"
#include "base/str.h"

enum config_preemption { CONFIG_RECOMPUTE, CONFIG_SWAP };
enum config_debug { CONFIG_DEBUG_NO, CONFIG_DEBUG_LOCAL, CONFIG_DEBUG_YES };

/* Strings are owned and never NULL. Sizes are bytes, times milliseconds unless the name says so. */
struct config {
    char
        *file; /* absolute path of the conf file; NULL: none. No option: CONFIG REWRITE writes it */
    /* network */
    int64_t port; /* 0: no TCP listener */
    char *bind;   /* addresses; a leading '-' means that it may be missing */
    char *unixsocket;
    char *unixsocketperm; /* octal; empty: as the umask says */
    int64_t tcp_backlog;
    int64_t tcp_keepalive_s; /* 0: off */
    int64_t timeout_s;       /* idle clients; 0: never */
    int64_t maxclients;
    bool protected_mode;
    char *requirepass; /* empty: no password */
    /* limits */
    uint64_t proto_max_bulk_len;
    uint64_t client_query_buffer_limit;
    char *client_output_buffer_limit; /* "normal HARD SOFT SECONDS slave ... pubsub ..." */
    uint64_t maxmemory;               /* bytes of keys and clients; 0: no limit */
    int maxmemory_policy;             /* enum evict_policy */
    /* general */
    int64_t databases;
    int64_t shutdown_timeout_s;
    int enable_debug_command; /* enum config_debug */
    char *logfile;            /* empty: stdout */
    int loglevel;             /* enum log_level */
    bool log_prompts;
    char *notify_keyspace_events;       /* letters, canonical (notify.h); empty: none */
    int64_t slowlog_log_slower_than_us; /* -1: nothing is logged, 0: everything */
    int64_t slowlog_max_len;            /* entries */
    /* model */
    char *model;       /* empty: no model, keys only */
    int chat_template; /* index into config_chat_templates; 0: recognised from the model */
    int64_t max_context;
    int backend; /* index into config_backends */
    int64_t threads;
    char *cpu_affinity;
    /* memory */
    uint64_t kv_cache_size; /* 0: half of what is free */
    int64_t block_size;
    int kv_type;         /* enum kv_type */
    int preemption_mode; /* enum config_preemption */
    uint64_t swap_space; /* of host memory; 0: none */
    bool share_prefixes;
    /* work */
    int64_t max_batch_tokens, max_chunk, max_running, max_queue;
    int64_t default_max_tokens;
    int64_t orphan_timeout_ms, piece_interval_ms;
};

extern const struct option config_options[];
extern const char *const config_chat_templates[]; /* ends with NULL; the first is "auto" */
extern const char *const config_backends[];

void config_default(struct config *c);
void config_free(struct config *c);

/* One option from words, as a line of the conf file holds them: name, value, more values. -1: err;
 * *unknown says that there is no such option. */
int config_set_words(struct config *c, const struct str *words, int n_words, bool *unknown,
                     struct err *err);
/* Reads a file: bad values are an error that names the line, unknown options are logged and ignored,
 * so that a redis.conf starts. */
int config_read_file(struct config *c, const char *path, struct err *err);

/* What the command line asks for beside options. */
struct config_command {
    bool check_only, probe, version, help;
    const char *file; /* borrowed from argv; NULL: none */
};
/* [FILE.conf] [--option value ...]. The file is read first, then the options count, wherever they
 * stand. An unknown option is an error. */
int config_read_args(struct config *c, int argc, char **argv, struct config_command *command,
                     struct err *err);
/* What no single row can see: options that exclude or need each other. */
int config_check(const struct config *c, struct err *err);

/* option_set for one option of config_options, in the one spelling that CONFIG GET shows: of
 * client-output-buffer-limit the classes that are not named stay as they are. */
int config_set_option(struct config *c, const struct option *o, struct bytes text, struct err *err);

/* Classes of clients, as in Redis; there are no replicas, but clients set their limit. */
enum config_class { CONFIG_NORMAL, CONFIG_REPLICA, CONFIG_PUBSUB, CONFIG_N_CLASSES };
/* Hard and soft limit of a client's unread output, and how long the soft one may be passed. */
struct config_output_limit {
    uint64_t hard_bytes, soft_bytes; /* 0: none */
    int64_t soft_s;
};
struct config_output_limit config_output_limit(const struct config *c, enum config_class class);

#endif
