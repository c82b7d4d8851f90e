// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "utils/stats.h"

static void test_median(void **state)
{
    (void)state;
    double one[] = {7}, odd[] = {9, -1, 4}, even[] = {8, 1, 2, 100};
    assert_true(msgl__median(one, 1) == 7);
    assert_true(msgl__median(odd, 3) == 4);
    assert_true(msgl__median(even, 4) == 5);
    for (int i = 1; i < 4; i++) assert_true(even[i - 1] <= even[i]);
}

static void test_percentile(void **state)
{
    (void)state;
    double v[100];
    for (int i = 0; i < 100; i++) v[i] = i + 1;
    for (int p = 1; p <= 100; p++) assert_true(msgl__percentile(v, 100, p / 100.0) == p);
    assert_true(msgl__percentile(v, 100, 0) == 1);
    assert_true(msgl__percentile(v, 5, 0.5) == 3); // the third of five
    assert_true(msgl__percentile(v, 5, 0.99) == 5);
    assert_true(msgl__percentile(v, 1, 0.5) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_median),
        cmocka_unit_test(test_percentile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
