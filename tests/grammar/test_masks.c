// SPDX-License-Identifier: Apache-2.0
//
// Masks are those of brute force, in every state of random ways through grammars of every front
// end, with a vocabulary small enough for that.
#include <setjmp.h>
#include <stdarg.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
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

// A repetition whose rounds have no end leads nowhere: a text never has half of a surrogate pair.
static void test_round_without_end(void **state)
{
    (void)state;
    static const char *const NOTHING[] = {"(\\uda0e(((())))){8}", "(ab[^\\s\\S]c){8}",
                                          "(x|y)(a{2,90}b\\ud800){70,}"};
    static const char *const OTHERWISE[] = {"ab|(\\uda0e(((())))){8}", "a(b|(a[^\\s\\S]c){8,70}b)",
                                            "a(b{3}\\ud800c){0,70}b"};
    for (size_t i = 0; i < MSGL_COUNT(NOTHING); i++) {
        msgl_grammar *g = NULL;
        msgl_err err = {0};
        assert_int_equal(msgl__grammar_regex(NOTHING[i], strlen(NOTHING[i]), NULL, &g, &err),
                         MSGL_EINVAL);
        assert_null(g);
        assert_non_null(strstr(err.text, "no text"));
    }
    for (size_t i = 0; i < MSGL_COUNT(OTHERWISE); i++) { // "ab" and nothing else
        msgl_grammar *g = NULL;
        msgl_err err;
        assert_int_equal(msgl__grammar_regex(OTHERWISE[i], strlen(OTHERWISE[i]), NULL, &g, &err),
                         0);
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

typedef struct worker {
    msgl_grammar *g;
    msgl_grammar_vocab *v;
    uint64_t sum;
    int rc;
} worker;

// An answer of the lowest allowed token each time; sum is of all masks' words.
static void *work(void *ctx)
{
    worker *w = ctx;
    const int32_t size = msgl__grammar_vocab_size(w->v);
    uint32_t *bits = msgl__calloc(((size_t)size + 31) / 32, sizeof *bits);
    msgl_matcher *m = msgl__matcher_create(w->g, w->v);
    for (int step = 0; step < 200 && w->rc == 0; step++) {
        w->rc = msgl__matcher_fill_mask(m, bits);
        int32_t pick = -1, last = 0;
        for (int32_t i = 0; i < (size + 31) / 32; i++) w->sum = w->sum * 31 + bits[i];
        for (int32_t t = 1; t < size; t++) {
            if ((bits[t >> 5] >> (t & 31) & 1) == 0) continue;
            last = t;
            if (pick < 0 && t % 7 == step % 7) pick = t;
        }
        if (w->rc == 0 && last > 0) w->rc = msgl__matcher_accept(m, pick > 0 ? pick : last);
    }
    msgl__matcher_destroy(m);
    msgl__free(bits);
    return NULL;
}

// Matchers of one grammar on several threads fill its cache together and see the same masks.
static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    msgl_err err;
    msgl_grammar *g = NULL;
    msgl_grammar_limits limits;
    msgl__grammar_limits_init(&limits);
    limits.cache_bytes = 20000; // which is emptied now and then
    assert_int_equal(msgl__grammar_json_object(&limits, &g, &err), 0);
    msgl_grammar_vocab *v = fixture_vocab(500, 9);
    pthread_t id[THREADS];
    worker w[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i] = (worker){.g = g, .v = v};
        assert_int_equal(pthread_create(&id[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(w[i].rc, 0);
        assert_int_equal(w[i].sum, w[0].sum);
    }
    msgl__grammar_vocab_unref(v);
    msgl__grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex_masks),  cmocka_unit_test(test_round_without_end),
        cmocka_unit_test(test_choice_masks), cmocka_unit_test(test_json_object_masks),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
