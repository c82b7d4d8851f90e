// SPDX-License-Identifier: Apache-2.0
//
// Rows of codes in a GPU's memory (MSGL_W_CODES there): how the host lays a file's blocks out, and
// how a thread takes eight columns back. k is a multiple of 32. A row has, in bytes:
//
//   codes   the lower bits of all codes, then the upper ones: 8 = 8, 6 = 4 + 2, 5 = 4 + 1, 4 = 4,
//           3 = 2 + 1, 2 = 2; filled up to 32 bytes, which memory is read by, with zeros.
//   scales  one level: a number for each span of columns, then as many dmin, or e of a byte each.
//           Two levels: f16 d for each 256 columns, then as many dmin, then a byte c for each
//           group, and as many e; c and e of U4 share a byte, c in its lower half.
//
// A row by itself, as the host writes it, has its scales behind its codes and is filled up to 32
// bytes. A weight of n rows has all rows' codes and then the scales with all rows' equal ones next
// to each other, so that a product of some rows reads them as it reads codes: element i of row r of
// what lies at byte o of a row's scales, elements of z bytes each, is at o n + (i n + r) z. Of 4
// bits with zero points, 5,120 columns in groups of 128, and 1,024 rows e of columns 256 to 383 of
// row 7 is at byte 80 * 1024 + 2 * 1024 + 7 behind 1024 * 2560 bytes of codes. A row by itself is
// the weight of one row.
//
// With b bits, 32 columns are four pieces of b bytes, in the order in which a warp's threads hold
// the left operand of a product of 16 columns (ptx/wgmma.cuh): piece t has columns 2 t, 2 t + 1 and
// those 8, 16 and 24 further on. Column c = 8 q + 2 t + odd is in piece t, of at most 4 bits at bit
// b q + 4 b odd, of 8 bits at bit 32 (q / 2) + 8 (q % 2) + 16 odd, so that one mask takes a pair of
// columns out of a 32-bit word, each in its half. Column 43 of 6 bits is c 11 of the second 32
// columns: piece 1, q 1, odd; its lower bits are 20-23 of the word at 20, the upper ones 10-11 of
// the two bytes at k / 2 + 10.
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
#include "quant/stored.h"

// Where what is, and what it means: of rows of k columns. Copied to kernels as it is.
typedef struct msgl_codes_row {
    int32_t k;
    uint32_t bytes, codes, scales;   // of a row by itself; of its codes and scales, in a weight too
    int32_t bits, group, zero, span; // msgl_codes'; span: k where all columns share a scale
    msgl_scaling scaling;
    msgl_offset offset;
    msgl_number number;
    float factor;
    bool divided, factor_last;
    bool e4m3, looked_up; // what q is, if no integer
    // Bytes from the codes' beginning: upper bits. From the scales': dmin (or e of one level), c
    // and e of groups; d is at 0.
    uint32_t upper, dmin, c, e;
    float book[16]; // of codes that are looked up
} msgl_codes_row;

// false: the blocks have no codes, or k columns of them are no whole blocks, or too many.
bool msgl__codes_row_of(const msgl_blocks *b, int k, msgl_codes_row *out);
// The columns that a row has: those of the matrix, of what is quantised while loading filled up to
// whole blocks; or the places of their order, which are int32 [num] behind msgl__codes_rows_bytes
// of them (quant/codes.h). Example: 77 columns in int8 have 96.
static inline int msgl__codes_row_places(const msgl_wformat *f, int k)
{
    const int past = k % f->blocks->elements;
    if (f->order != NULL) return f->order->num;
    return past > 0 && k <= INT32_MAX - MSGL_MAX_BLOCK ? k - past + f->blocks->elements : k;
}
// MSGL_WFORMAT_INT8's groups as codes: q + 128, the span's number is the group's scale.
extern const msgl_blocks msgl__int8_blocks;
// Bytes of the codes and scales of n rows, filled up to 16.
static inline size_t msgl__codes_rows_bytes(const msgl_codes_row *l, size_t n)
{
    return (n * (l->codes + l->scales) + 15) / 16 * 16;
}
// Whether codes are e2m1's, each with twice its value in the book: OCP Microscaling Formats v1.0,
// 5.3.3.
bool msgl__codes_row_is_e2m1(const msgl_codes_row *l);
// What kernels multiply scales by: the form's factor, and for e2m1 as it is, and for numbers that
// are half of others, a power of two.
float msgl__codes_row_factor(const msgl_codes_row *l);
// A row of a file's blocks to `row`, which is written once from front to back in a few streams and
// not read: it may be memory that is slow otherwise.
void msgl__codes_row_put(const msgl_codes_row *l, const msgl_blocks *b, const uint8_t *src,
                         uint8_t *row);
// What one of msgl__stored_tasks(rows, l->k) tasks lays out of src's rows [first, first + rows),
// for which it asks tile by tile: they come to `to`, by themselves, l->bytes apart. It is written
// in pieces of some hundred bytes of a row.
void msgl__codes_rows_put(const msgl_codes_row *l, const msgl_part_rows *src, size_t first,
                          size_t rows, int task, uint8_t *to);

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

// Where byte `byte` of a row's scales is in those of a weight of n rows, of row r.
MSGL_BOTH size_t msgl__codes_row_place(const msgl_codes_row *l, size_t n, size_t r, uint32_t byte)
{
    const bool one = l->scaling == MSGL_SCALING_ONE;
    const uint32_t size = one ? msgl__codes_row_size(l->number) : 2;
    const uint32_t at = byte >= l->e ? l->e : byte >= l->c ? l->c : byte >= l->dmin ? l->dmin : 0;
    const bool bytes = byte >= l->c || (byte >= l->dmin && l->offset == MSGL_OFFSET_ZERO);
    const uint32_t element = bytes ? 1 : size, i = (byte - at) / element;
    return at * n + (i * n + r) * element + (byte - at) % element;
}

// msgl__codes_scale of a column of row r of n; scales: the weight's.
MSGL_BOTH void msgl__codes_row_scale(const msgl_codes_row *l, const uint8_t *scales, uint32_t n,
                                     uint32_t r, uint32_t column, float *scale, float *offset)
{
    const uint8_t *const dmins = scales + (size_t)l->dmin * n;
    *offset = 0;
    if (l->scaling == MSGL_SCALING_ONE) {
        const uint32_t i = column / (uint32_t)l->span * n + r;
        const float d = msgl__codes_row_number(l->number, scales, i);
        *scale = l->factor == 0 || l->factor_last ? d
                 : l->divided                     ? MSGL_DIV(d, l->factor)
                                                  : MSGL_MUL(d, l->factor);
        if (l->offset == MSGL_OFFSET_ZERO) *offset = (float)(int8_t)dmins[i];
        if (l->offset == MSGL_OFFSET_MIN || l->offset == MSGL_OFFSET_FLOAT) {
            *offset = msgl__codes_row_number(l->number, dmins, i);
        }
        return;
    }
    const uint32_t block = column / MSGL_MAX_BLOCK * n + r, g = column / (uint32_t)l->group * n + r;
    const float d = msgl__codes_row_half(msgl__codes_row_u16(scales + 2 * (size_t)block));
    const uint32_t c = scales[(size_t)l->c * n + g];
    if (l->scaling == MSGL_SCALING_I8) {
        *scale = MSGL_MUL(d, (float)(int8_t)c);
        return;
    }
    const float dmin = msgl__codes_row_half(msgl__codes_row_u16(dmins + 2 * (size_t)block));
    const bool u4 = l->scaling == MSGL_SCALING_U4;
    *scale = MSGL_MUL(d, (float)(u4 ? c & 15 : c));
    *offset = -MSGL_MUL(dmin, (float)(u4 ? c >> 4 : (uint32_t)scales[(size_t)l->e * n + g]));
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

// Of columns [8 eight, 8 eight + 8) number i: its b bits in a plane of b bits a code.
MSGL_BOTH uint32_t msgl__codes_row_bits(const uint8_t *plane, const int b, uint32_t eight,
                                        const uint32_t i)
{
    const uint32_t q = eight % 4, odd = i % 2, bits = (uint32_t)b;
    const uint8_t *const piece = plane + (eight / 4 * 4 + i / 2) * bits;
    if (b == 8) return msgl__codes_row_u32(piece + q / 2 * 4) >> (q % 2 * 8 + odd * 16) & 0xff;
    const uint32_t word = b == 4   ? msgl__codes_row_u32(piece)
                          : b == 2 ? msgl__codes_row_u16(piece)
                                   : *piece;
    return word >> (bits * q + 4 * bits * odd) & ((1u << bits) - 1);
}

// Columns [8 eight, 8 eight + 8) of row r of n, whose codes are aligned to 16 bytes; scales: the
// weight's. bits: l->bits, for kernels of a number of bits. book: l->book, from where it is read
// fast.
MSGL_BOTH void msgl__codes_row_eight(const msgl_codes_row *l, const float *book, const int bits,
                                     const uint8_t *codes, const uint8_t *scales, uint32_t n,
                                     uint32_t r, uint32_t eight, float out[8])
{
    const int low = bits == 8 ? 8 : bits >= 4 ? 4 : 2, high = bits - low;
    float scale, offset;
    // Groups are 16 columns or more.
    msgl__codes_row_scale(l, scales, n, r, 8 * eight, &scale, &offset);
#ifdef __CUDACC__
#pragma unroll
#endif
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t code = msgl__codes_row_bits(codes, low, eight, i);
        if (high > 0) code |= msgl__codes_row_bits(codes + l->upper, high, eight, i) << low;
        const float q = l->looked_up ? book[code]
                        : l->e4m3    ? msgl__codes_row_e4m3(code)
                                     : (float)((int32_t)code - l->zero);
        out[i] = msgl__codes_row_value(l, scale, offset, q);
    }
}

#endif
