/* err.h - one message buffer for errors that come from the world (files, clients, devices).
 *
 * A function that can fail so takes `struct err *err` last and returns -1 or NULL; the message is
 * composed where the facts are. Passing NULL is allowed: the caller does not want the text. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdio.h>
#include <stdlib.h>

struct err {
    char text[256]; /* one line, NUL-terminated, no trailing newline; cut when longer */
};

/* Writes the message and returns -1, so that it can be returned. */
int err_set(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for functions that return a pointer. */
#define err_null(...) (err_set(__VA_ARGS__), NULL)

/* ASSERT is on in every build (use it where it costs nanoseconds), DEBUG_ASSERT only with
 * --enable-debug. Both report our own bugs: file, line, condition, then abort. */
_Noreturn void assert_failed(const char *file, int line, const char *function, const char *what);
#define ASSERT(x) ((x) ? (void)0 : assert_failed(__FILE__, __LINE__, __func__, #x))
#ifdef KV_DEBUG
#define DEBUG_ASSERT(x) ASSERT(x)
#else
#define DEBUG_ASSERT(x) ((void)0)
#endif

#endif
