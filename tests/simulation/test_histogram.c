// SPDX-License-Identifier: Apache-2.0
//
// Percentiles against those of the sorted values themselves.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/simulation/histogram.h"
#include "utils/random.h"

static msgl_histogram h;

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_percentiles(void **state)
{
    (void)state;
    enum { N = 5000 };
    static uint64_t values[N];
    uint64_t rng = 3;
    for (int bits = 4; bits <= 60; bits += 4) {
        memset(&h, 0, sizeof h);
        for (int i = 0; i < N; i++) {
            values[i] = msgl__random(&rng) >> (64 - bits);
            msgl__histogram_add(&h, values[i]);
        }
        qsort(values, N, sizeof *values, ascending);
        for (int percent = 1; percent <= 100; percent++) {
            const uint64_t want = values[(size_t)percent * N / 100 - 1];
            const uint64_t got = msgl__histogram_percentile(&h, percent / 100.0);
            assert_in_range(got, want, want + want / 1024);
            if (want < 2048) assert_int_equal(got, want);
        }
        assert_int_equal(h.max, values[N - 1]);
        assert_int_equal(msgl__histogram_percentile(&h, 1), h.max);
    }
}

static void test_ends(void **state)
{
    (void)state;
    memset(&h, 0, sizeof h);
    assert_int_equal(msgl__histogram_percentile(&h, 0.5), 0);
    msgl__histogram_add(&h, 0);
    msgl__histogram_add(&h, UINT64_MAX);
    assert_int_equal(msgl__histogram_percentile(&h, 0.5), 0);
    assert_true(msgl__histogram_percentile(&h, 1) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_percentiles),
                                       cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
