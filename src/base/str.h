/* str.h - growable byte string; UTF-8 and number helpers. Bytes are counted, NUL is a byte. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise, str_free at the end. data[len] is always NUL once data is not NULL. */
struct str {
    char *data; /* owns */
    size_t len, cap;
};

/* A borrowed run of bytes. */
struct bytes {
    const char *data;
    size_t len;
};
#define BYTES(literal) ((struct bytes){(literal), sizeof(literal) - 1})
static inline struct bytes bytes_of(const struct str *s)
{
    return (struct bytes){s->data ? s->data : "", s->len};
}
struct bytes bytes_from(const char *nul_terminated);
bool bytes_equal(struct bytes a, struct bytes b);
bool bytes_equal_nocase(struct bytes a, const char *ascii); /* ASCII case only */

void str_reserve(struct str *s, size_t more);
void str_append(struct str *s, const void *data, size_t len);
void str_append_str(struct str *s, const char *nul_terminated);
void str_append_char(struct str *s, char c);
void str_printf(struct str *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void str_vprintf(struct str *s, const char *format, va_list args);
void str_consume(struct str *s, size_t n); /* drops the first n bytes */
void str_clear(struct str *s);             /* keeps the room */
void str_free(struct str *s);

/* ---- UTF-8 (Unicode 15, table 3-7: no surrogates, no overlongs, at most U+10FFFF) ------------ */

/* Length of the valid character at data, 1..4, *cp its code point. 0: malformed or cut; *bad is
 * then the length of the maximal ill-formed part (1..3) that one U+FFFD stands for. */
int utf8_decode(const char *data, size_t len, uint32_t *cp, int *bad);
int utf8_encode(uint32_t cp, char out[4]); /* bytes written, 1..4 */
bool utf8_is_valid(const char *data, size_t len);
/* Bytes at the end of data that may be the beginning of a character still to come: 0..3. */
size_t utf8_unfinished(const char *data, size_t len);

/* ---- numbers: strict as Redis is: the whole string, no blanks, no plus sign ------------------- */
bool parse_i64(struct bytes text, int64_t *out);  /* no leading zeros, no -0 */
bool parse_u64(struct bytes text, uint64_t *out);
bool parse_real(struct bytes text, double *out);  /* locale-free, exponent; no nan, inf, hex */
bool parse_size(struct bytes text, uint64_t *bytes);       /* 1024, 1k kb m mb g gb as in Redis */
bool parse_duration(struct bytes text, int64_t *ms);       /* 100, 100ms, 10s, 5m, 1h */
int format_i64(char out[24], int64_t value);               /* length */
int format_six(char out[16], double value); /* "%.6g" at a tenth of its cost; length */

/* Glob of Redis (* ? [a-z] [^x] \x); linear-time backtracking to the last star only. */
bool glob_match(struct bytes pattern, struct bytes text, bool nocase);

/* ---- bytes between double quotes -------------------------------------------------------------- */

/* Pairs: a byte, and the letter behind the backslash that stands for it. The first are all that a
 * conf file of Redis is written with, the others what redis-cli prints strings with. */
#define ESCAPES_OF_CONF "\"\"\\\\"
#define ESCAPES_OF_REPLIES ESCAPES_OF_CONF "\nn\rr\tt\aa\bb"
/* Every other byte that is no printable ASCII becomes \xHH; option_split reads all of it back. */
void str_append_escaped(struct str *out, struct bytes data, const char *pairs);

#endif
