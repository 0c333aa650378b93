/* str.c - growable byte string and UTF-8. Numbers and globs are in text.c. */
#include "base/str.h"

#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"

struct bytes bytes_from(const char *nul_terminated)
{
    return (struct bytes){nul_terminated, strlen(nul_terminated)};
}

bool bytes_equal(struct bytes a, struct bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static unsigned char ascii_lower(unsigned char c)
{
    return c >= 'A' && c <= 'Z' ? c + 32 : c;
}

bool bytes_equal_nocase(struct bytes a, const char *ascii)
{
    size_t i = 0;
    for (; i < a.len && ascii[i]; i++)
        if (ascii_lower((unsigned char)a.data[i]) != ascii_lower((unsigned char)ascii[i]))
            return false;
    return i == a.len && !ascii[i];
}

void str_reserve(struct str *s, size_t more)
{
    size_t need;
    ASSERT(add_ok(s->len, more, &need) && add_ok(need, 1, &need));
    if (need <= s->cap)
        return;
    size_t cap = s->cap + s->cap / 2; /* 1.5 keeps long replies from doubling the memory */
    s->cap = cap > need ? cap : need < 32 ? 32 : need;
    s->data = xrealloc(s->data, s->cap);
}

void str_append(struct str *s, const void *data, size_t len)
{
    str_reserve(s, len);
    if (len)
        memcpy(s->data + s->len, data, len);
    s->len += len;
    s->data[s->len] = '\0';
}

void str_append_str(struct str *s, const char *nul_terminated)
{
    str_append(s, nul_terminated, strlen(nul_terminated));
}

void str_append_char(struct str *s, char c)
{
    str_append(s, &c, 1);
}

/* Into the room that there is; only what does not fit is printed again. */
void str_vprintf(struct str *s, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    str_reserve(s, 1);
    size_t room = s->cap - s->len;
    int n = vsnprintf(s->data + s->len, room, format, args);
    if (n > 0 && (size_t)n >= room) {
        str_reserve(s, (size_t)n);
        vsnprintf(s->data + s->len, (size_t)n + 1, format, again);
    }
    s->len += n > 0 ? (size_t)n : 0;
    s->data[s->len] = '\0';
    va_end(again);
}

void str_printf(struct str *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    str_vprintf(s, format, args);
    va_end(args);
}

void str_consume(struct str *s, size_t n)
{
    ASSERT(n <= s->len);
    s->len -= n;
    if (s->data) {
        memmove(s->data, s->data + n, s->len);
        s->data[s->len] = '\0';
    }
}

void str_clear(struct str *s)
{
    s->len = 0;
    if (s->data)
        s->data[0] = '\0';
}

void str_free(struct str *s)
{
    xfree(s->data);
    *s = (struct str){0};
}

/* The range that the second byte of a sequence must lie in, by its first byte: Unicode 15, table
 * 3-7. Everything else about a well-formed sequence follows from its length. */
static int sequence_length(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    if (first < 0xe0)
        return 2;
    if (first < 0xf0) {
        *low = first == 0xe0 ? 0xa0 : 0x80;
        *high = first == 0xed ? 0x9f : 0xbf;
        return 3;
    }
    *low = first == 0xf0 ? 0x90 : 0x80;
    *high = first == 0xf4 ? 0x8f : 0xbf;
    return 4;
}

/* Number of bytes of data that are a correct beginning of the sequence that starts there; *want is
 * its full length, 0 when no sequence starts so. */
static int correct_beginning(const unsigned char *s, size_t len, int *want)
{
    unsigned char low, high;
    int n = *want = sequence_length(s[0], &low, &high), i = 1;
    for (; i < n && (size_t)i < len; i++) {
        if (s[i] < low || s[i] > high)
            break;
        low = 0x80;
        high = 0xbf;
    }
    return i;
}

int utf8_decode(const char *data, size_t len, uint32_t *cp, int *bad)
{
    const unsigned char *s = (const unsigned char *)data;
    int want, have;
    *bad = 0;
    if (len == 0)
        return 0;
    have = correct_beginning(s, len, &want);
    if (want == 0 || have < want) {
        *bad = have;
        return 0;
    }
    static const unsigned char first_mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t value = s[0] & first_mask[want];
    for (int i = 1; i < want; i++)
        value = value << 6 | (s[i] & 0x3f);
    *cp = value;
    return want;
}

int utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = n - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(first[n] | cp);
    return n;
}

bool utf8_is_valid(const char *data, size_t len)
{
    uint32_t cp;
    int bad, n;
    for (size_t i = 0; i < len; i += (size_t)n)
        if ((n = utf8_decode(data + i, len - i, &cp, &bad)) == 0)
            return false;
    return true;
}

size_t utf8_unfinished(const char *data, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        const unsigned char *s = (const unsigned char *)data + len - back;
        if ((*s & 0xc0) == 0x80)
            continue;
        int want;
        int have = correct_beginning(s, back, &want);
        return want > (int)back && have == (int)back ? back : 0;
    }
    return 0;
}
