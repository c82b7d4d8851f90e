// SPDX-License-Identifier: Apache-2.0
//
// One line per event on a descriptor: time, level, text, and fields if it has any; as text or as a
// JSON object. A line is one write of at most 4 KiB, so lines of several threads and processes do
// not mix. Prompts and generated text are never logged.
#ifndef MSGL_UTILS_LOG_H
#define MSGL_UTILS_LOG_H

#include <stdbool.h>

typedef enum msgl_log_level {
    MSGL_LOG_ERROR,
    MSGL_LOG_WARN,
    MSGL_LOG_INFO,
    MSGL_LOG_DEBUG,
} msgl_log_level;

typedef struct msgl_log {
    msgl_log_level level; // lines above it are dropped
    int fd;
    bool json; // {"time":...,"level":...,"message":...} and the fields
} msgl_log;

typedef struct msgl_log_field {
    const char *name; // a word
    const char *text; // NULL: the number
    double number;
} msgl_log_field;

// Standard error at the level that MINISGL_LOG names (error, warn, info, debug), else info; JSON if
// MINISGL_LOG_FORMAT is json.
msgl_log msgl__log_default(void);
// log NULL: nothing. Control characters in the text are shown as '?', what is too long is cut.
void msgl__log(const msgl_log *log, msgl_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// With fields [n]: behind the text as name=value, with quotes where the value is more than a word.
// A value is cut at 500 bytes; fields that a line has no room for are left out.
void msgl__log_fields(const msgl_log *log, msgl_log_level level, const char *text,
                      const msgl_log_field *fields, int n);

#endif
