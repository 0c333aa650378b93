/* tok_split.h - cutting text into the pieces that are merged alone. Internal to the tokenizer. */
#ifndef MODEL_TOK_SPLIT_H
#define MODEL_TOK_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"
#include "base/str.h"

struct split;

/* pre is the name in the metadata's tokenizer.ggml.pre. */
struct split *split_open(const char *pre, struct err *err);
void split_free(struct split *s); /* accepts NULL */
/* A piece that is a token as a whole is taken so, whatever the merges say. */
bool split_takes_whole(const struct split *s);
/* Vocabularies of this name begin prompts with BOS where their metadata is silent. */
bool split_adds_bos(const char *pre);

/* One walk over one text, which is well-formed UTF-8. match_limit 0: the default. */
struct split_walk {
    const struct split *split; /* borrows */
    struct bytes text;         /* borrows */
    size_t at;                 /* where the next piece begins */
    void *match, *context;     /* own */
    int n_failed;              /* matches that gave up, so that pieces were cut by hand */
};
void split_walk_open(struct split_walk *w, const struct split *s, unsigned match_limit);
void split_walk_start(struct split_walk *w, struct bytes text);
bool split_walk_next(struct split_walk *w, struct bytes *piece); /* false at the end */
void split_walk_close(struct split_walk *w);

#endif
