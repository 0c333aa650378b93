/* chat_link.c - kvasir-chat's side of the wire: commands over a connection that comes back.
 *
 * hiredis reads and writes; waiting is done here, by poll, since hiredis goes on reading when a
 * signal comes, and Ctrl-C must be heard while XREAD blocks. Everything is RESP2. */
#include "utils/chat_link.h"
#include <poll.h>
#include <string.h>

#define CONNECT_SECONDS 5
#define LOOK_EVERY_MS 100
#define TRIES 2 /* a command is sent again once */

void link_add(struct link_command *command, struct bytes arg)
{
    ASSERT(command->n < LINK_MAX_ARGS);
    command->args[command->n] = arg.data;
    command->lens[command->n++] = arg.len;
}

void link_add_text(struct link_command *command, const char *arg)
{
    link_add(command, bytes_from(arg));
}

static void describe(const struct link_address *a, struct str *out)
{
    if (a->socket)
        str_append_str(out, a->socket);
    else
        str_printf(out, "%s:%d", a->host, a->port);
}

static int set_unreachable(struct link *l, struct err *err)
{
    struct str where = {0};
    describe(l->address, &where);
    if (l->limit.refused > 0)
        (void)err_set(err, "%s began a reply of %zu elements, more than %d", where.data,
                      l->limit.refused, REPLY_MAX_ELEMENTS);
    else
        (void)err_set(err, "no connection to %s: %s", where.data,
                      l->redis ? l->redis->errstr : "out of memory");
    str_free(&where);
    link_close(l);
    return -1;
}

static int authenticate(struct link *l, struct err *err)
{
    if (!l->address->password)
        return 0;
    redisReply *reply = redisCommand(l->redis, "AUTH %s", l->address->password);
    if (!reply)
        return set_unreachable(l, err);
    int rc = reply->type == REDIS_REPLY_ERROR ? err_set(err, "%s", reply->str) : 0;
    freeReplyObject(reply);
    if (rc < 0)
        link_close(l);
    return rc;
}

static int connect_again(struct link *l, struct err *err)
{
    const struct link_address *a = l->address;
    struct timeval limit = {.tv_sec = CONNECT_SECONDS};
    l->limit.refused = 0;
    l->redis = a->socket ? redisConnectUnixWithTimeout(a->socket, limit)
                         : redisConnectWithTimeout(a->host, a->port, limit);
    if (!l->redis || l->redis->err)
        return set_unreachable(l, err);
    reply_limit_set(&l->limit, l->redis);
    return authenticate(l, err);
}

int link_open(struct link *l, const struct link_address *address, struct err *err)
{
    *l = (struct link){.address = address};
    return connect_again(l, err);
}

void link_close(struct link *l)
{
    if (l->redis)
        redisFree(l->redis);
    l->redis = NULL;
}

/* Waits until the socket can be read. A signal may come just before poll, which then does not see
 * it: so its flag is looked at often enough for a person. */
static void wait_readable(struct link *l)
{
    struct pollfd p = {.fd = l->redis->fd, .events = POLLIN};
    while (poll(&p, 1, LOOK_EVERY_MS) <= 0)
        if (l->while_waiting)
            l->while_waiting(l->arg);
}

static redisReply *exchange(struct link *l, const struct link_command *command)
{
    void *reply = NULL;
    int is_sent = 0;
    if (redisAppendCommandArgv(l->redis, command->n, (const char **)command->args, command->lens) !=
        REDIS_OK)
        return NULL;
    while (!is_sent)
        if (redisBufferWrite(l->redis, &is_sent) != REDIS_OK)
            return NULL;
    while (redisGetReplyFromReader(l->redis, &reply) == REDIS_OK && !reply) {
        wait_readable(l);
        if (redisBufferRead(l->redis) != REDIS_OK)
            return NULL;
    }
    return reply;
}

redisReply *link_ask(struct link *l, const struct link_command *command, struct err *err)
{
    for (int i = 0; i < TRIES; i++) {
        if (!l->redis && connect_again(l, err) < 0)
            return NULL;
        redisReply *reply = exchange(l, command);
        if (reply)
            return reply;
        (void)set_unreachable(l, err);
    }
    return NULL;
}
