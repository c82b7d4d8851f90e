// SPDX-License-Identifier: Apache-2.0
//
// Elements of e2m1 (OCP Microscaling Formats v1.0, 5.3.3: a sign, two bits of exponent, one of
// mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6) with a scale for each 16 or 32 of them.
//
// GGUF's forms differ from those of others with the same names: code 8 is +0 and not -0, an
// exponent of 255 is an exponent and not NaN, and elements of a byte are half a block apart.
#include <math.h>

#include "quant/blocks.h"
#include "quant/internal.h"

const int8_t msgl__fp4_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// | MXFP4 of GGUF | bytes |                              |
// |---------------|-------|------------------------------|
// | e             | 0     | exponent of a power of two   |
// | qs            | 1-16  | element i: nibble i of qs    |
// value: msgl__fp4_doubled[q] * 2^(e - 128). With e = 0 the power is f32's subnormal 2^-128; with e
// = 255, 2^127, codes above 1.5 are infinite.
static void split_ggml_mxfp4(const uint8_t *block, msgl_code_block *out)
{
    out->c[0] = block[0];
    const msgl_bytes both = msgl__bytes_load(block + 1);
    msgl__bytes_store(out->codes, msgl__bytes_low_bits(both));
    msgl__bytes_store(out->codes + 16, msgl__bytes_high_bits(both));
}

#define MXFP4_CODES .bits = 4, .group = 32, .span = 32, .values = msgl__fp4_doubled
static const msgl_codes MXFP4 = {MXFP4_CODES, .number = MSGL_NUMBER_E8M0_HALF,
                                 .split = split_ggml_mxfp4};
const msgl_blocks msgl__blocks_ggml_mxfp4 = {"MXFP4", 32, 17, &MXFP4, NULL};

// | MXFP4 of safetensors | bytes |                                                         |
// |----------------------|-------|---------------------------------------------------------|
// | qs                   | 0-15  | elements 2j and 2j + 1: lower and upper half of byte j  |
// value: e2m1, to be multiplied by the block's e8m0, which is in another tensor.
static void expand_ocp_mxfp4(const uint8_t *block, float *values)
{
    for (int i = 0; i < 32; i++) {
        const uint32_t q = (uint32_t)block[i / 2] >> (i % 2 * 4) & 15;
        values[i] = copysignf((float)msgl__fp4_doubled[q] / 2, q & 8 ? -1.0f : 1.0f); // -0 too
    }
}

// Code 8, which is -0, becomes 0 here.
static void split_ocp_mxfp4(const uint8_t *block, msgl_code_block *out)
{
    msgl__block_halves(msgl__bytes_load(block), out->codes);
}

static const msgl_codes OCP_MXFP4 = {MXFP4_CODES, .number = MSGL_NUMBER_E8M0, .factor = 0.5f,
                                     .split = split_ocp_mxfp4};
const msgl_blocks msgl__blocks_ocp_mxfp4 = {"MXFP4", 32, 16, &OCP_MXFP4, expand_ocp_mxfp4};

// A scale of seven bits, as e4m3 has it without its sign. Bit 7 is not a sign: it is ignored, but
// in 0xff, which is 480, as 0x7f would be if it were not 0.
static float ue4m3(uint8_t b)
{
    if (b == 0x7f) return 0;
    if (b == 0xff) return 480;
    return msgl__e4m3_to_f32(b & 0x7f);
}

// | NVFP4  | bytes |                                                                          |
// |--------|-------|--------------------------------------------------------------------------|
// | scales | 0-3   | ue4m3 of elements 16s to 16s + 15                                        |
// | qs     | 4-35  | element 16s + l: nibble l of the eight bytes from 8s on                  |
// value: msgl__fp4_doubled[q] * (scale / 2). Element 20 = 16 + 4 has the lower half of byte 4 + 8
// + 4.
static void expand_nvfp4(const uint8_t *block, float *values)
{
    for (int s = 0; s < 4; s++) {
        const float scale = ue4m3(block[s]) * 0.5f;
        for (int l = 0; l < 16; l++) {
            values[16 * s + l] =
                scale * (float)msgl__fp4_doubled[msgl__block_nibble(block + 4 + 8 * s, l, 8)];
        }
    }
}

const msgl_blocks msgl__blocks_nvfp4 = {"NVFP4", 64, 36, NULL, expand_nvfp4};
