/* key_specs.c - where the keys of a command stand and what it does with them, for COMMAND.
 *
 * A row has one range of keys; `key_use` says what happens to them, and a '|' in it begins the words
 * for the keys from the next one on (RENAME reads and deletes one, overwrites the other). Each part
 * becomes one key specification of Redis 7: where to begin, how far to go, flags in Redis' spelling.
 *
 * XREAD and CACHE PROBE find their keys behind a word. FORK's destinations end at an option, which no
 * specification can say: that one is incomplete, and clients ask COMMAND GETKEYS, which runs the
 * same finder as dispatch. */
#include "server/key_specs.h"

#include <string.h>

static const char *key_use(const struct command *c)
{
    if (c->key_use)
        return c->key_use;
    return c->flags & CMD_WRITE ? "RW update" : "RO access";
}

static int count_parts(const struct command *c)
{
    int n = 1;
    for (const char *p = key_use(c); *p; p++)
        n += *p == '|';
    return n;
}

/* Part i, or the last one. */
static struct bytes part(const struct command *c, int i)
{
    const char *p = key_use(c), *bar;
    while (i-- > 0 && (bar = strchr(p, '|')) != NULL)
        p = bar + 1;
    return (struct bytes){p, strcspn(p, "|")};
}

static void reply_words(struct reply *r, struct bytes words, const char *more)
{
    struct str word = {0};
    int n = more != NULL;
    for (size_t i = 0; i < words.len; i++)
        n += i == 0 || words.data[i] == ' ';
    reply_set(r, n);
    for (size_t i = 0, end; i < words.len; i = end + 1) {
        for (end = i; end < words.len && words.data[end] != ' ';)
            end++;
        str_clear(&word);
        str_append(&word, words.data + i, end - i);
        reply_status(r, word.data);
    }
    if (more)
        reply_status(r, more);
    str_free(&word);
}

void reply_key_use(struct reply *r, const struct command *c, int n)
{
    reply_words(r, part(c, n), NULL);
}

static void reply_find(struct reply *r, int last, int step, int limit)
{
    reply_text(r, "find_keys");
    reply_map(r, 2);
    reply_text(r, "type");
    reply_text(r, "range");
    reply_text(r, "spec");
    reply_map(r, 3);
    reply_text(r, "lastkey");
    reply_int(r, last);
    reply_text(r, "keystep");
    reply_int(r, step);
    reply_text(r, "limit");
    reply_int(r, limit);
}

static void reply_begin_search(struct reply *r, const char *type)
{
    reply_text(r, "begin_search");
    reply_map(r, 2);
    reply_text(r, "type");
    reply_text(r, type);
    reply_text(r, "spec");
}

static void reply_flags(struct reply *r, const struct command *c, int i, bool is_incomplete)
{
    reply_map(r, 3);
    reply_text(r, "flags");
    reply_words(r, part(c, i), is_incomplete ? "incomplete" : NULL);
}

/* Keys behind a word: STREAMS has as many cursors behind its keys, KEY has one key. */
static void reply_by_word(struct reply *r, const struct command *c)
{
    bool is_xread = strcmp(c->name, "xread") == 0;
    reply_flags(r, c, 0, false);
    reply_begin_search(r, "keyword");
    reply_map(r, 2);
    reply_text(r, "keyword");
    reply_text(r, is_xread ? "STREAMS" : "KEY");
    reply_text(r, "startfrom");
    reply_int(r, 1);
    reply_find(r, is_xread ? -1 : 0, 1, is_xread ? 2 : 0);
}

static void reply_by_index(struct reply *r, const struct command *c, int i, int n_parts)
{
    bool is_last = i == n_parts - 1;
    int first = c->first_key + i * c->key_step;
    int last = !is_last ? 0 : c->last_key < 0 ? c->last_key : c->last_key - first;
    reply_flags(r, c, i, is_last && c->keys);
    reply_begin_search(r, "index");
    reply_map(r, 1);
    reply_text(r, "index");
    reply_int(r, first);
    reply_find(r, last, c->key_step, 0);
}

void reply_key_specs(struct reply *r, const struct command *c)
{
    if (c->first_key == 0 && !c->keys) {
        reply_set(r, 0);
        return;
    }
    if (c->first_key == 0) {
        reply_set(r, 1);
        reply_by_word(r, c);
        return;
    }
    int n = count_parts(c);
    reply_set(r, n);
    for (int i = 0; i < n; i++)
        reply_by_index(r, c, i, n);
}
