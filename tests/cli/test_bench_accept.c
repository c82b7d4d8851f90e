// SPDX-License-Identifier: Apache-2.0
//
// What --accept takes, and how many drafts are accepted by it.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "apps/bench/bench.h"

static void test_list(void **state)
{
    (void)state;
    msgl_accept_list l;
    msgl_err err;
    assert_int_equal(msgl__accept_list_parse("0.0,0.5,1", &l, &err), 0);
    assert_int_equal(l.count, 3);
    assert_true(l.rates[0] == 0 && l.rates[1] == 0.5 && l.rates[2] == 1);
    assert_int_equal(msgl__accept_list_parse("7e-1", &l, &err), 0);
    assert_int_equal(l.count, 1);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const BAD[] = {"",     "x",       "1.1", "-0.1",  "0.5,", ",0.5",
                                      "0.5;", "0.5,1.5", "nan", "1e999", "0.5 ", "0.5,,1"};
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        msgl_accept_list l;
        msgl_err err;
        char want[64];
        assert_int_equal(msgl__accept_list_parse(BAD[i], &l, &err), MSGL_EINVAL);
        (void)snprintf(want, sizeof want,
                       "--accept is \"%s\"; allowed: up to 32 numbers from 0 to 1", BAD[i]);
        assert_non_null(strstr(err.text, want));
    }
    char many[33 * 2];
    for (int i = 0; i < 33; i++) {
        many[2 * i] = '1';
        many[2 * i + 1] = i < 32 ? ',' : '\0';
    }
    msgl_accept_list l;
    msgl_err err;
    assert_int_equal(msgl__accept_list_parse(many, &l, &err), MSGL_EINVAL);
    many[63] = '\0';
    assert_int_equal(msgl__accept_list_parse(many, &l, &err), 0);
    assert_int_equal(l.count, 32);
}

// Of n drafts, k or more are accepted with probability rate^k: rate + rate^2 + ... + rate^n in the
// mean. Of so many draws each count is within five standard deviations.
static void test_draws(void **state)
{
    (void)state;
    enum { DRAWS = 20000, MOST = 6 };
    static const double RATES[] = {0, 0.3, 0.5, 0.9, 1};
    for (size_t i = 0; i < sizeof RATES / sizeof RATES[0]; i++) {
        for (int drafts = 1; drafts <= MOST; drafts++) {
            uint64_t rng = 5;
            int at_least[MOST + 1] = {0};
            for (int n = 0; n < DRAWS; n++) {
                const int accepted = msgl__accept_draw(&rng, RATES[i], drafts);
                assert_in_range(accepted, 0, drafts);
                for (int k = 0; k <= accepted; k++) at_least[k]++;
            }
            for (int k = 0; k <= drafts; k++) {
                const double p = pow(RATES[i], k), sd = sqrt(p * (1 - p) / DRAWS);
                assert_true(fabs((double)at_least[k] / DRAWS - p) <= 5 * sd);
            }
        }
    }
    // The same numbers are the same draws.
    uint64_t a = 9, b = 9;
    for (int n = 0; n < 100; n++) {
        assert_int_equal(msgl__accept_draw(&a, 0.5, 8), msgl__accept_draw(&b, 0.5, 8));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_draws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
