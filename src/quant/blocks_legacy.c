// SPDX-License-Identifier: Apache-2.0
//
// Blocks of 32 elements with one scale, from ggml's first types; and single f64.
#include <string.h>

#include "quant/blocks.h"
#include "quant/internal.h"

enum { N = 32 };

// | Q4_0 | bytes |                              |
// |------|-------|------------------------------|
// | d    | 0-1   | f16                          |
// | qs   | 2-17  | element i: nibble i of qs    |
// value: d * (q - 8)
static void expand_q4_0(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int i = 0; i < N; i++) {
        values[i] = d * (float)((int)msgl__block_nibble(block + 2, i, N / 2) - 8);
    }
}

const msgl_blocks msgl__blocks_q4_0 = {"Q4_0", N, 18, expand_q4_0};

// | Q4_1 | bytes |                              |
// |------|-------|------------------------------|
// | d, m | 0-3   | f16 each                     |
// | qs   | 4-19  | element i: nibble i of qs    |
// value: d * q + m
static void expand_q4_1(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block), m = msgl__block_f16(block + 2);
    for (int i = 0; i < N; i++) {
        values[i] = d * (float)msgl__block_nibble(block + 4, i, N / 2) + m;
    }
}

const msgl_blocks msgl__blocks_q4_1 = {"Q4_1", N, 20, expand_q4_1};

// Element i of five bits: the fifth is bit i of the u32 at `high`.
static uint32_t five_bits(const uint8_t *high, const uint8_t *qs, int i)
{
    return msgl__block_nibble(qs, i, N / 2) | (msgl__block_u32(high) >> i & 1) << 4;
}

// | Q5_0 | bytes |                              |
// |------|-------|------------------------------|
// | d    | 0-1   | f16                          |
// | qh   | 2-5   | u32: bit i is element i's 16 |
// | qs   | 6-21  | element i: nibble i of qs    |
// value: d * (q - 16)
static void expand_q5_0(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int i = 0; i < N; i++) {
        values[i] = d * (float)((int)five_bits(block + 2, block + 6, i) - 16);
    }
}

const msgl_blocks msgl__blocks_q5_0 = {"Q5_0", N, 22, expand_q5_0};

// | Q5_1 | bytes |                              |
// |------|-------|------------------------------|
// | d, m | 0-3   | f16 each                     |
// | qh   | 4-7   | u32: bit i is element i's 16 |
// | qs   | 8-23  | element i: nibble i of qs    |
// value: d * q + m
static void expand_q5_1(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block), m = msgl__block_f16(block + 2);
    for (int i = 0; i < N; i++) {
        values[i] = d * (float)five_bits(block + 4, block + 8, i) + m;
    }
}

const msgl_blocks msgl__blocks_q5_1 = {"Q5_1", N, 24, expand_q5_1};

// | Q8_0 | bytes |                              |
// |------|-------|------------------------------|
// | d    | 0-1   | f16                          |
// | qs   | 2-33  | i8 each                      |
// value: d * q
static void expand_q8_0(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int i = 0; i < N; i++) values[i] = d * (float)(int8_t)block[2 + i];
}

const msgl_blocks msgl__blocks_q8_0 = {"Q8_0", N, 34, expand_q8_0};

// Closer to each other around 0, where weights are.
const int8_t msgl__iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

// | IQ4_NL | bytes |                              |
// |--------|-------|------------------------------|
// | d      | 0-1   | f16                          |
// | qs     | 2-17  | element i: nibble i of qs    |
// value: d * msgl__iq4_values[q]
static void expand_iq4_nl(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int i = 0; i < N; i++) {
        values[i] = d * (float)msgl__iq4_values[msgl__block_nibble(block + 2, i, N / 2)];
    }
}

const msgl_blocks msgl__blocks_iq4_nl = {"IQ4_NL", N, 18, expand_iq4_nl};

// One f64, rounded to the nearest f32, the even one of two; beyond f32's range infinity.
static void expand_f64(const uint8_t *block, float *values)
{
    const uint64_t bits = (uint64_t)msgl__block_u32(block + 4) << 32 | msgl__block_u32(block);
    double d;
    memcpy(&d, &bits, sizeof d);
    values[0] = (float)d;
}

const msgl_blocks msgl__blocks_f64 = {"F64", 1, 8, expand_f64};
