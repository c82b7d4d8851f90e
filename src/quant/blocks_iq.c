// SPDX-License-Identifier: Apache-2.0
//
// ggml's IQ types: codes of 8 or 4 elements at once, each the number of a point of a grid, whose
// points are data (iq_grids.inc); signs apart. IQ4_XS has plain codes, of IQ4_NL's values.
#include "quant/blocks.h"

#include <stdbool.h>
#include <string.h>

#include "core/attributes.h"
#include "quant/internal.h"
#include "quant/iq_grids.inc"

enum { N = 256 };

// v, or -v where bit 0 of `signs` is set: half of them are, which no branch should depend on.
static float with_sign(float v, uint32_t signs)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    bits ^= signs << 31;
    memcpy(&v, &bits, sizeof v);
    return v;
}

// The 8 elements of a point whose values' numbers have two bits each; bit j of `signs` is element
// j's. Of a point 0x0801 of IQ2_XXS elements 0 and 5 are values 1 and 2, which are 25 and 43.
static void put_8(const int8_t *grid_values, uint16_t point, uint32_t signs, float scale,
                  float *values)
{
    for (int j = 0; j < 8; j++) {
        values[j] = with_sign(scale * (float)grid_values[point >> 2 * j & 3], signs >> j);
    }
}

// The same of a point of 4 elements with four bits each.
static void put_4(const int8_t *grid_values, uint16_t point, uint32_t signs, float scale,
                  float *values)
{
    for (int j = 0; j < 4; j++) {
        values[j] = with_sign(scale * (float)grid_values[point >> 4 * j & 15], signs >> j);
    }
}

// The signs of 8 elements in 7 bits: there is an even number of minuses, so the last one follows.
static uint32_t even_signs(uint32_t seven)
{
    return seven | ((uint32_t)MSGL_POPCOUNT64(seven) & 1) << 7;
}

// | IQ2_XXS | bytes |                                                                      |
// |---------|-------|----------------------------------------------------------------------|
// | d       | 0-1   | f16                                                                  |
// | qs      | 2-65  | of elements 32k to 32k + 31, 8 bytes: four points of a byte each,    |
// |         |       | then a u32: four times 7 bits of signs, and in bits 28-31 the scale  |
// value: d * (0.5 + scale) / 4 * point
static void expand_iq2_xxs(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int k = 0; k < N / 32; k++) {
        const uint8_t *part = block + 2 + 8 * k;
        const uint32_t rest = msgl__block_u32(part + 4);
        const float scale = d * (0.5f + (float)(rest >> 28)) * 0.25f;
        for (int l = 0; l < 4; l++) {
            put_8(IQ2_XXS_VALUES, IQ2_XXS_GRID[part[l]], even_signs(rest >> 7 * l & 127), scale,
                  values + 32 * k + 8 * l);
        }
    }
}

const msgl_blocks msgl__blocks_iq2_xxs = {"IQ2_XXS", N, 66, NULL, expand_iq2_xxs};

// The scale of point p, four bits for two points of 8 elements each: points 6 and 7 have the upper
// half of byte 1.
static float nibble_scale(const uint8_t *scales, int p, float d)
{
    const uint32_t s = (uint32_t)scales[p / 4] >> (p / 2 % 2 * 4) & 15;
    return d * (0.5f + (float)s) * 0.25f;
}

// | IQ2_XS | bytes |                                                                       |
// |--------|-------|-----------------------------------------------------------------------|
// | d      | 0-1   | f16                                                                   |
// | qs     | 2-65  | a u16 for 8 elements: point in bits 0-8, signs in 9-15                |
// | scales | 66-73 | four bits for elements 16k to 16k + 15                                |
// value: d * (0.5 + scale) / 4 * point
static void expand_iq2_xs(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int p = 0; p < N / 8; p++) {
        const uint32_t q = msgl__block_u16(block + 2 + 2 * p);
        put_8(IQ2_XS_VALUES, IQ2_XS_GRID[q & 511], even_signs(q >> 9),
              nibble_scale(block + 66, p, d), values + 8 * p);
    }
}

const msgl_blocks msgl__blocks_iq2_xs = {"IQ2_XS", N, 74, NULL, expand_iq2_xs};

// | IQ2_S  | bytes |                                                                       |
// |--------|-------|-----------------------------------------------------------------------|
// | d      | 0-1   | f16                                                                   |
// | qs     | 2-33  | a byte for 8 elements: bits 0-7 of the point                          |
// | signs  | 34-65 | a byte for 8 elements                                                 |
// | qh     | 66-73 | a byte for 32 elements: bits 8-9 of their four points                 |
// | scales | 74-81 | four bits for elements 16k to 16k + 15                                |
// value: d * (0.5 + scale) / 4 * point
static void expand_iq2_s(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int p = 0; p < N / 8; p++) {
        const uint32_t high = (uint32_t)block[66 + p / 4] >> (p % 4 * 2) & 3;
        put_8(IQ2_S_VALUES, IQ2_S_GRID[block[2 + p] | high << 8], block[34 + p],
              nibble_scale(block + 74, p, d), values + 8 * p);
    }
}

const msgl_blocks msgl__blocks_iq2_s = {"IQ2_S", N, 82, NULL, expand_iq2_s};

// | IQ3_XXS | bytes |                                                                      |
// |---------|-------|----------------------------------------------------------------------|
// | d       | 0-1   | f16                                                                  |
// | qs      | 2-65  | a byte for 4 elements: the point                                     |
// | rest    | 66-97 | a u32 for 32 elements: four times 7 bits of signs, and in bits 28-31 |
// |         |       | the scale                                                            |
// value: d * (0.5 + scale) / 2 * point
static void expand_iq3_xxs(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int p = 0; p < N / 4; p++) {
        const uint32_t rest = msgl__block_u32(block + 66 + p / 8 * 4);
        const uint32_t signs = even_signs(rest >> 7 * (p % 8 / 2) & 127) >> (p % 2 * 4);
        put_4(IQ3_XXS_VALUES, IQ3_XXS_GRID[block[2 + p]], signs,
              d * (0.5f + (float)(rest >> 28)) * 0.5f, values + 4 * p);
    }
}

const msgl_blocks msgl__blocks_iq3_xxs = {"IQ3_XXS", N, 98, NULL, expand_iq3_xxs};

// | IQ3_S  | bytes   |                                                                     |
// |--------|---------|---------------------------------------------------------------------|
// | d      | 0-1     | f16                                                                 |
// | qs     | 2-65    | a byte for 4 elements: bits 0-7 of the point                        |
// | qh     | 66-73   | a bit for 4 elements: bit 8 of the point                            |
// | signs  | 74-105  | a bit for each element                                              |
// | scales | 106-109 | four bits for elements 32k to 32k + 31                              |
// value: d * (1 + 2 * scale) * point
static void expand_iq3_s(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int p = 0; p < N / 4; p++) {
        const uint32_t s = (uint32_t)block[106 + p / 16] >> (p / 8 % 2 * 4) & 15;
        const uint32_t high = (uint32_t)block[66 + p / 8] >> (p % 8) & 1;
        const uint32_t signs = (uint32_t)block[74 + p / 2] >> (p % 2 * 4);
        put_4(IQ3_S_VALUES, IQ3_S_GRID[block[2 + p] | high << 8], signs, d * (float)(1 + 2 * s),
              values + 4 * p);
    }
}

const msgl_blocks msgl__blocks_iq3_s = {"IQ3_S", N, 110, NULL, expand_iq3_s};

// The 8 elements of a point of IQ1_S and IQ1_M, all moved by an eighth.
static void put_moved(uint16_t point, bool down, float scale, float *values)
{
    const float shift = down ? -0.125f : 0.125f;
    for (int j = 0; j < 8; j++) {
        values[j] = scale * ((float)IQ1_S_VALUES[point >> 2 * j & 3] + shift);
    }
}

// | IQ1_S  | bytes |                                                                       |
// |--------|-------|-----------------------------------------------------------------------|
// | d      | 0-1   | f16                                                                   |
// | qs     | 2-33  | a byte for 8 elements: bits 0-7 of the point                          |
// | qh     | 34-49 | a u16 for 32 elements: four times bits 8-10 of the point, in bits     |
// |        |       | 12-14 the scale, in bit 15 whether the shift is down                  |
// value: d * (1 + 2 * scale) * (point +- 0.125)
static void expand_iq1_s(const uint8_t *block, float *values)
{
    const float d = msgl__block_f16(block);
    for (int p = 0; p < N / 8; p++) {
        const uint32_t rest = msgl__block_u16(block + 34 + p / 4 * 2);
        const uint32_t high = rest >> (p % 4 * 3) & 7;
        put_moved(IQ1_S_GRID[block[2 + p] | high << 8], rest >> 15,
                  d * (float)(1 + 2 * (rest >> 12 & 7)), values + 8 * p);
    }
}

const msgl_blocks msgl__blocks_iq1_s = {"IQ1_S", N, 50, NULL, expand_iq1_s};

// | IQ1_M  | bytes |                                                                       |
// |--------|-------|-----------------------------------------------------------------------|
// | qs     | 0-31  | a byte for 8 elements: bits 0-7 of the point                          |
// | qh     | 32-47 | four bits for 8 elements: bits 8-10 of the point, and whether the     |
// |        |       | shift is down                                                         |
// | scales | 48-55 | four u16: a scale of three bits for 16 elements, four times; bits     |
// |        |       | 12-15 of the four together, the first one's lowest, are d, an f16     |
// value: d * (1 + 2 * scale) * (point +- 0.125)
// Elements 80 to 95 have bits 3-5 of the second u16: 80 = 64 + 1 * 16.
static void expand_iq1_m(const uint8_t *block, float *values)
{
    const uint8_t *scales = block + 48;
    uint32_t bits = 0;
    for (int k = 0; k < 4; k++) bits |= msgl__block_u16(scales + 2 * k) >> 12 << 4 * k;
    const float d = msgl__f16_to_f32((uint16_t)bits);
    for (int p = 0; p < N / 8; p++) {
        const uint32_t rest = (uint32_t)block[32 + p / 2] >> (p % 2 * 4) & 15;
        const uint32_t s = msgl__block_u16(scales + p / 8 * 2) >> (p / 2 % 4 * 3) & 7;
        put_moved(IQ1_S_GRID[block[p] | (rest & 7) << 8], rest >> 3, d * (float)(1 + 2 * s),
                  values + 8 * p);
    }
}

const msgl_blocks msgl__blocks_iq1_m = {"IQ1_M", N, 56, NULL, expand_iq1_m};

// | IQ4_XS | bytes |                                                                       |
// |--------|-------|-----------------------------------------------------------------------|
// | d      | 0-1   | f16                                                                   |
// | high   | 2-3   | u16: bits 4-5 of scale k are its bits 2k and 2k + 1                   |
// | low    | 4-7   | four bits each: bits 0-3 of scale k of elements 32k to 32k + 31       |
// | qs     | 8-135 | element 32k + l: nibble l of the 16 bytes from 16k on                 |
// value: d * (scale - 32) * msgl__iq4_values[q]
static void split_iq4_xs(const uint8_t *block, msgl_code_block *out)
{
    const uint32_t high = msgl__block_u16(block + 2);
    out->d = msgl__block_u16(block);
    for (int k = 0; k < N / 32; k++) {
        const uint32_t low = (uint32_t)block[4 + k / 2] >> (k % 2 * 4) & 15;
        out->c[k] = (uint8_t)((int)(low | (high >> 2 * k & 3) << 4) - 32);
        for (int i = 0; i < 32; i++) {
            out->codes[32 * k + i] = (uint8_t)msgl__block_nibble(block + 8 + 16 * k, i, 16);
        }
    }
}

static const msgl_codes IQ4_XS = {
    4, 32, 0, msgl__iq4_values, MSGL_SCALING_I8, .split = split_iq4_xs};
const msgl_blocks msgl__blocks_iq4_xs = {"IQ4_XS", N, 136, &IQ4_XS, NULL};
