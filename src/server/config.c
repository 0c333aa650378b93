/* config.c - every option of the server in one typed table.
 *
 * A row says where the value lives, its type, range and default; conf file, command line, CONFIG GET
 * and CONFIG SET all go through it, so an option cannot exist in one of them only. conf/kvasir.conf
 * explains each and a test holds the two together.
 *
 * Options that name files, libraries or sockets are set at start only: a client with a stolen
 * password must not make the server write or load something (the attacks on Redis' `dir` and
 * `logfile`). Options of which Redis has the name keep its meaning and its unit (seconds for timeout,
 * tcp-keepalive and shutdown-timeout); times of our own are milliseconds or carry a unit. */
#include "server/config.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/backend.h"
#include "server/notify.h"

enum {
    MAX_WORDS = 256, /* of one line: bind lists and the like */
    MAX_FILE = 1024 * 1024,
};

const char *const config_chat_templates[] = {"auto",    "chatml", "smollm2", "llama-3", "llama-2",
                                             "mistral", "zephyr", "phi-3",   "gemma",   NULL};
const char *const config_backends[] = {"auto", "cpu", "ref", NULL};
static const char *const policies[] = {"noeviction", "volatile-ttl", "allkeys-lru", NULL};
static const char *const preemption_modes[] = {"recompute", "swap", NULL};
static const char *const debug_choices[] = {"no", "local", "yes", NULL};
/* Redis' names; verbose is our info */
static const char *const log_levels[] = {"debug", "verbose", "notice", "warning", NULL};

static int check_output_limit(const struct option *o, struct bytes text, struct err *err);
static int check_notify(const struct option *o, struct bytes text, struct err *err);
static int check_octal(const struct option *o, struct bytes text, struct err *err);
static int check_block_size(const struct option *o, struct bytes text, struct err *err);

#define AT(field) offsetof(struct config, field)
enum { START = OPTION_START_ONLY };

// clang-format off
const struct option config_options[] = {
    /* name                      type            offset                 default    min  max */
    {"port",                     OPTION_INT,     AT(port),              "6379",    0, 65535, NULL, START, NULL},
    {"bind",                     OPTION_WORDS,   AT(bind),              "127.0.0.1 -::1", 0, 0, NULL, START, NULL},
    {"unixsocket",               OPTION_STRING,  AT(unixsocket),        "",        0, 0, NULL, START, NULL},
    {"unixsocketperm",           OPTION_STRING,  AT(unixsocketperm),    "",        0, 0, NULL, START, check_octal},
    {"tcp-backlog",              OPTION_INT,     AT(tcp_backlog),       "511",     1, 65535, NULL, START, NULL},
    {"tcp-keepalive",            OPTION_SECONDS, AT(tcp_keepalive_s),   "60",      0, 86400, NULL, 0, NULL},
    {"timeout",                  OPTION_SECONDS, AT(timeout_s),         "0",       0, 31536000, NULL, 0, NULL},
    {"maxclients",               OPTION_INT,     AT(maxclients),        "10000",   1, 1000000, NULL, 0, NULL},
    {"protected-mode",           OPTION_BOOL,    AT(protected_mode),    "yes",     0, 0, NULL, 0, NULL},
    {"requirepass",              OPTION_STRING,  AT(requirepass),       "",        0, 0, NULL, OPTION_SECRET, NULL},

    {"proto-max-bulk-len",       OPTION_SIZE,    AT(proto_max_bulk_len), "16mb",   1048576, 536870912, NULL, 0, NULL},
    {"client-query-buffer-limit", OPTION_SIZE,   AT(client_query_buffer_limit), "64mb", 1048576, 1099511627776, NULL, 0, NULL},
    {"client-output-buffer-limit", OPTION_WORDS, AT(client_output_buffer_limit), "normal 64mb 1mb 60 replica 256mb 64mb 60 pubsub 32mb 8mb 60", 0, 0, NULL, 0, check_output_limit},

    {"maxmemory",                OPTION_SIZE,    AT(maxmemory),         "0",       0, 1099511627776, NULL, 0, NULL},
    {"maxmemory-policy",         OPTION_CHOICE,  AT(maxmemory_policy),  "noeviction", 0, 0, policies, 0, NULL},

    {"databases",                OPTION_INT,     AT(databases),         "16",      1, 1024, NULL, START, NULL},
    {"shutdown-timeout",         OPTION_SECONDS, AT(shutdown_timeout_s), "10",     0, 3600, NULL, 0, NULL},
    {"enable-debug-command",     OPTION_CHOICE,  AT(enable_debug_command), "local", 0, 0, debug_choices, START, NULL},
    {"logfile",                  OPTION_STRING,  AT(logfile),           "",        0, 0, NULL, START, NULL},
    {"loglevel",                 OPTION_CHOICE,  AT(loglevel),          "notice",  0, 0, log_levels, 0, NULL},
    {"log-prompts",              OPTION_BOOL,    AT(log_prompts),       "no",      0, 0, NULL, 0, NULL},
    {"notify-keyspace-events",   OPTION_STRING,  AT(notify_keyspace_events), "",   0, 0, NULL, 0, check_notify},
    {"slowlog-log-slower-than",  OPTION_INT,     AT(slowlog_log_slower_than_us), "10000", -1, INT64_MAX, NULL, 0, NULL},
    {"slowlog-max-len",          OPTION_INT,     AT(slowlog_max_len),   "128",     0, 1000000, NULL, 0, NULL},

    {"model",                    OPTION_STRING,  AT(model),             "",        0, 0, NULL, START, NULL},
    {"chat-template",            OPTION_CHOICE,  AT(chat_template),     "auto",    0, 0, config_chat_templates, START, NULL},
    {"max-context",              OPTION_INT,     AT(max_context),       "0",       0, 1048576, NULL, START, NULL},
    {"backend",                  OPTION_CHOICE,  AT(backend),           "auto",    0, 0, config_backends, START, NULL},
    {"threads",                  OPTION_INT,     AT(threads),           "0",       0, 1024, NULL, START, NULL},
    {"cpu-affinity",             OPTION_STRING,  AT(cpu_affinity),      "",        0, 0, NULL, START, NULL},

    {"kv-cache-size",            OPTION_SIZE,    AT(kv_cache_size),     "0",       0, 1099511627776, NULL, START, NULL},
    {"block-size",               OPTION_INT,     AT(block_size),        "16",      8, 128, NULL, START, check_block_size},
    {"kv-type",                  OPTION_CHOICE,  AT(kv_type),           "auto",    0, 0, kv_type_names, START, NULL},
    {"preemption-mode",          OPTION_CHOICE,  AT(preemption_mode),   "recompute", 0, 0, preemption_modes, START, NULL},
    {"swap-space",               OPTION_SIZE,    AT(swap_space),        "256mb",   0, 1099511627776, NULL, START, NULL},
    {"share-prefixes",           OPTION_BOOL,    AT(share_prefixes),    "no",      0, 0, NULL, 0, NULL},

    {"max-batch-tokens",         OPTION_INT,     AT(max_batch_tokens),  "512",     16, 65536, NULL, START, NULL},
    {"max-chunk",                OPTION_INT,     AT(max_chunk),         "512",     16, 65536, NULL, START, NULL},
    {"max-running",              OPTION_INT,     AT(max_running),       "64",      1, 4096, NULL, START, NULL},
    {"max-queue",                OPTION_INT,     AT(max_queue),         "1024",    1, 1000000, NULL, START, NULL},
    {"default-max-tokens",       OPTION_INT,     AT(default_max_tokens), "512",    1, 2147483647, NULL, 0, NULL},
    {"orphan-timeout",           OPTION_TIME,    AT(orphan_timeout_ms), "10s",     0, 86400000, NULL, 0, NULL},
    {"piece-interval",           OPTION_TIME,    AT(piece_interval_ms), "20ms",    0, 60000, NULL, 0, NULL},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, 0, NULL},
};
// clang-format on

/* ---- checks of single options ----------------------------------------------------------------- */

/* replica is the other name of slave, which Redis prints */
static const struct {
    const char *name, *other_name;
} classes[CONFIG_N_CLASSES] = {
    [CONFIG_NORMAL] = {"normal", "normal"},
    [CONFIG_REPLICA] = {"slave", "replica"},
    [CONFIG_PUBSUB] = {"pubsub", "pubsub"},
};

static bool read_class(const struct str words[4], struct config_output_limit *limits)
{
    struct bytes name = bytes_of(&words[0]);
    int i = 0;
    while (i < CONFIG_N_CLASSES && !bytes_equal_nocase(name, classes[i].name) &&
           !bytes_equal_nocase(name, classes[i].other_name))
        i++;
    uint64_t seconds;
    if (i == CONFIG_N_CLASSES || !parse_size(bytes_of(&words[1]), &limits[i].hard_bytes) ||
        !parse_size(bytes_of(&words[2]), &limits[i].soft_bytes) ||
        !parse_u64(bytes_of(&words[3]), &seconds) || seconds > INT32_MAX)
        return false;
    limits[i].soft_s = (int64_t)seconds;
    return true;
}

/* Reads "CLASS HARD SOFT SECONDS ..."; classes that are not named stay. */
static bool read_output_limits(struct bytes text, struct config_output_limit *limits)
{
    struct str words[32] = {{0}};
    int n = option_split(text, words, 32);
    bool ok = n > 0 && n % 4 == 0;
    for (int i = 0; ok && i < n; i += 4)
        ok = read_class(words + i, limits);
    for (int i = 0; i < n; i++)
        str_free(&words[i]);
    return ok;
}

static int check_output_limit(const struct option *o, struct bytes text, struct err *err)
{
    struct config_output_limit limits[CONFIG_N_CLASSES];
    if (read_output_limits(text, limits))
        return 0;
    return err_set(err,
                   "%s must be 'CLASS HARD SOFT SECONDS ...' with normal, replica or pubsub as the "
                   "class, sizes in bytes or with kb, mb, gb",
                   o->name);
}

struct config_output_limit config_output_limit(const struct config *c, enum config_class class)
{
    struct config_output_limit limits[CONFIG_N_CLASSES] = {{0}};
    bool ok = read_output_limits(bytes_from(c->client_output_buffer_limit), limits);
    ASSERT(ok);
    return limits[class];
}

static int check_notify(const struct option *o, struct bytes text, struct err *err)
{
    unsigned flags;
    if (notify_parse(text, &flags))
        return 0;
    return err_set(err, "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.");
}

static int check_octal(const struct option *o, struct bytes text, struct err *err)
{
    bool ok = text.len <= 4;
    for (size_t i = 0; i < text.len; i++)
        ok &= text.data[i] >= '0' && text.data[i] <= '7';
    return ok ? 0 : err_set(err, "%s must be octal permissions such as 700", o->name);
}

static int check_block_size(const struct option *o, struct bytes text, struct err *err)
{
    int64_t n;
    if (!parse_i64(text, &n) || n <= 0 || (n & (n - 1)) != 0)
        return err_set(err, "%s must be 8, 16, 32, 64 or 128", o->name);
    return 0;
}

/* ---- setting ---------------------------------------------------------------------------------- */

/* Texts that mean the same are kept in one spelling. */
static void spell_output_limit(const struct config *c, struct bytes text, struct str *out)
{
    struct config_output_limit limits[CONFIG_N_CLASSES] = {{0}};
    (void)read_output_limits(bytes_from(c->client_output_buffer_limit), limits);
    (void)read_output_limits(text, limits); /* both are valid */
    for (int i = 0; i < CONFIG_N_CLASSES; i++)
        str_printf(out, "%s%s %llu %llu %lld", i > 0 ? " " : "", classes[i].name,
                   (unsigned long long)limits[i].hard_bytes,
                   (unsigned long long)limits[i].soft_bytes, (long long)limits[i].soft_s);
}

static void spell_notify(const struct config *c, struct bytes text, struct str *out)
{
    unsigned flags = 0;
    (void)notify_parse(text, &flags); /* it is valid */
    notify_print(flags, out);
}

static const struct {
    size_t offset; /* of the option's value */
    void (*spell)(const struct config *c, struct bytes text, struct str *out);
} spellings[] = {
    {AT(client_output_buffer_limit), spell_output_limit},
    {AT(notify_keyspace_events), spell_notify},
};

int config_set_option(struct config *c, const struct option *o, struct bytes text, struct err *err)
{
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (spellings[i].offset != o->offset)
            continue;
        if (o->check(o, text, err) < 0)
            return -1;
        struct str spelled = {0};
        spellings[i].spell(c, text, &spelled);
        int rc = option_set(o, c, bytes_of(&spelled), err);
        str_free(&spelled);
        return rc;
    }
    return option_set(o, c, text, err);
}

void config_default(struct config *c)
{
    struct err err;
    *c = (struct config){0};
    option_defaults(config_options, c);
    for (const struct option *o = config_options; o->name; o++) /* once more, spelled out */
        (void)config_set_option(c, o, bytes_from(o->default_text), &err); /* it was accepted */
}

void config_free(struct config *c)
{
    free(c->file); /* of realpath */
    c->file = NULL;
    option_free(config_options, c);
}

int config_set_words(struct config *c, const struct str *words, int n_words, bool *unknown,
                     struct err *err)
{
    const struct option *o = option_find(config_options, bytes_of(&words[0]));
    *unknown = !o;
    if (!o)
        return err_set(err, "unknown option '%.64s'", words[0].data);
    if (n_words < 2)
        return err_set(err, "%s needs a value", o->name);
    if (n_words > 2 && o->type != OPTION_WORDS)
        return err_set(err, "%s takes one value, not %d", o->name, n_words - 1);
    struct str value = {0};
    for (int i = 1; i < n_words; i++) {
        if (i > 1)
            str_append_char(&value, ' ');
        struct bytes word = bytes_of(&words[i]);
        str_append(&value, word.data, word.len);
    }
    int rc = config_set_option(c, o, bytes_of(&value), err);
    str_free(&value);
    return rc;
}

static int read_line(struct config *c, struct bytes line, const char *path, int number,
                     struct err *err)
{
    struct str words[MAX_WORDS];
    int n = option_split(line, words, MAX_WORDS);
    if (n < 0)
        return err_set(err, "%s:%d: unbalanced quotes", path, number);
    if (n == 0)
        return 0;
    bool unknown;
    struct err why = {{0}};
    int rc = config_set_words(c, words, n, &unknown, &why);
    if (rc < 0 && unknown) {
        log_notice(LOG_SERVER, "%s:%d: option '%.64s' is not known here and ignored", path, number,
                   words[0].data);
        rc = 0;
    } else if (rc < 0) {
        rc = err_set(err, "%s:%d: %s", path, number, why.text);
    }
    for (int i = 0; i < n; i++)
        str_free(&words[i]);
    return rc;
}

int config_read_file(struct config *c, const char *path, struct err *err)
{
    struct str text = {0};
    int rc = file_read(path, MAX_FILE, &text, err);
    size_t at = 0;
    for (int number = 1; rc == 0 && at < text.len; number++) {
        const char *start = text.data + at, *end = memchr(start, '\n', text.len - at);
        size_t len = end ? (size_t)(end - start) : text.len - at;
        at += len + 1;
        size_t blank = 0;
        while (blank < len && (start[blank] == ' ' || start[blank] == '\t'))
            blank++;
        if (blank < len && start[blank] != '#')
            rc = read_line(c, (struct bytes){start, len}, path, number, err);
    }
    str_free(&text);
    return rc;
}

/* ---- command line ----------------------------------------------------------------------------- */

static bool take_switch(const char *arg, struct config_command *command)
{
    bool *is = strcmp(arg, "--check-config") == 0                        ? &command->check_only
               : strcmp(arg, "--probe") == 0                             ? &command->probe
               : strcmp(arg, "--version") == 0 || strcmp(arg, "-v") == 0 ? &command->version
               : strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0    ? &command->help
                                                                         : NULL;
    if (is)
        *is = true;
    return is != NULL;
}

/* Words from argv[*i] up to the next option; the name without its dashes comes first. */
static int take_words(int argc, char **argv, int *i, struct str *words)
{
    int n = 0;
    str_append_str(&words[n++], argv[(*i)++] + 2);
    while (*i < argc && n < MAX_WORDS && strncmp(argv[*i], "--", 2) != 0) {
        str_reserve(&words[n], 1);
        str_append_str(&words[n++], argv[(*i)++]);
    }
    return n;
}

static int set_from_args(struct config *c, int argc, char **argv, int *i, struct err *err)
{
    struct str words[MAX_WORDS] = {{0}};
    int n = take_words(argc, argv, i, words);
    bool unknown;
    struct err why;
    int rc = config_set_words(c, words, n, &unknown, &why);
    if (rc < 0)
        (void)err_set(err, unknown ? "command line: %s (see conf/kvasir.conf)" : "command line: %s",
                      why.text);
    for (int k = 0; k < n; k++)
        str_free(&words[k]);
    return rc;
}

int config_read_args(struct config *c, int argc, char **argv, struct config_command *command,
                     struct err *err)
{
    *command = (struct config_command){0};
    int first = 1;
    if (argc > 1 && argv[1][0] != '-') {
        command->file = argv[1];
        first = 2;
        if (config_read_file(c, argv[1], err) < 0)
            return -1;
        c->file = realpath(argv[1], NULL); /* NULL: it went just now; CONFIG REWRITE says so */
    }
    for (int i = first; i < argc;) {
        if (take_switch(argv[i], command)) {
            i++;
            continue;
        }
        if (strncmp(argv[i], "--", 2) != 0)
            return err_set(err, "command line: '%.64s' is not an option (--name value)", argv[i]);
        if (set_from_args(c, argc, argv, &i, err) < 0)
            return -1;
    }
    return 0;
}

int config_check(const struct config *c, struct err *err)
{
    if (c->port == 0 && !*c->unixsocket)
        return err_set(err, "port is 0 and unixsocket is not set: nobody could connect");
    if (c->max_batch_tokens < c->max_running + c->block_size)
        return err_set(
            err, "max-batch-tokens %lld must be at least max-running %lld + block-size %lld",
            (long long)c->max_batch_tokens, (long long)c->max_running, (long long)c->block_size);
    if (c->max_chunk < c->block_size)
        return err_set(err, "max-chunk %lld must be at least block-size %lld",
                       (long long)c->max_chunk, (long long)c->block_size);
    return 0;
}
