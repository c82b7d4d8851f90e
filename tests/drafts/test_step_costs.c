// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "drafts/costs.h"

static void test_expected(void **state)
{
    (void)state;
    msgl_step_costs c = {0};
    assert_true(msgl__costs_of(&c, 1) == 0);
    for (int i = 0; i < 50; i++) msgl__costs_observe(&c, 1, 1000);
    assert_true(msgl__costs_of(&c, 1) == 1000);
    assert_true(msgl__costs_of(&c, 11) == 1200); // 2 % a row, as long as nobody knows better
    for (int i = 0; i < 50; i++) msgl__costs_observe(&c, 11, 3000);
    assert_true(msgl__costs_of(&c, 6) == 2000);
    msgl__costs_observe(&c, 11, 7000); // a quarter of what is new
    assert_true(msgl__costs_of(&c, 11) == 4000);
    msgl__costs_observe(&c, 100000, 1); // beyond the table
    assert_true(msgl__costs_of(&c, 100000) > 4000);
}

static void test_chosen(void **state)
{
    (void)state;
    const float sure[] = {1, 1, 1, 1}, likely[] = {0.9F, 0.8F, 0.1F, 0.05F}, unlikely[] = {0.02F};
    msgl_step_costs c = {0};
    assert_int_equal(msgl__costs_choose(&c, 1, sure, 4), 0); // nothing is known
    for (int32_t rows = 1; rows <= 5; rows++) {
        msgl__costs_observe(&c, rows, 1000 + 200 * (uint64_t)(rows - 1)); // 20 % a row
    }
    assert_int_equal(msgl__costs_choose(&c, 1, sure, 4), 4);
    assert_int_equal(msgl__costs_choose(&c, 1, likely, 4), 2);
    assert_int_equal(msgl__costs_choose(&c, 1, unlikely, 1), 0);
    msgl_step_costs full = {0}; // every row costs what the first does
    for (int32_t rows = 1; rows <= 5; rows++)
        msgl__costs_observe(&full, rows, 1000 * (uint64_t)rows);
    assert_int_equal(msgl__costs_choose(&full, 1, sure, 4), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expected),
        cmocka_unit_test(test_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
