/* scripts.c - the conversations; scripts.h says how they read. */
#include "tests/server/scripts.h"

#include <stddef.h>

#define SHORT "MAXTOKENS 12 IGNOREEOS SEED 5"

const struct script scripts[] = {
    {"ping", "1 PING\n1 PING hello\n1 ECHO text\n"},
    {"handshake of redis-py",
     "1 HELLO 3\n1 CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type external-ip\n"
     "1 CLIENT SETINFO LIB-NAME redis-py\n1 CLIENT SETINFO LIB-VER 8.0.0\n1 SELECT 2\n1 PING\n"},
    {"handshake of ioredis", "1 client SETINFO LIB-NAME ioredis\n1 info\n1 select 1\n"
                             "1 client setname worker\n"},
    {"handshake of an exporter", "1 CLIENT SETNAME exporter\n1 CONFIG GET *\n1 INFO ALL\n"
                                 "1 LATENCY LATEST\n1 SLOWLOG LEN\n1 SLOWLOG GET\n"},
    {"a prompt of redis-cli",
     "1 COMMAND DOCS\n1 COMMAND\n1 COMMAND COUNT\n1 COMMAND INFO gen xadd\n"},
    {"command tables",
     "1 COMMAND LIST\n1 COMMAND GETKEYS FORK a b c\n1 COMMAND GETKEYS XREAD STREAMS "
     "a b 0 0\n1 COMMAND DOCS gen fork\n"},
    {"one answer", "1 GEN k hello " SHORT "\ngo\n1 XRANGE k - +\n"},
    {"an answer that goes on", "1 GEN k hello " SHORT "\ngo\n1 GEN k\ngo\n1 XLEN k\n"},
    {"a chat", "1 GEN k 'how are you' AS user " SHORT "\ngo\n1 GEN k 'and now' " SHORT
               "\ngo\n1 XRANGE k - +\n1 GENINFO k\n"},
    {"a chat from entries",
     "1 XADD k * role system content 'be brief'\n1 XADD k * role user content "
     "hello\n1 GEN k '' " SHORT "\ngo\n1 XREVRANGE k + - COUNT 1\n"},
    {"a reader follows", "1 GEN k hello ASYNC " SHORT "\n2 XREAD BLOCK 4000 STREAMS k 0\nhold 3\n2 "
                         "XREAD BLOCK 4000 STREAMS k $\ngo\n2 XREAD STREAMS k 0\n"},
    {"three readers", "1 XREAD BLOCK 0 STREAMS k l $ $\n2 XREAD BLOCK 0 COUNT 1 STREAMS l $\n"
                      "3 XADD l * a b\n3 XADD k * c d\n3 XLEN l\n"},
    {"a reader times out", "1 XREAD BLOCK 100 STREAMS k $\nwait 200\n1 PING\n"},
    {"two ask the same", "1 GEN k hello " SHORT "\n2 GEN k hello " SHORT "\ngo\n"},
    {"a client goes, another resends",
     "1 GEN k hello " SHORT "\nhold 3\nclose 1\n2 GEN k hello " SHORT "\ngo\n2 GENINFO k\n"},
    {"an orphan is resumed",
     "1 GEN k hello " SHORT "\nhold 3\nclose 1\nwait 11000\n2 XLEN k\n2 GEN k "
     "hello " SHORT "\ngo\n2 XRANGE k - +\n"},
    {"a long poll",
     "1 GEN k hello BLOCK 50 " SHORT "\nhold 2\nwait 60\n1 GEN k hello BLOCK 50 " SHORT "\ngo\n"},
    {"an ID is replayed", "1 GEN k hello ID one " SHORT "\ngo\n1 GEN k hello ID one " SHORT
                          "\n1 GEN k other ID one " SHORT "\ngo\n"},
    {"cancelled", "1 GEN k hello " SHORT "\nhold 2\n2 CANCEL k\ngo\n2 XRANGE k - +\n"},
    {"cancelled while queued", "1 GEN a hello ASYNC " SHORT "\nhold 1\n1 GEN b hello ASYNC " SHORT
                               "\n1 GEN c hello " SHORT "\n2 CANCEL a b c\ngo\n"},
    {"a deadline", "1 GEN k hello DEADLINE 50 " SHORT "\nhold 2\nwait 60\ngo\n1 GENINFO k\n"},
    {"forked while it runs", "1 GEN k hello " SHORT "\nhold 3\n2 FORK k a b\n2 GEN a more " SHORT
                             "\n3 GEN b '' " SHORT "\ngo\n2 XRANGE a - +\n"},
    {"copied and renamed",
     "1 XADD k 1-1 text hello\n1 COPY k l\n1 RENAME l m\n1 FORK m n o REPLACE\n"
     "1 KEYS *\n1 DEL k m n o\n"},
    {"forked at an entry",
     "1 XADD k 1-1 text one\n1 XADD k 2-1 text two\n1 FORK k a AT 1-1\n1 XRANGE "
     "a - +\n1 GEN a '' " SHORT "\ngo\n"},
    {"several answers", "1 GEN k hello N 3 " SHORT "\ngo\n1 XRANGE k - +\n1 GENINFO k\n1 FORK k a "
                        "BRANCH 2\n1 GEN k more N 2 " SHORT "\ngo\n1 GEN a more " SHORT "\ngo\n"},
    {"a group is cancelled",
     "1 GEN k hello N 3 " SHORT "\n2 XREAD BLOCK 0 STREAMS k $\nhold 3\n3 "
     "FORK k a b BRANCH 1\n3 CANCEL k\ngo\n2 XRANGE k - +\n2 XRANGE a - +\n"},
    {"an orphaned group is resumed",
     "1 GEN k hello N 3 ID one " SHORT "\nhold 4\nclose 1\nwait 11000\n2 XLEN k\n2 GEN k hello N 3 "
     "ID one " SHORT "\ngo\n2 GEN k hello N 3 ID one " SHORT "\n2 XRANGE k - +\n"},
    {"beams",
     "1 GEN k hello BEAM 3 LENPENALTY 1.5 EARLYSTOP MAXTOKENS 12\nhold 3\n2 FORK k a\ngo\n1 "
     "XRANGE k - +\n"},
    {"deleted while it runs",
     "1 GEN k hello " SHORT "\n2 XREAD BLOCK 0 STREAMS k $\nhold 2\n3 DEL k\n"
     "go\n3 GENINFO k\n"},
    {"expired while it runs",
     "1 GEN k hello " SHORT "\nhold 2\n2 PEXPIRE k 100\nwait 200\ngo\n2 EXISTS "
     "k\n"},
    {"flushed while it runs", "1 GEN k hello " SHORT "\n2 GEN l hello ASYNC " SHORT "\nhold 2\n3 "
                              "FLUSHALL\ngo\n3 DBSIZE\n"},
    {"a transaction",
     "1 MULTI\n1 XADD k * text a\n1 XLEN k\n1 GEN k more " SHORT "\n1 XRANGE k - +\n1 "
     "EXEC\ngo\n1 XRANGE k - +\n"},
    {"a transaction given up",
     "1 MULTI\n1 GEN k hello\n1 NOSUCH\n1 EXEC\n1 MULTI\n1 PING\n1 DISCARD\n"},
    {"watched",
     "1 WATCH k\n1 XLEN k\n2 XADD k * a b\n1 MULTI\n1 XADD k * c d\n1 EXEC\n1 UNWATCH\n"},
    {"streams",
     "1 XADD s 1-1 a b\n1 XADD s 2-1 c d\n1 XADD s 3-1 e f\n1 XINFO STREAM s FULL\n1 XTRIM s "
     "MAXLEN 2\n1 XDEL s 2-1\n1 XRANGE s - + COUNT 1\n1 XSETID s 9-9\n"},
    {"keys", "1 XADD a 1-1 x y\n1 EXPIRE a 100\n1 TTL a\n1 PERSIST a\n1 SCAN 0 MATCH * COUNT 10\n1 "
             "TYPE a\n1 OBJECT ENCODING a\n1 MEMORY USAGE a\n1 UNLINK a\n1 EXISTS a\n"},
    {"tokens",
     "1 TOKENIZE 'hello world'\n1 DETOKENIZE 104 101\n1 CACHE PROBE 'hello world'\n1 GEN k "
     "'hello world' " SHORT "\ngo\n1 CACHE PROBE 'hello world'\n1 CACHE INFO\n1 CACHE CLEAR\n"},
    {"a long prompt, in a job", "long 1\ngo\n1 GENINFO k\n1 XLEN k\n"},
    {"a long prompt, given up", "long 1\nclose 1\n2 CANCEL k\ngo\n2 EXISTS k\n"},
    {"stop strings and biases",
     "1 GEN k hello STOP ab STOP xyz BIAS 97 -5 BIAS 98 5 REPEAT 1.2 TOPK "
     "9 TOPP 0.9 MINP 0.1 " SHORT "\ngo\n1 XRANGE k - +\n"},
    {"refused",
     "1 GEN k\n1 GEN k hello TEMP x\n1 GEN k hello AS nobody\n1 XADD k 0-0 a b\n1 CONFIG SET "
     "port 1\n1 NOSUCH a b c\n1 EXPIRE k x\n"},
    {"configured",
     "1 CONFIG GET max*\n1 CONFIG SET default-max-tokens 20 orphan-timeout 10s\n1 CONFIG "
     "RESETSTAT\n1 CONFIG REWRITE\n1 GEN k hello SEED 1\ngo\n"},
    {"published",
     "1 SUBSCRIBE a b\n2 PSUBSCRIBE a*\n3 PUBLISH a hello\n1 UNSUBSCRIBE\n2 PUNSUBSCRIBE\n3 "
     "PUBSUB CHANNELS\n"},
    {"looked after",
     "1 CLIENT ID\n1 CLIENT LIST\n1 CLIENT SETNAME x\n1 CLIENT INFO\n2 XREAD BLOCK 0 "
     "STREAMS k $\n1 CLIENT UNBLOCK 2\n1 DEBUG AUDIT\n1 RESET\n1 QUIT\n"},
    {NULL, NULL},
};
