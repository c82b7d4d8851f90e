// SPDX-License-Identifier: Apache-2.0
//
// Blocks of 256 elements in parts of 16 or 32, each with a scale of 4, 6 or 8 bits that multiplies
// the block's own (ggml's K types).
//
// Two and three bits, and the upper two of six, are four elements a byte: element i has bits 2j and
// 2j + 1 of byte 32n + l where i = 128n + 32j + l. Element 200 = 128 + 2 * 32 + 8 has bits 4 and 5
// of byte 40.
#include <string.h>

#include "quant/blocks.h"
#include "quant/internal.h"

enum { N = 256 };

static void two_bits(const uint8_t *qs, uint8_t *restrict codes)
{
    for (int at = 0; at < N; at += 128, qs += 32) {
        for (int i = 0; i < 32; i++) {
            codes[at + i] = qs[i] & 3;
            codes[at + 32 + i] = qs[i] >> 2 & 3;
            codes[at + 64 + i] = qs[i] >> 4 & 3;
            codes[at + 96 + i] = qs[i] >> 6;
        }
    }
}

// Four bits: of 2 * n elements the first n have the lower halves of n bytes. With n = 32 (Q4_K and
// Q5_K) element 100 = 64 + 32 + 4 has the upper half of byte 36.
static void four_bits(const uint8_t *qs, const int n, uint8_t *restrict codes)
{
    for (int at = 0; at < N; at += 2 * n, qs += n) {
        for (int i = 0; i < n; i++) {
            codes[at + i] = qs[i] & 15;
            codes[at + n + i] = qs[i] >> 4;
        }
    }
}

// One bit: element 32j + l has bit j of byte l. It becomes bit `to` of the code.
static void add_bit(const uint8_t *bits, const int to, uint8_t *restrict codes)
{
    for (int j = 0; j < N / 32; j++) {
        for (int l = 0; l < 32; l++) {
            codes[32 * j + l] = (uint8_t)(codes[32 * j + l] | (bits[l] >> j & 1) << to);
        }
    }
}

// | Q2_K   | bytes |                                                            |
// |--------|-------|------------------------------------------------------------|
// | scales | 0-15  | of elements 16k to 16k + 15: scale in bits 0-3, min in 4-7 |
// | qs     | 16-79 | two bits each                                              |
// | d      | 80-81 | f16                                                        |
// | dmin   | 82-83 | f16                                                        |
// value: d * scale * q - dmin * min
static void split_q2_k(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block + 80);
    out->dmin = msgl__block_u16(block + 82);
    for (int k = 0; k < N / 16; k++) {
        out->c[k] = block[k] & 15;
        out->e[k] = block[k] >> 4;
    }
    two_bits(block + 16, out->codes);
}

static const msgl_codes Q2_K = {
    2, 16, 0, NULL, MSGL_SCALING_U4, MSGL_OFFSET_MIN, .split = split_q2_k};
const msgl_blocks msgl__blocks_q2_k = {"Q2_K", N, 84, &Q2_K, NULL};

// Scale k of 16, of six bits in 12 bytes: the lower four are nibbles of bytes 0 to 7, the upper two
// are two_bits' of bytes 8 to 11. Scale 9: the upper half of byte 1, and bits 4 and 5 of byte 9.
static int q3_scale(const uint8_t *scales, int k)
{
    const uint32_t low = msgl__block_nibble(scales, k, 8);
    return (int)(low | ((uint32_t)scales[8 + k % 4] >> (k / 4 * 2) & 3) << 4);
}

// | Q3_K   | bytes   |                                                          |
// |--------|---------|----------------------------------------------------------|
// | hmask  | 0-31    | element 32j + l: bit j of byte l is 4                    |
// | qs     | 32-95   | two bits each                                            |
// | scales | 96-107  | q3_scale of elements 16k to 16k + 15                     |
// | d      | 108-109 | f16                                                      |
// value: d * (scale - 32) * (q - 4)
static void split_q3_k(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block + 108);
    for (int k = 0; k < N / 16; k++) out->c[k] = (uint8_t)(q3_scale(block + 96, k) - 32);
    two_bits(block + 32, out->codes);
    add_bit(block, 2, out->codes);
}

static const msgl_codes Q3_K = {3, 16, 4, NULL, MSGL_SCALING_I8, .split = split_q3_k};
const msgl_blocks msgl__blocks_q3_k = {"Q3_K", N, 110, &Q3_K, NULL};

// Scale and min j of 8, of six bits each in 12 bytes. The first four of them are bits 0-5 of bytes
// 0-3 and 4-7; of the others the lower four bits are the halves of bytes 8-11, and the upper two
// are bits 6-7 of bytes 0-3 and 4-7. Scale 5: the lower half of byte 9, and bits 6-7 of byte 1.
static void scales_mins(const uint8_t *s, msgl_code_block *out)
{
    for (int j = 0; j < N / 32; j++) {
        out->c[j] = (uint8_t)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        out->e[j] = (uint8_t)(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

// | Q4_K   | bytes  |                                           |
// |--------|--------|-------------------------------------------|
// | d      | 0-1    | f16                                       |
// | dmin   | 2-3    | f16                                       |
// | scales | 4-15   | scales_mins of elements 32j to 32j + 31   |
// | qs     | 16-143 | four bits each                            |
// value: d * scale * q - dmin * min
static void split_q4_k(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block);
    out->dmin = msgl__block_u16(block + 2);
    scales_mins(block + 4, out);
    four_bits(block + 16, 32, out->codes);
}

static const msgl_codes Q4_K = {
    4, 32, 0, NULL, MSGL_SCALING_U8, MSGL_OFFSET_MIN, .split = split_q4_k};
const msgl_blocks msgl__blocks_q4_k = {"Q4_K", N, 144, &Q4_K, NULL};

// | Q5_K   | bytes  |                                           |
// |--------|--------|-------------------------------------------|
// | d      | 0-1    | f16                                       |
// | dmin   | 2-3    | f16                                       |
// | scales | 4-15   | scales_mins of elements 32j to 32j + 31   |
// | qh     | 16-47  | element 32j + l: bit j of byte l is 16    |
// | qs     | 48-175 | four bits each                            |
// value: d * scale * q - dmin * min
static void split_q5_k(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block);
    out->dmin = msgl__block_u16(block + 2);
    scales_mins(block + 4, out);
    four_bits(block + 48, 32, out->codes);
    add_bit(block + 16, 4, out->codes);
}

static const msgl_codes Q5_K = {
    5, 32, 0, NULL, MSGL_SCALING_U8, MSGL_OFFSET_MIN, .split = split_q5_k};
const msgl_blocks msgl__blocks_q5_k = {"Q5_K", N, 176, &Q5_K, NULL};

// | Q6_K   | bytes   |                                                          |
// |--------|---------|----------------------------------------------------------|
// | ql     | 0-127   | the lower four bits: of 128 elements the first 64 have   |
// |        |         | the lower halves of 64 bytes                             |
// | qh     | 128-191 | the upper two bits                                       |
// | scales | 192-207 | i8 of elements 16k to 16k + 15                           |
// | d      | 208-209 | f16                                                      |
// value: d * scale * (q - 32)
static void split_q6_k(const uint8_t *block, msgl_code_block *out)
{
    out->d = msgl__block_u16(block + 208);
    memcpy(out->c, block + 192, N / 16);
    uint8_t high[N];
    four_bits(block, 64, out->codes);
    two_bits(block + 128, high);
    for (int i = 0; i < N; i++) out->codes[i] = (uint8_t)(out->codes[i] | high[i] << 4);
}

static const msgl_codes Q6_K = {6, 16, 32, NULL, MSGL_SCALING_I8, .split = split_q6_k};
const msgl_blocks msgl__blocks_q6_k = {"Q6_K", N, 210, &Q6_K, NULL};
