/* text.c - numbers and quoted bytes as Redis reads and prints them, and its glob patterns (declared
 * in str.h). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/str.h"

/* Digits only, no leading zero, fits 64 bits. */
static bool parse_digits(const char *s, size_t n, uint64_t *out)
{
    uint64_t value = 0;
    if (n == 0 || n > 20 || (n > 1 && s[0] == '0'))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(s[i] - '0'), &value))
            return false;
    }
    *out = value;
    return true;
}

bool parse_u64(struct bytes text, uint64_t *out)
{
    return parse_digits(text.data, text.len, out);
}

bool parse_i64(struct bytes text, int64_t *out)
{
    bool negative = text.len > 0 && text.data[0] == '-';
    uint64_t value;
    if (!parse_digits(text.data + negative, text.len - negative, &value))
        return false;
    if (negative ? value == 0 || value > (uint64_t)INT64_MAX + 1 : value > INT64_MAX)
        return false;
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

/* [-] digits [. digits] [e [+-] digits], with a digit on at least one side of the point. */
static bool looks_real(struct bytes t)
{
    size_t i = t.len > 0 && t.data[0] == '-', digits = 0, exponent = 0;
    for (; i < t.len && t.data[i] >= '0' && t.data[i] <= '9'; i++)
        digits++;
    if (i < t.len && t.data[i] == '.')
        for (i++; i < t.len && t.data[i] >= '0' && t.data[i] <= '9'; i++)
            digits++;
    if (digits && i < t.len && (t.data[i] == 'e' || t.data[i] == 'E')) {
        i++;
        i += i < t.len && (t.data[i] == '-' || t.data[i] == '+');
        for (; i < t.len && t.data[i] >= '0' && t.data[i] <= '9'; i++)
            exponent++;
        if (!exponent)
            return false;
    }
    return digits && i == t.len;
}

bool parse_real(struct bytes text, double *out)
{
    char copy[64];
    if (text.len >= sizeof copy || !looks_real(text))
        return false;
    memcpy(copy, text.data, text.len);
    copy[text.len] = '\0';
    /* The program never calls setlocale, so strtod reads the C locale's point. */
    double value = strtod(copy, NULL);
    if (!isfinite(value))
        return false;
    *out = value;
    return true;
}

struct unit {
    const char *name;
    uint64_t factor;
};

/* A whole number followed by one of the units; none means the first. */
static bool parse_with_unit(struct bytes text, const struct unit *units, uint64_t *out)
{
    size_t n = 0;
    uint64_t value;
    while (n < text.len && text.data[n] >= '0' && text.data[n] <= '9')
        n++;
    if (!parse_digits(text.data, n, &value))
        return false;
    struct bytes unit = {text.data + n, text.len - n};
    for (; units->name; units++)
        if (bytes_equal_nocase(unit, units->name))
            return !__builtin_mul_overflow(value, units->factor, out);
    return false;
}

bool parse_size(struct bytes text, uint64_t *bytes)
{
    static const struct unit units[] = {
        {"", 1},         {"b", 1},          {"k", 1000},     {"kb", 1 << 10}, {"m", 1000000},
        {"mb", 1 << 20}, {"g", 1000000000}, {"gb", 1 << 30}, {NULL, 0},
    };
    return parse_with_unit(text, units, bytes);
}

bool parse_duration(struct bytes text, int64_t *ms)
{
    static const struct unit units[] = {
        {"", 1}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {NULL, 0},
    };
    uint64_t value;
    if (!parse_with_unit(text, units, &value) || value > INT64_MAX)
        return false;
    *ms = (int64_t)value;
    return true;
}

int format_i64(char out[24], int64_t value)
{
    char digits[20]; /* from the last */
    int n = 0, at = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        digits[n++] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    if (value < 0)
        out[at++] = '-';
    while (n > 0)
        out[at++] = digits[--n];
    out[at] = '\0';
    return at;
}

/* digits [n] d.ddd times ten to the exponent, as "%g" chooses the form. */
static char *put_digits(char *at, const char *digits, int n, int exponent)
{
    bool is_plain = exponent >= -4 && exponent < 6;
    int before = !is_plain ? 1 : exponent < 0 ? 0 : exponent + 1; /* digits before the point */
    if (before == 0)
        *at++ = '0';
    for (int i = 0; i < before; i++)
        *at++ = i < n ? digits[i] : '0';
    if (n > before)
        *at++ = '.';
    for (int i = exponent + 1; is_plain && i < 0; i++)
        *at++ = '0';
    for (int i = before; i < n; i++)
        *at++ = digits[i];
    return is_plain ? at : at + sprintf(at, "e%+03d", exponent);
}

int format_six(char out[16], double value)
{
    static const double powers[] = {
        1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9, 1e10,
        1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20}; /* all exact */
    double size = fabs(value);
    if (!(size >= 1e-15 && size < 1e15)) /* none, no number, or beyond these powers */
        return snprintf(out, 16, "%.6g", value);
    int exponent = 0, n = 6;
    while (size >= powers[exponent + 1])
        exponent++;
    while (exponent <= 0 && size * powers[-exponent] < 1)
        exponent--;
    long six = lrint(exponent <= 5 ? size * powers[5 - exponent] : size / powers[exponent - 5]);
    if (six == 1000000) {
        six = 100000;
        exponent++;
    }
    char digits[6], *at = out;
    for (int i = 5; i >= 0; i--, six /= 10)
        digits[i] = (char)('0' + six % 10);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (value < 0)
        *at++ = '-';
    at = put_digits(at, digits, n, exponent);
    *at = '\0';
    return (int)(at - out);
}

void str_append_escaped(struct str *out, struct bytes data, const char *pairs)
{
    for (size_t i = 0; i < data.len; i++) {
        unsigned char c = (unsigned char)data.data[i];
        const char *pair = pairs;
        while (*pair != '\0' && (unsigned char)*pair != c)
            pair += 2;
        if (*pair != '\0')
            str_printf(out, "\\%c", pair[1]);
        else if (c >= ' ' && c <= '~')
            str_append_char(out, (char)c);
        else
            str_printf(out, "\\x%02x", c);
    }
}

static unsigned char fold(unsigned char c, bool nocase)
{
    return nocase && c >= 'A' && c <= 'Z' ? c + 32 : c;
}

/* Matches one character against the class that starts after '['; *next is set past the ']'. */
static bool match_class(struct bytes p, size_t at, unsigned char c, bool nocase, size_t *next)
{
    bool negated = at < p.len && p.data[at] == '^', hit = false;
    at += negated;
    c = fold(c, nocase);
    for (; at < p.len && p.data[at] != ']'; at++) {
        if (p.data[at] == '\\' && at + 1 < p.len)
            at++;
        unsigned char low = fold((unsigned char)p.data[at], nocase), high = low;
        if (at + 2 < p.len && p.data[at + 1] == '-') {
            at += 2;
            high = fold((unsigned char)p.data[at], nocase);
            if (low > high) {
                unsigned char swap = low;
                low = high;
                high = swap;
            }
        }
        hit |= c >= low && c <= high;
    }
    *next = at < p.len ? at + 1 : at;
    return hit != negated;
}

/* One pattern element other than '*' against one character; *next is set past the element. */
static bool match_one(struct bytes p, size_t at, unsigned char c, bool nocase, size_t *next)
{
    *next = at + 1;
    if (p.data[at] == '?')
        return true;
    if (p.data[at] == '[')
        return match_class(p, at + 1, c, nocase, next);
    if (p.data[at] == '\\' && at + 1 < p.len) {
        at++;
        *next = at + 1;
    }
    return fold((unsigned char)p.data[at], nocase) == fold(c, nocase);
}

/* Only the last star is ever taken back, so the time is at most pattern x text. */
bool glob_match(struct bytes pattern, struct bytes text, bool nocase)
{
    size_t p = 0, t = 0, star = SIZE_MAX, star_text = 0, next;
    while (t < text.len) {
        if (p < pattern.len && pattern.data[p] == '*') {
            star = ++p;
            star_text = t;
        } else if (p < pattern.len &&
                   match_one(pattern, p, (unsigned char)text.data[t], nocase, &next)) {
            p = next;
            t++;
        } else if (star != SIZE_MAX) {
            p = star;
            t = ++star_text;
        } else {
            return false;
        }
    }
    while (p < pattern.len && pattern.data[p] == '*')
        p++;
    return p == pattern.len;
}
