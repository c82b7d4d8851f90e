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
        {"{\"type\":\"number\",\"exclusiveMinimum\":1.5,\"maximum\":1.55}",
         {"1.51", "1.55", "1.501"},
         {"1.5", "1.50", "1.56", "1.551"}},
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

// Bounds beyond 64 bits and beyond a double are compared digit by digit.
static void test_large_numbers(void **state)
{
    (void)state;
    static const schema_case CASES[] = {
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615}",
         {"0", "18446744073709551615", "9223372036854775808", "18446744073709551599"},
         {"18446744073709551616", "18446744073709551620", "99999999999999999999", "-1"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-9223372036854775808,"
         "\"maximum\":9223372036854775807}",
         {"-9223372036854775807", "9223372036854775807"},
         {"-9223372036854775808", "9223372036854775808"}},
        {"{\"type\":\"integer\",\"minimum\":1000000000000000000000000000000}",
         {"1000000000000000000000000000000", "1000000000000000000000000000001",
          "90000000000000000000000000000000"},
         {"999999999999999999999999999999", "1"}},
        {"{\"type\":\"number\",\"maximum\":1e30}",
         {"1000000000000000000000000000000", "-7.25", "999999999999999999999999999999.5"},
         {"1000000000000000000000000000000.5", "1000000000000000000000000000001"}},
        {"{\"type\":\"integer\",\"maximum\":1e300}", {"-5", "99999999999999999999999"}, {"1.5"}},
        {"{\"const\":18446744073709551615}",
         {"18446744073709551615"},
         {"18446744073709551614", "1.8446744073709552e19"}},
        {"{\"allOf\":[{\"type\":\"integer\",\"maximum\":18446744073709551615},"
         "{\"maximum\":18446744073709551614}]}",
         {"18446744073709551614"},
         {"18446744073709551615"}},
    };
    check(msgl__grammar_json_schema, CASES, MSGL_COUNT(CASES));
}

static void test_multiples(void **state)
{
    (void)state;
    static const schema_case CASES[] = {
        {"{\"type\":\"number\",\"multipleOf\":0.5}",
         {"0", "0.5", "-1.5", "12", "7.0", "0.0"},
         {"0.25", "0.6", "1.", "05"}},
        {"{\"type\":\"number\",\"multipleOf\":0.01}", {"0.01", "-3.2", "5"}, {"0.001", "1.234"}},
        {"{\"type\":\"number\",\"multipleOf\":0.25,\"minimum\":0}",
         {"0.25", "3.5", "4", "10.75"},
         {"0.3", "-0.25", "10.7"}},
        {"{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0.05,\"maximum\":1000}",
         {"0.05", "999.99", "1000", "7.5"},
         {"0.04", "1000.01", "0.055"}},
        {"{\"type\":\"number\",\"multipleOf\":0.5,\"exclusiveMinimum\":-1,\"maximum\":1}",
         {"-0.5", "0", "0.5", "1"},
         {"-1", "0.25", "1.5"}},
        {"{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":7,\"maximum\":100}",
         {"10", "100", "55"},
         {"5", "7", "105", "12"}},
        {"{\"type\":\"integer\",\"multipleOf\":0.5}", {"1", "-3"}, {"0.5"}},
        {"{\"type\":\"integer\",\"multipleOf\":2.5}", {"5", "-10", "0"}, {"2", "4", "2.5"}},
        {"{\"type\":\"integer\",\"multipleOf\":1000}", {"0", "1000", "-25000"}, {"100", "1001"}},
        {"{\"type\":\"integer\",\"multipleOf\":3,\"exclusiveMinimum\":0}",
         {"3", "12"},
         {"0", "-3"}},
    };
    check(msgl__grammar_json_schema, CASES, MSGL_COUNT(CASES));
}

// Objects that name their properties have no others; what says more of others is kept.
static void test_closed(void **state)
{
    (void)state;
    static const char PERSON[] = "{\"type\":\"object\",\"properties\":{\"a\":{}}}";
    static const schema_case CASES[] = {
        {PERSON, {"{\"a\":1}", "{}"}, {"{\"b\":1}", "{\"a\":1,\"b\":2}"}},
        {"{\"type\":\"object\"}", {"{}", "{\"b\":1}"}, {"[]"}},
        {"{\"type\":\"object\",\"properties\":{}}", {"{}"}, {"{\"b\":1}"}},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":true}", {"{\"a\":1,\"b\":2}"}, {"1"}},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"null\"}}",
         {"{\"a\":1,\"b\":null}"},
         {"{\"a\":1,\"b\":2}"}},
        {"{\"properties\":{\"a\":{}},\"unevaluatedProperties\":true}",
         {"{\"a\":1,\"b\":2}"},
         {"1"}},
        // A property that any part of an allOf names is one.
        {"{\"allOf\":[{\"properties\":{\"a\":{}}},{\"$ref\":\"#/$defs/b\"}],"
         "\"$defs\":{\"b\":{\"properties\":{\"b\":{}},\"allOf\":[{\"properties\":{\"c\":{}}}]}}}",
         {"{\"a\":1,\"b\":2,\"c\":3}", "{\"c\":1}"},
         {"{\"d\":1}"}},
        {"{\"$ref\":\"#/$defs/b\",\"properties\":{\"a\":{}},\"unevaluatedProperties\":false,"
         "\"$defs\":{\"b\":{\"properties\":{\"b\":{}}}}}",
         {"{\"a\":1,\"b\":2}"},
         {"{\"d\":1}"}},
        {"{\"properties\":{\"a\":{}},\"anyOf\":[{\"required\":[\"a\"]},"
         "{\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
         {"{}", "{\"c\":1}"}},
        // allOf that leads back to itself ends.
        {"{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"allOf\":[{\"$ref\":\"#/$defs/v\"},"
         "{\"properties\":{\"next\":{\"$ref\":\"#/$defs/n\"}}}]},"
         "\"v\":{\"properties\":{\"v\":{\"type\":\"null\"},\"next\":{}},\"required\":[\"v\"]}}}",
         {"{\"v\":null}", "{\"v\":null,\"next\":{\"v\":null,\"next\":{\"v\":null}}}"},
         {"{\"v\":null,\"next\":{}}", "{\"v\":null,\"x\":1}"}},
    };
    check(msgl__grammar_json_schema, CASES, MSGL_COUNT(CASES));
    static const schema_case OPEN[] = {{PERSON, {"{\"a\":1}", "{\"b\":1}"}, {"1"}}};
    check(msgl__grammar_json_schema_open, OPEN, MSGL_COUNT(OPEN));
}

// Counts of members and elements, and what lists whose elements have a schema each are made of.
static void test_counts(void **state)
{
    (void)state;
    static const schema_case CASES[] = {
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":1}",
         {"{\"a\":1}"},
         {"{}", "{\"a\":1,\"b\":1}"}},
        // No object has at least one member and none; null is left.
        {"{\"type\":[\"object\",\"null\"],\"minProperties\":1,\"maxProperties\":0}",
         {"null"},
         {"{}", "{\"a\":1}"}},
        {"{\"type\":[\"array\",\"null\"],\"minItems\":1,\"maxItems\":0}", {"null"}, {"[]", "[1]"}},
        // Up to draft 2019-09 a list under "items" has the schemas of the first elements.
        {"{\"type\":\"array\",\"items\":[{\"type\":\"integer\"},{\"type\":\"null\"}],"
         "\"additionalItems\":false,\"uniqueItems\":true}",
         {"[1,null]", "[]"},
         {"[null]", "[1,null,2]"}},
    };
    check(msgl__grammar_json_schema, CASES, MSGL_COUNT(CASES));
}

static void test_one_of(void **state)
{
    (void)state;
    static const schema_case CASES[] = {
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
         {"1.5", "-0.25", "10.01"},
         {"1", "1.0", "-3", "0", "2.00"}},
        {"{\"oneOf\":[{\"type\":\"integer\",\"minimum\":0},{\"type\":\"integer\",\"maximum\":10}]}",
         {"-1", "11", "-500", "123"},
         {"0", "10", "5"}},
        {"{\"oneOf\":[{\"type\":\"number\",\"minimum\":2},{\"enum\":[1,2,2.5]}]}",
         {"1", "3", "2.25", "2.6"},
         {"2", "2.5", "1.5", "0"}},
        {"{\"oneOf\":[{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":5},"
         "{\"type\":\"integer\"}]}",
         {"-7", "0", "6", "0.5", "4.75"},
         {"1", "5", "-0.5", "5.5"}},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"const\":\"a\"},{\"enum\":[\"a\",\"b\",7]}]}",
         {"\"c\"", "7", "\"\"", "\"ab\""},
         {"\"a\"", "\"b\""}},
        {"{\"oneOf\":[{\"type\":[\"null\",\"string\"]},{\"type\":[\"null\",\"boolean\"]}]}",
         {"\"x\"", "true"},
         {"null"}},
        {"{\"oneOf\":[{\"type\":\"boolean\"},{\"const\":true}]}", {"false"}, {"true"}},
        {"{\"oneOf\":[{\"const\":1},{\"const\":\"1\"},{\"enum\":[2,3]}]}",
         {"1", "\"1\"", "3"},
         {"4"}},
        {"{\"oneOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"string\",\"minLength\":3}]"
         "}",
         {"\"ab\"", "\"abc\""},
         {"1"}},
        {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"]},"
         "{\"properties\":{\"k\":{\"const\":\"b\"},\"v\":{}},\"required\":[\"k\"]}]}",
         {"{\"k\":\"a\"}", "{\"k\":\"b\",\"v\":1}"},
         {"{\"k\":\"a\",\"v\":1}", "{}"}},
        // Each requires what the other does not have.
        {"{\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},"
         "{\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         {"{\"a\":1}", "{\"b\":1}"},
         {"{}", "{\"a\":1,\"b\":1}"}},
        {"{\"oneOf\":[{\"type\":\"array\",\"maxItems\":1},{\"type\":\"array\",\"minItems\":2}]}",
         {"[]", "[1,2]"},
         {"1"}},
    };
    check(msgl__grammar_json_schema, CASES, MSGL_COUNT(CASES));
}

static void test_listed_values(void **state)
{
    (void)state;
    static const schema_case CASES[] = {
        {"{\"enum\":[\"2024-02-29\",\"2023-02-29\",\"x\"],\"format\":\"date\"}",
         {"\"2024-02-29\""},
         {"\"2023-02-29\"", "\"x\""}},
        {"{\"enum\":[1,2,3.5,\"x\",null],\"minimum\":2}", {"2", "3.5", "\"x\"", "null"}, {"1"}},
        {"{\"enum\":[\"a\",\"ab\",\"abc\"],\"pattern\":\"b\",\"maxLength\":2}",
         {"\"ab\""},
         {"\"a\"", "\"abc\""}},
        {"{\"const\":10,\"multipleOf\":2.5}", {"10"}, {"5"}},
        {"{\"enum\":[{\"a\":1},{\"a\":\"x\"},{}],\"required\":[\"a\"],"
         "\"properties\":{\"a\":{\"type\":\"integer\"}}}",
         {"{\"a\":1}"},
         {"{}", "{\"a\":\"x\"}"}},
        {"{\"enum\":[[1,1],[1,2],[1]],\"uniqueItems\":true,\"minItems\":2}",
         {"[1,2]"},
         {"[1,1]", "[1]"}},
        // Lists in which no value comes twice.
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\",3]}}",
         {"[]", "[\"a\"]", "[3,\"b\",\"a\"]", "[\"b\", 3]"},
         {"[\"a\",\"a\"]", "[3,\"b\",3]", "[\"c\"]"}},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"boolean\"},\"minItems\":"
         "1}",
         {"[true]", "[false,true]"},
         {"[]", "[true,true]"}},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":1}", {"[\"x\"]", "[]"}, {"[1,2]"}},
        // Of a string's content nothing is asked, as with pydantic's Json[int].
        {"{\"type\":\"string\",\"contentMediaType\":\"application/"
         "json\",\"contentSchema\":{\"type\":"
         "\"integer\"}}",
         {"\"x\""},
         {"1"}},
        {"{\"type\":\"array\",\"uniqueItems\":false}", {"[1,1]"}, {"1"}},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-29\"", "\"2000-02-29\"", "\"0400-02-29\"", "\"1996-02-29\"", "\"2023-02-28\""},
         {"\"2023-02-29\"", "\"1900-02-29\"", "\"2100-02-29\"", "\"2024-02-30\""}},
        {"{\"type\":\"string\",\"format\":\"date-time\"}",
         {"\"2024-02-29T00:00:00Z\""},
         {"\"2023-02-29T00:00:00Z\"", "\"2024-02-29\""}},
    };
    check(msgl__grammar_json_schema, CASES, MSGL_COUNT(CASES));
}

// What cannot be kept is refused, or left out and named; uniqueItems is always left out.
static void test_left_out(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *named, *yes;
    } CASES[] = {
        {"{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}",
         "\"uniqueItems\" at \"\"", "[\"a\",\"a\"]"},
        {"{\"properties\":{\"a\":{\"not\":{},\"type\":\"null\"}}}", "\"not\" at \"/properties/a\"",
         "{\"a\":null}"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)b\",\"maxLength\":1}", "look-around", "\"b\""},
        {"{\"oneOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"minLength\":2}]"
         "}",
         "\"oneOf\"", "\"ab\""},
        {"{\"type\":\"integer\",\"multipleOf\":7919}", "\"multipleOf\"", "5"},
        {"{\"$ref\":\"http://x/y\",\"type\":\"null\"}", "\"$ref\"", "null"},
        {"{\"type\":\"string\",\"format\":\"idn-email\"}", "\"format\"", "\"x\""},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "\"pattern\"", "\"a\""},
        {"{\"if\":{},\"contains\":{},\"type\":\"null\"}", "\"contains\"", "null"},
    };
    msgl_grammar_vocab *v = fixture_vocab(0, 1);
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        msgl_grammar_limits limits;
        msgl__grammar_limits_init(&limits);
        msgl_grammar *g = NULL;
        msgl_err err = {0};
        const char *schema = CASES[i].schema;
        int rc = msgl__grammar_json_schema(schema, strlen(schema), &limits, &g, &err);
        const bool unique = strstr(schema, "uniqueItems") != NULL;
        const bool named = strstr(err.text, CASES[i].named) != NULL;
        if (rc != (unique ? 0 : MSGL_EUNSUPPORTED) || (unique && !named)) {
            fail_msg("%s: %d %s", schema, rc, err.text);
        }
        msgl__grammar_unref(g);
        g = NULL;
        limits.lenient = true;
        rc = msgl__grammar_json_schema(schema, strlen(schema), &limits, &g, &err);
        if (rc != 0 || err.code != 0 || strstr(err.text, CASES[i].named) == NULL) {
            fail_msg("%s: %d '%s'", schema, rc, err.text);
        }
        if (!fixture_accepts(g, v, CASES[i].yes, strlen(CASES[i].yes))) fail_msg("%s", schema);
        msgl__grammar_unref(g);
    }
    msgl__grammar_vocab_unref(v);
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

static void test_categories(void **state)
{
    (void)state;
    static const schema_case CASES[] = {
        {"\\p{L}+", {"a", "Z", "é", "日本", "ǅ", "ﬁ"}, {"1", "_", " ", "\xcc\x81"}},
        {"\\p{Lu}\\p{Ll}*", {"Éa", "A", "Ωμ"}, {"a", "AA"}},
        {"\\p{Uppercase_Letter}", {"Ä"}, {"ä"}},
        {"\\p{gc=Nd}{2}", {"42", "٤٢"}, {"a1", "Ⅷ1"}},
        {"[\\p{N}\\p{Sc}_-]+", {"Ⅷ½", "€5", "_-$"}, {"a", "+"}},
        {"\\P{L}", {"1", "€", " "}, {"a", "日"}},
        {"[^\\p{L}]", {"1"}, {"a"}},
        {"\\p{^L}", {"1"}, {"a"}},
        {"\\pL\\PL", {"a1"}, {"1a"}},
        {"[\\P{Ll}a]", {"A", "a", "1"}, {"b"}},
        {"\\p{LC}", {"a", "A", "ǅ"}, {"日"}},
        {"\\p{Any}", {"x", "\n"}, {""}},
    };
    check(msgl__grammar_regex, CASES, MSGL_COUNT(CASES));
    static const schema_case JSON[] = {
        {"{\"type\":\"string\",\"pattern\":\"^\\\\p{L}[\\\\p{L}\\\\p{Zs}'-]*$\",\"maxLength\":9}",
         {"\"Zoë\"", "\"Ann-Marie\"", "\"李 小龙\""},
         {"\"1\"", "\"a1\"", "\"abcdefghij\""}},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\p{Cc}$\"}",
         {"\"\\n\"", "\"\\u0001\""},
         {"\"a\""}},
    };
    check(msgl__grammar_json_schema, JSON, MSGL_COUNT(JSON));
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
        cmocka_unit_test(test_merged),        cmocka_unit_test(test_bounds_of_numbers),
        cmocka_unit_test(test_large_numbers), cmocka_unit_test(test_multiples),
        cmocka_unit_test(test_closed),        cmocka_unit_test(test_one_of),
        cmocka_unit_test(test_listed_values), cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_characters),    cmocka_unit_test(test_tokens_at_limits),
        cmocka_unit_test(test_categories),    cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
