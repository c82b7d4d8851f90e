// SPDX-License-Identifier: Apache-2.0
//
// Rows of codes in a GPU's memory (MSGL_W_CODES there): how the host lays a file's blocks out, and
// how a thread takes eight columns back. A row is by itself, so that rows arrive in any order and a
// row that is looked up is read as fast as a matrix. k is a multiple of 32. A row has, in bytes:
//
//   codes   the lower bits of all codes, then the upper ones: 8 = 8, 6 = 4 + 2, 5 = 4 + 1, 4 = 4,
//           3 = 2 + 1, 2 = 2. Eight neighbours with b bits are b bytes, little-endian, the first
//           column lowest. Of 6 bits, column 11 has its lower ones in bits 12-15 of the word at 4,
//           the upper ones in bits 6-7 of the two bytes at k / 2 + 2.
//   scales  at k * bits / 8. One level: a number for each span of columns, then as many dmin, or e
//           of a byte each. Two levels: f16 d for each 256 columns, then as many dmin, then a byte
//           c for each group, and as many e; c and e of U4 share a byte, c in its lower half.
//   filled up to 16 bytes with zeros.
//
// With 4 bits and one f16 for 32 columns, 256 columns take 128 + 16 bytes: 4.5 bits a weight.
#ifndef MSGL_CUDA_GEMM_CODES_ROW_H
#define MSGL_CUDA_GEMM_CODES_ROW_H

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/dtype.h"
#include "kernel/wformat.h"
#include "quant/blocks.h"

// Where what is, and what it means: of rows of k columns. Copied to kernels as it is.
typedef struct msgl_codes_row {
    int32_t k;
    uint32_t bytes;                  // of a row
    int32_t bits, group, zero, span; // msgl_codes'; span: k where all columns share a scale
    msgl_scaling scaling;
    msgl_offset offset;
    msgl_number number;
    float factor;
    bool divided, factor_last;
    bool e4m3, looked_up; // what q is, if no integer
    // Bytes from the row's beginning: upper bits, d, dmin (or e of one level), c and e of groups.
    uint32_t upper, d, dmin, c, e;
    float book[16]; // of codes that are looked up
} msgl_codes_row;

// false: the blocks have no codes, or k columns of them are no whole blocks, or too many.
bool msgl__codes_row_of(const msgl_blocks *b, int k, msgl_codes_row *out);
// The columns that a row has: those of the matrix, or the places of their order, which are int32
// [num] behind the matrix's rows (quant/codes.h).
static inline int msgl__codes_row_places(const msgl_wformat *f, int k)
{
    return f->order != NULL ? f->order->num : k;
}
// A row of a file's blocks to `row`, which is written once from front to back in a few streams and
// not read: it may be memory that is slow otherwise.
void msgl__codes_row_put(const msgl_codes_row *l, const msgl_blocks *b, const uint8_t *src,
                         uint8_t *row);

#ifdef __cplusplus
}
#endif

// For the device, and for the host's tests. What is next to each other in an expression is rounded
// apart, as C says: nvcc makes one fma of it otherwise.
#ifdef __CUDACC__
#define MSGL_BOTH static __host__ __device__ __forceinline__
#else
#define MSGL_BOTH static inline
#endif
#ifdef __CUDA_ARCH__
#define MSGL_MUL(a, b) __fmul_rn(a, b)
#define MSGL_ADD(a, b) __fadd_rn(a, b)
#define MSGL_DIV(a, b) __fdiv_rn(a, b)
#else
#define MSGL_MUL(a, b) ((a) * (b))
#define MSGL_ADD(a, b) ((a) + (b))
#define MSGL_DIV(a, b) ((a) / (b))
#endif

MSGL_BOTH float msgl__codes_row_float(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
#endif
}

// Aligned words.
MSGL_BOTH uint32_t msgl__codes_row_u16(const uint8_t *at)
{
#ifdef __CUDA_ARCH__
    return *(const uint16_t *)at;
#else
    uint16_t v;
    memcpy(&v, at, sizeof v);
    return v;
#endif
}

MSGL_BOTH uint32_t msgl__codes_row_u32(const uint8_t *at)
{
#ifdef __CUDA_ARCH__
    return *(const uint32_t *)at;
#else
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
#endif
}

MSGL_BOTH float msgl__codes_row_half(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half((unsigned short)bits));
#else
    return msgl__f16_to_f32((uint16_t)bits);
#endif
}

// What is subnormal here is a multiple of 2^-9; of others the exponent is 120 less than an f32's.
MSGL_BOTH float msgl__codes_row_e4m3(uint32_t byte)
{
    const uint32_t magnitude = byte & 0x7f, sign = (byte & 0x80) << 24;
    const float small = MSGL_MUL((float)(int32_t)magnitude, 0x1p-9f);
    if (magnitude < 8) return sign != 0 ? -small : small;
    return msgl__codes_row_float(
        (magnitude == 0x7f ? 0x7fc00000u : (magnitude << 20) + (120u << 23)) | sign);
}

// The bytes that a number of a span has.
MSGL_BOTH uint32_t msgl__codes_row_size(msgl_number type)
{
    return type == MSGL_NUMBER_F32                               ? 4
           : type == MSGL_NUMBER_F16 || type == MSGL_NUMBER_BF16 ? 2
                                                                 : 1;
}

// Number `i` of those at `at`.
MSGL_BOTH float msgl__codes_row_number(msgl_number type, const uint8_t *at, uint32_t i)
{
    switch (type) {
    case MSGL_NUMBER_F16: return msgl__codes_row_half(msgl__codes_row_u16(at + 2 * i));
    case MSGL_NUMBER_BF16: return msgl__codes_row_float(msgl__codes_row_u16(at + 2 * i) << 16);
    case MSGL_NUMBER_E4M3: return msgl__codes_row_e4m3(at[i]);
    case MSGL_NUMBER_E8M0: // 2^(b - 127); of 0 it is subnormal
        return msgl__codes_row_float(at[i] == 0     ? 0x00400000u
                                     : at[i] == 255 ? 0x7fc00000u
                                                    : (uint32_t)at[i] << 23);
    case MSGL_NUMBER_E8M0_HALF: // 2^(b - 128)
        return msgl__codes_row_float(at[i] < 2 ? 0x00200000u << at[i]
                                               : ((uint32_t)at[i] - 1) << 23);
    default: return msgl__codes_row_float(msgl__codes_row_u32(at + 4 * i));
    }
}

// msgl__codes_scale of a column.
MSGL_BOTH void msgl__codes_row_scale(const msgl_codes_row *l, const uint8_t *row, uint32_t column,
                                     float *scale, float *offset)
{
    *offset = 0;
    if (l->scaling == MSGL_SCALING_ONE) {
        const uint32_t i = column / (uint32_t)l->span;
        const float d = msgl__codes_row_number(l->number, row + l->d, i);
        *scale = l->factor == 0 || l->factor_last ? d
                 : l->divided                     ? MSGL_DIV(d, l->factor)
                                                  : MSGL_MUL(d, l->factor);
        if (l->offset == MSGL_OFFSET_ZERO) *offset = (float)(int8_t)row[l->dmin + i];
        if (l->offset == MSGL_OFFSET_MIN || l->offset == MSGL_OFFSET_FLOAT) {
            *offset = msgl__codes_row_number(l->number, row + l->dmin, i);
        }
        return;
    }
    const uint32_t block = column / MSGL_MAX_BLOCK, g = column / (uint32_t)l->group;
    const float d = msgl__codes_row_half(msgl__codes_row_u16(row + l->d + 2 * block));
    const uint32_t c = row[l->c + g];
    if (l->scaling == MSGL_SCALING_I8) {
        *scale = MSGL_MUL(d, (float)(int8_t)c);
        return;
    }
    const float dmin = msgl__codes_row_half(msgl__codes_row_u16(row + l->dmin + 2 * block));
    const bool u4 = l->scaling == MSGL_SCALING_U4;
    *scale = MSGL_MUL(d, (float)(u4 ? c & 15 : c));
    *offset = -MSGL_MUL(dmin, (float)(u4 ? c >> 4 : (uint32_t)row[l->e + g]));
}

// msgl__codes_value, in its steps.
MSGL_BOTH float msgl__codes_row_value(const msgl_codes_row *l, float scale, float offset, float q)
{
    if (l->offset == MSGL_OFFSET_ZERO) return MSGL_MUL(scale, MSGL_ADD(q, -offset));
    if (l->offset == MSGL_OFFSET_MIN) {
        return MSGL_ADD(MSGL_MUL(scale, MSGL_ADD(q, (float)l->zero)), offset);
    }
    if (l->offset == MSGL_OFFSET_FLOAT) {
        return MSGL_MUL(scale, MSGL_ADD(MSGL_ADD(q, (float)l->zero), -offset));
    }
    const float value = MSGL_MUL(scale, q);
    return l->factor_last ? MSGL_MUL(value, l->factor) : value;
}

// Columns [8 eight, 8 eight + 8) of a row, which is aligned to 16 bytes. bits: l->bits, for kernels
// of a number of bits. book: l->book, from where it is read fast.
MSGL_BOTH void msgl__codes_row_eight(const msgl_codes_row *l, const float *book, const int bits,
                                     const uint8_t *row, uint32_t eight, float out[8])
{
    const int low = bits == 8 ? 8 : bits >= 4 ? 4 : 2, high = bits - low;
    const uint8_t *const lower = row + eight * (uint32_t)low;
    const uint8_t *const upper = row + l->upper + eight * (uint32_t)high;
    uint32_t words[2] = {0, 0}, more = 0;
    float scale, offset;
    words[0] = low == 2 ? msgl__codes_row_u16(lower) : msgl__codes_row_u32(lower);
    if (low == 8) words[1] = msgl__codes_row_u32(lower + 4);
    if (high == 1) more = *upper;
    if (high == 2) more = msgl__codes_row_u16(upper);
    msgl__codes_row_scale(l, row, 8 * eight, &scale, &offset); // groups are 16 columns or more
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int i = 0; i < 8; i++) {
        uint32_t code = low == 8 ? words[i / 4] >> 8 * (i % 4) : words[0] >> low * i;
        code &= (1u << low) - 1;
        if (high > 0) code |= (more >> high * i & ((1u << high) - 1)) << low;
        const float q = l->looked_up ? book[code]
                        : l->e4m3    ? msgl__codes_row_e4m3(code)
                                     : (float)((int32_t)code - l->zero);
        out[i] = msgl__codes_row_value(l, scale, offset, q);
    }
}

#endif
