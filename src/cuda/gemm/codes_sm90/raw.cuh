// SPDX-License-Identifier: Apache-2.0
//
// Codes as operands without arithmetic, as codes_bits.cuh says. Nothing is subtracted from the
// codes: a zero point times the sum of a group's activations is.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_RAW_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_RAW_CUH

#include "cuda/gemm/codes_bits.cuh"
#include "cuda/gemm/codes_sm90/form.cuh"

// Of a part's four pairs, number i of those in the order in which its two products take two each:
// so that both are in the same bits of a word's halves, where a group has 32 columns.
template <typename FORM> static __host__ __device__ constexpr int raw_order(int i)
{
    return FORM::SPAN == 16 ? i : i % 2 * 2 + i / 2;
}

// Whether codes are integers, which can be taken so; e2m1's become values as for more rows.
template <typename FORM> static __host__ __device__ constexpr bool raw_integers(void)
{
    return FORM::KIND != CODES_BYTE;
}

// Whether a part's second product has 16 times the codes: of 4 bits they stay where they lie.
template <typename FORM> static __host__ __device__ constexpr bool raw_odd(void)
{
    return FORM::BITS == 4 && raw_integers<FORM>();
}

// What the sum of a group's activations is multiplied by where each row has a zero point: less it.
template <typename FORM>
static __device__ __forceinline__ float raw_zero(const msgl_codes_row &l,
                                                 const codes_scales<FORM> &v, int g)
{
    return (float)(-l.zero - (int8_t)v.dmin[g]);
}

// Pair q of a part; low and high as pair()'s.
template <typename T, typename FORM>
static __device__ __forceinline__ uint32_t raw_pair(const uint32_t (&low)[FORM::WORDS],
                                                    uint32_t high, const int q)
{
    constexpr uint32_t ONES = 0x00010001;
    if constexpr (!raw_integers<FORM>()) {
        return pair<T, FORM>(low, high, q, 0);
    } else if constexpr (FORM::BITS == 8) {
        return __byte_perm(low[q / 2], 0, q % 2 == 0 ? 0x4240 : 0x4341);
    } else if constexpr (FORM::BITS == 4) {
        const uint32_t v = q < 2 ? low[0] : low[0] >> 8;
        return q % 2 == 0 ? v & 0xf * ONES : v & 0xf0 * ONES;
    } else {
        constexpr uint32_t MASK = (((1u << FORM::HIGH) - 1) << FORM::LOW) * ONES;
        const int left = FORM::LOW - FORM::HIGH * q;
        const uint32_t v = low[0] >> FORM::LOW * q & ((1u << FORM::LOW) - 1) * ONES;
        return msgl__mask_or<MASK>(left >= 0 ? high << left : high >> -left, v);
    }
}

#endif
