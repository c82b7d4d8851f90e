// SPDX-License-Identifier: Apache-2.0
//
// Reading what others wrote: numbers that Python writes and jansson does not hold, memory that runs
// out anywhere, and files that are no files.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "utils/file.h"
#include "utils/json.h"
#include "utils/json_write.h"

static json_t *parse(const char *text)
{
    json_t *v = NULL;
    msgl_err err = {0};
    const int rc = msgl__json_parse("x.json", text, strlen(text), JSON_DECODE_ANY, &v, &err);
    if (rc != 0) fail_msg("%s: %d %s", text, rc, err.text);
    return v;
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
        bool integer;
    } cases[] = {
        {"9223372036854775807", 0x1p63, true},
        {"-9223372036854775808", -0x1p63, true},
        {"9223372036854775808", 0x1p63, false},
        {"-9223372036854775809", -0x1p63, false},
        {"1000000000000000019884624838656", 1e30, false},
        {"-1000000000000000019884624838656", -1e30, false},
        {"1e308", 1e308, false},
        {"1.0E+400", MSGL_JSON_BEYOND, false},
        {"1e309", MSGL_JSON_BEYOND, false},
        {"-1e309", -MSGL_JSON_BEYOND, false},
        {"1e-400", 0, false},
        {"NaN", MSGL_JSON_BEYOND, false},
        {"Infinity", MSGL_JSON_BEYOND, false},
        {"-Infinity", -MSGL_JSON_BEYOND, false},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        char list[128];
        snprintf(list, sizeof list, "[%s,{\"a\":%s}, %s ]", cases[i].text, cases[i].text,
                 cases[i].text);
        json_t *v = parse(list);
        assert_int_equal(json_array_size(v), 3);
        const json_t *found[] = {json_array_get(v, 0), json_object_get(json_array_get(v, 1), "a"),
                                 json_array_get(v, 2)};
        for (size_t k = 0; k < 3; k++) {
            assert_int_equal(json_is_integer(found[k]), cases[i].integer);
            if (json_number_value(found[k]) != cases[i].value) fail_msg("%s", cases[i].text);
        }
        json_decref(v);
    }
    // More digits than a double has exponent.
    char digits[1001];
    memset(digits, '7', 1000);
    digits[1000] = '\0';
    json_t *v = parse(digits);
    assert_true(json_real_value(v) == MSGL_JSON_BEYOND);
    json_decref(v);
}

// What looks like such a number inside a string is text, also behind quotes that are escaped.
static void test_strings(void **state)
{
    (void)state;
    json_t *v = parse("[\"NaN 1e999\", \"\\\" NaN\", \"\\\\\", NaN, \"a\\\\\\\"Infinity\"]");
    assert_string_equal(json_string_value(json_array_get(v, 0)), "NaN 1e999");
    assert_string_equal(json_string_value(json_array_get(v, 1)), "\" NaN");
    assert_string_equal(json_string_value(json_array_get(v, 2)), "\\");
    assert_true(json_is_real(json_array_get(v, 3)));
    assert_string_equal(json_string_value(json_array_get(v, 4)), "a\\\"Infinity");
    json_decref(v);
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "nan",
                                      "-NaN",
                                      "inf",
                                      "+Infinity",
                                      "[NaN",
                                      "NaNs",
                                      "tNaN",
                                      "1e999x",
                                      "1e",
                                      "01",
                                      "1.",
                                      "\"NaN",
                                      "{NaN: 1}",
                                      "[1e999e]",
                                      "NaN 1",
                                      "--Infinity",
                                      "99999999999999999999x",
                                      "00000000000000000000000"};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        json_t *v = NULL;
        msgl_err err = {0};
        const int rc =
            msgl__json_parse("x.json", bad[i], strlen(bad[i]), JSON_DECODE_ANY, &v, &err);
        if (rc != MSGL_EFORMAT || v != NULL) fail_msg("%s: %d", bad[i], rc);
        assert_non_null(strstr(err.text, "x.json: line 1 column "));
    }
    json_t *v;
    msgl_err err = {0};
    const char *lines = "{\"a\": NaN,\n\"b\": 1e999,\n\"c\" 1}";
    assert_int_equal(msgl__json_parse("x", lines, strlen(lines), 0, &v, &err), MSGL_EFORMAT);
    assert_non_null(strstr(err.text, "x: line 3 "));
    msgl__mem_fail_from(1);
    assert_int_equal(msgl__json_parse("x", "[NaN]", 5, 0, &v, &err), MSGL_ENOMEM);
    msgl__mem_fail_from(0);
}

// An integer beyond 64 bits has its digits, in copies as well; nothing else has any.
static void test_digits(void **state)
{
    (void)state;
    static const char *const big[] = {"18446744073709551615", "9223372036854775808",
                                      "-9223372036854775809", "12345678901234567890123",
                                      "1000000000000000019884624838656"};
    for (size_t i = 0; i < MSGL_COUNT(big); i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"a\":[%s, 1.5, 7, \"7\"],\"b\":%s}", big[i], big[i]);
        json_t *v = parse(text), *copy = msgl__json_deep_copy(v);
        json_decref(v);
        const json_t *a = json_object_get(copy, "a");
        assert_string_equal(msgl__json_digits(json_array_get(a, 0)), big[i]);
        assert_string_equal(msgl__json_digits(json_object_get(copy, "b")), big[i]);
        assert_true(json_real_value(json_array_get(a, 0)) == strtod(big[i], NULL));
        for (size_t k = 1; k < 4; k++) assert_null(msgl__json_digits(json_array_get(a, k)));
        assert_string_equal(json_string_value(json_array_get(a, 3)), "7");
        json_decref(copy);
    }
    static const char *const small[] = {"9223372036854775807",
                                        "-9223372036854775808",
                                        "1e30",
                                        "18446744073709551616.0",
                                        "-0",
                                        "null"};
    for (size_t i = 0; i < MSGL_COUNT(small); i++) {
        json_t *v = parse(small[i]);
        assert_null(msgl__json_digits(v));
        json_decref(v);
    }
    char digits[20001];
    memset(digits, '9', 20000);
    digits[20000] = '\0';
    json_t *v = parse(digits);
    assert_string_equal(msgl__json_digits(v), digits);
    json_decref(v);
    assert_null(msgl__json_digits(NULL));
}

// What is written is what Python's json.dumps writes, with its separators where ours are asked for.
static void test_writing(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":[1,-2,[],{}],\"b\\u0001\":\"\\\"\\\\\\b\\f\\n\\r\\t/"
        "\\u001f\\u007f\\u00e9\\ud83d\\ude00\","
        "\"c\":[0.1,1.0,-2.5e-7,1e22,0.30000000000000004,5e-324],\"d\":[true,false,null],"
        "\"e\":-18446744073709551616}";
    static const struct {
        size_t flags;
        const char *written;
    } cases[] = {
        {JSON_COMPACT,
         "{\"a\":[1,-2,[],{}],\"b\\u0001\":\"\\\"\\\\\\b\\f\\n\\r\\t/\\u001f\x7f\xc3\xa9"
         "\xf0\x9f\x98\x80\",\"c\":[0.1,1.0,-2.5e-07,1e+22,0.30000000000000004,"
         "4.94065645841247e-324],\"d\":[true,false,null],\"e\":-18446744073709551616}"},
        {JSON_ENSURE_ASCII,
         "{\"a\": [1, -2, [], {}], \"b\\u0001\": "
         "\"\\\"\\\\\\b\\f\\n\\r\\t/\\u001f\\u007f\\u00e9\\ud83d\\ude00\", "
         "\"c\": [0.1, 1.0, -2.5e-07, 1e+22, 0.30000000000000004, 4.94065645841247e-324], "
         "\"d\": [true, false, null], \"e\": -18446744073709551616}"},
        {JSON_COMPACT | JSON_REAL_PRECISION(3),
         "{\"a\":[1,-2,[],{}],\"b\\u0001\":\"\\\"\\\\\\b\\f\\n\\r\\t/"
         "\\u001f\x7f\xc3\xa9\xf0\x9f\x98\x80\","
         "\"c\":[0.1,1.0,-2.5e-07,1e+22,0.3,4.94e-324],\"d\":[true,false,null],"
         "\"e\":-18446744073709551616}"},
    };
    json_t *v = parse(text);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        char *written = msgl__json_text(v, cases[i].flags);
        assert_string_equal(written, cases[i].written);
        json_t *again = parse(written);
        assert_true(cases[i].flags >= JSON_REAL_PRECISION(1) || json_equal(v, again));
        json_decref(again);
        msgl__free(written);
    }
    json_decref(v);
    v = parse("{\"a\":[1,{\"b\":[]}],\"c\":{}}");
    char *written = msgl__json_text(v, JSON_INDENT(2));
    assert_string_equal(written, "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n"
                                 "  \"c\": {}\n}");
    msgl__free(written);
    json_decref(v);

    msgl_strbuf out;
    msgl__strbuf_init(&out, 100);
    assert_int_equal(msgl__json_put_str(&out, "a\xff\xc3(\0b", 6), 0);
    assert_string_equal(msgl__strbuf_str(&out), "\"a\xef\xbf\xbd\xef\xbf\xbd(\\u0000b\"");
    assert_int_equal(msgl__json_put(&out, NULL, 0), MSGL_ENOMEM);
    msgl__strbuf_free(&out);
}

// Each allocation of a reading, of a copy and of a writing fails once: an error, and no byte is
// lost (the sanitizers' builds look for that).
static void test_no_memory(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a long name \\u00e9 that is "
        "escaped\":[1,-2.5,true,null,\"text\",\"\\n\\ud83d\\ude00\"],"
        "\"b\":{\"c\":18446744073709551615,\"d\":[[],[{}]],\"e\":1,\"f\":2,\"g\":3,\"h\":4,\"i\":5,"
        "\"j\":6,\"k\":7,\"l\":8}, "
        "\"m\":0.1000000000000000000000000000000000000000000000000000000000001,"
        "\"n\":[0,1,2,3,4,5,6,7,8,9]}";
    json_t *whole = parse(text);
    int tries = 0;
    for (int copying = 0; copying < 3; copying++) {
        for (uint64_t nth = 1;; nth++, tries++) {
            json_error_t why;
            int rc = MSGL_ENOMEM;
            msgl__mem_fail_from(nth);
            json_t *v = copying == 1   ? msgl__json_deep_copy(whole)
                        : copying == 2 ? msgl__json_copy(whole)
                                       : msgl__json_loadb(text, sizeof text - 1, 0, &why, &rc);
            msgl__mem_fail_from(0);
            if (v != NULL) {
                assert_true(json_equal(v, whole));
                json_decref(v);
                break;
            }
            assert_int_equal(rc, MSGL_ENOMEM);
            if (!copying) assert_string_equal(why.text, "out of memory");
        }
    }
    assert_true(tries > 100);
    for (uint64_t nth = 1;; nth++) {
        msgl__mem_fail_from(nth);
        char *written = msgl__json_text(whole, JSON_COMPACT);
        msgl__mem_fail_from(0);
        if (written == NULL) continue;
        json_t *again = parse(written);
        assert_true(nth > 1 && json_equal(again, whole));
        json_decref(again);
        msgl__free(written);
        break;
    }
    json_decref(whole);
}

// Where a text stops being JSON, and what stands there.
static void test_places(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
        int line, column;
        size_t flags;
    } cases[] = {
        {"{\"a\": tru}", "invalid token near 'tru}'", 1, 7, 0},
        {"{\"a\":1,\n \"\xc3\xa9\" 2}", "':' expected near '2}'", 2, 6, 0},
        {"[1, 2", "']' expected near end of file", 1, 6, 0},
        {"[1 2]", "']' expected near '2]'", 1, 4, 0},
        {"{\"a\":1 \"b\"}", "'}' expected near '\"b\"}'", 1, 8, 0},
        {"{1}", "string expected near '1}'", 1, 2, 0},
        {"[\"a\nb\"]", "unexpected newline in a string", 1, 4, 0},
        {"[\"a\tb\"]", "control character 0x9 in a string", 1, 4, 0},
        {"[\"a\xff\"]", "unable to decode byte 0xff", 1, 4, 0},
        {"[\"\\ud800\"]", "invalid escape near '\\ud800\"]'", 1, 3, 0},
        {"[\"\\u0000\"]", "\\u0000 is not allowed", 1, 3, 0},
        {"{\"\\u0000\":1}", "a name has a NUL character", 1, 2, JSON_ALLOW_NUL},
        {"{\"a\":1,\"a\":2}", "duplicate object key", 1, 8, JSON_REJECT_DUPLICATES},
        {"[1e999]", "real number overflow", 1, 2, 0},
        {"[NaN]", "invalid token near 'NaN]'", 1, 2, 0},
        {"1", "'[' or '{' expected near '1'", 1, 1, 0},
        {"\xff", "'[' or '{' expected: byte 0xff is no UTF-8", 1, 1, 0},
        {"[x\xff]", "invalid token near 'x'", 1, 2, 0},
        {"", "'[' or '{' expected near end of file", 1, 1, 0},
        {"[1] x", "end of file expected near 'x'", 1, 5, 0},
        {"[\"abc", "string ends near end of file", 1, 6, 0},
        {"[,]", "unexpected token near ',]'", 1, 2, 0},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        json_error_t e;
        int rc;
        const char *t = cases[i].text;
        assert_null(msgl__json_loadb(t, strlen(t), cases[i].flags, &e, &rc));
        assert_int_equal(rc, MSGL_EFORMAT);
        if (strncmp(e.text, cases[i].why, strlen(cases[i].why)) != 0) fail_msg("%s: %s", t, e.text);
        if (e.line != cases[i].line || e.column != cases[i].column) {
            fail_msg("%s: line %d column %d", t, e.line, e.column);
        }
    }
    // 2,048 levels, and one more.
    char deep[2 * 2049 + 1];
    for (int n = 2048; n <= 2049; n++) {
        memset(deep, '[', (size_t)n);
        memset(deep + n, ']', (size_t)n);
        json_t *v = msgl__json_loadb(deep, 2 * (size_t)n, 0, NULL, NULL);
        assert_int_equal(v != NULL, n == 2048);
        json_decref(v);
    }
}

// A FIFO that nobody writes to would block an open for good; a device never ends.
static void test_no_files(void **state)
{
    (void)state;
    char dir[] = "/tmp/minisgl-file-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    const char *const paths[] = {path, dir, "/dev/zero"};
    alarm(60); // a blocked open ends the test instead of the run
    for (size_t i = 0; i < MSGL_COUNT(paths); i++) {
        char *data = NULL;
        size_t len;
        msgl_err err = {0};
        assert_int_equal(msgl__file_read(paths[i], 100, &data, &len, &err), MSGL_EIO);
        assert_non_null(strstr(err.text, "not a regular file"));
        assert_null(data);
    }
    alarm(0);
    assert_int_equal(unlink(path), 0);
    char *data;
    size_t len;
    msgl_err err = {0};
    assert_int_equal(msgl__file_read(path, 100, &data, &len, &err), MSGL_ENOENT);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "12345", 5), 5);
    close(fd);
    assert_int_equal(msgl__file_read(path, 4, &data, &len, &err), MSGL_ELIMIT);
    assert_non_null(strstr(err.text, "found 5 bytes, allowed 4"));
    assert_int_equal(msgl__file_read(path, 5, &data, &len, &err), 0);
    assert_int_equal(len, 5);
    assert_string_equal(data, "12345");
    msgl__free(data);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_strings),
        cmocka_unit_test(test_errors),  cmocka_unit_test(test_digits),
        cmocka_unit_test(test_writing), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_places),  cmocka_unit_test(test_no_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
