// SPDX-License-Identifier: Apache-2.0
//
// Single keywords, pairs of them and single characters, with documents and masks worked out by
// hand: the boundaries that vectors made at random do not hit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/fixture.h"

enum { MOST = 10 };

typedef struct schema_case {
    const char *schema;
    const char *yes[MOST], *no[MOST];
} schema_case;

static void check(int (*compile)(const char *, size_t, const msgl_grammar_limits *, msgl_grammar **,
                                 msgl_err *),
                  const schema_case *cases, size_t n)
{
    msgl_grammar_vocab *v = fixture_vocab(0, 1);
    for (size_t i = 0; i < n; i++) {
        const schema_case *c = &cases[i];
        msgl_grammar *g = NULL;
        msgl_err err = {0};
        if (compile(c->schema, strlen(c->schema), NULL, &g, &err) != 0) {
            fail_msg("%s: %s", c->schema, err.text);
        }
        for (int k = 0; k < MOST && c->yes[k] != NULL; k++) {
            if (!fixture_accepts(g, v, c->yes[k], strlen(c->yes[k]))) {
                fail_msg("%s refuses %s", c->schema, c->yes[k]);
            }
        }
        for (int k = 0; k < MOST && c->no[k] != NULL; k++) {
            if (fixture_accepts(g, v, c->no[k], strlen(c->no[k]))) {
                fail_msg("%s takes %s", c->schema, c->no[k]);
            }
        }
        msgl__grammar_unref(g);
    }
    msgl__grammar_vocab_unref(v);
}

static void test_merged(void **state)
{
    (void)state;
    static const schema_case CASES[] = {
        {"{\"allOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", {"5", "-7"}, {"5.5", "1e2"}},
        {"{\"allOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}", {"5", "-7"}, {"5.5", "1e2"}},
        {"{\"allOf\":[{\"type\":[\"number\",\"null\"]},{\"type\":[\"integer\",\"null\"]}]}",
         {"5", "null"},
         {"5.5"}},
        // What the first says of properties that it does not name holds for the second's.
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"integer\"}},"
         "{\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         {"{\"b\":3}", "{\"a\":null,\"b\":3}"},
         {"{\"b\":\"x\"}", "{\"a\":1}"}},
        {"{\"allOf\":[{\"properties\":{\"b\":{}},\"required\":[\"b\"]},"
         "{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"integer\"}}]}",
         {"{\"b\":3}", "{\"b\":3,\"a\":null}"},
         {"{\"b\":\"x\"}", "{\"a\":1}"}},
    };
    check(msgl__grammar_json_schema, CASES, MSGL_COUNT(CASES));
}

static void test_bounds_of_numbers(void **state)
{
    (void)state;
    static const schema_case CASES[] = {
        {"{\"type\":\"integer\",\"exclusiveMaximum\":5.5}", {"5", "4", "-9"}, {"6", "55"}},
        {"{\"type\":\"integer\",\"exclusiveMaximum\":-5.5}", {"-6", "-10"}, {"-5", "0"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-5.5}", {"-5", "7"}, {"-6"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":5,\"exclusiveMaximum\":7}", {"6"}, {"5", "7"}},
        // -0 is no integer's text here: some readers make a real of it.
        {"{\"type\":\"integer\",\"minimum\":-3,\"maximum\":3}", {"0", "-1", "-3", "3"}, {"-0"}},
        {"{\"type\":\"integer\",\"maximum\":3}", {"0", "-1", "-99"}, {"-0", "4"}},
        {"{\"type\":\"integer\",\"maximum\":-1}", {"-1"}, {"-0", "0"}},
        // The same value as a closed and as an open bound.
        {"{\"type\":\"number\",\"minimum\":1.5,\"exclusiveMinimum\":1.5,\"maximum\":1.75}",
         {"1.51", "1.501", "1.75"},
         {"1.5", "1.50", "1.76"}},
        {"{\"type\":\"number\",\"minimum\":1.25,\"maximum\":1.5,\"exclusiveMaximum\":1.5}",
         {"1.25", "1.49", "1.2500"},
         {"1.5", "1.50", "1.24"}},
        {"{\"type\":\"number\",\"minimum\":1.5,\"maximum\":1.5}", {"1.5", "1.500"}, {"1.51", "1"}},
    };
    check(msgl__grammar_json_schema, CASES, MSGL_COUNT(CASES));
    static const char OPEN[] = "{\"type\":\"number\",\"exclusiveMinimum\":1.5,\"maximum\":1.5}";
    msgl_grammar *g = NULL;
    msgl_err err = {0};
    assert_int_equal(msgl__grammar_json_schema(OPEN, strlen(OPEN), NULL, &g, &err), MSGL_EINVAL);
}

// The ends of UTF-8's four lengths, each alone, and no longer form of them; no surrogates.
static void test_characters(void **state)
{
    (void)state;
    static const schema_case CASES[] = {
        {"[\\x{7f}]", {"\x7f"}, {"\xc1\xbf"}},
        {"[\\x{80}]", {"\xc2\x80"}, {"\xe0\x82\x80"}},
        {"[\\x{7ff}]", {"\xdf\xbf"}, {"\xe0\x9f\xbf"}},
        {"[\\x{800}]", {"\xe0\xa0\x80"}, {"\xf0\x80\xa0\x80"}},
        {"[\\x{ffff}]", {"\xef\xbf\xbf"}, {"\xf0\x8f\xbf\xbf"}},
        {"[\\x{10000}]", {"\xf0\x90\x80\x80"}, {"\xef\xbf\xbf"}},
        {"[\\x{10ffff}]", {"\xf4\x8f\xbf\xbf"}, {"\xf4\x90\x80\x80"}},
        {"[\\x{d800}-\\x{ffff}]",
         {"\xee\x80\x80", "\xef\xbf\xbf"},
         {"\xed\xa0\x80", "\xed\xbf\xbf", "\xed\x9f\xbf"}},
        {"[\\x{d7ff}-\\x{e000}]",
         {"\xed\x9f\xbf", "\xee\x80\x80"},
         {"\xed\xa0\x80", "\xed\xbf\xbf"}},
        {".", {"\xed\x9f\xbf", "\xee\x80\x80"}, {"\xed\xa0\x80", "\xed\xbf\xbf"}},
        {"[^a]", {"\xed\x9f\xbf", "\xee\x80\x80"}, {"\xed\xa0\x80", "a"}},
    };
    check(msgl__grammar_regex, CASES, MSGL_COUNT(CASES));
}

// Tokens of one character more than the limits of the vocabulary's trees (8, 16 and 32), in a
// string that may have as many as the limit beside another string that needs more.
static void test_tokens_at_limits(void **state)
{
    (void)state;
    static const int LIMITS[] = {8, 16, 32};
    char text[40];
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < MSGL_COUNT(LIMITS); i++) {
        char schema[160];
        const int n = LIMITS[i];
        const int len = snprintf(schema, sizeof schema,
                                 "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":%d},"
                                 "{\"type\":\"string\",\"pattern\":\"^a{%d}$\"}]}",
                                 n, n + 5);
        msgl_grammar_token tokens[5] = {{"", 0}, {"\"", 1}, {text, (size_t)n}};
        tokens[3] = (msgl_grammar_token){text, (size_t)n + 1};
        tokens[4] = (msgl_grammar_token){text, (size_t)n + 6};
        const int32_t eos = 0;
        msgl_grammar_vocab *v = NULL;
        msgl_grammar *g = NULL;
        msgl_err err = {0};
        uint32_t bits = 0;
        assert_int_equal(msgl__grammar_vocab_create(tokens, 5, &eos, 1, &v, &err), 0);
        assert_int_equal(msgl__grammar_json_schema(schema, (size_t)len, NULL, &g, &err), 0);
        msgl_matcher *m = msgl__matcher_create(g, v);
        assert_int_equal(msgl__matcher_accept_bytes(m, "\"", 1), 0);
        assert_int_equal(msgl__matcher_fill_mask(m, &bits), 0);
        // The quote, n characters, and n + 1 of the longer string; not n + 6.
        assert_int_equal(bits, 1 << 1 | 1 << 2 | 1 << 3);
        msgl__matcher_destroy(m);
        msgl__grammar_unref(g);
        msgl__grammar_vocab_unref(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merged),
        cmocka_unit_test(test_bounds_of_numbers),
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_tokens_at_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
