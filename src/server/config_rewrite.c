/* config_rewrite.c - CONFIG REWRITE: the running configuration into its file.
 *
 * The file belongs to a person. Comments, blank lines, order and lines with options that we do not
 * know stay as they are; a line of ours stays, too, while it means the value that holds ("10s" is
 * not made 10000). A changed one is written anew in its place, a second line for the same option
 * goes, and what differs from its default without having a line comes at the end, below a mark.
 *
 * The whole text is made first, then it replaces the file atomically: whoever crashes in between,
 * ours or the machine, leaves the old file or the new one. Start-only options are kept from the file
 * like the others: they hold what the command line has overridden, as in Redis. */
#include "server/config_rewrite.h"

#include <ctype.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"

enum { MAX_FILE = 1024 * 1024, MAX_WORDS = 256 };
static const char mark[] = "# Written by CONFIG REWRITE";

struct rewrite {
    const struct config *config;
    bool *written; /* [options] owns; there is a line for it */
    bool has_mark;
    struct str *out;
};

/* A value as one word of a conf line: quoted when it must be. */
static void append_word(struct str *out, struct bytes value)
{
    bool plain = value.len > 0;
    for (size_t i = 0; i < value.len; i++)
        plain &= isgraph((unsigned char)value.data[i]) && !strchr("\"'\\#", value.data[i]);
    if (plain) {
        str_append(out, value.data, value.len);
        return;
    }
    str_append_char(out, '"');
    str_append_escaped(out, value, ESCAPES_OF_CONF);
    str_append_char(out, '"');
}

static void append_option(const struct option *o, const struct config *c, struct str *out)
{
    struct str value = {0};
    option_print(o, c, &value);
    str_printf(out, "%s ", o->name);
    if (o->type == OPTION_WORDS && value.len > 0)
        str_append(out, value.data, value.len);
    else
        append_word(out, bytes_of(&value));
    str_append_char(out, '\n');
    str_free(&value);
}

static bool same_value(const struct option *o, const struct config *a, const struct config *b)
{
    struct str x = {0}, y = {0};
    option_print(o, a, &x);
    option_print(o, b, &y);
    bool same = bytes_equal(bytes_of(&x), bytes_of(&y));
    str_free(&x);
    str_free(&y);
    return same;
}

/* The option that the line sets; NULL: none of ours, or no valid line. *means_it: to the value that
 * holds. */
static const struct option *line_option(const struct config *c, struct bytes line, bool *means_it)
{
    struct str words[MAX_WORDS] = {{0}};
    struct config alone;
    struct err err;
    bool unknown = true;
    int n = option_split(line, words, MAX_WORDS);
    const struct option *o = NULL;
    config_default(&alone);
    if (n > 1 && config_set_words(&alone, words, n, &unknown, &err) == 0)
        o = option_find(config_options, bytes_of(&words[0]));
    *means_it = o && same_value(o, &alone, c);
    config_free(&alone);
    for (int i = 0; i < n; i++)
        str_free(&words[i]);
    return o;
}

/* line is without its end. */
static void rewrite_line(struct rewrite *w, struct bytes line)
{
    size_t blank = 0;
    while (blank < line.len && isspace((unsigned char)line.data[blank]))
        blank++;
    bool means_it = false, is_comment = blank == line.len || line.data[blank] == '#';
    const struct option *o = is_comment ? NULL : line_option(w->config, line, &means_it);
    if (bytes_equal(line, bytes_from(mark)))
        w->has_mark = true;
    if (o && w->written[o - config_options])
        return; /* the last of them held; the first one says it now */
    if (o)
        w->written[o - config_options] = true;
    if (o && !means_it) {
        append_option(o, w->config, w->out);
        return;
    }
    str_append(w->out, line.data, line.len);
    str_append_char(w->out, '\n');
}

static void append_rest(struct rewrite *w)
{
    struct config defaults;
    config_default(&defaults);
    for (const struct option *o = config_options; o->name; o++) {
        if (w->written[o - config_options] || same_value(o, &defaults, w->config))
            continue;
        if (!w->has_mark)
            str_printf(w->out, "%s\n", mark);
        w->has_mark = true;
        append_option(o, w->config, w->out);
    }
    config_free(&defaults);
}

/* What the file should hold, given what it holds. */
static void rewrite_text(const struct config *c, struct bytes old, struct str *out)
{
    size_t n = 0;
    while (config_options[n].name)
        n++;
    struct rewrite w = {.config = c, .written = xcalloc(n, sizeof(bool)), .out = out};
    for (size_t at = 0; at < old.len;) {
        const char *end = memchr(old.data + at, '\n', old.len - at);
        size_t len = end ? (size_t)(end - old.data) - at : old.len - at;
        rewrite_line(&w, (struct bytes){old.data + at, len});
        at += len + 1;
    }
    append_rest(&w);
    xfree(w.written);
}

int config_rewrite(const struct config *c, const char *path, struct err *err)
{
    struct str old = {0}, text = {0};
    int rc = file_read(path, MAX_FILE, &old, err);
    if (rc == 0) {
        rewrite_text(c, bytes_of(&old), &text);
        rc = file_replace(path, text.data, text.len, err);
    }
    str_free(&old);
    str_free(&text);
    return rc;
}
