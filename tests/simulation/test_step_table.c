// SPDX-License-Identifier: Apache-2.0
//
// Steps between measured ones, computed by hand, and tables that are none.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "apps/simulation/step_table.h"
#include "temp_file.h"

// Answers at 1 and 3, contexts 100 and 300; chunks of 10 and 30 behind 0 and 100 tokens, the first
// one measured twice.
#define ALONE                                                                                      \
    "{\"phase\":\"decode\",\"batch\":3,\"context\":100,\"tile\":8,\"ms_per_step\":30}\n"           \
    "{\"phase\":\"decode\",\"batch\":1,\"context\":100,\"tile\":8,\"ms_per_step\":10}\n"           \
    "{\"phase\":\"decode\",\"batch\":1,\"context\":300,\"tile\":8,\"ms_per_step\":20}\n"           \
    "{\"phase\":\"decode\",\"batch\":3,\"context\":300,\"tile\":8,\"ms_per_step\":60}\n\n"         \
    "{\"phase\":\"prefill\",\"chunk\":10,\"prefix\":0,\"tile\":8,\"ms_per_step\":8}\n"             \
    "{\"phase\":\"prefill\",\"chunk\":10,\"prefix\":100,\"tile\":8,\"ms_per_step\":20}\n"          \
    "{\"phase\":\"prefill\",\"chunk\":30,\"prefix\":0,\"tile\":8,\"ms_per_step\":40}\n"            \
    "{\"phase\":\"prefill\",\"chunk\":30,\"prefix\":100,\"tile\":8,\"ms_per_step\":90}\n"          \
    "{\"phase\":\"prefill\",\"chunk\":10,\"prefix\":0,\"tile\":8,\"ms_per_step\":12}\n"
// 1.5 times and 1 times what the others say.
#define MIXED                                                                                      \
    "{\"phase\":\"mixed\",\"batch\":1,\"context\":100,\"chunk\":9,\"prefix\":0,\"tile\":8,"        \
    "\"ms_per_step\":15}\n"                                                                        \
    "{\"phase\":\"mixed\",\"batch\":3,\"context\":100,\"chunk\":27,\"prefix\":0,\"tile\":8,"       \
    "\"ms_per_step\":60}\n"

static msgl_step_table *table_of(const char *text)
{
    msgl_step_table *t;
    msgl_err err;
    const temp_file f = temp_file_with(text);
    assert_int_equal(msgl__step_table_load(f.path, &t, &err), 0);
    unlink(f.path);
    return t;
}

typedef struct expected {
    msgl_step_shape shape;
    double ms;
} expected;

static void check_all(const char *text, const expected *all, size_t n)
{
    msgl_step_table *t = table_of(text);
    for (size_t i = 0; i < n; i++) {
        const double ns = (double)msgl__step_table_ns(t, &all[i].shape);
        assert_true(ns >= all[i].ms * 1e6 - 2 && ns <= all[i].ms * 1e6 + 2);
    }
    assert_int_equal(msgl__step_table_tile(t), 8);
    msgl__step_table_destroy(t);
}

static void test_answers(void **state)
{
    (void)state;
    static const expected all[] = {
        {{1, 100, 0, 0}, 10}, {{3, 300, 0, 0}, 60}, // measured
        {{1, 200, 0, 0}, 15}, {{2, 100, 0, 0}, 20}, // between two
        {{2, 200, 0, 0}, 30},                       // between 15 and 45
        {{5, 100, 0, 0}, 50}, {{1, 500, 0, 0}, 30}, // beyond the last
        {{1, 0, 0, 0}, 5},    {{1, -100, 0, 0}, 5}, // before the first; half of the least at least
    };
    check_all(ALONE, all, MSGL_COUNT(all));
}

static void test_chunks(void **state)
{
    (void)state;
    static const expected all[] = {
        {{0, 0, 10, 0}, 10},   {{0, 0, 30, 100}, 90}, // measured, the first twice
        {{0, 0, 20, 50}, 40},                         // between 15 and 65
        {{0, 0, 5, 0}, 10},    {{0, 0, 50, 0}, 70},   // fewer cost no less
        {{0, 0, 30, -10}, 35},                        // several chunks: fewer pairs
    };
    check_all(ALONE, all, MSGL_COUNT(all));
}

static void test_both(void **state)
{
    (void)state;
    static const expected unmeasured[] = {
        {{1, 100, 9, 0}, 10},       // 10 + 10 - 10: ten tokens cost what one does
        {{2, 100, 18, 0}, 35},      // 20 + 25 - 10
        {{2, 100, 18, 50}, 35 + 13} // between 5 more for a chunk of 10 and 25 for one of 30
    };
    check_all(ALONE, unmeasured, MSGL_COUNT(unmeasured));
    static const expected measured[] = {
        {{1, 100, 9, 0}, 15},
        {{3, 100, 27, 0}, 60},    // as they are
        {{2, 100, 18, 0}, 43.75}, // 1.25 times 35
        {{1, 100, 29, 0}, 60},    // the nearest's 1.5 times 40
    };
    check_all(ALONE MIXED, measured, MSGL_COUNT(measured));
}

static void test_shape(void **state)
{
    (void)state;
    msgl_batch_req reqs[4] = {{.cached_len = 100, .device_len = 101},
                              {.cached_len = 300, .device_len = 301},
                              {.cached_len = 10, .device_len = 14},
                              {.cached_len = 0, .device_len = 6}};
    const msgl_batch b = {.size = 4, .num_decode = 2, .num_tokens = 12, .reqs = reqs};
    const msgl_step_shape s = msgl__step_shape_of(&b);
    assert_true(s.answers == 2 && s.context == 200 && s.chunk == 10);
    // 4 * (10 + 2) + 6 * (0 + 3) = 66 pairs are those of 10 tokens behind 1.6: 10 * (1.6 + 5).
    assert_true(s.prefix > 1.6 - 1e-9 && s.prefix < 1.6 + 1e-9);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } all[] = {
        {"{\"phase\":\"decode\"}\n", ": line 1: batch is missing; allowed: 1 to "},
        {ALONE "{\"phase\":\"sleep\"}\n",
         ": line 11: phase is \"sleep\"; allowed: \"decode\", \"prefill\" or \"mixed\""},
        {"\n{\"phase\":\"prefill\",\"chunk\":0}", ": line 2: chunk is 0; allowed: 1 to "},
        {"{\"phase\":\"decode\",\"batch\":1,\"context\":1,\"tile\":0,\"ms_per_step\":\"a\"}",
         ": line 1: ms_per_step is \"a\"; allowed: "},
        {"{\"phase\":\"decode\",\"batch\":1,\"context\":1,\"tile\":0,\"ms_per_step\":1}",
         ": no row with phase \"prefill\""},
        {"| phase | batch |\n", ": line 1: "},
        {"[1]\n", ": line 1: not a JSON object"},
    };
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        msgl_step_table *t;
        msgl_err err;
        const temp_file f = temp_file_with(all[i].text);
        assert_int_equal(msgl__step_table_load(f.path, &t, &err), MSGL_EFORMAT);
        assert_non_null(strstr(err.text, all[i].says));
        assert_null(t);
        unlink(f.path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers),
                                       cmocka_unit_test(test_chunks), cmocka_unit_test(test_both),
                                       cmocka_unit_test(test_shape), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
