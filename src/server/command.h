/* command.h - one table for all commands: what dispatch, COMMAND, ACL and HELP know of each. */
#ifndef SERVER_COMMAND_H
#define SERVER_COMMAND_H

#include <stdbool.h>
#include <stdint.h>
#include "base/table.h"
#include "server/client.h"

enum command_flag {
    CMD_WRITE = 1 << 0,
    CMD_READONLY = 1 << 1,
    CMD_DENYOOM = 1 << 2,
    CMD_ADMIN = 1 << 3,
    CMD_LOADING = 1 << 4, /* runs while the model is loaded */
    CMD_STALE = 1 << 5,
    CMD_FAST = 1 << 6,
    CMD_BLOCKING = 1 << 7,
    CMD_NO_AUTH = 1 << 8, /* runs before AUTH */
    CMD_NO_MULTI = 1 << 9,
    CMD_MOVABLE_KEYS = 1 << 10,
    CMD_NOSCRIPT = 1 << 11,
    CMD_IN_MULTI = 1 << 12,  /* runs at once inside MULTI instead of being queued */
    CMD_DANGEROUS = 1 << 13, /* only the ACL category */
    CMD_CONTROL = 1 << 14,   /* CANCEL, SHUTDOWN: served while the server is ending, and paused */
    CMD_PUBSUB = 1 << 15,
    CMD_SUBSCRIBED = 1 << 16, /* runs while a version 2 client is subscribed */
    CMD_SKIP_SLOWLOG = 1 << 17,
    CMD_DEBUG = 1 << 18, /* only where enable-debug-command allows it */
};

/* Positions of keys in a request. */
struct key_positions {
    int32_t *at; /* [n] owns */
    int32_t n, cap;
};
void key_positions_add(struct key_positions *p, int at);

/* One command, or one subcommand. All const; families end with name NULL. */
struct command {
    const char *name; /* lower case; of a subcommand without its parent's */
    int arity;        /* words with the name; negative: at least so many */
    unsigned flags;
    int first_key, last_key, key_step; /* as in COMMAND; 0: none */
    /* Flags of the keys in COMMAND; '|' begins those of the keys from the next one on. NULL: RW
     * update or RO access, as the command writes or not. */
    const char *key_use;
    const char *categories; /* words beside those that follow from the flags */
    const char *tips;       /* words; NULL: none */
    const char *group;      /* of COMMAND DOCS */
    const char *since;
    const char *complexity;
    const char *summary;
    const char *syntax; /* arguments; grammar in docs.c; COMMAND DOCS and HELP come from it */
    const struct command *subcommands; /* or NULL; run is then for none of them, or NULL */
    int private_from; /* words from this one on are texts or passwords: logs hide them; 0: none */
    bool is_secret;   /* passwords: hidden whatever log-prompts says */
    void (*run)(struct client *c, const struct request *q);
    /* CMD_MOVABLE_KEYS: false when the request has a syntax in which no keys can be found */
    bool (*keys)(const struct request *q, struct key_positions *positions);
};

/* One array a family, each in its cmd_*.c. */
extern const struct command cmd_conn_table[], cmd_client_table[], cmd_command_table[],
    cmd_config_table[], cmd_server_table[], cmd_multi_table[], cmd_key_table[], cmd_expire_table[],
    cmd_stream_table[], cmd_xread_table[], cmd_gen_table[], cmd_fork_table[], cmd_cache_table[],
    cmd_debug_table[], cmd_pubsub_table[], cmd_slowlog_table[], cmd_cluster_table[],
    cmd_move_table[], cmd_object_table[], cmd_role_table[], cmd_xinfo_table[], cmd_seam_table[];
extern const struct command *const command_families[]; /* ends with NULL */

struct table *commands_new(void); /* name -> const struct command */
int commands_count(void);
const struct command *command_find(const struct table *commands, struct bytes name);
const struct command *command_find_sub(const struct command *parent, struct bytes name);
/* "parent|name" or a plain name. */
const struct command *command_find_full(const struct table *commands, struct bytes name);

/* Runs or queues one request of a client that is free to run one. */
void command_dispatch(struct client *c, struct request *q);
/* EXEC: what dispatch does behind its checks. */
void command_call(struct client *c, const struct command *command, const struct request *q);
/* The command with its subcommand resolved; NULL with the error text. */
const struct command *command_resolve(const struct table *commands, const struct request *q,
                                      struct str *error);
bool command_arity_ok(const struct command *command, int n_args);
/* True, or false when the request names no keys where it should. */
bool command_keys(const struct command *command, const struct request *q,
                  struct key_positions *positions);

/* A database's number; false: an error was written. */
bool command_parse_db(struct client *c, struct bytes text, int32_t *db);

/* The command uses this key now, unless its client said NO-TOUCH. */
void command_touch(const struct client *c, struct key *key);

/* Error replies of many commands. */
void reply_syntax_error(struct reply *r);
void reply_not_integer(struct reply *r);
/* A subcommand that exists, with words that it does not take. */
void reply_subcommand_words(struct client *c, const struct request *q);
void reply_err(struct reply *r, const struct err *err); /* text with its prefix */
/* before, a cut and cleaned argument, after */
void reply_error_echo(struct reply *r, const char *before, struct bytes arg, const char *after);
/* HELP of a command with subcommands: the lines come from the rows of its table, in which it stands
 * by COMMAND_HELP. */
void command_run_help(struct client *c, const struct request *q);
#define COMMAND_HELP(FLAGS_, GROUP_, SINCE_, CATEGORIES_)                                          \
    {                                                                                              \
        .name = "help", .arity = 2, .flags = (FLAGS_), .categories = (CATEGORIES_),                \
        .group = (GROUP_), .since = (SINCE_), .complexity = "O(1)",                                \
        .summary = "Returns helpful text about the different subcommands.",                        \
        .run = command_run_help                                                                    \
    }
enum { COMMAND_HELP_FLAGS = CMD_LOADING | CMD_STALE }; /* as in Redis, whatever the others have */

/* Word i must not be shown in a log: appends what stands in its place, "(N bytes)" or "(redacted)". */
bool command_hides(const struct command *command, int i, struct bytes arg, bool show_prompts,
                   struct str *out);

/* The command that a subcommand belongs to, or NULL; and its name. */
const struct command *command_container(const struct command *command);
const char *command_parent(const struct command *command);
void command_full_name(const struct command *command, struct str *out);

#endif
