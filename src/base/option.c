/* option.c - the typed option table: parse, check, print. */
#include "base/option.h"

#include <string.h>
#include "base/mem.h"

static const char *const bool_words[] = {"no", "yes", NULL};

const struct option *option_find(const struct option *options, struct bytes name)
{
    for (; options->name; options++)
        if (bytes_equal_nocase(name, options->name))
            return options;
    return NULL;
}

static int word_index(const char *const *words, struct bytes text)
{
    for (int i = 0; words[i]; i++)
        if (bytes_equal_nocase(text, words[i]))
            return i;
    return -1;
}

static int bad_choice(const struct option *o, const char *const *words, struct bytes text,
                      struct err *err)
{
    struct str list = {0};
    for (; *words; words++)
        str_printf(&list, "%s%s", list.len ? ", " : "", *words);
    err_set(err, "%s must be one of %s, not '%.*s'", o->name, list.data,
            (int)(text.len < 64 ? text.len : 64), text.data);
    str_free(&list);
    return -1;
}

/* Checks a number against the row's range, both ends included. */
static int check_range(const struct option *o, int64_t value, struct err *err)
{
    if ((o->min || o->max) && (value < o->min || value > o->max))
        return err_set(err, "%s must be between %lld and %lld, not %lld", o->name,
                       (long long)o->min, (long long)o->max, (long long)value);
    return 0;
}

static const char *const type_needs[] = {
    [OPTION_INT] = "a whole number",
    [OPTION_SIZE] = "a size in bytes, or with kb, mb or gb",
    [OPTION_TIME] = "milliseconds, or a time with ms, s, m or h",
    [OPTION_SECONDS] = "a whole number of seconds",
};

static int set_number(const struct option *o, void *at, struct bytes text, struct err *err)
{
    int64_t value = 0;
    uint64_t size = 0;
    bool ok = o->type == OPTION_SIZE   ? parse_size(text, &size) && size <= INT64_MAX
              : o->type == OPTION_TIME ? parse_duration(text, &value)
                                       : parse_i64(text, &value);
    if (!ok)
        return err_set(err, "%s must be %s, not '%.*s'", o->name, type_needs[o->type],
                       (int)(text.len < 64 ? text.len : 64), text.data);
    if (o->type == OPTION_SIZE)
        value = (int64_t)size;
    if (check_range(o, value, err) < 0)
        return -1;
    memcpy(at, &value, sizeof value); /* int64_t and uint64_t below 2^63 look the same */
    return 0;
}

static int set_string(const struct option *o, char **at, struct bytes text, struct err *err)
{
    if (memchr(text.data, '\0', text.len))
        return err_set(err, "%s must not hold a NUL byte", o->name);
    xfree(*at);
    *at = xmalloc(text.len + 1);
    memcpy(*at, text.data, text.len);
    (*at)[text.len] = '\0';
    return 0;
}

int option_set(const struct option *o, void *values, struct bytes text, struct err *err)
{
    void *at = (char *)values + o->offset;
    if (o->check && o->check(o, text, err) < 0)
        return -1;
    if (o->type == OPTION_STRING || o->type == OPTION_WORDS)
        return set_string(o, at, text, err);
    if (o->type != OPTION_BOOL && o->type != OPTION_CHOICE)
        return set_number(o, at, text, err);
    const char *const *words = o->type == OPTION_BOOL ? bool_words : o->choices;
    int i = word_index(words, text);
    if (i < 0)
        return bad_choice(o, words, text, err);
    if (o->type == OPTION_BOOL)
        *(bool *)at = i != 0;
    else
        *(int *)at = i;
    return 0;
}

void option_print(const struct option *o, const void *values, struct str *out)
{
    const void *at = (const char *)values + o->offset;
    switch (o->type) {
    case OPTION_BOOL:
        str_append_str(out, bool_words[*(const bool *)at]);
        break;
    case OPTION_CHOICE:
        str_append_str(out, o->choices[*(const int *)at]);
        break;
    case OPTION_STRING:
    case OPTION_WORDS:
        str_append_str(out, *(char *const *)at ? *(char *const *)at : "");
        break;
    case OPTION_INT:
    case OPTION_SIZE:
    case OPTION_TIME:
    case OPTION_SECONDS:
        str_printf(out, "%lld", *(const long long *)at);
        break;
    }
}

void option_defaults(const struct option *options, void *values)
{
    for (; options->name; options++) {
        struct err err;
        if (option_set(options, values, bytes_from(options->default_text), &err) < 0)
            assert_failed(__FILE__, __LINE__, options->name, err.text);
    }
}

void option_free(const struct option *options, void *values)
{
    for (; options->name; options++) {
        if (options->type == OPTION_STRING || options->type == OPTION_WORDS) {
            char **at = (char **)((char *)values + options->offset);
            xfree(*at);
            *at = NULL;
        }
    }
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || c == '\0';
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Appends what the escape at line[*at] == '\\' inside double quotes stands for. */
static void unescape(struct bytes line, size_t *at, struct str *word)
{
    static const char from[] = "nrtba", to[] = "\n\r\t\b\a";
    size_t i = *at + 1;
    char c = line.data[i];
    if (c == 'x' && i + 2 < line.len && hex_value(line.data[i + 1]) >= 0 &&
        hex_value(line.data[i + 2]) >= 0) {
        str_append_char(word,
                        (char)(hex_value(line.data[i + 1]) * 16 + hex_value(line.data[i + 2])));
        *at = i + 2;
        return;
    }
    const char *known = c ? strchr(from, c) : NULL;
    str_append_char(word, known ? to[known - from] : c);
    *at = i;
}

/* Reads one word from line[*at]; false on unbalanced quotes, or when a closing quote is followed by
 * anything but a blank. */
static bool read_word(struct bytes line, size_t *at, struct str *word)
{
    char quote = 0;
    for (; *at < line.len; (*at)++) {
        char c = line.data[*at];
        if (quote && c == quote) {
            (*at)++;
            return *at == line.len || is_blank(line.data[*at]);
        }
        if (quote == '"' && c == '\\' && *at + 1 < line.len)
            unescape(line, at, word);
        else if (quote == '\'' && c == '\\' && *at + 1 < line.len && line.data[*at + 1] == '\'')
            str_append_char(word, line.data[++*at]);
        else if (quote)
            str_append_char(word, c);
        else if (is_blank(c))
            return true;
        else if (c == '"' || c == '\'')
            quote = c;
        else
            str_append_char(word, c);
    }
    return !quote;
}

int option_split(struct bytes line, struct str *words, int max)
{
    int n = 0;
    for (size_t at = 0;;) {
        while (at < line.len && is_blank(line.data[at]))
            at++;
        if (at == line.len)
            return n;
        if (n == max)
            break;
        words[n] = (struct str){0};
        str_reserve(&words[n], 1);
        words[n].data[0] = '\0';
        if (!read_word(line, &at, &words[n++]))
            break;
    }
    while (n > 0)
        str_free(&words[--n]);
    return -1;
}
