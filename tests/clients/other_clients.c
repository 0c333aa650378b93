/* other_clients.c - hiredis against a real server. Argument: TCP port. One line `NAME: ok` or
 * `NAME: FAILED why` a check. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <hiredis/hiredis.h>

static redisContext *redis;

/* The reply when it is of this type, else NULL. The caller frees. */
static redisReply *typed(redisReply *reply, int type)
{
    if (reply && reply->type == type)
        return reply;
    freeReplyObject(reply);
    return NULL;
}

static bool is_integer(redisReply *reply, long long value)
{
    bool same = reply && reply->type == REDIS_REPLY_INTEGER && reply->integer == value;
    freeReplyObject(reply);
    return same;
}

static bool is_text(redisReply *reply, int type, const char *text)
{
    bool same = reply && reply->type == type && strcmp(reply->str, text) == 0;
    freeReplyObject(reply);
    return same;
}

/* A field of the newest entry of a key is this. */
static bool last_entry_has(const char *key, const char *name, const char *value, size_t len)
{
    redisReply *range =
        typed(redisCommand(redis, "XREVRANGE %s + - COUNT 1", key), REDIS_REPLY_ARRAY);
    bool found = false;
    if (range && range->elements == 1) {
        const redisReply *fields = range->element[0]->element[1];
        for (size_t i = 0; i + 1 < fields->elements; i += 2)
            found |= strcmp(fields->element[i]->str, name) == 0 &&
                     (size_t)fields->element[i + 1]->len == len &&
                     memcmp(fields->element[i + 1]->str, value, len) == 0;
    }
    freeReplyObject(range);
    return found;
}

static bool check_connect(void)
{
    redisReply *info = typed(redisCommand(redis, "INFO server"), REDIS_REPLY_STRING);
    bool ok = info && strstr(info->str, "redis_mode:standalone");
    freeReplyObject(info);
    return ok && is_text(redisCommand(redis, "PING"), REDIS_REPLY_STATUS, "PONG") &&
           is_text(redisCommand(redis, "ECHO x"), REDIS_REPLY_STRING, "x");
}

static bool check_gen(void)
{
    redisReply *reply = typed(
        redisCommand(redis, "GEN k %s MAXTOKENS 12 TEMP 0 IGNOREEOS", "hello"), REDIS_REPLY_STRING);
    bool ok = reply && last_entry_has("k", "text", reply->str, (size_t)reply->len) &&
              last_entry_has("k", "finish", "length", 6) &&
              is_integer(redisCommand(redis, "XLEN k"), 2);
    freeReplyObject(reply);
    redisReply *refused = redisCommand(redis, "GEN k x MAXTOKENS 0");
    ok &= refused && refused->type == REDIS_REPLY_ERROR;
    freeReplyObject(refused);
    return ok;
}

static redisReply *gen_once(void)
{
    redisReply *reply = NULL;
    do {
        freeReplyObject(reply);
        reply = redisCommand(redis, "GEN k hello MAXTOKENS 12 IGNOREEOS ID one BLOCK 4000");
    } while (reply && reply->type == REDIS_REPLY_NIL);
    return typed(reply, REDIS_REPLY_STRING);
}

static bool check_block(void)
{
    redisReply *first = gen_once(), *again = gen_once();
    bool ok = first && again && first->len == again->len &&
              memcmp(first->str, again->str, (size_t)first->len) == 0 &&
              is_integer(redisCommand(redis, "XLEN k"), 2);
    freeReplyObject(first);
    freeReplyObject(again);
    return ok;
}

/* One entry [id, [name, value ...]]: its piece is appended, its id kept. True for an end. */
static bool take_entry(const redisReply *entry, char *last, char *text, size_t *len, size_t cap)
{
    const redisReply *fields = entry->element[1];
    snprintf(last, 64, "%s", entry->element[0]->str);
    const redisReply *value = fields->element[1];
    if (strcmp(fields->element[0]->str, "piece") != 0)
        return true;
    if (*len + (size_t)value->len <= cap) {
        memcpy(text + *len, value->str, (size_t)value->len);
        *len += (size_t)value->len;
    }
    return false;
}

static bool check_async_and_xread(void)
{
    char last[64] = "", text[4096];
    size_t len = 0;
    redisReply *id =
        typed(redisCommand(redis, "GEN s hello MAXTOKENS 30 IGNOREEOS ASYNC"), REDIS_REPLY_STRING);
    snprintf(last, sizeof last, "%s", id ? id->str : "");
    freeReplyObject(id);
    for (bool ended = !*last; !ended;) {
        redisReply *reply = redisCommand(redis, "XREAD BLOCK 4000 STREAMS s %s", last);
        if (!reply)
            return false;
        const redisReply *entries = NULL;
        if (reply->type == REDIS_REPLY_ARRAY)
            entries = reply->element[0]->element[1];
        for (size_t i = 0; entries && i < entries->elements; i++)
            ended |= take_entry(entries->element[i], last, text, &len, sizeof text);
        freeReplyObject(reply);
    }
    return len > 0 && last_entry_has("s", "text", text, len);
}

static bool check_fork(void)
{
    redisReply *gen =
        typed(redisCommand(redis, "GEN f hello MAXTOKENS 3 IGNOREEOS"), REDIS_REPLY_STRING);
    bool ok = gen && is_integer(redisCommand(redis, "FORK f f1 f2"), 2) &&
              is_integer(redisCommand(redis, "XLEN f2"), 2);
    freeReplyObject(gen);
    return ok;
}

static bool check_cancel(void)
{
    freeReplyObject(redisCommand(redis, "SEAM STEPS 0"));
    freeReplyObject(redisCommand(redis, "GEN c hello MAXTOKENS 3000 IGNOREEOS ASYNC"));
    bool ok = is_integer(redisCommand(redis, "CANCEL c"), 1);
    freeReplyObject(redisCommand(redis, "SEAM STEPS -1"));
    return ok && last_entry_has("c", "finish", "cancelled", 9);
}

static bool check_pipeline(void)
{
    static const int types[] = {REDIS_REPLY_STRING, REDIS_REPLY_INTEGER, REDIS_REPLY_STRING,
                                REDIS_REPLY_NIL};
    bool ok = true;
    redisAppendCommand(redis, "XADD p 1-1 text a");
    redisAppendCommand(redis, "XLEN p");
    redisAppendCommand(redis, "GEN p b MAXTOKENS 3 IGNOREEOS");
    redisAppendCommand(redis, "XREAD BLOCK 10 STREAMS p $");
    for (int i = 0; i < 4 && ok; i++) {
        void *next = NULL;
        ok = redisGetReply(redis, &next) == REDIS_OK && ((redisReply *)next)->type == types[i];
        freeReplyObject(next);
    }
    return ok;
}

static bool check_multi(void)
{
    freeReplyObject(redisCommand(redis, "MULTI"));
    freeReplyObject(redisCommand(redis, "GEN m x MAXTOKENS 2 IGNOREEOS"));
    freeReplyObject(redisCommand(redis, "XLEN m"));
    redisReply *exec = typed(redisCommand(redis, "EXEC"), REDIS_REPLY_ARRAY);
    bool ok = exec && exec->elements == 2 && exec->element[0]->type == REDIS_REPLY_STRING &&
              strchr(exec->element[0]->str, '-') && exec->element[1]->integer == 1;
    freeReplyObject(exec);
    return ok;
}

/* The server closes the link; hiredis connects again when it is told to. */
static bool check_reconnect(void)
{
    freeReplyObject(redisCommand(redis, "CLIENT KILL SKIPME no TYPE normal"));
    freeReplyObject(redisCommand(redis, "PING"));
    return redisReconnect(redis) == REDIS_OK &&
           is_text(redisCommand(redis, "PING"), REDIS_REPLY_STATUS, "PONG");
}

static const struct {
    const char *name;
    bool (*run)(void);
} checks[] = {
    {"connect", check_connect},     {"GEN", check_gen},
    {"BLOCK", check_block},         {"ASYNC and XREAD", check_async_and_xread},
    {"FORK", check_fork},           {"CANCEL", check_cancel},
    {"pipeline", check_pipeline},   {"MULTI", check_multi},
    {"reconnect", check_reconnect},
};

int main(int argc, char **argv)
{
    int port = argc == 2 ? atoi(argv[1]) : 0;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        redis = redisConnect("127.0.0.1", port);
        if (!redis || redis->err)
            return printf("%s: FAILED to connect\n", checks[i].name), 1;
        freeReplyObject(redisCommand(redis, "FLUSHALL"));
        bool ok = checks[i].run();
        printf("%s: %s%s\n", checks[i].name, ok ? "ok" : "FAILED ", ok ? "" : redis->errstr);
        redisFree(redis);
    }
    return 0;
}
