// SPDX-License-Identifier: Apache-2.0
//
// Blocks of every form against the values that ggml's own library has computed: some elements and
// the sum of one ordinary block, and, to the bit, all of blocks with every kind of scale
// (tests/vectors/blocks).
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "quant/blocks.h"

enum { MAX_BYTES = 512 };

static const struct {
    const char *name;
    struct {
        uint8_t at, byte;
    } put[4]; // the scales, over what the block has there
    struct {
        uint8_t at;
        float value;
    } want[16];
    float sum;
} GOLDEN[] = {
    // clang-format off
    {"Q4_0", {{0, 0}, {1, 0x38}}, {{0, 1.5f}, {1, -2.0f}, {2, 2.5f}, {15, -3.0f}, {16, 1.5f},
     {17, -4.0f}, {31, -4.0f}}, -16.5f},
    {"Q4_1", {{0, 0}, {1, 0x38}, {2, 0}, {3, 0xbd}}, {{0, 5.25f}, {1, 1.75f}, {2, 6.25f},
     {15, 0.75f}, {16, 0.75f}, {17, 3.25f}, {31, 3.25f}}, 72.5f},
    {"Q5_0", {{0, 0}, {1, 0x38}}, {{0, 7.5f}, {1, 4.0f}, {2, -7.5f}, {15, -5.0f}, {16, 6.5f},
     {17, -7.0f}, {31, 1.0f}}, -22.5f},
    {"Q5_1", {{0, 0}, {1, 0x38}, {2, 0}, {3, 0xbd}}, {{0, 7.25f}, {1, 3.75f}, {2, 8.25f},
     {15, 10.75f}, {16, 10.25f}, {17, 12.25f}, {31, 4.25f}}, 210.5f},
    {"Q8_0", {{0, 0}, {1, 0x38}}, {{0, -34.5f}, {1, 2.0f}, {2, 38.5f}, {15, 1.0f}, {16, 37.5f},
     {17, -54.0f}, {31, -55.0f}}, -24.0f},
    {"Q2_K", {{80, 0}, {81, 0x38}, {82, 0}, {83, 0x34}}, {{0, 4.0f}, {1, 8.5f}, {2, 13.0f},
     {15, -0.5f}, {16, -0.75f}, {31, -1.75f}, {32, 8.25f}, {33, -2.75f}, {64, 18.5f}, {127, 7.5f},
     {128, -1.25f}, {200, 2.75f}, {255, -1.75f}}, 1021.5f},
    {"Q3_K", {{108, 0}, {109, 0x38}}, {{0, -3.5f}, {1, 7.0f}, {2, -10.5f}, {15, 14.0f},
     {16, 1.0f}, {31, -4.0f}, {32, -27.0f}, {63, 56.0f}, {64, 38.0f}, {127, -48.0f}, {128, 12.0f},
     {200, 39.0f}, {255, -12.0f}}, 117.0f},
    {"Q4_K", {{0, 0}, {1, 0x38}, {2, 0}, {3, 0x34}}, {{0, 46.25f}, {1, 0.75f}, {2, 59.25f},
     {15, -12.25f}, {32, 106.5f}, {33, -14.5f}, {63, 84.5f}, {64, 138.75f}, {127, 217.0f},
     {128, 88.25f}, {160, 333.75f}, {200, 27.0f}, {255, -5.75f}}, 26676.0f},
    {"Q5_K", {{0, 0}, {1, 0x38}, {2, 0}, {3, 0x34}}, {{0, 150.25f}, {1, 0.75f}, {2, 163.25f},
     {15, -12.25f}, {32, 128.5f}, {33, 183.5f}, {63, 106.5f}, {64, 138.75f}, {127, 257.0f},
     {128, 256.25f}, {160, 379.75f}, {255, -5.75f}}, 55036.0f},
    {"Q6_K", {{208, 0}, {209, 0x38}}, {{0, 80.5f}, {1, -23.0f}, {2, -310.5f}, {15, 368.0f},
     {16, -175.0f}, {31, -800.0f}, {32, 553.5f}, {33, -1845.0f}, {63, 960.0f}, {64, 13.0f},
     {127, -24.0f}, {128, -171.5f}, {200, -212.5f}, {255, 144.0f}}, -7422.0f},
    {"IQ4_NL", {{0, 0}, {1, 0x38}}, {{0, 19.0f}, {1, -24.5f}, {2, 34.5f}, {15, -41.5f},
     {16, 19.0f}, {17, -63.5f}, {31, -63.5f}}, -240.5f},
    {"IQ4_XS", {{0, 0}, {1, 0x38}}, {{0, -1508.0f}, {1, 362.5f}, {2, -942.5f}, {15, 14.5f},
     {16, -145.0f}, {31, 551.0f}, {32, -208.0f}, {63, -98.0f}, {64, -1144.0f}, {127, -99.0f},
     {128, 884.0f}, {200, -156.0f}, {255, -375.0f}}, -3225.0f},
    {"TQ1_0", {{52, 0}, {53, 0x38}}, {{0, -0.5f}, {1, 0.0f}, {2, 0.5f}, {15, 0.0f}, {16, 0.5f},
     {31, -0.5f}, {32, 0.0f}, {63, -0.5f}, {127, -0.5f}, {128, 0.5f}, {200, -0.5f}, {255, 0.5f}},
     -7.5f},
    {"TQ2_0", {{64, 0}, {65, 0x38}}, {{0, 0.0f}, {1, 0.5f}, {2, 1.0f}, {15, -0.5f}, {31, -0.5f},
     {32, 0.5f}, {64, 0.5f}, {127, -0.5f}, {160, 0.5f}, {200, 0.0f}, {255, -0.5f}}, 62.5f},
    {"Q1_0", {{0, 0}, {1, 0x38}}, {{0, 0.5f}, {1, 0.5f}, {2, -0.5f}, {15, -0.5f}, {16, 0.5f},
     {17, -0.5f}, {63, 0.5f}, {127, -0.5f}}, -3.0f},
    {"MXFP4", {{0, 126}}, {{0, 0.5f}, {1, -0.75f}, {2, 1.0f}, {15, -0.25f}, {16, 3.0f},
     {17, -0.75f}, {31, -0.75f}}, 6.25f},
    {"NVFP4", {{0, 0x38}, {1, 0x40}, {2, 0x31}, {3, 0x2a}}, {{0, -3.0f}, {1, 4.0f}, {2, -6.0f},
     {15, 2.0f}, {16, 6.0f}, {17, -8.0f}, {31, -1.0f}, {32, -1.6875f}, {33, 2.25f}, {63, 0.3125f}},
     17.875f},
    {"IQ2_XXS", {{0, 0}, {1, 0x38}}, {{0, -61.8125f}, {2, -11.5f}, {16, 11.5f}, {31, 35.9375f},
     {32, -0.5f}, {64, -14.0625f}, {128, -42.1875f}, {255, -35.9375f}}, -149.125f},
    {"IQ2_XS", {{0, 0}, {1, 0x38}}, {{0, 11.5f}, {1, -35.9375f}, {16, 48.4375f}, {31, -15.5f},
     {32, 4.5f}, {64, 13.5f}, {128, 15.5f}, {255, 15.5f}}, 332.875f},
    {"IQ2_S", {{0, 0}, {1, 0x38}}, {{0, -3.5f}, {1, -10.9375f}, {16, -4.5f}, {32, -67.1875f},
     {64, -5.5f}, {128, -40.3125f}, {255, -24.1875f}}, -125.75f},
    {"IQ3_XXS", {{0, 0}, {1, 0x38}}, {{0, -148.5f}, {1, -121.5f}, {16, -40.5f}, {32, -46.5f},
     {64, -10.5f}, {128, -58.5f}, {255, 121.5f}}, 970.75f},
    {"IQ3_S", {{0, 0}, {1, 0x38}}, {{0, -17.5f}, {1, -3.5f}, {16, -52.5f}, {32, -71.5f},
     {64, -112.5f}, {128, -16.5f}, {255, 38.5f}}, 81.0f},
    {"IQ1_S", {{0, 0}, {1, 0x38}}, {{0, 0.3125f}, {2, -2.1875f}, {32, -0.4375f}, {64, -3.9375f},
     {128, -5.6875f}, {255, -2.1875f}}, -36.5f},
    // clang-format on
};

// Byte k is (73 k + 41) mod 256, but for the scales: d is 0.5, m -1.25, dmin 0.25.
static void test_golden(void **state)
{
    (void)state;
    for (size_t g = 0; g < MSGL_COUNT(GOLDEN); g++) {
        const char *name = GOLDEN[g].name;
        const msgl_blocks *b = msgl__blocks_of_ggml(name);
        uint8_t block[MAX_BYTES];
        float values[MSGL_MAX_BLOCK], sum = 0;
        assert_non_null(b);
        for (int k = 0; k < MAX_BYTES; k++) block[k] = (uint8_t)(73 * k + 41);
        for (int i = 0; i < 4 && (i == 0 || GOLDEN[g].put[i].at > 0); i++) {
            block[GOLDEN[g].put[i].at] = GOLDEN[g].put[i].byte;
        }
        msgl__blocks_expand(b, block, values);
        for (int i = 0; i < b->elements; i++) sum += values[i];
        for (int i = 0; i < 16 && (i == 0 || GOLDEN[g].want[i].at > 0); i++) {
            const int at = GOLDEN[g].want[i].at;
            if (values[at] == GOLDEN[g].want[i].value) continue;
            fail_msg("%s: %d: %g, not %g", name, at, values[at], GOLDEN[g].want[i].value);
        }
        if (sum != GOLDEN[g].sum) fail_msg("%s: sum %g, not %g", name, sum, GOLDEN[g].sum);
    }
}

static const char *const NAMES[] = {
    "F64",    "Q4_0",   "Q4_1",  "Q5_0",  "Q5_1",  "Q8_0",   "Q2_K",    "Q3_K",  "Q4_K",
    "Q5_K",   "Q6_K",   "IQ1_S", "IQ1_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ3_S", "IQ3_XXS",
    "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "TQ1_0", "TQ2_0",  "Q1_0",    "Q2_0",
};

// The same bits, and of NaN any: what a processor makes of its other bits differs.
static bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

// Compares each block of a file with the values behind it; how many there were.
static int compare(const msgl_blocks *b, FILE *f)
{
    uint8_t block[MAX_BYTES];
    // Nothing behind the block's elements is written.
    float want[MSGL_MAX_BLOCK], got[MSGL_MAX_BLOCK + 1];
    const size_t bytes = (size_t)b->bytes, n = (size_t)b->elements;
    int blocks = 0;
    while (fread(block, 1, bytes, f) == bytes) {
        assert_int_equal(fread(want, sizeof *want, n, f), n);
        got[n] = 12345;
        msgl__blocks_expand(b, block, got);
        assert_true(got[n] == 12345);
        for (size_t i = 0; i < n; i++) {
            if (same(got[i], want[i])) continue;
            fail_msg("%s: block %d, %zu: %a, not %a", b->name, blocks, i, got[i], want[i]);
        }
        blocks++;
    }
    assert_true(feof(f));
    return blocks;
}

static void test_vectors(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(NAMES); i++) {
        const msgl_blocks *b = msgl__blocks_of_ggml(NAMES[i]);
        char path[256], lower[16] = "";
        assert_non_null(b);
        assert_string_equal(b->name, NAMES[i]);
        assert_true(b->elements <= MSGL_MAX_BLOCK && b->bytes <= MAX_BYTES);
        for (size_t k = 0; k < strlen(NAMES[i]); k++) {
            lower[k] =
                (char)(NAMES[i][k] >= 'A' && NAMES[i][k] <= 'Z' ? NAMES[i][k] + 32 : NAMES[i][k]);
        }
        snprintf(path, sizeof path, MSGL_SOURCE_DIR "/tests/vectors/blocks/%s.bin", lower);
        FILE *f = fopen(path, "rb");
        if (f == NULL) fail_msg("%s: cannot open", path);
        assert_true(compare(b, f) >= 7);
        fclose(f);
    }
}

// The types of GGUF files that are no blocks of weights.
static void test_names(void **state)
{
    (void)state;
    static const char *const others[] = {"F32", "F16",  "BF16", "I8", "I16",  "I32",
                                         "I64", "Q8_1", "Q8_K", "",   "q4_0", "Q4_2"};
    for (size_t i = 0; i < MSGL_COUNT(others); i++) {
        assert_null(msgl__blocks_of_ggml(others[i]));
    }
}

// MXFP4 of safetensors: neighbours share a byte, and code 8 is -0 (OCP Microscaling Formats v1.0,
// 5.3.3).
static void test_ocp_mxfp4(void **state)
{
    (void)state;
    static const float want[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                   -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    uint8_t block[16];
    float values[32];
    for (int i = 0; i < 16; i++) block[i] = (uint8_t)(i | (15 - i) << 4);
    msgl__blocks_expand(&msgl__blocks_ocp_mxfp4, block, values);
    for (int i = 0; i < 16; i++) {
        assert_true(same(values[2 * i], want[i]));
        assert_true(same(values[2 * i + 1], want[15 - i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_ocp_mxfp4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
