// SPDX-License-Identifier: Apache-2.0
//
// Codes as operands of the tensor cores without arithmetic, for few rows of activations.
//
// What is subnormal in the type is its lowest bits times a constant (the first binade of normal
// numbers goes on as the subnormal ones do), and tensor cores multiply such numbers exactly. So an
// integer under a mask is an operand as it lies, and a float is one whose sign, exponent and
// mantissa are where the type has them, without what makes its value: all are off by one power of
// two, which a sum in f32 is multiplied by. Activations in bf16 are multiplied by 2^64 first, so
// that products are normal numbers of f32; what is 2^64 or more becomes infinite.
#ifndef MSGL_CUDA_GEMM_CODES_BITS_CUH
#define MSGL_CUDA_GEMM_CODES_BITS_CUH

#include "cuda/gemm/codes_pair.cuh"

// What activations are multiplied by (as a pair: IN_PAIR), and by which power of two sums then,
// where operands are codes of these values. (Of integers also 2^-4 where a code lies four bits
// higher.) BACK: that power of integers; BOTH: one over it.
template <typename T> struct codes_bits;
template <> struct codes_bits<__nv_bfloat16> {
    static constexpr bool SCALED = true;
    static constexpr uint32_t IN_PAIR = 0x5f805f80;
    static constexpr float IN = 0x1p64f, BOTH = 0x1p-69f, BACK = 0x1p69f;
    static constexpr int INTEGERS = 69, E2M1 = 62, E4M3 = 56; // 133, 126 and 120, less 64
};
template <> struct codes_bits<__half> {
    static constexpr bool SCALED = false;
    static constexpr uint32_t IN_PAIR = 0x3c003c00;
    static constexpr float IN = 1, BOTH = 0x1p-24f, BACK = 0x1p24f;
    static constexpr int INTEGERS = 24, E2M1 = 14, E4M3 = 8;
};

template <typename T, codes_values VALUES>
static constexpr int CODES_BITS_POWER = VALUES == CODES_INTEGERS ? codes_bits<T>::INTEGERS
                                        : VALUES == CODES_E2M1   ? codes_bits<T>::E2M1
                                                                 : codes_bits<T>::E4M3;

static __device__ __forceinline__ uint32_t codes_rotated(uint32_t v, const int up)
{
    return v << (up & 31) | v >> (-up & 31);
}

// The four pairs of a piece of 4 bits: two as they are, two four bits higher.
static __device__ __forceinline__ void codes_bits_four(uint32_t piece, uint32_t one[2],
                                                       uint32_t sixteen[2])
{
    const uint32_t upper = piece >> 8;
    one[0] = piece & 15 * CODES_ONES, one[1] = upper & 15 * CODES_ONES;
    sixteen[0] = piece & 0xf0 * CODES_ONES, sixteen[1] = upper & 0xf0 * CODES_ONES;
}

// The four pairs of a piece of e2m1. The type has a sign 6 (bf16) or 3 bits further above its
// magnitude than a code has. The word turned by so many bits has it there, but in bits of another
// code's magnitude: two words, of two codes' magnitudes each, have room for both.
template <typename T>
static __device__ __forceinline__ void codes_bits_e2m1(uint32_t piece, uint32_t pair[4])
{
    constexpr bool LONG = codes_moved<T>::MANTISSA == 7; // bf16
    constexpr int UP = codes_moved<T>::MANTISSA - 1;
    constexpr uint32_t MASK = (0x8000 | 7u << UP) * CODES_ONES;
    // Magnitudes that stand in the first word, with the signs of their codes.
    constexpr uint32_t FIRST = LONG ? 0x00770077 : 0x07070707, SECOND = FIRST << (LONG ? 8 : 4);
    const uint32_t turned = codes_rotated(piece, 12 - UP), both = piece ^ turned;
    const uint32_t word[2] = {msgl__mask_xor<FIRST>(both, turned),
                              msgl__mask_xor<SECOND>(both, turned)};
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const uint32_t from = word[LONG ? q / 2 : q % 2];
        const int up = UP - 4 * q;
        pair[q] = (up >= 0 ? from << (up & 31) : codes_rotated(from, up)) & MASK;
    }
}

// A scale of e8m0 times 2^POWER, infinite from 2^(128 - POWER) on.
template <int POWER> static __device__ __forceinline__ float codes_e8m0_times(uint32_t byte)
{
    return msgl__codes_row_float((uint32_t)min((int)byte + POWER, 255) << 23);
}

#endif
