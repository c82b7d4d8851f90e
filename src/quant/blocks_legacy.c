// SPDX-License-Identifier: Apache-2.0
//
// Blocks of 32 elements with one scale, from ggml's first types; and single f64.
#include <string.h>

#include "quant/blocks.h"
#include "quant/internal.h"

enum { N = 32 };

// Codes with one scale for all.
#define ONE_F16(num_bits, zero_code)                                                               \
    .bits = (num_bits), .group = N, .zero = (zero_code), .span = N, .number = MSGL_NUMBER_F16

static void nibbles(const uint8_t *qs, uint8_t *restrict codes)
{
    for (int i = 0; i < N / 2; i++) {
        codes[i] = qs[i] & 15;
        codes[N / 2 + i] = qs[i] >> 4;
    }
}

// | Q4_0 | bytes |                              |
// |------|-------|------------------------------|
// | d    | 0-1   | f16                          |
// | qs   | 2-17  | element i: nibble i of qs    |
// value: d * (q - 8)
static void split_q4_0(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block);
    nibbles(block + 2, out->codes);
}

static const msgl_codes Q4_0 = {ONE_F16(4, 8), .split = split_q4_0};
const msgl_blocks msgl__blocks_q4_0 = {"Q4_0", N, 18, &Q4_0, NULL};

// | Q4_1 | bytes |                              |
// |------|-------|------------------------------|
// | d, m | 0-3   | f16 each                     |
// | qs   | 4-19  | element i: nibble i of qs    |
// value: d * q + m
static void split_q4_1(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block);
    out->dmin = msgl__block_u16(block + 2);
    nibbles(block + 4, out->codes);
}

static const msgl_codes Q4_1 = {ONE_F16(4, 0), .offset = MSGL_OFFSET_MIN, .split = split_q4_1};
const msgl_blocks msgl__blocks_q4_1 = {"Q4_1", N, 20, &Q4_1, NULL};

// Of five bits the fifth of element i is bit i of the u32 at `high`.
static void five_bits(const uint8_t *high, const uint8_t *qs, uint8_t *codes)
{
    const uint32_t fifth = msgl__block_u32(high);
    nibbles(qs, codes);
    for (int i = 0; i < N; i++) codes[i] |= (uint8_t)((fifth >> i & 1) << 4);
}

// | Q5_0 | bytes |                              |
// |------|-------|------------------------------|
// | d    | 0-1   | f16                          |
// | qh   | 2-5   | u32: bit i is element i's 16 |
// | qs   | 6-21  | element i: nibble i of qs    |
// value: d * (q - 16)
static void split_q5_0(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block);
    five_bits(block + 2, block + 6, out->codes);
}

static const msgl_codes Q5_0 = {ONE_F16(5, 16), .split = split_q5_0};
const msgl_blocks msgl__blocks_q5_0 = {"Q5_0", N, 22, &Q5_0, NULL};

// | Q5_1 | bytes |                              |
// |------|-------|------------------------------|
// | d, m | 0-3   | f16 each                     |
// | qh   | 4-7   | u32: bit i is element i's 16 |
// | qs   | 8-23  | element i: nibble i of qs    |
// value: d * q + m
static void split_q5_1(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block);
    out->dmin = msgl__block_u16(block + 2);
    five_bits(block + 4, block + 8, out->codes);
}

static const msgl_codes Q5_1 = {ONE_F16(5, 0), .offset = MSGL_OFFSET_MIN, .split = split_q5_1};
const msgl_blocks msgl__blocks_q5_1 = {"Q5_1", N, 24, &Q5_1, NULL};

// | Q8_0 | bytes |                              |
// |------|-------|------------------------------|
// | d    | 0-1   | f16                          |
// | qs   | 2-33  | i8 each                      |
// value: d * q
static void split_q8_0(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block);
    for (int i = 0; i < N; i++) out->codes[i] = block[2 + i] ^ 0x80; // + 128: unsigned
}

static const msgl_codes Q8_0 = {ONE_F16(8, 128), .split = split_q8_0};
const msgl_blocks msgl__blocks_q8_0 = {"Q8_0", N, 34, &Q8_0, NULL};

// Closer to each other around 0, where weights are.
const int8_t msgl__iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

// | IQ4_NL | bytes |                              |
// |--------|-------|------------------------------|
// | d      | 0-1   | f16                          |
// | qs     | 2-17  | element i: nibble i of qs    |
// value: d * msgl__iq4_values[q]

static const msgl_codes IQ4_NL = {ONE_F16(4, 0), .values = msgl__iq4_values, .split = split_q4_0};
const msgl_blocks msgl__blocks_iq4_nl = {"IQ4_NL", N, 18, &IQ4_NL, NULL};

// One f64, rounded to the nearest f32, the even one of two; beyond f32's range infinity.
static void expand_f64(const uint8_t *block, float *values)
{
    const uint64_t bits = (uint64_t)msgl__block_u32(block + 4) << 32 | msgl__block_u32(block);
    double d;
    memcpy(&d, &bits, sizeof d);
    values[0] = (float)d;
}

const msgl_blocks msgl__blocks_f64 = {"F64", 1, 8, NULL, expand_f64};
