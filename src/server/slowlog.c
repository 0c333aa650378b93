/* slowlog.c - the last commands that took long, for SLOWLOG.
 *
 * Counted is the time that a command held the main thread: what kept others waiting. A GEN that
 * computes for a minute holds it for microseconds; its own times are in its end entry and GENINFO.
 *
 * An entry is kept small whatever the command was: 32 arguments of 128 bytes, what is cut says how
 * much is missing, as in Redis. Prompts and texts are `(N bytes)` unless log-prompts says yes,
 * passwords are never kept. Main thread only. */
#include "server/slowlog.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/command.h"
#include "server/server.h"

enum { MAX_ARGS = 32, MAX_ARG_BYTES = 128 };

struct slow_entry {
    struct list node;
    int64_t id, unix_s, took_us;
    struct str args[MAX_ARGS]; /* [n_args] own */
    int n_args;
    struct str address, name; /* own; of the client */
};

void slowlog_init(struct slowlog *log)
{
    list_init(&log->entries);
}

static void entry_free(struct slow_entry *e)
{
    for (int i = 0; i < e->n_args; i++)
        str_free(&e->args[i]);
    str_free(&e->address);
    str_free(&e->name);
    xfree(e);
}

static void copy_arg(struct str *out, struct bytes arg)
{
    size_t len = arg.len < MAX_ARG_BYTES ? arg.len : MAX_ARG_BYTES;
    str_append(out, arg.data, len);
    if (arg.len > len)
        str_printf(out, "... (%zu more bytes)", arg.len - len);
}

static void copy_args(struct slow_entry *e, const struct command *command, const struct request *q,
                      bool show_prompts)
{
    e->n_args = q->n_args < MAX_ARGS ? q->n_args : MAX_ARGS;
    for (int i = 0; i < e->n_args; i++) {
        if (i == MAX_ARGS - 1 && q->n_args > MAX_ARGS)
            str_printf(&e->args[i], "... (%d more arguments)", q->n_args - MAX_ARGS + 1);
        else if (!command_hides(command, i, q->args[i], show_prompts, &e->args[i]))
            copy_arg(&e->args[i], q->args[i]);
    }
}

void slowlog_note(struct client *c, const struct command *command, const struct request *q,
                  int64_t took_us)
{
    const struct config *config = &c->server->config;
    struct slowlog *log = &c->server->slowlog;
    if (config->slowlog_log_slower_than_us < 0 || took_us < config->slowlog_log_slower_than_us)
        return;
    struct slow_entry *e = xcalloc(1, sizeof *e);
    e->id = log->next_id++;
    e->unix_s = clock_now_ms() / 1000;
    e->took_us = took_us;
    copy_args(e, command, q, config->log_prompts);
    str_append_str(&e->address, c->peer.address);
    str_append_str(&e->name, c->name ? c->name : "");
    list_push_front(&log->entries, &e->node);
    log->n++;
    slowlog_trim(log, config->slowlog_max_len);
}

void slowlog_trim(struct slowlog *log, int64_t max_len)
{
    while (log->n > max_len) {
        struct slow_entry *oldest = LIST_ITEM(log->entries.prev, struct slow_entry, node);
        list_remove(&oldest->node);
        entry_free(oldest);
        log->n--;
    }
}

void slowlog_reset(struct slowlog *log)
{
    slowlog_trim(log, 0);
}

static void reply_entry_of(struct reply *r, const struct slow_entry *e)
{
    reply_array(r, 6);
    reply_int(r, e->id);
    reply_int(r, e->unix_s);
    reply_int(r, e->took_us);
    reply_array(r, e->n_args);
    for (int i = 0; i < e->n_args; i++)
        reply_bulk(r, bytes_of(&e->args[i]));
    reply_bulk(r, bytes_of(&e->address));
    reply_bulk(r, bytes_of(&e->name));
}

void slowlog_reply(const struct slowlog *log, struct reply *r, int64_t count)
{
    int64_t n = count < 0 || count > log->n ? log->n : count;
    reply_array(r, n);
    LIST_FOREACH(&log->entries, node, next) {
        if (n-- == 0)
            break;
        reply_entry_of(r, LIST_ITEM(node, struct slow_entry, node));
    }
}
