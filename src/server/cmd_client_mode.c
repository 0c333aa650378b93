/* cmd_client_mode.c - CLIENT REPLY NO-EVICT NO-TOUCH PAUSE UNPAUSE TRACKING: how a connection behaves,
 * and whether anybody's commands run.
 *
 * REPLY OFF and SKIP: the command runs, its reply is thrown away where dispatch ends, that of a
 * blocked GEN where it is answered. Pushes are no replies and are not touched.
 *
 * PAUSE holds commands back, not clients: a request that may not run now stays where the reader has
 * put it, the client is blocked, and at the end of the pause the same request is dispatched as if it
 * had just come. WRITE holds back what may change keys (EXEC, when its queue does), ALL everything.
 * CANCEL, SHUTDOWN and CLIENT UNPAUSE always run: an operator who has stopped the world must be able
 * to end what runs on in it, and to take the pause back. Generations go on, and so do expiry and
 * replies to whoever waits.
 *
 * TRACKING is an error, on which clients go on without a local cache: nothing would ever tell them
 * that a key has changed. */
#include "base/clock.h"
#include "server/cmd_client.h"
#include "server/server.h"

/* ---- of one connection ------------------------------------------------------------------------ */

void cmd_client_reply(struct client *c, const struct request *q)
{
    if (bytes_equal_nocase(q->args[2], "on")) {
        c->reply_off = false;
        c->mute = false; /* this one is answered, whatever stood before it */
        reply_ok(&c->reply);
    } else if (bytes_equal_nocase(q->args[2], "off")) {
        c->reply_off = true;
    } else if (bytes_equal_nocase(q->args[2], "skip")) {
        c->mute = true;
        c->mute_next = true;
    } else {
        reply_syntax_error(&c->reply);
    }
}

/* ON or OFF, into flag. */
static void run_switch(struct client *c, const struct request *q, bool *flag)
{
    bool on = bytes_equal_nocase(q->args[2], "on");
    if (!on && !bytes_equal_nocase(q->args[2], "off")) {
        reply_syntax_error(&c->reply);
        return;
    }
    *flag = on;
    reply_ok(&c->reply);
}

/* Clients are never evicted for memory here; the flag is kept so that CLIENT LIST shows it. */
void cmd_client_no_evict(struct client *c, const struct request *q)
{
    run_switch(c, q, &c->no_evict);
}

void cmd_client_no_touch(struct client *c, const struct request *q)
{
    run_switch(c, q, &c->no_touch);
}

/* ---- of all ----------------------------------------------------------------------------------- */

void server_pause_end(struct server *s)
{
    s->pause = PAUSE_NONE;
    s->pause_until_us = 0;
    LIST_FOREACH(&s->clients, node, next) {
        struct client *c = LIST_ITEM(node, struct client, node);
        if (c->blocked == BLOCK_PAUSE)
            client_attend(c);
    }
}

void cmd_client_pause(struct client *c, const struct request *q)
{
    struct server *s = c->server;
    int64_t ms, until_us;
    bool only_writes = q->n_args == 4 && bytes_equal_nocase(q->args[3], "write");
    if (q->n_args > 4) {
        reply_subcommand_words(c, q);
    } else if (q->n_args == 4 && !only_writes && !bytes_equal_nocase(q->args[3], "all")) {
        reply_error(&c->reply, "ERR CLIENT PAUSE mode must be WRITE or ALL");
    } else if (!parse_i64(q->args[2], &ms)) {
        reply_error(&c->reply, "ERR timeout is not an integer or out of range");
    } else if (ms < 0) {
        reply_error(&c->reply, "ERR timeout is negative");
    } else if (__builtin_mul_overflow(ms, (int64_t)1000, &until_us) ||
               __builtin_add_overflow(until_us, clock_now_us(), &until_us)) {
        reply_error(&c->reply, "ERR timeout is out of range");
    } else {
        /* of two pauses the longer time and the stricter kind hold, as in Redis */
        enum server_pause kind = only_writes ? PAUSE_WRITE : PAUSE_ALL;
        if (until_us > s->pause_until_us)
            s->pause_until_us = until_us;
        if (kind > s->pause)
            s->pause = kind;
        reply_ok(&c->reply);
    }
}

void cmd_client_unpause(struct client *c, const struct request *q)
{
    server_pause_end(c->server);
    reply_ok(&c->reply);
}

/* ---- tracking --------------------------------------------------------------------------------- */

void cmd_client_tracking(struct client *c, const struct request *q)
{
    if (q->n_args == 3 && bytes_equal_nocase(q->args[2], "off"))
        reply_ok(&c->reply); /* it is */
    else if (!bytes_equal_nocase(q->args[2], "on"))
        reply_syntax_error(&c->reply);
    else
        reply_error(&c->reply, "ERR Client tracking is not supported: no invalidation messages "
                               "are sent here");
}

void cmd_client_trackinginfo(struct client *c, const struct request *q)
{
    struct reply *r = &c->reply;
    reply_map(r, 3);
    reply_text(r, "flags");
    reply_set(r, 1);
    reply_text(r, "off");
    reply_text(r, "redirect");
    reply_int(r, -1);
    reply_text(r, "prefixes");
    reply_array(r, 0);
}

void cmd_client_caching(struct client *c, const struct request *q)
{
    if (bytes_equal_nocase(q->args[2], "yes") || bytes_equal_nocase(q->args[2], "no"))
        reply_error(&c->reply, "ERR CLIENT CACHING can be called only when the client is in "
                               "tracking mode with OPTIN or OPTOUT mode enabled");
    else
        reply_syntax_error(&c->reply);
}

void cmd_client_getredir(struct client *c, const struct request *q)
{
    reply_int(&c->reply, -1);
}
