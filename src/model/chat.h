/* chat.h - chat templates as data: recognised from the model's metadata, rendered turn by turn.
 *
 * A template is a table: what stands before and after each role's content, what opens an answer, a
 * default system text, whether roles must alternate. Rendering is incremental, since a conversation
 * keeps each message's ids: chat_render_turn gives what is added for one more message, given the
 * message before it. Marks become control tokens, contents never do. Any thread. */
#ifndef MODEL_CHAT_H
#define MODEL_CHAT_H

#include <stdbool.h>
#include "base/err.h"
#include "base/str.h"
#include "model/tokenizer.h"

struct chat_template; /* static const data */

/* By name: chatml smollm2 llama-3 llama-2 mistral zephyr phi-3 gemma; NULL with the list in err. */
const struct chat_template *chat_find(const char *name, struct err *err);
/* From the text of tokenizer.chat_template; NULL: unknown, err says how to name one. */
const struct chat_template *chat_recognise(struct bytes jinja, struct err *err);
const char *chat_name(const struct chat_template *c);

/* Where a conversation stands before a turn. */
enum chat_place {
    CHAT_START,         /* nothing before it in the sequence */
    CHAT_AFTER_MESSAGE, /* a closed message (user, system, tool, or assistant by XADD) */
    CHAT_AFTER_ANSWER,  /* generated text: its closing mark is still to be written */
    CHAT_AFTER_OPEN,    /* an answer's opening has been written, content still open */
    CHAT_AFTER_TEXT,    /* raw text entries; BOS, if the model wants one, stands before them */
};
/* Zero-initialised: an empty conversation. Whoever appends raw text or generated ids sets the
 * place. */
struct chat_state {
    enum chat_place place;
    char last_role[24]; /* "" at the start */
    int n_turns;        /* messages so far, system aside */
};

/* Appends the ids that one more message (role, content) adds: BOS at the start (once, if template
 * or metadata want it), the default system text, the mark between it and its predecessor, the
 * role's marks, the content as plain text. Text between two control tokens is tokenised as one
 * piece; the ends of a message cut too. -1 with the template's reason when it refuses (unknown
 * role, two user turns, no system role); out and state are then unchanged. With `open`, the message
 * is the beginning of an answer that stays open: no closing mark. content.len is at most
 * TOKENIZER_TEXT_MAX less a KiB. */
int chat_render_turn(const struct chat_template *c, const struct tokenizer *t,
                     struct chat_state *state, struct bytes role, struct bytes content, bool open,
                     struct ids *out, struct err *err);
/* Appends what opens an answer (generation prompt) and sets the place to CHAT_AFTER_OPEN. Adds
 * nothing after CHAT_AFTER_OPEN. After CHAT_AFTER_ANSWER that answer is closed and another one
 * opened: who wants to go on inside an unfinished answer calls nothing. */
int chat_render_answer(const struct chat_template *c, const struct tokenizer *t,
                       struct chat_state *state, struct ids *out, struct err *err);
/* The same as text, with marks spelled out, of a whole list: for tests and TOKENIZE's readers. */
int chat_render_text(const struct chat_template *c, const struct bytes *roles,
                     const struct bytes *contents, int n, bool open_answer, struct str *out,
                     struct err *err);

#endif
