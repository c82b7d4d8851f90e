// SPDX-License-Identifier: Apache-2.0
//
// What a step is expected to take: never less than a device would whose time is a + b tokens +
// c pairs, and near it once steps of its size were seen.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scheduler/step_times.h"

enum { MAX_REQS = 256 };

typedef struct device {
    double a, b, c; // ns: a step, a token, a pair of token and key
} device;

static const device DEVICES[] = {{7e6, 1e4, 0.5}, {1e3, 1e6, 20}, {0, 0, 30}, {5e7, 0, 0}};

// `size` requests with `tokens` new ones each behind `cached`.
static void make(msgl_batch *b, msgl_batch_req reqs[MAX_REQS], int32_t size, int32_t tokens,
                 int32_t cached)
{
    for (int32_t i = 0; i < size; i++) {
        reqs[i] = (msgl_batch_req){.cached_len = cached, .device_len = cached + tokens};
    }
    *b = (msgl_batch){.size = size, .num_tokens = size * tokens, .reqs = reqs};
}

static double truth(const device *d, int32_t size, int32_t tokens, int32_t cached)
{
    const double n = (double)size * tokens;
    return d->a + d->b * n + d->c * n * (double)(cached + tokens);
}

static const struct {
    int32_t size, tokens, cached;
} STEPS[] = {{1, 1, 5},    {1, 1, 100000}, {256, 1, 10},   {256, 1, 30000},
             {1, 8192, 0}, {1, 512, 0},    {1, 40, 90000}, {1, 8192, 122880},
             {4, 100, 3},  {1, 33, 0},     {64, 1, 2000},  {2, 64, 64}};

static void test_bounds(void **state)
{
    (void)state;
    enum { N = sizeof STEPS / sizeof STEPS[0] };
    msgl_batch_req reqs[MAX_REQS];
    msgl_batch b;
    for (size_t k = 0; k < sizeof DEVICES / sizeof DEVICES[0]; k++) {
        const device *d = &DEVICES[k];
        for (int first = 0; first < N; first++) { // every order that begins elsewhere
            msgl_step_times t = {0};
            for (int i = 0; i < N; i++) {
                const int at = (first + i) % N;
                const double is = truth(d, STEPS[at].size, STEPS[at].tokens, STEPS[at].cached);
                make(&b, reqs, STEPS[at].size, STEPS[at].tokens, STEPS[at].cached);
                const double expected = (double)msgl__step_expect(&t, &b);
                if (i == 0) assert_true(expected == 0);
                if (i > 0) assert_true(expected >= is * 0.999 - 1);
                msgl__step_observe(&t, &b, (uint64_t)is);
                const double again = (double)msgl__step_expect(&t, &b);
                assert_true(again >= is * 0.999 - 1 && again <= is + 1);
            }
        }
    }
}

// Steps like those before it: answers whose contexts grow, chunks of one prompt after another.
static void test_near(void **state)
{
    (void)state;
    msgl_batch_req reqs[MAX_REQS];
    msgl_batch b;
    const device *d = &DEVICES[0];
    msgl_step_times t = {0};
    for (int32_t i = 0; i < 2000; i++) {
        const int32_t tokens = i % 10 == 0 ? 512 : 1, size = tokens == 1 ? 32 : 1;
        const double is = truth(d, size, tokens, 1000 + i);
        make(&b, reqs, size, tokens, 1000 + i);
        const double expected = (double)msgl__step_expect(&t, &b);
        if (i > 10) assert_true(expected >= is * 0.999 - 1 && expected <= 1.02 * is);
        msgl__step_observe(&t, &b, (uint64_t)is);
    }
    // A stalled step raises what is expected of its like until the next of them.
    make(&b, reqs, 32, 1, 3000);
    msgl__step_observe(&t, &b, 3000000000u);
    msgl__step_observe(&t, &b, (uint64_t)truth(d, 32, 1, 3000));
    assert_true((double)msgl__step_expect(&t, &b) <= truth(d, 32, 1, 3000) + 1);
    msgl__step_observe(&t, &b, 0); // a clock that did not move
    assert_int_equal(msgl__step_expect(&t, &b), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds), cmocka_unit_test(test_near)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
