/* log.c - one line per event, in Redis' format, so that tools which read a Redis log read ours. */
#include "base/log.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"

static const char *const topic_names[] = {"server", "net",   "keys",  "engine",
                                          "kv",     "model", "device"};
static const char level_marks[] = {'.', '-', '*', '#'};

_Atomic enum log_level log_threshold = LOG_NOTICE;
/* The log sink: one file descriptor for the process. The lock keeps lines whole. */
static int sink = STDOUT_FILENO;
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;

int log_open(const char *path, enum log_level threshold, struct err *err)
{
    int fd = STDOUT_FILENO;
    if (path && path[0]) {
        struct err why;
        fd = file_open_append(path, &why);
        if (fd < 0)
            return err_set(err, "cannot open the log file %s", why.text);
    }
    pthread_mutex_lock(&sink_lock);
    if (sink != STDOUT_FILENO)
        close(sink);
    sink = fd;
    log_threshold = threshold;
    pthread_mutex_unlock(&sink_lock);
    return 0;
}

/* Appends text with control bytes as \xNN; returns the new end. */
static char *escape(char *at, const char *end, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    for (; *text && at + 4 < end; text++) {
        unsigned char c = (unsigned char)*text;
        if (c >= 0x20 && c != 0x7f) {
            *at++ = (char)c;
        } else {
            *at++ = '\\';
            *at++ = 'x';
            *at++ = hex[c >> 4];
            *at++ = hex[c & 15];
        }
    }
    return at;
}

void log_write(enum log_level level, enum log_topic topic, const char *format, ...)
{
    char text[1024], line[2200], when[40];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);

    int64_t ms = clock_wall_ms();
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    localtime_r(&seconds, &tm);
    strftime(when, sizeof when, "%d %b %Y %H:%M:%S", &tm);
    int head = snprintf(line, sizeof line, "%d:%s %s.%03d %c ", (int)getpid(), topic_names[topic],
                        when, (int)(ms % 1000), level_marks[level]);
    char *end = escape(line + head, line + sizeof line - 1, text);
    *end++ = '\n';

    pthread_mutex_lock(&sink_lock);
    /* A full disk must not stop the server: a line that cannot be written is lost. */
    ssize_t n = write(sink, line, (size_t)(end - line));
    (void)n;
    pthread_mutex_unlock(&sink_lock);
}

/* Async-signal-safe: backtrace_symbols_fd writes without allocating once the library is loaded. */
static void on_crash(int signal_number)
{
    static const char text[] = "\n# kvasir crashed; the stack follows, please report it\n";
    void *frames[64];
    ssize_t n = write(sink, text, sizeof text - 1);
    (void)n;
    backtrace_symbols_fd(frames, backtrace(frames, 64), sink);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

void log_crash_handler(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    void *frame;
    backtrace(&frame, 1); /* loads libgcc now, while allocating is allowed */
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_RESETHAND | SA_NODEFER};
        sigaction(signals[i], &action, NULL);
    }
}
