// SPDX-License-Identifier: Apache-2.0
//
// What tools/make_grammar_vectors.py wrote: documents judged by Python's jsonschema, strings judged
// by its re, each fed byte by byte. Masks along the valid documents are those of brute force.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/attributes.h"
#include "grammar/fixture.h"

static json_t *load(const char *name)
{
    char path[512];
    json_error_t e;
    snprintf(path, sizeof path, "%s/tests/vectors/grammar/%s", MSGL_SOURCE_DIR, name);
    json_t *j = json_load_file(path, 0, &e);
    if (j == NULL) fail_msg("%s: %s", path, e.text);
    return j;
}

static msgl_grammar *schema_grammar(const json_t *schema)
{
    char *text = json_dumps(schema, JSON_ENCODE_ANY);
    msgl_grammar *g = NULL;
    msgl_err err = {0};
    const int rc = msgl__grammar_json_schema(text, strlen(text), NULL, &g, &err);
    if (rc != 0) fail_msg("%s: %s", text, err.text);
    free(text);
    return g;
}

static int check_list(const char *name, msgl_grammar *g, msgl_grammar_vocab *v, const json_t *list,
                      bool want)
{
    size_t i;
    const json_t *t;
    json_array_foreach(list, i, t)
    {
        if (fixture_accepts(g, v, json_string_value(t), json_string_length(t)) != want) {
            fail_msg("%s: %s %s", name, want ? "refused" : "accepted", json_string_value(t));
        }
    }
    return (int)json_array_size(list);
}

static void test_schemas(void **state)
{
    (void)state;
    json_t *all = load("schemas.json");
    msgl_grammar_vocab *v = fixture_vocab(0, 1);
    int checked = 0;
    size_t i;
    const json_t *c;
    json_array_foreach(all, i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));
        msgl_grammar *g = schema_grammar(json_object_get(c, "schema"));
        checked += check_list(name, g, v, json_object_get(c, "valid"), true);
        checked += check_list(name, g, v, json_object_get(c, "invalid"), false);
        msgl__grammar_unref(g);
    }
    assert_true(checked > 500);
    msgl__grammar_vocab_unref(v);
    json_decref(all);
}

// At each third byte of a valid document, and along random answers.
static void test_schema_masks(void **state)
{
    (void)state;
    json_t *all = load("schemas.json");
    msgl_grammar_vocab *v = fixture_vocab(400, 2);
    uint64_t rng = 3;
    size_t i;
    const json_t *c;
    json_array_foreach(all, i, c)
    {
        msgl_grammar *g = schema_grammar(json_object_get(c, "schema"));
        for (size_t k = 0; k < 2; k++) {
            const json_t *t = json_array_get(json_object_get(c, "valid"), k);
            if (t == NULL) break;
            msgl_matcher *m = msgl__matcher_create(g, v);
            for (size_t at = 0; at < json_string_length(t); at++) {
                if (at % 3 == 0) fixture_check_mask(m, v);
                assert_int_equal(msgl__matcher_accept_bytes(m, json_string_value(t) + at, 1), 0);
            }
            fixture_check_mask(m, v);
            msgl__matcher_destroy(m);
        }
        msgl_matcher *m = msgl__matcher_create(g, v);
        fixture_random_way(m, v, 30, &rng);
        msgl__matcher_destroy(m);
        msgl__grammar_unref(g);
    }
    msgl__grammar_vocab_unref(v);
    json_decref(all);
}

static void test_patterns(void **state)
{
    (void)state;
    json_t *all = load("patterns.json");
    msgl_grammar_vocab *v = fixture_vocab(0, 1);
    int checked = 0;
    size_t i;
    const json_t *c;
    json_array_foreach(all, i, c)
    {
        const char *p = json_string_value(json_object_get(c, "pattern"));
        msgl_grammar *g = NULL;
        msgl_err err = {0};
        if (msgl__grammar_regex(p, strlen(p), NULL, &g, &err) != 0) fail_msg("%s: %s", p, err.text);
        checked += check_list(p, g, v, json_object_get(c, "yes"), true);
        checked += check_list(p, g, v, json_object_get(c, "no"), false);
        msgl__grammar_unref(g);
    }
    assert_true(checked > 200);
    msgl__grammar_vocab_unref(v);
    json_decref(all);
}

typedef struct range_case {
    const char *schema;
    double lo, hi;
    bool open_lo, open_hi, integer;
} range_case;

static bool in_range(const range_case *c, double v)
{
    return (c->open_lo ? v > c->lo : v >= c->lo) && (c->open_hi ? v < c->hi : v <= c->hi);
}

// Every integer around the bounds, and decimals on a grid that has them: by comparison of doubles.
static void test_ranges(void **state)
{
    (void)state;
    static const range_case CASES[] = {
        {"{\"type\":\"integer\",\"minimum\":-37,\"maximum\":1204}", -37, 1204, false, false, true},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-1,\"exclusiveMaximum\":100}", -1, 100, true,
         true, true},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":99}", 99, 1e18, true, false, true},
        {"{\"type\":\"integer\",\"maximum\":-100}", -1e18, -100, false, false, true},
        {"{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":9.5}", 1.5, 9.5, false, false, true},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", 0, 1, false, false, false},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}", 0, 1, true, true,
         false},
        {"{\"type\":\"number\",\"exclusiveMinimum\":-2.5,\"exclusiveMaximum\":10.25}", -2.5, 10.25,
         true, true, false},
        {"{\"type\":\"number\",\"minimum\":3.14,\"maximum\":3.15}", 3.14, 3.15, false, false,
         false},
        {"{\"type\":\"number\",\"maximum\":-0.5}", -1e18, -0.5, false, false, false},
        {"{\"type\":\"number\",\"exclusiveMaximum\":0}", -1e18, 0, false, true, false},
        {"{\"type\":\"number\",\"minimum\":0.125}", 0.125, 1e18, false, false, false},
    };
    msgl_grammar_vocab *v = fixture_vocab(0, 1);
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        msgl_grammar *g = NULL;
        msgl_err err = {0};
        const char *schema = CASES[i].schema;
        if (msgl__grammar_json_schema(schema, strlen(schema), NULL, &g, &err) != 0) {
            fail_msg("%s: %s", schema, err.text);
        }
        char text[64];
        for (int k = -1500; k <= 1500; k++) {
            const int n = snprintf(text, sizeof text, "%d", k);
            if (fixture_accepts(g, v, text, (size_t)n) != in_range(&CASES[i], k)) {
                fail_msg("%s: %s", schema, text);
            }
        }
        for (int k = -2600; k <= 11000 && !CASES[i].integer; k++) {
            const int n = snprintf(text, sizeof text, "%.*f", k % 2 ? 3 : 5, k / 1000.0);
            if (fixture_accepts(g, v, text, (size_t)n) != in_range(&CASES[i], k / 1000.0)) {
                fail_msg("%s: %s", schema, text);
            }
        }
        msgl__grammar_unref(g);
    }
    msgl__grammar_vocab_unref(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_schema_masks),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
