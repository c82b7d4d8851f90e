// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "utils/random.h"

// What Vigna's public-domain splitmix64.c gives for this seed.
static void test_published_sequence(void **state)
{
    (void)state;
    static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u,
                                    9817491932198370423u, 4593380528125082431u,
                                    16408922859458223821u};
    uint64_t s = 1234567;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(msgl__mix_bits(1234567 + i * MSGL_RANDOM_STEP), want[i]);
        assert_int_equal(msgl__random(&s), want[i]);
    }
}

static void test_ranges(void **state)
{
    (void)state;
    uint64_t s = 1;
    int count[7] = {0};
    double sum = 0;
    for (int i = 0; i < 70000; i++) {
        count[msgl__random_below(&s, 7)]++;
        const float unit = msgl__random_unit(&s);
        assert_true(unit >= 0 && unit < 1);
        sum += (double)unit;
    }
    for (int i = 0; i < 7; i++) assert_in_range(count[i], 9500, 10500); // 5 standard deviations
    assert_true(sum / 70000 > 0.495 && sum / 70000 < 0.505);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_sequence),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
