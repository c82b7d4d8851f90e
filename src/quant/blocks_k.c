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

static uint32_t two_bits(const uint8_t *qs, int i)
{
    return (uint32_t)qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

// Four bits of Q4_K and Q5_K: of 64 elements the first 32 have the lower halves of 32 bytes.
// Element 100 = 64 + 32 + 4 has the upper half of byte 36.
static uint32_t four_bits(const uint8_t *qs, int i)
{
    return msgl__block_nibble(qs + i / 64 * 32, i % 64, 32);
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
    for (int i = 0; i < N; i++) out->codes[i] = (uint8_t)two_bits(block + 16, i);
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
    for (int i = 0; i < N; i++) {
        const uint32_t high = (uint32_t)block[i % 32] >> (i / 32) & 1;
        out->codes[i] = (uint8_t)(two_bits(block + 32, i) | high << 2);
    }
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
    for (int i = 0; i < N; i++) out->codes[i] = (uint8_t)four_bits(block + 16, i);
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
    for (int i = 0; i < N; i++) {
        const uint32_t high = (uint32_t)block[16 + i % 32] >> (i / 32) & 1;
        out->codes[i] = (uint8_t)(four_bits(block + 48, i) | high << 4);
    }
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
    for (int i = 0; i < N; i++) {
        const uint32_t low = msgl__block_nibble(block + i / 128 * 64, i % 128, 64);
        out->codes[i] = (uint8_t)(low | two_bits(block + 128, i) << 4);
    }
}

static const msgl_codes Q6_K = {6, 16, 32, NULL, MSGL_SCALING_I8, .split = split_q6_k};
const msgl_blocks msgl__blocks_q6_k = {"Q6_K", N, 210, &Q6_K, NULL};
