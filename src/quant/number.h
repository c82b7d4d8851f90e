// SPDX-License-Identifier: Apache-2.0
//
// Numbers as files have them, one by one, in bytes that are aligned to nothing.
#ifndef MSGL_QUANT_NUMBER_H
#define MSGL_QUANT_NUMBER_H

#include <stddef.h>
#include <stdint.h>

typedef enum msgl_number {
    MSGL_NUMBER_F32,
    MSGL_NUMBER_F16,
    MSGL_NUMBER_BF16,
    MSGL_NUMBER_E4M3,
    MSGL_NUMBER_E8M0,      // 2^(b - 127), of 255 NaN (OCP Microscaling Formats v1.0, 5.4.1)
    MSGL_NUMBER_E8M0_HALF, // 2^(b - 128), of 255 too: ggml's, which has twice the values
    MSGL_NUMBER_I8,
    MSGL_NUMBER_U8,
    MSGL_NUMBER_I32,
    MSGL_NUMBER_I64,
    MSGL_NUMBERS,
} msgl_number;

// The number at place i.
float msgl__number_at(const uint8_t *data, msgl_number type, size_t i);
// The integer at place i, of I32 or I64.
int64_t msgl__integer_at(const uint8_t *data, msgl_number type, size_t i);
size_t msgl__number_size(msgl_number type);
// Its bits, of a type of at most four bytes.
static inline uint32_t msgl__number_bits(const uint8_t *data, msgl_number type, size_t i)
{
    switch (type) {
    case MSGL_NUMBER_F32:
    case MSGL_NUMBER_I32: data += 4 * i; break;
    case MSGL_NUMBER_F16:
    case MSGL_NUMBER_BF16: data += 2 * i; return (uint32_t)data[0] | (uint32_t)data[1] << 8;
    default: return data[i];
    }
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

#endif
