// SPDX-License-Identifier: Apache-2.0
#include "utils/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

static msgl_log_sink own_sink; // of standard error
static bool has_own_sink;

msgl_log msgl__log_default(void)
{
    msgl_log log = {
        .level = MSGL_LOG_INFO, .fd = STDERR_FILENO, .sink = has_own_sink ? &own_sink : NULL};
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

// Appends a text to the line, with "?" for control characters and for bytes that are no UTF-8.
static void put_plain(line *l, const char *s)
{
    for (size_t left = strlen(s); left > 0;) {
        const size_t n = msgl__utf8_char(s, left), step = n > 0 ? n : 1;
        const bool shown = n > 0 && !msgl__utf8_is_control(s);
        if (step > room(l)) return;
        memcpy(l->at + l->n, shown ? s : "?", shown ? n : 1);
        l->n += shown ? n : 1;
        s += step;
        left -= step;
    }
}

// Appends a JSON string of at most `most` bytes of s. It is valid UTF-8, whatever s is.
static void put_quoted(line *l, const char *s, size_t most)
{
    const size_t len = strnlen(s, most);
    put(l, "\"");
    for (size_t i = 0; i < len;) {
        const unsigned char c = (unsigned char)s[i];
        const size_t n = msgl__utf8_char(s + i, len - i);
        char one[16] = "?";
        if (n > 0 && c != 0x7f && msgl__utf8_is_control(s + i)) { // none of them is beyond U+FFFF
            size_t at = i;
            (void)snprintf(one, sizeof one, "\\u%04" PRIx32, msgl__utf8_next(s, &at));
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

// The time now, such as "2026-11-26T04:35:20.549Z".
static void put_stamp(char stamp[48])
{
    char day[32];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    (void)strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(stamp, 48, "%s.%03ldZ", day, now.tv_nsec / 1000000);
}

// --- writing ---

// Opens a descriptor's file again, by its name below /proc, so that it has flags of its own:
// O_NONBLOCK on the open file that was given would also be the shell's and its other programs'.
static int open_again(int fd)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void msgl__log_sink_open(msgl_log_sink *s, int fd)
{
    struct stat st;
    s->fd = fd;
    s->way = MSGL_LOG_WAITS;
    if (fstat(fd, &st) != 0) return;
    if (S_ISSOCK(st.st_mode)) s->way = MSGL_LOG_SOCKET;
    if (!S_ISFIFO(st.st_mode) && isatty(fd) == 0) return;
    const int again = open_again(fd);
    s->way = again >= 0 ? MSGL_LOG_OWN : MSGL_LOG_LOOKS;
    if (again >= 0) s->fd = again;
}

void msgl__log_sink_close(msgl_log_sink *s)
{
    if (s->way == MSGL_LOG_OWN) close(s->fd);
    s->way = MSGL_LOG_WAITS;
    s->fd = -1;
}

void msgl__log_never_wait(void)
{
    if (has_own_sink) return;
    msgl__log_sink_open(&own_sink, STDERR_FILENO);
    has_own_sink = true;
}

// Writes what there is room for now. A pipe takes a line of up to 4 KiB as a whole or not at all.
static ssize_t write_now(const msgl_log_sink *s, const char *at, size_t n)
{
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};
    if (s->way == MSGL_LOG_SOCKET) return send(s->fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (s->way == MSGL_LOG_LOOKS && (poll(&p, 1, 0) != 1 || (p.revents & POLLOUT) == 0)) return -1;
    return write(s->fd, at, n);
}

// Whether all of the line was written. If the one before it was written in part, a line break ends
// that first.
static bool write_line(msgl_log_sink *s, const char *at, size_t n)
{
    if (atomic_exchange(&s->torn, false) && write_now(s, "\n", 1) != 1) {
        atomic_store(&s->torn, true);
        return false;
    }
    ssize_t done;
    do {
        done = write_now(s, at, n);
    } while (done < 0 && errno == EINTR);
    if (done > 0 && (size_t)done < n) atomic_store(&s->torn, true);
    return done == (ssize_t)n;
}

// Writes how many lines were lost, if any were. False: there was no room for that either.
static bool tell_lost(const msgl_log *log, msgl_log_sink *s)
{
    const int64_t lost = atomic_exchange(&s->lost, 0);
    char stamp[48], text[200];
    if (lost == 0) return true;
    put_stamp(stamp);
    const int n =
        snprintf(text, sizeof text,
                 log->json ? "{\"time\":\"%s\",\"level\":\"warn\",\"message\":\"lines of "
                             "the log were lost: nobody read them\",\"lines\":%" PRId64 "}\n"
                           : "%s warn  lines of the log were lost: nobody read them "
                             "lines=%" PRId64 "\n",
                 stamp, lost);
    if (write_line(s, text, (size_t)n)) return true;
    atomic_fetch_add(&s->lost, lost);
    return false;
}

static void emit(const msgl_log *log, const char *at, size_t n)
{
    msgl_log_sink *s = log->sink;
    if (s == NULL) {
        const ssize_t written = write(log->fd, at, n);
        (void)written; // nowhere to report that reporting failed
    } else if (!tell_lost(log, s) || !write_line(s, at, n)) {
        atomic_fetch_add(&s->lost, 1);
    }
}

void msgl__log_fields(const msgl_log *log, msgl_log_level level, const char *text,
                      const msgl_log_field *fields, int n)
{
    if (log == NULL || level > log->level) return;
    line l = {.n = 0};
    char stamp[48];
    put_stamp(stamp);
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
    emit(log, l.at, l.n);
}

void msgl__log_plain(const msgl_log *log, const char *text)
{
    line l = {.n = 0};
    put(&l, text);
    l.at[l.n++] = '\n';
    emit(log, l.at, l.n);
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
