/* chat_templates.h - the table behind chat.c. Internal to it.
 *
 * Patterns are text in which a mark stands in braces: "{<|im_start|>}user\n". A mark becomes the
 * token that is spelled so, or plain text where the vocabulary has none. {bos} is the model's BOS
 * id, whatever its spelling. */
#ifndef MODEL_CHAT_TEMPLATES_H
#define MODEL_CHAT_TEMPLATES_H

#include <stdbool.h>

enum { CHAT_MAX_ROLES = 4, CHAT_MAX_SIGNS = 3 };

struct chat_role {
    const char *name;  /* NULL ends the list */
    const char *open;  /* pattern before the content */
    const char *close; /* pattern after it */
};

struct chat_template {
    const char *name;
    const char *begin; /* pattern before the first turn */
    struct chat_role roles[CHAT_MAX_ROLES + 1];
    const char *answer;            /* pattern that opens an answer to be generated */
    const char *default_system;    /* text where the first message is no system; or NULL */
    const char *user_after_system; /* pattern instead of the user's `open`; NULL: the same */
    const char *bos;               /* spelling of {bos} in rendered text */
    bool alternates;               /* user and assistant in turn, user first */
    bool system_first;             /* a system message only before all others */
    bool trims;                    /* blanks around a content are dropped */
    const char *signs[CHAT_MAX_SIGNS + 1]; /* recognised when the Jinja text has all of these ... */
    const char *foreign[CHAT_MAX_SIGNS + 1]; /* ... and none of these */
};

/* In order of recognition; ends with name NULL. */
extern const struct chat_template chat_templates[];

#endif
