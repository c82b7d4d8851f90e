// SPDX-License-Identifier: Apache-2.0
//
// Elements of three values or fewer, and what grew out of them: one scale for 64 to 256 elements.
#include "quant/blocks.h"
#include "quant/internal.h"

// Digit n of the byte's five in base 3, the first one the most significant. The byte is the number
// 0 to 242 of the digits * 256 / 243, rounded up, so that a digit is what a multiplication by 3
// carries out of eight bits. 128: 128 * 3 = 384 = 1 * 256 + 128, so all of its digits are 1.
static int ternary_digit(uint8_t byte, int n)
{
    static const uint8_t POWERS[5] = {1, 3, 9, 27, 81};
    return (uint8_t)(byte * POWERS[n]) * 3 >> 8;
}

// | TQ1_0 | bytes |                                                                    |
// |-------|-------|--------------------------------------------------------------------|
// | qs    | 0-47  | elements 32n + l of the first 160: digit n of byte l               |
// |       |       | 160 + 16n + l of the next 80: digit n of byte 32 + l               |
// | qh    | 48-51 | 240 + 4n + l of the last 16: digit n of byte 48 + l                |
// | d     | 52-53 | f16                                                                |
// value: d * (digit - 1)
static void expand_tq1_0(const uint8_t *block, float *values)
{
    static const struct {
        int first, bytes, digits;
    } PARTS[3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
    const float d = msgl__block_f16(block + 52);
    for (int p = 0; p < 3; p++) {
        for (int n = 0; n < PARTS[p].digits; n++) {
            for (int l = 0; l < PARTS[p].bytes; l++) {
                *values++ = d * (float)(ternary_digit(block[PARTS[p].first + l], n) - 1);
            }
        }
    }
}

const msgl_blocks msgl__blocks_tq1_0 = {"TQ1_0", 256, 54, NULL, expand_tq1_0};

// | TQ2_0 | bytes |                                                                    |
// |-------|-------|--------------------------------------------------------------------|
// | qs    | 0-63  | element 128n + 32j + l: bits 2j and 2j + 1 of byte 32n + l         |
// | d     | 64-65 | f16                                                                |
// value: d * (q - 1)
static void expand_tq2_0(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block + 64);
    for (int i = 0; i < 256; i++) {
        const int q = block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        values[i] = d * (float)(q - 1);
    }
}

const msgl_blocks msgl__blocks_tq2_0 = {"TQ2_0", 256, 66, NULL, expand_tq2_0};

// | Q1_0 | bytes |                                           |
// |------|-------|-------------------------------------------|
// | d    | 0-1   | f16                                       |
// | qs   | 2-17  | element i: bit i % 8 of byte i / 8        |
// value: 1: d, 0: -d
static void expand_q1_0(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int i = 0; i < 128; i++) values[i] = block[2 + i / 8] >> (i % 8) & 1 ? d : -d;
}

const msgl_blocks msgl__blocks_q1_0 = {"Q1_0", 128, 18, NULL, expand_q1_0};

// | Q2_0 | bytes |                                           |
// |------|-------|-------------------------------------------|
// | d    | 0-1   | f16                                       |
// | qs   | 2-17  | element i: bits 2(i % 4) on of byte i / 4 |
// value: d * (q - 1)
static void expand_q2_0(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int i = 0; i < 64; i++) {
        values[i] = d * (float)((block[2 + i / 4] >> (i % 4 * 2) & 3) - 1);
    }
}

const msgl_blocks msgl__blocks_q2_0 = {"Q2_0", 64, 18, NULL, expand_q2_0};
