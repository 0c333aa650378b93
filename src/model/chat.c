/* chat.c - renders conversations through a template of chat_templates.c.
 *
 * A conversation is rendered a turn at a time, and each turn's ids are kept with its entry, so what
 * a turn adds must depend on what stands before it and never on what follows:
 *
 *     START           | BOS, default system text | open(role) content close(role)
 *     AFTER_MESSAGE   |                            open(role) content close(role)
 *     AFTER_ANSWER    | close(assistant)           open(role) content close(role)
 *     AFTER_OPEN      | close(assistant)           open(role) content close(role)
 *     AFTER_TEXT      |                            open(role) content close(role)
 *
 * A generated answer ends in its sampled end id, which is no part of the sequence: its closing mark
 * comes with the next turn, so that ids of answers are exactly the sampled ones.
 *
 * Ids come out of a run: text is gathered until a control token or the end of the turn, then
 * encoded as one piece, so that a role's "user\n" and the content's first bytes are cut as the
 * model saw them in training. Only marks of the template are looked up as control tokens; text of a
 * run is encoded without them, whatever it spells. In a vocabulary without the mark (Zephyr's
 * <|user|>, Llama 2's [INST]) it is text in the run.
 *
 * BOS is written once: at the start, if the metadata says that prompts begin with it or the
 * template begins so, and then not again by the template. Any thread; nothing is kept between
 * calls. */
#include "model/chat.h"
#include <ctype.h>
#include <string.h>
#include "model/chat_templates.h"

/* Where rendered turns go: ids (t and ids set) or text (text set). */
struct sink {
    const struct chat_template *c;
    const struct tokenizer *t; /* borrows; NULL: to text */
    struct ids *ids;           /* borrows */
    struct str *text;          /* borrows */
    struct str run;            /* owns; text since the last control token */
    bool has_bos;              /* the next {bos} stands already */
};

/* ---- by name and by sign -------------------------------------------------------------------- */

static void list_names(struct str *out)
{
    for (const struct chat_template *c = chat_templates; c->name; c++)
        str_printf(out, "%s%s", c == chat_templates ? "" : ", ", c->name);
}

const struct chat_template *chat_find(const char *name, struct err *err)
{
    for (const struct chat_template *c = chat_templates; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    struct str names = {0};
    list_names(&names);
    (void)err_set(err, "chat template '%.40s' is not known (known: %s)", name, names.data);
    str_free(&names);
    return NULL;
}

static bool contains(struct bytes text, const char *sign)
{
    return memmem(text.data, text.len, sign, strlen(sign)) != NULL;
}

static bool is_recognised(const struct chat_template *c, struct bytes jinja)
{
    for (int i = 0; c->signs[i]; i++)
        if (!contains(jinja, c->signs[i]))
            return false;
    for (int i = 0; c->foreign[i]; i++)
        if (contains(jinja, c->foreign[i]))
            return false;
    return true;
}

const struct chat_template *chat_recognise(struct bytes jinja, struct err *err)
{
    for (const struct chat_template *c = chat_templates; c->name; c++)
        if (is_recognised(c, jinja))
            return c;
    struct str names = {0};
    list_names(&names);
    (void)err_set(err, "%s: name one with chat-template (%s)",
                  jinja.len ? "the model's chat template is not recognised"
                            : "the model has no chat template",
                  names.data);
    str_free(&names);
    return NULL;
}

const char *chat_name(const struct chat_template *c)
{
    return c->name;
}

/* ---- the sink ------------------------------------------------------------------------------- */

static void put_text(struct sink *s, struct bytes text)
{
    str_append(s->t ? &s->run : s->text, text.data, text.len);
}

static void flush_run(struct sink *s)
{
    if (s->run.len > 0)
        tokenizer_encode(s->t, bytes_of(&s->run), false, s->ids);
    str_clear(&s->run);
}

static void put_bos(struct sink *s)
{
    if (s->has_bos) {
        s->has_bos = false;
        return;
    }
    if (!s->t) {
        put_text(s, bytes_from(s->c->bos));
        return;
    }
    bool add;
    int32_t bos = tokenizer_bos(s->t, &add);
    flush_run(s);
    if (bos >= 0)
        ids_push(s->ids, bos);
}

static void put_mark(struct sink *s, struct bytes mark)
{
    if (bytes_equal(mark, BYTES("bos"))) {
        put_bos(s);
        return;
    }
    int32_t id = s->t ? tokenizer_find(s->t, mark) : -1;
    if (id < 0) {
        put_text(s, mark);
        return;
    }
    flush_run(s);
    ids_push(s->ids, id);
}

/* Text with marks in braces (chat_templates.h). The tables are ours: braces match. */
static void put_pattern(struct sink *s, const char *pattern)
{
    while (*pattern) {
        size_t n = strcspn(pattern, "{");
        put_text(s, (struct bytes){pattern, n});
        pattern += n;
        if (*pattern == '{') {
            n = strcspn(++pattern, "}");
            put_mark(s, (struct bytes){pattern, n});
            pattern += n + 1;
        }
    }
}

/* ---- turns ---------------------------------------------------------------------------------- */

static const struct chat_role *find_role(const struct chat_template *c, struct bytes name)
{
    for (const struct chat_role *r = c->roles; r->name; r++)
        if (bytes_equal(name, bytes_from(r->name)))
            return r;
    return NULL;
}

static bool was(const struct chat_state *state, const char *role)
{
    return strcmp(state->last_role, role) == 0;
}

/* The role is a client's text: only what prints, and not all of it. */
static int refuse_role(const struct chat_template *c, struct bytes role, struct err *err)
{
    struct str text = {0};
    for (size_t i = 0; i < role.len && i < 32; i++)
        str_append_char(&text, isprint((unsigned char)role.data[i]) ? role.data[i] : '?');
    struct str names = {0};
    for (const struct chat_role *r = c->roles; r->name; r++)
        str_printf(&names, "%s%s", r == c->roles ? "" : ", ", r->name);
    (void)err_set(err, "chat template %s has no role '%s' (it has %s)", c->name,
                  bytes_of(&text).data, names.data);
    str_free(&names);
    str_free(&text);
    return -1;
}

/* May this role come now? */
static int check_turn(const struct chat_template *c, const struct chat_state *state,
                      const struct chat_role *role, struct err *err)
{
    bool is_user = strcmp(role->name, "user") == 0, is_system = strcmp(role->name, "system") == 0;
    if (is_system && c->system_first && state->last_role[0])
        return err_set(err, "chat template %s takes a system message only before all others",
                       c->name);
    if (!c->alternates || is_system)
        return 0;
    if (is_user && was(state, "user"))
        return err_set(err,
                       "chat template %s wants user and assistant in turn: two user turns in a "
                       "row",
                       c->name);
    if (!is_user && !was(state, "user"))
        return err_set(err,
                       "chat template %s wants user and assistant in turn: an assistant turn "
                       "must follow a user turn",
                       c->name);
    return 0;
}

static void set_last(struct chat_state *state, const char *role, enum chat_place place)
{
    state->place = place;
    state->n_turns += strcmp(role, "system") != 0;
    ASSERT(strlen(role) < sizeof state->last_role);
    memcpy(state->last_role, role, strlen(role) + 1);
}

/* What stands between the turn before and the next one's own marks. role NULL: an answer. */
static void put_join(struct sink *s, const struct chat_state *state, const struct chat_role *role)
{
    const struct chat_role *system = find_role(s->c, BYTES("system"));
    bool add = false;
    switch (state->place) {
    case CHAT_START:
        if (s->t && tokenizer_bos(s->t, &add) >= 0 && add) {
            put_bos(s);
            s->has_bos = true;
        }
        put_pattern(s, s->c->begin);
        if (s->c->default_system && role != system) {
            put_pattern(s, system->open);
            put_text(s, bytes_from(s->c->default_system));
            put_pattern(s, system->close);
        }
        break;
    case CHAT_AFTER_ANSWER:
    case CHAT_AFTER_OPEN:
        put_pattern(s, find_role(s->c, BYTES("assistant"))->close);
        break;
    case CHAT_AFTER_TEXT: /* the texts began the sequence, or a turn before them did */
        s->has_bos = state->n_turns == 0;
        break;
    case CHAT_AFTER_MESSAGE:
        break;
    }
}

/* Without the blanks around it; the end of an answer that stays open is left as it is. */
static struct bytes trim(struct bytes text, bool open)
{
    while (text.len > 0 && isspace((unsigned char)text.data[0])) {
        text.data++;
        text.len--;
    }
    while (!open && text.len > 0 && isspace((unsigned char)text.data[text.len - 1]))
        text.len--;
    return text;
}

static void put_turn(struct sink *s, const struct chat_state *state, const struct chat_role *role,
                     struct bytes content, bool open)
{
    bool folded = s->c->user_after_system && state->place == CHAT_AFTER_MESSAGE &&
                  was(state, "system") && strcmp(role->name, "user") == 0;
    put_join(s, state, role);
    put_pattern(s, folded ? s->c->user_after_system : role->open);
    put_text(s, s->c->trims ? trim(content, open) : content);
    if (!open)
        put_pattern(s, role->close);
    flush_run(s);
    s->has_bos = false;
}

static int render_turn(struct sink *s, struct chat_state *state, struct bytes role,
                       struct bytes content, bool open, struct err *err)
{
    const struct chat_role *row = find_role(s->c, role);
    if (!row)
        return refuse_role(s->c, role, err);
    if (check_turn(s->c, state, row, err) < 0)
        return -1;
    put_turn(s, state, row, content, open);
    set_last(state, row->name, open ? CHAT_AFTER_OPEN : CHAT_AFTER_MESSAGE);
    return 0;
}

static int render_answer(struct sink *s, struct chat_state *state, struct err *err)
{
    if (state->place == CHAT_AFTER_OPEN)
        return 0;
    if (s->c->alternates && state->place != CHAT_AFTER_TEXT && !was(state, "user"))
        return err_set(err, "chat template %s: an answer must follow a user turn", s->c->name);
    put_join(s, state, NULL);
    put_pattern(s, s->c->answer);
    flush_run(s);
    s->has_bos = false;
    set_last(state, "assistant", CHAT_AFTER_OPEN);
    return 0;
}

int chat_render_turn(const struct chat_template *c, const struct tokenizer *t,
                     struct chat_state *state, struct bytes role, struct bytes content, bool open,
                     struct ids *out, struct err *err)
{
    struct sink s = {.c = c, .t = t, .ids = out};
    int rc = render_turn(&s, state, role, content, open, err);
    str_free(&s.run);
    return rc;
}

int chat_render_answer(const struct chat_template *c, const struct tokenizer *t,
                       struct chat_state *state, struct ids *out, struct err *err)
{
    struct sink s = {.c = c, .t = t, .ids = out};
    int rc = render_answer(&s, state, err);
    str_free(&s.run);
    return rc;
}

int chat_render_text(const struct chat_template *c, const struct bytes *roles,
                     const struct bytes *contents, int n, bool open_answer, struct str *out,
                     struct err *err)
{
    struct sink s = {.c = c, .text = out};
    struct chat_state state = {0};
    size_t before = out->len;
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = render_turn(&s, &state, roles[i], contents[i], false, err);
    if (rc == 0 && open_answer)
        rc = render_answer(&s, &state, err);
    if (rc < 0)
        out->len = before;
    return rc;
}
