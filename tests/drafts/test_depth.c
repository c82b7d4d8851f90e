// SPDX-License-Identifier: Apache-2.0
//
// How many drafts a draft model is asked for: as many as pay, none where they do not, and seldom
// where they are no use.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "drafts/depth.h"

static msgl_step_costs g_costs; // a row more costs 2 % of a step

static int set_costs(void **state)
{
    (void)state;
    for (int32_t rows = 1; rows <= 300; rows++) {
        for (int i = 0; i < 40; i++) {
            msgl__costs_observe(&g_costs, rows, 1000000 + 20000 * (uint64_t)(rows - 1));
        }
    }
    return 0;
}

static void learn(msgl_depths *d, msgl_depth *of, int32_t num, int32_t accepted)
{
    for (int i = 0; i < 200; i++) msgl__depth_verified(d, of, i, num, accepted);
}

static int32_t choose(msgl_depths *d, msgl_depth *of, int32_t tokens, int32_t most)
{
    msgl_depth_ask ask = {.of = of, .tokens = tokens, .most = most};
    msgl__depth_choose(d, &g_costs, 1, &ask, 1);
    return ask.depth;
}

static void test_rates(void **state)
{
    (void)state;
    msgl_depths d = {0};
    msgl_depth of = {0}, other = {0};
    for (int i = 0; i < 300; i++) msgl__depth_verified(&d, &of, i, 3, i % 2 == 0 ? 3 : 1);
    // First drafts are always right, second ones half of the time, third ones where those are.
    assert_float_equal(d.rate[0], 1, 1e-6);
    assert_float_equal(d.rate[1], 0.5, 0.03);
    assert_float_equal(d.rate[2], 1, 1e-6);
    assert_float_equal(msgl__depth_rate(&d, &other, 1), d.rate[1], 1e-6); // as all requests
    learn(&d, &other, 1, 0);
    assert_true(msgl__depth_rate(&d, &other, 1) < 0.2F);
}

// By what a pass costs: the deepest of those that pay, none where one takes as long as a step.
static void test_costs(void **state)
{
    (void)state;
    static const struct {
        uint64_t pass_ns;
        int32_t accepted, least, most;
    } cases[] = {{10000, 8, 8, 8},
                 {100000, 8, 6, 8},
                 {10000, 2, 1, 4},
                 {990000, 8, 0, 0},
                 {400000, 0, 0, 0}};
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_depths d = {0};
        msgl_depth of = {0};
        for (int k = 0; k < 50; k++) msgl__depth_proposed(&d, 1, 4, 4 * cases[i].pass_ns);
        learn(&d, &of, 8, cases[i].accepted);
        of.try_at = 0;
        const int32_t depth = choose(&d, &of, 0, 8);
        if (depth < cases[i].least || depth > cases[i].most) {
            fail_msg("case %d: depth %d", (int)i, (int)depth);
        }
    }
    msgl_depths d = {0};
    msgl_depth of = {0};
    assert_int_equal(choose(&d, &of, 0, 3), 3); // nothing is known: it is tried
    const msgl_step_costs unknown = {{0}};
    msgl_depth_ask ask = {.of = &of, .most = 4};
    msgl__depth_choose(&d, &unknown, 1, &ask, 1);
    assert_int_equal(ask.depth, 0);
}

// Of a tree each pass adds 8 rows: where one costs a fifth of a step, a chain pays and it does not.
static void test_trees(void **state)
{
    (void)state;
    static const struct {
        uint64_t row_ns; // beside a step of a millisecond
        int32_t chain, tree;
    } cases[] = {{0, 8, 8}, {200000, 8, 0}, {1500000, 0, 0}};
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_depths d = {0};
        msgl_depth of = {0};
        msgl_step_costs costs = {{0}};
        for (int32_t rows = 1; rows <= 40; rows++) {
            msgl__costs_observe(&costs, rows, 1000000 + cases[i].row_ns * (uint64_t)(rows - 1));
        }
        for (int k = 0; k < 50; k++) msgl__depth_proposed(&d, 1, 4, 40000);
        learn(&d, &of, 8, 8);
        of.try_at = 0;
        for (int tree = 0; tree < 2; tree++) {
            msgl_depth_ask ask = {.of = &of, .most = 8};
            if (tree) ask.width = 8, ask.rows = 63;
            msgl__depth_choose(&d, &costs, 1, &ask, 1);
            assert_int_equal(ask.depth, tree ? cases[i].tree : cases[i].chain);
        }
    }
}

// A request whose drafts are never right is tried every 1,024 tokens at last, and again always when
// one was right.
static void test_tries(void **state)
{
    (void)state;
    msgl_depths d = {0};
    msgl_depth of = {0};
    int32_t drafts = 0, late = 0;
    for (int32_t tokens = 0; tokens < 20000; tokens++) {
        const int32_t depth = choose(&d, &of, tokens, 4);
        if (depth == 0) continue;
        drafts += depth;
        late += tokens >= 10000;
        msgl__depth_verified(&d, &of, tokens, depth, 0);
    }
    assert_in_range(drafts, 10, 120);
    assert_in_range(late, 9, 11);
    int32_t tokens = 20000;
    while (choose(&d, &of, tokens, 4) == 0) tokens++;
    msgl__depth_verified(&d, &of, tokens, 1, 1);
    assert_int_equal(of.try_at, 0);
}

// Where a step is full, nothing is tried, however long ago the last time was.
static void test_load(void **state)
{
    (void)state;
    msgl_depths d = {0};
    msgl_depth of[200] = {{0}};
    msgl_depth_ask asks[200];
    msgl_step_costs full = {{0}};
    for (int32_t rows = 1; rows <= 500; rows++) {
        msgl__costs_observe(&full, rows, 1000000 * (uint64_t)rows);
    }
    for (int32_t step = 0; step < 3000; step++) {
        for (int i = 0; i < 200; i++) {
            asks[i] = (msgl_depth_ask){.of = &of[i], .tokens = step, .most = 4};
        }
        msgl__depth_choose(&d, &full, 200, asks, 200);
        for (int i = 0; i < 200; i++) assert_int_equal(asks[i].depth, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates), cmocka_unit_test(test_costs), cmocka_unit_test(test_trees),
        cmocka_unit_test(test_tries), cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, set_costs, NULL);
}
