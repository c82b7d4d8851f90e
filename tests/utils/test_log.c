// SPDX-License-Identifier: Apache-2.0
//
// Lines of the log, as text and as JSON: whatever stands in them, each is one line, and one object.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_long_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
