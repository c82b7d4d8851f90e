// SPDX-License-Identifier: Apache-2.0
#include "utils/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "utils/utf8.h"

enum {
    LINE_MAX_BYTES = 4096, // what a pipe takes as a whole
    TEXT_MAX = 1024,
    VALUE_MAX = 500,
    TAIL = 8, // room for what closes a line
};

typedef struct line {
    char at[LINE_MAX_BYTES];
    size_t n;
} line;

static const char *const names[] = {"error", "warn", "info", "debug"};

msgl_log msgl__log_default(void)
{
    msgl_log log = {.level = MSGL_LOG_INFO, .fd = STDERR_FILENO};
    const char *want = getenv("MINISGL_LOG"), *format = getenv("MINISGL_LOG_FORMAT");
    for (int i = 0; want != NULL && i < 4; i++) {
        if (strcmp(want, names[i]) == 0) log.level = (msgl_log_level)i;
    }
    log.json = format != NULL && strcmp(format, "json") == 0;
    return log;
}

static size_t room(const line *l)
{
    return sizeof l->at - TAIL - l->n;
}

static void put(line *l, const char *s)
{
    const size_t len = strlen(s), n = len < room(l) ? len : room(l);
    memcpy(l->at + l->n, s, n);
    l->n += n;
}

// Without control characters, and no terminator.
static void put_plain(line *l, const char *s)
{
    const size_t from = l->n;
    put(l, s);
    for (size_t i = from; i < l->n; i++) {
        if ((unsigned char)l->at[i] < 0x20 || l->at[i] == 0x7f) l->at[i] = '?';
    }
}

// A JSON string of at most `most` bytes of s: valid UTF-8, whatever s is.
static void put_quoted(line *l, const char *s, size_t most)
{
    const size_t len = strnlen(s, most);
    put(l, "\"");
    for (size_t i = 0; i < len;) {
        const unsigned char c = (unsigned char)s[i];
        const size_t n = msgl__utf8_char(s + i, len - i);
        char one[8] = "?";
        if (c < 0x20) {
            (void)snprintf(one, sizeof one, "\\u%04x", c);
        } else if (c == '"' || c == '\\') {
            (void)snprintf(one, sizeof one, "\\%c", c);
        } else if (n > 0 && c != 0x7f) {
            memcpy(one, s + i, n);
            one[n] = '\0';
        }
        if (strlen(one) >= room(l)) break;
        put(l, one);
        i += n > 0 ? n : 1;
    }
    put(l, "\"");
}

static bool is_word(const char *s)
{
    const char *at = s;
    while (*at > ' ' && *at < 0x7f && *at != '"' && *at != '=' && *at != '\\') at++;
    return *at == '\0' && at != s && at - s <= VALUE_MAX;
}

static void put_field(line *l, bool json, const msgl_log_field *f)
{
    char number[32];
    if (room(l) < strlen(f->name) + 2 * sizeof number) return;
    if (json) {
        put(l, ",\"");
        put(l, f->name);
        put(l, "\":");
    } else {
        put(l, " ");
        put(l, f->name);
        put(l, "=");
    }
    if (f->text == NULL) {
        (void)snprintf(number, sizeof number, "%.10g", f->number);
        put(l, number);
    } else if (!json && is_word(f->text) && strlen(f->text) < room(l)) {
        put(l, f->text);
    } else {
        put_quoted(l, f->text, VALUE_MAX);
    }
}

void msgl__log_fields(const msgl_log *log, msgl_log_level level, const char *text,
                      const msgl_log_field *fields, int n)
{
    if (log == NULL || level > log->level) return;
    line l = {.n = 0};
    char day[32], stamp[48];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    (void)strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(stamp, sizeof stamp, "%s.%03ldZ", day, now.tv_nsec / 1000000);
    if (log->json) {
        put(&l, "{\"time\":\"");
        put(&l, stamp);
        put(&l, "\",\"level\":\"");
        put(&l, names[level]);
        put(&l, "\",\"message\":");
        put_quoted(&l, text, TEXT_MAX);
    } else {
        char head[16];
        (void)snprintf(head, sizeof head, " %-5s ", names[level]);
        put(&l, stamp);
        put(&l, head);
        put_plain(&l, text);
    }
    for (int i = 0; i < n; i++) put_field(&l, log->json, &fields[i]);
    if (log->json) l.at[l.n++] = '}';
    l.at[l.n++] = '\n';
    const ssize_t written = write(log->fd, l.at, l.n);
    (void)written; // nowhere to report that reporting failed
}

void msgl__log(const msgl_log *log, msgl_log_level level, const char *fmt, ...)
{
    if (log == NULL || level > log->level) return;
    char text[TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n >= 0) msgl__log_fields(log, level, text, NULL, 0);
}
