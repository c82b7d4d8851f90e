// SPDX-License-Identifier: Apache-2.0
#include "utils/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {"error", "warn", "info", "debug"};

msgl_log msgl__log_default(void)
{
    msgl_log log = {.level = MSGL_LOG_INFO, .fd = STDERR_FILENO};
    const char *want = getenv("MINISGL_LOG");
    for (int i = 0; want != NULL && i < 4; i++) {
        if (strcmp(want, names[i]) == 0) log.level = (msgl_log_level)i;
    }
    return log;
}

void msgl__log(const msgl_log *log, msgl_log_level level, const char *fmt, ...)
{
    if (log == NULL || level > log->level) return;
    char line[1024];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, 32, ".%03ldZ %-5s ", now.tv_nsec / 1000000, names[level]);
    va_list ap;
    va_start(ap, fmt);
    const int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m < 0) return;
    const size_t start = n;
    n += (size_t)m < sizeof line - n - 1 ? (size_t)m : sizeof line - n - 2;
    for (size_t i = start; i < n; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = '?';
    }
    line[n++] = '\n';
    const ssize_t written = write(log->fd, line, n);
    (void)written; // nowhere to report that reporting failed
}
