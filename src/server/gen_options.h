/* gen_options.h - the arguments of GEN: one table of options, parsed into a gen_request. */
#ifndef SERVER_GEN_OPTIONS_H
#define SERVER_GEN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "keyspace/generate.h"
#include "server/resp.h"

/* A request with what its arrays need. Zero-initialise; gen_parse_free at the end. */
struct gen_parse {
    struct gen_request request;
    struct bytes *stops;    /* [n_stops] owns the array, borrows the texts */
    struct plan_bias *bias; /* [n_bias] owns */
    int32_t n_stops, n_bias, n_bias_given;
};

/* GEN key [prompt] [option ...]. n_vocab bounds ids and TOPK. -1: err, with its prefix. */
int gen_parse(struct gen_parse *p, const struct request *q, int32_t n_vocab, struct err *err);
void gen_parse_free(struct gen_parse *p);

/* The syntax line of GEN, made of the same options; a test compares it with the table. */
#define GEN_SYNTAX                                                                                 \
    "key:key [prompt [AS role] [<branches: N n:integer|BEAM width:integer>] "                      \
    "[MAXTOKENS n:integer] [TEMP t:double] [TOPK k:integer] "                                      \
    "[TOPP p:double] [MINP p:double] [REPEAT p:double] [PRESENCE p:double] [FREQUENCY p:double] "  \
    "[SEED s:integer] [STOP text]... [BIAS id:integer value:double]... "                           \
    "[LENPENALTY p:double] [EARLYSTOP] [LOGPROBS n:integer] [PROMPTLOGPROBS n:integer] "           \
    "[PRIORITY p:integer] [IGNOREEOS] [IDS] "                                                      \
    "[DEADLINE milliseconds:integer] [ID token] [WITHINFO] "                                       \
    "[<wait: BLOCK milliseconds:integer|ASYNC>]]"
const char *gen_option_name(int i); /* NULL behind the last */

#endif
