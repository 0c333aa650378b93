/* option.h - one typed option table behind conf file, command line and CONFIG.
 *
 * An option is a row: name, type, where its value lives in the caller's struct, range or choices,
 * default, flags. Every error text names the option, the limit and the value. */
#ifndef BASE_OPTION_H
#define BASE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"

enum option_type {
    OPTION_BOOL,     /* bool: yes no */
    OPTION_INT,      /* int64_t in [min, max] */
    OPTION_SIZE,     /* uint64_t bytes, units kb mb gb */
    OPTION_TIME,     /* int64_t milliseconds, units ms s m h */
    OPTION_SECONDS,  /* int64_t seconds, plain, as in Redis (timeout, tcp-keepalive) */
    OPTION_CHOICE,   /* int: index into choices */
    OPTION_STRING,   /* char *, owned */
    OPTION_WORDS,    /* char *, owned: words joined by one blank (bind, client-output-buffer-limit) */
};
enum { OPTION_START_ONLY = 1, OPTION_SECRET = 2 };

struct option {
    const char *name;
    enum option_type type;
    size_t offset;              /* of the value in the caller's struct */
    const char *default_text;   /* parsed by the same rules */
    int64_t min, max;           /* INT, SIZE, TIME, SECONDS; both 0: no limit */
    const char *const *choices; /* CHOICE: NULL-terminated */
    unsigned flags;
    int (*check)(const struct option *o, struct bytes text, struct err *err); /* or NULL */
};

/* options: array that ends with name NULL. */
const struct option *option_find(const struct option *options, struct bytes name); /* ASCII nocase */
int option_set(const struct option *o, void *values, struct bytes text, struct err *err);
void option_print(const struct option *o, const void *values, struct str *out);
void option_defaults(const struct option *options, void *values); /* values zeroed before */
void option_free(const struct option *options, void *values);

/* Splits a conf line or an inline command by the rules of Redis' sdssplitargs ("\x41\n", 'a').
 * Returns the number of words, each a malloc'ed str in words[]; -1 on unbalanced quotes or more
 * than max words. The caller frees the words. */
int option_split(struct bytes line, struct str *words, int max);

#endif
