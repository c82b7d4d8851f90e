// SPDX-License-Identifier: Apache-2.0
//
// What the families of blocks share: numbers in a block's bytes, which are aligned to nothing.
#ifndef MSGL_QUANT_INTERNAL_H
#define MSGL_QUANT_INTERNAL_H

#include <stdint.h>

#include "core/bytes.h"
#include "core/dtype.h"

static inline uint32_t msgl__block_u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline uint32_t msgl__block_u32(const uint8_t *p)
{
    return msgl__block_u16(p) | msgl__block_u16(p + 2) << 16;
}

static inline float msgl__block_f16(const uint8_t *p)
{
    return msgl__f16_to_f32((uint16_t)msgl__block_u16(p));
}

// The four bits of byte i % n that element i of 2n has: the lower ones of the first n elements, the
// upper ones of the others. Of n = 16, element 3 has the lower bits of byte 3, element 19 its upper
// ones.
static inline uint32_t msgl__block_nibble(const uint8_t *p, int i, int n)
{
    return i < n ? p[i] & 15u : (uint32_t)p[i - n] >> 4;
}

// 32 codes of 4 bits in 16 bytes, the first of two in the lower half.
static inline void msgl__block_halves(msgl_bytes both, uint8_t codes[32])
{
    const msgl_bytes even = msgl__bytes_low_bits(both), odd = msgl__bytes_high_bits(both);
    msgl__bytes_store(codes, msgl__bytes_zip_low(even, odd));
    msgl__bytes_store(codes + 16, msgl__bytes_zip_high(even, odd));
}

// The 16 values of the four-bit codes of IQ4_NL and IQ4_XS.
extern const int8_t msgl__iq4_values[16];
// Twice the values of e2m1, -0 as 0.
extern const int8_t msgl__fp4_doubled[16];

#endif
