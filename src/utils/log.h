// SPDX-License-Identifier: Apache-2.0
//
// One line per event on a descriptor: time, level, text, and fields if it has any; as text or as a
// JSON object. A line is one write of at most 4 KiB, so lines of several threads and processes do
// not mix. Prompts and generated text are never logged.
#ifndef MSGL_UTILS_LOG_H
#define MSGL_UTILS_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum msgl_log_level {
    MSGL_LOG_ERROR,
    MSGL_LOG_WARN,
    MSGL_LOG_INFO,
    MSGL_LOG_DEBUG,
} msgl_log_level;

typedef struct msgl_log {
    msgl_log_level level; // lines above it are dropped
    int fd;
    bool json;                  // {"time":...,"level":...,"message":...} and the fields
    struct msgl_log_sink *sink; // NULL: writes to fd wait for its reader
} msgl_log;

typedef struct msgl_log_field {
    const char *name; // a word
    const char *text; // NULL: the number
    double number;
} msgl_log_field;

// How lines get to a descriptor whose reader may stand still (a pipe that nobody reads, a terminal
// behind Ctrl-S), which may cost lines but must not stop who writes them.
typedef enum msgl_log_way {
    MSGL_LOG_WAITS,  // files and what else always takes what it is given
    MSGL_LOG_OWN,    // a pipe or terminal opened once more, so that O_NONBLOCK is ours alone
    MSGL_LOG_LOOKS,  // one that cannot be opened: it is asked before each line
    MSGL_LOG_SOCKET, // asked with each line
} msgl_log_way;

typedef struct msgl_log_sink {
    msgl_log_way way;
    int fd;               // written to; with MSGL_LOG_OWN ours
    _Atomic int64_t lost; // lines since the last that was written
    _Atomic bool torn;    // what was written last lacks its end
} msgl_log_sink;

// Of a descriptor: *s is to live as long as what writes lines. Lines that find no room are counted,
// and the next that does has their number before it.
void msgl__log_sink_open(msgl_log_sink *s, int fd);
void msgl__log_sink_close(msgl_log_sink *s);
// From here on lines of this process, and of those that it forks, never wait for the reader of
// standard error: msgl__log_default has such a sink. One call, before there are threads.
void msgl__log_never_wait(void);

// Standard error at the level that MINISGL_LOG names (error, warn, info, debug), else info; JSON if
// MINISGL_LOG_FORMAT is json.
msgl_log msgl__log_default(void);
// log NULL: nothing. Control characters (msgl__utf8_is_control) in the text are shown as '?', what
// is too long is cut.
void msgl__log(const msgl_log *log, msgl_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// With fields [n]: behind the text as name=value, with quotes where the value is more than a word.
// A value is cut at 500 bytes; fields that a line has no room for are left out.
void msgl__log_fields(const msgl_log *log, msgl_log_level level, const char *text,
                      const msgl_log_field *fields, int n);
// A line as it is, without time and level, and whatever stands in it.
void msgl__log_plain(const msgl_log *log, const char *line);

#endif
