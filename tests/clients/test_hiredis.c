/* test_hiredis.c - hiredis against a real server. Started by test_hiredis.py with a unix socket. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <hiredis/hiredis.h>

static redisContext *redis;

static redisReply *must(redisReply *reply, int type, const char *what)
{
    if (!reply || reply->type != type) {
        printf("FAILED: %s: type %d, %s\n", what, reply ? reply->type : -1,
               reply ? (reply->str ? reply->str : "") : redis->errstr);
        exit(1);
    }
    return reply;
}

int main(int argc, char **argv)
{
    redis = argc == 2 ? redisConnectUnix(argv[1]) : NULL;
    if (!redis || redis->err)
        return printf("FAILED: cannot connect\n"), 1;
    redisReply *reply = must(redisCommand(redis, "GEN h %s MAXTOKENS 8 TEMP 0 IGNOREEOS", "hello"),
                             REDIS_REPLY_STRING, "GEN");
    redisReply *range =
        must(redisCommand(redis, "XREVRANGE h + - COUNT 1"), REDIS_REPLY_ARRAY, "XREVRANGE");
    const redisReply *text = range->element[0]->element[1]->element[1];
    if (text->len != reply->len || memcmp(text->str, reply->str, text->len) != 0)
        return printf("FAILED: the end entry holds another text\n"), 1;
    freeReplyObject(range);
    freeReplyObject(reply);

    /* A pipeline: FORK, then two questions about the children, three replies in order. */
    redisAppendCommand(redis, "FORK h h1 h2");
    redisAppendCommand(redis, "XLEN h1");
    redisAppendCommand(redis, "GENINFO h2");
    static const int types[] = {REDIS_REPLY_INTEGER, REDIS_REPLY_INTEGER, REDIS_REPLY_ARRAY};
    for (int i = 0; i < 3; i++) {
        void *next = NULL;
        if (redisGetReply(redis, &next) != REDIS_OK)
            return printf("FAILED: %s\n", redis->errstr), 1;
        freeReplyObject(must(next, types[i], "pipeline"));
    }
    freeReplyObject(
        must(redisCommand(redis, "GEN h x MAXTOKENS 0"), REDIS_REPLY_ERROR, "MAXTOKENS 0"));
    freeReplyObject(must(redisCommand(redis, "XREAD BLOCK 10 STREAMS h $"), REDIS_REPLY_NIL,
                         "XREAD that finds nothing"));
    redisFree(redis);
    printf("ok\n");
    return 0;
}
