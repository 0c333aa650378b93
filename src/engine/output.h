/* output.h - from sampled ids to text: whole characters, stop strings, the end of an answer. */
#ifndef ENGINE_OUTPUT_H
#define ENGINE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/str.h"
#include "engine/engine.h"
#include "model/tokenizer.h"

/* One stop string and how much of it the text ends with. */
struct output_stop {
    struct bytes text; /* [1 .. 1024 bytes] owns */
    int32_t *fallback; /* [text.len] owns; length of the longest proper border of each prefix */
    int32_t n_matched; /* bytes of it that the text ends with, 0 .. text.len - 1 */
};

/* Text of one branch. Owned by its sequence, main thread, dies with it. */
struct output {
    const struct tokenizer *tokenizer; /* borrows */
    struct output_stop *stops;         /* [n_stops] owns */
    int32_t n_stops;
    bool ignore_eos;
    int64_t max_ids; /* generated ids at which it ends with GEN_LENGTH */
    int32_t n_before,
        n_context; /* ids before the generated ones; they and ids stay below context */

    struct str text;    /* carried bytes, then those of every id; cut at a stop string */
    size_t n_carried;   /* bytes of text that belong to ids before ours */
    size_t n_delivered; /* bytes of text that went out */
    struct ids ids;     /* generated, without the end-of-text id; as sampled until the cut */
    size_t *text_ends;  /* [ids_cap] owns; length of text after each id, as sampled */
    int32_t ids_cap;
    int32_t n_sampled; /* ids as sampled: differs from ids.n after a cut only */
    int32_t n_ids_delivered;
    const struct output_stop *matched; /* the stop string that ended it, or NULL */
};

void output_init(struct output *o, const struct tokenizer *t, const struct gen_options *options,
                 int32_t n_before, int32_t n_context);
void output_free(struct output *o);

enum gen_finish output_accept(struct output *o, int32_t id);
/* The same for a search that has many texts in work: only whether the id completes a stop string.
 * matched [n_stops] is the text's, as n_matched above: output_begin_stops sets it to that of the
 * carried bytes. */
void output_begin_stops(const struct output *o, int32_t *matched);
bool output_accept_stops(struct output *o, int32_t id, int32_t *matched);
void output_skip(struct output *o);
void output_reset(struct output *o);
bool output_take(struct output *o, bool is_over, struct gen_output *portion);
struct bytes output_whole(const struct output *o);
struct bytes output_unfinished(const struct output *o);

#endif
