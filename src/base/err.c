/* err.c - error messages and assertion failures. */
#include "base/err.h"

#include <stdarg.h>
#include "base/log.h"

int err_set(struct err *err, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return -1;
}

/* The one place that may abort: a broken promise of our own code, never a client's input. */
void assert_failed(const char *file, int line, const char *function, const char *what)
{
    log_write(LOG_WARNING, LOG_SERVER, "assertion failed: %s:%d: %s: %s", file, line, function,
              what);
    abort();
}
