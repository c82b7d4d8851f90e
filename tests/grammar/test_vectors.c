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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_schema_masks),
        cmocka_unit_test(test_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
