/* docs.h - the syntax line of a command as a tree, for COMMAND DOCS and HELP. */
#ifndef SERVER_DOCS_H
#define SERVER_DOCS_H

#include <stdbool.h>
#include "base/err.h"
#include "base/str.h"
#include "server/reply.h"

enum docs_kind { DOCS_VALUE, DOCS_TOKEN, DOCS_BLOCK, DOCS_ONE_OF };

struct docs_node {
    enum docs_kind kind;
    struct str name, token, type; /* own; token: the word that must be typed; type: of a value */
    bool optional, multiple, multiple_token;
    struct docs_node **children; /* [n] owns */
    int n;
};

/* NULL with the fault in err: syntax lines are ours, a test parses all of them. */
struct docs_node *docs_parse(const char *syntax, struct err *err);
void docs_free(struct docs_node *node); /* accepts NULL */
/* The children of the root as COMMAND DOCS shows arguments. */
void docs_reply_arguments(struct reply *r, const struct docs_node *root);
/* The syntax as a person reads it: "key [NX | XX] seconds". */
void docs_print(const struct docs_node *root, struct str *out);

#endif
