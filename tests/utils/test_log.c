// SPDX-License-Identifier: Apache-2.0
//
// Lines of the log, as text and as JSON: whatever stands in them, each is one line, and one object.
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "utils/log.h"

typedef struct reader {
    int fd[2];
    msgl_log log;
    char line[8192];
} reader;

static void reader_open(reader *r, bool json)
{
    assert_int_equal(pipe(r->fd), 0);
    r->log = (msgl_log){.level = MSGL_LOG_INFO, .fd = r->fd[1], .json = json};
}

// What one call wrote.
static const char *reader_take(reader *r)
{
    const ssize_t n = read(r->fd[0], r->line, sizeof r->line - 1);
    assert_true(n > 1 && n <= 4096);
    r->line[n] = '\0';
    assert_ptr_equal(strchr(r->line, '\n'), r->line + n - 1);
    r->line[n - 1] = '\0';
    return r->line;
}

static void reader_close(reader *r)
{
    close(r->fd[0]);
    close(r->fd[1]);
}

static void check_stamp(const char *s)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ";
    for (size_t i = 0; i < sizeof form - 1; i++) {
        if (form[i] == 'd' ? s[i] < '0' || s[i] > '9' : s[i] != form[i]) fail_msg("%s", s);
    }
}

static const msgl_log_field FIELDS[] = {
    {.name = "word", .text = "/v1/models"}, {.name = "words", .text = "a \"b\" = \\c\n"},
    {.name = "none", .text = ""},           {.name = "bytes", .text = "\xc3\xa9 \xff\x7f"},
    {.name = "whole", .number = 1234567},   {.name = "part", .number = 0.3}};
enum { NUM_FIELDS = sizeof FIELDS / sizeof FIELDS[0] };

static void test_text(void **state)
{
    (void)state;
    reader r;
    reader_open(&r, false);
    msgl__log(&r.log, MSGL_LOG_WARN, "one\ttwo %d", 3);
    const char *s = reader_take(&r);
    check_stamp(s);
    assert_string_equal(s + 24, " warn  one?two 3");
    msgl__log_fields(&r.log, MSGL_LOG_INFO, "what", FIELDS, NUM_FIELDS);
    assert_string_equal(
        reader_take(&r) + 24,
        " info  what word=/v1/models words=\"a \\\"b\\\" = \\\\c\\u000a\" none=\"\" "
        "bytes=\"\xc3\xa9 ??\" whole=1234567 part=0.3");
    // Above the level, or nobody to tell: nothing.
    msgl__log(&r.log, MSGL_LOG_DEBUG, "hidden");
    msgl__log(NULL, MSGL_LOG_ERROR, "hidden");
    msgl__log(&r.log, MSGL_LOG_ERROR, "seen");
    assert_string_equal(reader_take(&r) + 24, " error seen");
    reader_close(&r);
}

static json_t *object_of(const char *s)
{
    json_error_t e;
    json_t *o = json_loads(s, JSON_REJECT_DUPLICATES, &e);
    if (o == NULL) fail_msg("%s: %s", e.text, s);
    return o;
}

static const char *text_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    if (s == NULL) fail_msg("no text %s", name);
    return s;
}

static void test_json(void **state)
{
    (void)state;
    reader r;
    reader_open(&r, true);
    msgl__log(&r.log, MSGL_LOG_ERROR, "a \"b\"\n\xff");
    json_t *o = object_of(reader_take(&r));
    assert_int_equal(json_object_size(o), 3);
    assert_int_equal(strlen(text_of(o, "time")), 24);
    check_stamp(text_of(o, "time"));
    assert_string_equal(text_of(o, "level"), "error");
    assert_string_equal(text_of(o, "message"), "a \"b\"\n?");
    json_decref(o);
    msgl__log_fields(&r.log, MSGL_LOG_INFO, "what", FIELDS, NUM_FIELDS);
    o = object_of(reader_take(&r));
    assert_int_equal(json_object_size(o), 3 + NUM_FIELDS);
    assert_string_equal(text_of(o, "words"), "a \"b\" = \\c\n");
    assert_string_equal(text_of(o, "bytes"), "\xc3\xa9 ??");
    assert_string_equal(text_of(o, "none"), "");
    assert_int_equal(json_integer_value(json_object_get(o, "whole")), 1234567);
    assert_true(fabs(json_number_value(json_object_get(o, "part")) - 0.3) < 1e-9);
    json_decref(o);
    reader_close(&r);
}

// However long the parts are, and whatever they take when they are escaped.
static void test_long_lines(void **state)
{
    (void)state;
    static const char fill[] = {'x', '\x01', '"', '\xff'};
    char text[3000];
    msgl_log_field f[12];
    for (int json = 0; json < 2; json++) {
        for (size_t k = 0; k < sizeof fill; k++) {
            for (size_t len = 1; len < sizeof text; len += 1 + len / 7) {
                reader r;
                reader_open(&r, json != 0);
                memset(text, fill[k], len);
                text[len] = '\0';
                for (int i = 0; i < 12; i++) {
                    f[i] = (msgl_log_field){.name = "abcdefghijkl" + i, .text = text};
                }
                msgl__log_fields(&r.log, MSGL_LOG_INFO, text, f, 12);
                const char *s = reader_take(&r);
                if (json != 0) json_decref(object_of(s));
                reader_close(&r);
            }
        }
    }
}

// What a terminal would act on is shown, not sent; letters beside those are left alone.
static void test_controls(void **state)
{
    (void)state;
    static const struct {
        const char *text, *plain, *quoted;
    } cases[] = {
        {"\xc2\x9b"
         "31m",
         "?31m", "\\u009b31m"}, // CSI in one character
        {"\xc2\x80|\xc2\x85|\xc2\x9f", "?|?|?", "\\u0080|\\u0085|\\u009f"},
        {"\xc2\xa0", "\xc2\xa0", "\xc2\xa0"}, // the first behind them
        {"\x1b[2J\x7f", "?[2J?", "\\u001b[2J?"},
        {"\xe2\x80\xa7\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaf", "\xe2\x80\xa7??\xe2\x80\xaf",
         "\xe2\x80\xa7\\u2028\\u2029\xe2\x80\xaf"},
        {"\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c", "???", "\\u200e\\u200f\\u061c"},
        {"\xe2\x80\xaa\xe2\x80\xab\xe2\x80\xac\xe2\x80\xad\xe2\x80\xae", "?????",
         "\\u202a\\u202b\\u202c\\u202d\\u202e"},
        {"\xe2\x81\xa6\xe2\x81\xa7\xe2\x81\xa8\xe2\x81\xa9\xe2\x81\xaa", "????\xe2\x81\xaa",
         "\\u2066\\u2067\\u2068\\u2069\xe2\x81\xaa"},
        {"\x9b"
         "31m\xff",
         "?31m?", "?31m?"}, // C1 of other encodings
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char want[256];
        const msgl_log_field f = {.name = "f", .text = cases[i].text};
        for (int json = 0; json < 2; json++) {
            reader r;
            reader_open(&r, json);
            msgl__log_fields(&r.log, MSGL_LOG_INFO, cases[i].text, &f, 1);
            const char *s = reader_take(&r) + (json ? 0 : 24);
            (void)snprintf(want, sizeof want,
                           json ? "\"message\":\"%s\",\"f\":\"%s\"}" : " info  %s f=\"%s\"",
                           json ? cases[i].quoted : cases[i].plain, cases[i].quoted);
            if (strstr(s, want) == NULL) fail_msg("%s instead of %s", s, want);
            reader_close(&r);
        }
    }
}

// Lines with the numbers from, ..., to - 1, some of which find no room.
static void log_numbers(const msgl_log *log, int from, int to)
{
    for (int i = from; i < to; i++) msgl__log(log, MSGL_LOG_INFO, "%-400d", i);
}

typedef struct numbers {
    char text[1 << 20];
    size_t n;              // of it, of a line whose end has not come
    int next;              // the first number that may come
    int lines, told, torn; // whole ones; lost ones that were told of; what is left of lost ones
} numbers;

static void take_line(numbers *all, const char *at, size_t len)
{
    enum { WHOLE = 24 + sizeof " info  " - 1 + 400 };
    int number;
    const char *lost = strstr(at, "nobody read them lines=");
    if (len == WHOLE && sscanf(at + 24, " info %d", &number) == 1) {
        check_stamp(at);
        assert_true(number >= all->next);
        all->next = number + 1;
        all->lines++;
    } else if (lost != NULL) {
        check_stamp(at);
        all->told += atoi(strchr(lost, '=') + 1);
    } else {
        all->torn++;
    }
}

// Reads what is there.
static void read_numbers(int fd, numbers *all)
{
    ssize_t got;
    while ((got = read(fd, all->text + all->n, sizeof all->text - 1 - all->n)) > 0) {
        all->n += (size_t)got;
    }
    all->text[all->n] = '\0';
    char *at = all->text;
    for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        const bool tty = end > at && end[-1] == '\r';
        *(end - tty) = '\0';
        take_line(all, at, (size_t)(end - at) - tty);
    }
    all->n -= (size_t)(at - all->text);
    memmove(all->text, at, all->n);
}

// Nothing waits for a reader that stands still; when it goes on it hears how many lines it missed.
// writer is a descriptor of what `from` reads.
static void expect_lost(int writer, int from, msgl_log_way way)
{
    enum { MANY = 2000 };
    msgl_log_sink sink = {0};
    const int flags = fcntl(writer, F_GETFL);
    assert_int_equal(fcntl(from, F_SETFL, fcntl(from, F_GETFL) | O_NONBLOCK), 0);
    msgl__log_sink_open(&sink, writer);
    if (way == MSGL_LOG_LOOKS) { // as where /proc is not there, or the pipe is another user's
        msgl__log_sink_close(&sink);
        sink.fd = writer;
        sink.way = way;
    }
    assert_int_equal(sink.way, way);
    const msgl_log log = {.level = MSGL_LOG_INFO, .fd = writer, .sink = &sink};
    log_numbers(&log, 0, MANY); // far more than fits
    static numbers seen;
    int all = MANY;
    seen = (numbers){0};
    read_numbers(from, &seen);
    assert_true(seen.lines > 0 && seen.lines < MANY);
    for (int i = 0; i < 1000 && (seen.next < all || all == MANY); i++) {
        log_numbers(&log, all, all + 1);
        all++;
        read_numbers(from, &seen);
        if (seen.next < all) usleep(1000); // a terminal makes room when it comes to it
    }
    assert_int_equal(seen.next, all);
    // A pipe takes a line whole or not at all. Of others the end of one may be missing, which is
    // then made up for: that one is told of as lost, and comes.
    const bool whole = way != MSGL_LOG_SOCKET && isatty(writer) == 0;
    assert_true(whole ? seen.lines + seen.told == all : seen.lines + seen.told >= all);
    assert_true(seen.told > 0 && (!whole || seen.torn == 0));
    assert_int_equal(fcntl(writer, F_GETFL), flags); // which others have, too
    msgl__log_sink_close(&sink);
    close(from);
    close(writer);
}

static void test_stuck(void **state)
{
    (void)state;
    int fd[2];
    for (int looks = 0; looks < 2; looks++) {
        assert_int_equal(pipe(fd), 0);
        assert_true(fcntl(fd[1], F_SETPIPE_SZ, 16384) > 0);
        expect_lost(fd[1], fd[0], looks ? MSGL_LOG_LOOKS : MSGL_LOG_OWN);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    expect_lost(fd[0], fd[1], MSGL_LOG_SOCKET);
    // A terminal whose window does not read.
    const int window = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(window >= 0 && grantpt(window) == 0 && unlockpt(window) == 0);
    const int tty = open(ptsname(window), O_RDWR | O_NOCTTY);
    assert_true(tty >= 0);
    expect_lost(tty, window, MSGL_LOG_OWN);
    // A file always takes what comes.
    char path[] = "/tmp/msgl-log-XXXXXX";
    const int file = mkstemp(path);
    msgl_log_sink sink = {0};
    msgl__log_sink_open(&sink, file);
    assert_int_equal(sink.way, MSGL_LOG_WAITS);
    unlink(path);
    close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text), cmocka_unit_test(test_json), cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_controls), cmocka_unit_test(test_stuck)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
