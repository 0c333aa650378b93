/* reply_limit.c - how many elements an array of a reply may promise; reply_limit.h says why. */
#include "utils/reply_limit.h"

static void *limited_array(const redisReadTask *task, reply_count n)
{
    struct reply_limit *limit = task->privdata;
    if ((size_t)n <=
        REPLY_MAX_ELEMENTS) /* a count that hiredis has cut to a negative one is above */
        return limit->array(task, n);
    limit->refused = (size_t)n;
    return NULL; /* hiredis gives the connection up */
}

void reply_limit_set(struct reply_limit *limit, redisContext *redis)
{
    redisReader *reader = redis->reader;
    limit->functions = *reader->fn;
    limit->array = reader->fn->createArray;
    limit->functions.createArray = limited_array;
    reader->fn = &limit->functions;
    reader->privdata = limit;
}
