/* logprobs.c - log-probabilities as the text of a field of an end entry.
 *
 *     345:-0.25 345:-0.25 12:-1.7     a line a token: id:log-probability of the token, then of the
 *     7:-3.1 12:-0.9 345:-1.2         n best, best first
 *     128                             an id alone: nothing is known of it, since it is the first of
 *                                     the prompt and has nothing before it
 *
 * An answer that is resumed is not computed again, so the engine knows nothing of its first tokens:
 * their lines are those of the entry that it goes on from.
 *
 * Natural logarithms, six digits: a float has seven, of which the last is rounding. Lines are
 * joined, none ends the text, so that splitting it gives one line a token. Main thread only. */
#include "keyspace/logprobs.h"

#include <math.h>
#include <string.h>

/* Takes the first line of *text. */
static struct bytes next_line(struct bytes *text)
{
    const char *end = text->len > 0 ? memchr(text->data, '\n', text->len) : NULL;
    struct bytes line = {text->data, end ? (size_t)(end - text->data) : text->len};

    text->data += line.len + (end != NULL);
    text->len -= line.len + (end != NULL);
    return line;
}

/* "id:log-probability", or the id alone. By hand, since an answer may have a hundred thousand. */
static void append(struct str *out, const struct chosen *c, bool is_known)
{
    char text[24 + 16];
    int n = format_i64(text, c->id);
    if (is_known) {
        text[n++] = ':';
        n += format_six(text + n, (double)c->logprob);
    }
    str_append(out, text, (size_t)n);
}

/* The lines of rows [n, 1 + n_best], as the engine tells them, behind those that are in out already.
 * before: the rest of the same field of the entry that is gone on from, for the rows of which nothing
 * is known; a line of it is taken for each row. */
void logprobs_print(const struct chosen *rows, int32_t n, int32_t n_best, struct bytes *before,
                    struct str *out)
{
    for (int32_t i = 0; i < n; i++) {
        const struct chosen *row = rows + (size_t)i * ((size_t)n_best + 1);
        bool is_known = !isnan(row[0].logprob);
        struct bytes line = next_line(before);
        str_append(out, "\n", out->len > 0);
        if (!is_known && line.len > 0) {
            str_append(out, line.data, line.len);
            continue;
        }
        append(out, &row[0], is_known);
        for (int32_t k = 1; k <= n_best && row[k].id >= 0; k++) {
            str_append_char(out, ' ');
            append(out, &row[k], true);
        }
    }
}

/* The text tells of these ids [n] and no others; data NULL: of none. */
bool logprobs_are_of(struct bytes text, const int32_t *ids, int32_t n)
{
    char id[24];

    for (int32_t i = 0; i < n; i++) {
        size_t len = (size_t)format_i64(id, ids[i]);
        if (text.len < len)
            return false;
        struct bytes line = next_line(&text);
        bool is_id = line.len >= len && memcmp(line.data, id, len) == 0;
        if (!is_id || (line.len > len && line.data[len] != ':'))
            return false;
    }
    return text.len == 0;
}
