// SPDX-License-Identifier: Apache-2.0
//
// One line per event on a descriptor: time, level, text. A line is one write, so lines of several
// threads and processes do not mix. Prompts and generated text are never logged.
#ifndef MSGL_UTILS_LOG_H
#define MSGL_UTILS_LOG_H

typedef enum msgl_log_level {
    MSGL_LOG_ERROR,
    MSGL_LOG_WARN,
    MSGL_LOG_INFO,
    MSGL_LOG_DEBUG,
} msgl_log_level;

typedef struct msgl_log {
    msgl_log_level level; // lines above it are dropped
    int fd;
} msgl_log;

// Standard error at the level that MINISGL_LOG names (error, warn, info, debug), else info.
msgl_log msgl__log_default(void);
// log NULL: nothing. Control characters in the text are shown as '?'.
void msgl__log(const msgl_log *log, msgl_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
