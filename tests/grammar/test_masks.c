// SPDX-License-Identifier: Apache-2.0
//
// Masks are those of brute force, in every state of random ways through grammars of every front
// end, with a vocabulary small enough for that.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "grammar/fixture.h"

enum { WAYS = 6, TOKENS = 25 };

static void walk(msgl_grammar *g, uint64_t seed)
{
    assert_non_null(g);
    msgl_grammar_vocab *v = fixture_vocab(700, seed);
    uint64_t rng = seed;
    int taken = 0;
    for (int i = 0; i < WAYS; i++) {
        msgl_matcher *m = msgl__matcher_create(g, v);
        assert_non_null(m);
        taken += fixture_random_way(m, v, TOKENS, &rng);
        msgl__matcher_destroy(m);
    }
    assert_true(taken > 0);
    msgl__grammar_vocab_unref(v);
    msgl__grammar_unref(g);
}

static void test_regex_masks(void **state)
{
    (void)state;
    static const char *const PATTERNS[] = {
        "a*b",
        "[a-z]{3,40}",
        "(cat|dog|ab)+",
        ".*",
        "\\d{4}-\\d{2}",
        "(a|b{2,70}){1,60}x?",
        "[^\"]{0,50}\"",
        "(\\w+@)+z",
        "(ab|a|b){10,200}",
        "[é日-本a]+",
        "([a-z]{1,63}_){0,20}\\d",
        "(a?){5,50}b",
        "((a{0,9}){0,9}){0,9}",
        ".{50,}",
        ".{40,80}",
    };
    for (size_t i = 0; i < MSGL_COUNT(PATTERNS); i++) {
        msgl_grammar *g = NULL;
        msgl_err err;
        const int rc = msgl__grammar_regex(PATTERNS[i], strlen(PATTERNS[i]), NULL, &g, &err);
        if (rc != 0) fail_msg("%s: %s", PATTERNS[i], err.text);
        walk(g, i + 1);
    }
}

static void test_choice_masks(void **state)
{
    (void)state;
    static const char *const STRINGS[] = {"cat", "catalog", "dog", "日本", "", "the name"};
    msgl_grammar *g = NULL;
    msgl_err err;
    assert_int_equal(msgl__grammar_choice(STRINGS, MSGL_COUNT(STRINGS), NULL, &g, &err), 0);
    walk(g, 1);
}

static void test_json_object_masks(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 6; seed++) {
        msgl_grammar *g = NULL;
        msgl_err err;
        assert_int_equal(msgl__grammar_json_object(NULL, &g, &err), 0);
        walk(g, seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex_masks),
        cmocka_unit_test(test_choice_masks),
        cmocka_unit_test(test_json_object_masks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
