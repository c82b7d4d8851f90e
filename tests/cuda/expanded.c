// SPDX-License-Identifier: Apache-2.0
//
// Expanded latent attention on this machine's GPU, through attention/expand.h as the engine uses
// it, against exact attention in f64: lengths around tiles, requests together and alone, prefixes
// in several passes. Exit code 77 without a Hopper GPU.
//
//     cuda_expanded [--quick] [--seed N]
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/expand_check.h"
#include "core/attributes.h"
#include "device/devices.h"

static const double TOLERANCE = 1e-2;     // |v| is below 2, bf16
static const double LSE_TOLERANCE = 5e-4; // scores are f32

static struct gpu {
    const msgl_plugin *plugin;
    msgl_device *dev;
    uint64_t seed;
    bool quick;
} GPU; // cmocka's tests take no argument

static uint32_t next(void)
{
    GPU.seed = GPU.seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(GPU.seed >> 33);
}

static void check(expand_case *c, int passes)
{
    c->nope = c->v_dim = 128;
    c->rotary = 64;
    c->dtype = MSGL_BF16;
    c->seed = next();
    c->dev = GPU.dev;
    c->kernels = msgl__attn_find(GPU.plugin->backends, "fa")->expand;
    const expand_result r = expand_check(c);
    print_message("%d heads, %d requests, %d of %d keys: %d passes, error %.2e, lse %.2e\n",
                  c->heads, c->size, c->tokens[0], c->keys[0], r.passes, r.out, r.lse);
    if (passes > 0) assert_int_equal(r.passes, passes);
    assert_true(r.passes > 0);
    assert_true(r.out <= TOLERANCE);
    assert_true(r.lse <= LSE_TOLERANCE);
}

static void test_alone(void **state)
{
    (void)state;
    static const int cases[][3] = {{1, 1, 1},     {2, 2, 1},     {63, 63, 1},   {64, 64, 1},
                                   {65, 65, 1},   {127, 127, 1}, {128, 128, 1}, {129, 129, 1},
                                   {255, 256, 1}, {1, 200, 1},   {100, 257, 1}, {200, 384, 1}};
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        expand_case c = {.heads = 3, .rank = 64, .max_step_tokens = 384, .size = 1};
        c.tokens[0] = cases[i][0], c.keys[0] = cases[i][1];
        check(&c, cases[i][2]);
    }
}

// With the published models' rank, and more heads than a wave of blocks has tiles.
static void test_wide(void **state)
{
    (void)state;
    expand_case c = {.heads = 2, .rank = 512, .max_step_tokens = 512, .size = 3};
    const int tokens[] = {70, 1, 200}, keys[] = {150, 33, 300};
    for (int i = 0; i < c.size; i++) c.tokens[i] = tokens[i], c.keys[i] = keys[i];
    check(&c, 1);
    c.heads = 40;
    c.rank = 8;
    check(&c, 1);
}

// Ranges of keys, merged.
static void test_ranges(void **state)
{
    (void)state;
    static const int cases[][3] = {{128, 129, 2}, {130, 256, 2}, {1, 385, 4},   {250, 251, 2},
                                   {77, 640, 5},  {256, 511, 4}, {200, 900, 8}, {3, 128, 1}};
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        expand_case c = {.heads = 3, .rank = 64, .max_step_tokens = 256, .size = 1};
        if (i % 2 != 0) c.max_step_tokens = 255; // passes of 128
        c.tokens[0] = cases[i][0] < c.max_step_tokens ? cases[i][0] : c.max_step_tokens;
        c.keys[0] = cases[i][1];
        const int most = c.max_step_tokens / 128 * 128;
        check(&c, (c.keys[0] + most - 1) / most);
    }
}

static void test_random(void **state)
{
    (void)state;
    for (int n = 0; n < (GPU.quick ? 3 : 12); n++) {
        expand_case c = {.heads = 1 + (int)(next() % 5), .rank = 64, .max_step_tokens = 640};
        int left = c.max_step_tokens;
        while (c.size < EXPAND_MAX_REQS && left > 0 && next() % 8 != 0) {
            const int most = left < 300 ? left : 300, tokens = 1 + (int)(next() % (uint32_t)most);
            c.tokens[c.size] = tokens;
            c.keys[c.size] = tokens + (next() % 2 != 0 ? (int)(next() % 1000) : 0);
            left -= tokens;
            c.size++;
        }
        if (c.size > 0) check(&c, 0);
    }
}

int main(int argc, char **argv)
{
    msgl_err err = {0};
    GPU.seed = 1234;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) GPU.quick = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) GPU.seed = strtoull(argv[++i], NULL, 0);
    }
    GPU.plugin = msgl__plugin_of("cuda", &err);
    if (GPU.plugin == NULL || GPU.plugin->count(&err) == 0) {
        fprintf(stderr, "skipped: %s\n", err.text);
        return 77;
    }
    const msgl_device_options first = {.ordinal = 0};
    if (GPU.plugin->open(&first, &GPU.dev, NULL, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (GPU.dev->capability / 10 != 9) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_random),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    GPU.dev->ops->destroy(GPU.dev);
    return failed;
}
