/* log.h - levels, topics, one line format: `PID:topic DD Mon YYYY HH:MM:SS.mmm L text`, where L is
 * Redis' mark (. debug, - info, * notice, # warning). Any thread. Control bytes in the text are
 * written as \xNN: a client cannot forge a line. Never a prompt, a reply or a key above debug. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_NOTICE, LOG_WARNING };
enum log_topic { LOG_SERVER, LOG_NET, LOG_KEYS, LOG_ENGINE, LOG_KV, LOG_MODEL, LOG_DEVICE };

/* The log sink's own state, set by log_open and CONFIG SET; read by whoever logs. */
extern _Atomic enum log_level log_threshold;

int log_open(const char *path, enum log_level threshold, struct err *err); /* "" is stdout */
void log_write(enum log_level level, enum log_topic topic, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define log_at(level, topic, ...)                                                                  \
    ((level) >= log_threshold ? log_write((level), (topic), __VA_ARGS__) : (void)0)
#define log_debug(topic, ...) log_at(LOG_DEBUG, topic, __VA_ARGS__)
#define log_info(topic, ...) log_at(LOG_INFO, topic, __VA_ARGS__)
#define log_notice(topic, ...) log_at(LOG_NOTICE, topic, __VA_ARGS__)
#define log_warning(topic, ...) log_at(LOG_WARNING, topic, __VA_ARGS__)

void log_crash_handler(void); /* SIGSEGV and kin: a backtrace to the log, then the default action */

#endif
