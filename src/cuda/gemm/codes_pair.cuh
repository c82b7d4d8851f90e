// SPDX-License-Identifier: Apache-2.0
//
// From codes to operands of the tensor cores: the two codes of a pair of columns, which
// codes_row.h has 16 bits apart, become two floats of the activations' type in a register, exactly.
// And numbers of a scale's type as f32.
#ifndef MSGL_CUDA_GEMM_CODES_PAIR_CUH
#define MSGL_CUDA_GEMM_CODES_PAIR_CUH

#include "cuda/gemm/codes_row.h"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/pairs.cuh"

// What a code is. e2m1 and e4m3 are floats of 4 and 8 bits: OCP Microscaling Formats v1.0, 5.3.3
// and 5.3.1. (A NaN of e4m3 counts as 480 here.)
typedef enum codes_values { CODES_INTEGERS, CODES_E2M1, CODES_E4M3 } codes_values;

// --- integers -----------------------------------------------------------------------------------
//
// A float of the type whose lowest bits are a code is 2^7 (bf16) or 2^10 (f16) more than the code:
// one logical operation for a pair, and a subtraction, which is exact.

template <typename T> struct codes_magic;
template <> struct codes_magic<__nv_bfloat16> {
    static constexpr uint32_t BITS = 0x43004300;
    static constexpr float VALUE = 128;
};
template <> struct codes_magic<__half> {
    static constexpr uint32_t BITS = 0x64006400;
    static constexpr float VALUE = 1024;
};

static constexpr uint32_t CODES_ONES = 0x00010001;

// What codes_four and codes_eight subtract, of codes of BITS bits with this zero point.
template <typename T, int BITS> static __device__ __forceinline__ uint32_t codes_zero(int zero)
{
    // Of 8 bits 128 are gone before: bf16 has integers up to 256.
    if constexpr (BITS == 8) {
        return msgl__pack_two((float)(zero - 128), (float)(zero - 128), T());
    }
    return codes_magic<T>::BITS + (uint32_t)zero * CODES_ONES;
}

// Pair q of a piece of four pairs of 4 bits.
template <typename T>
static __device__ __forceinline__ uint32_t codes_four(uint32_t piece, const int q, uint32_t zero)
{
    return msgl__subtract_two(msgl__mask_or<15 * CODES_ONES>(piece >> 4 * q, codes_magic<T>::BITS),
                              zero, T());
}

// The even pair of a word of two of 8 bits, or the odd one.
template <typename T>
static __device__ __forceinline__ uint32_t codes_eight(uint32_t word, const int odd, uint32_t zero)
{
    constexpr uint32_t MAGIC = codes_magic<T>::BITS;
    const uint32_t v = word >> 8 * odd;
    if constexpr (codes_magic<T>::VALUE == 128) {
        // 128 + the lower seven bits, less 256, or less 128 where the eighth is set.
        const uint32_t seven = msgl__mask_or<0x7f * CODES_ONES>(v, MAGIC);
        const uint32_t eighth = msgl__mask_xor<0x80 * CODES_ONES>(v, MAGIC ^ 0x80 * CODES_ONES);
        return msgl__subtract_two(msgl__subtract_two(seven, eighth, T()), zero, T());
    } else {
        const uint32_t code = msgl__mask_or<0xff * CODES_ONES>(v, MAGIC);
        return msgl__subtract_two(msgl__subtract_two(code, MAGIC + 128 * CODES_ONES, T()), zero,
                                  T());
    }
}

// --- floats -------------------------------------------------------------------------------------
//
// Sign, exponent and mantissa go to where the type has them. The exponent's bias is then wrong by a
// constant, and subnormal numbers are subnormal there too, so that one multiplication by a power of
// two, which is exact, makes the value.

template <typename T> struct codes_moved;
template <> struct codes_moved<__nv_bfloat16> {
    static constexpr int MANTISSA = 7;
    static constexpr uint32_t E2M1_SCALE = 0x7e807e80, E4M3_SCALE = 0x7b807b80; // 2^126, 2^120
};
template <> struct codes_moved<__half> {
    static constexpr int MANTISSA = 10;
    static constexpr uint32_t E2M1_SCALE = 0x74007400, E4M3_SCALE = 0x5c005c00; // 2^14, 2^8
};

static __device__ __forceinline__ uint32_t codes_shifted(uint32_t v, const int up)
{
    return up >= 0 ? v << (up & 31) : v >> (-up & 31);
}

// Pair q of a piece of four pairs of e2m1, times a pair of powers of two over E2M1_SCALE.
template <typename T>
static __device__ __forceinline__ uint32_t codes_e2m1(uint32_t piece, const int q,
                                                      uint32_t by = codes_moved<T>::E2M1_SCALE)
{
    constexpr int UP = codes_moved<T>::MANTISSA - 1;
    const uint32_t sign = codes_shifted(piece, 12 - 4 * q) & 0x8000 * CODES_ONES;
    const uint32_t moved =
        msgl__mask_or<(7u << UP) * CODES_ONES>(codes_shifted(piece, UP - 4 * q), sign);
    return msgl__multiply_two(moved, by, T());
}

// The even pair of a word of two of e4m3, or the odd one, over E4M3_SCALE.
template <typename T>
static __device__ __forceinline__ uint32_t codes_e4m3_moved(uint32_t word, const int odd)
{
    constexpr int UP = codes_moved<T>::MANTISSA - 3;
    const uint32_t sign = codes_shifted(word, 8 - 8 * odd) & 0x8000 * CODES_ONES;
    return msgl__mask_or<(0x7fu << UP) * CODES_ONES>(codes_shifted(word, UP - 8 * odd), sign);
}

// Their values.
template <typename T>
static __device__ __forceinline__ uint32_t codes_e4m3(uint32_t word, const int odd)
{
    return msgl__multiply_two(codes_e4m3_moved<T>(word, odd), codes_moved<T>::E4M3_SCALE, T());
}

// --- scales -------------------------------------------------------------------------------------

// A number of two or four bytes by its bits.
static __device__ __forceinline__ float codes_number(msgl_number type, uint32_t bits)
{
    if (type == MSGL_NUMBER_F16) return msgl__codes_row_half(bits);
    return msgl__codes_row_float(type == MSGL_NUMBER_BF16 ? bits << 16 : bits);
}

// e8m0: 2^(byte - 127), of 0 subnormal; 255, which is no number, is infinite here.
static __device__ __forceinline__ float codes_e8m0(uint32_t byte)
{
    return msgl__codes_row_float((uint32_t)max((int)(byte << 23), 0x00400000));
}

// What codes_e2m1 makes values of bf16 with, times e8m0's scale over 2^CODES_E8M0_BIAS: exact from
// 2^-116 on, infinite beyond 2^17, which no weight's scale is.
enum { CODES_E8M0_BIAS = 16 };
static __device__ __forceinline__ uint32_t codes_e8m0_scale(uint32_t byte)
{
    // The exponent's field: byte - 127 + 126 - 16 + 127, 255 of what is infinite.
    constexpr int ADDED = 126 - CODES_E8M0_BIAS;
    return (uint32_t)min((int)byte, 255 - ADDED) * 0x00800080u + (uint32_t)ADDED * 0x00800080u;
}

// A number of one byte: e4m3 (NaN counts as 480), or e8m0, whose half is the caller's matter.
static __device__ __forceinline__ float codes_byte(msgl_number type, uint32_t byte)
{
    if (type != MSGL_NUMBER_E4M3) return codes_e8m0(byte);
    return msgl__codes_row_float((byte & 0x7f) << 20 | (byte & 0x80) << 24) * 0x1p120f;
}

#endif
