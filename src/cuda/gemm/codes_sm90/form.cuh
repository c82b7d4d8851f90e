// SPDX-License-Identifier: Apache-2.0
//
// From codes to operands of a product: pairs of codes become pairs of integers in the activations'
// type, in which they are exact, and scales and offsets are read apart, to be applied to the sums
// of a group. Nothing is rounded on the way.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_FORM_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_FORM_CUH

#include "cuda/gemm/codes_pair.cuh"
#include "cuda/gemm/codes_sm90/call.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    CODES_PART = 32, // columns whose codes a thread takes at a time, two products' worth
    CODES_PARTS = CODES_STEP / CODES_PART,
};

// What scales a group's sums, with d, dmin, c and e of quant/codes.h.
typedef enum codes_kind {
    CODES_ONE,  // one level: d, and possibly a zero point that is an integer
    CODES_MIN,  // one level: d, and dmin: what is added, or a zero point that is none
    CODES_I8,   // d c
    CODES_U8,   // d c, - dmin e
    CODES_BYTE, // one level: d of a byte, e8m0 or e4m3, of codes that are e2m1
} codes_kind;

// A kernel's form. SPAN: columns of a step that share a scale.
template <int BITS_, int SPAN_, codes_kind KIND_> struct codes_form {
    static constexpr int BITS = BITS_, SPAN = SPAN_, GROUPS = CODES_STEP / SPAN;
    static constexpr codes_kind KIND = KIND_;
    static constexpr bool OFFSET = KIND == CODES_MIN || KIND == CODES_U8;
    // Bits of a code's planes, and bytes of a step of a row in each.
    static constexpr int LOW = BITS == 8 ? 8 : BITS >= 4 ? 4 : 2, HIGH = BITS - LOW;
    static constexpr int LOW_BYTES = CODES_STEP / 8 * LOW, HIGH_BYTES = CODES_STEP / 8 * HIGH;
    static constexpr int WORDS = LOW == 8 ? 2 : 1; // of a thread, of the codes of a part
    // Arrays of scales, in codes_row.h's order: d and dmin or zero points; of two levels d, dmin if
    // there is one, c and as many e.
    static constexpr bool TWO = KIND == CODES_I8 || KIND == CODES_U8;
    // Whether numbers of one level may be f32.
    static constexpr bool WIDE = GROUPS == 1 || (BITS == 8 && SPAN == 64);
    static constexpr int ARRAYS = KIND == CODES_U8 ? 4 : KIND == CODES_BYTE ? 1 : 2;
    // Elements of a row that a step reads: of two levels it has one d.
    static __host__ __device__ constexpr int count_of(int array)
    {
        return !TWO || array >= ARRAYS / 2 ? GROUPS : 1;
    }
    // Room for an element of an array.
    static __host__ __device__ constexpr int size_of(int array)
    {
        return TWO ? (array >= ARRAYS / 2 ? 1 : 2)
               : KIND == CODES_BYTE || (array == 1 && KIND == CODES_ONE) ? 1
               : WIDE                                                    ? 4
                                                                         : 2;
    }
    // Where an array is behind the step's others, of `rows` rows.
    static __host__ __device__ constexpr int array_at(int array, int rows)
    {
        int at = 0;
        for (int i = 0; i < array; i++) at += count_of(i) * size_of(i) * rows;
        return at;
    }
};

// --- scales -------------------------------------------------------------------------------------

// A row's scales of a step, as they lie in memory.
template <typename FORM> struct codes_scales {
    static constexpr int GROUPS = FORM::GROUPS;
    uint32_t d[FORM::TWO ? 1 : GROUPS], dmin[FORM::KIND == CODES_I8 ? 1 : FORM::TWO ? 1 : GROUPS];
    uint32_t c[FORM::TWO ? GROUPS : 1], e[FORM::KIND == CODES_U8 ? GROUPS : 1];

    template <int SIZE> static __device__ __forceinline__ uint32_t read(uint32_t at, int row)
    {
        if (SIZE == 1) return msgl__read_shared<uint8_t>(at + (uint32_t)row);
        if (SIZE == 2) return msgl__read_shared<uint16_t>(at + (uint32_t)row * 2);
        return msgl__read_shared<uint32_t>(at + (uint32_t)row * 4);
    }

    // Of row `row` of a tile and step `step` of a stage of STEPS. at: the stage's arrays, element
    // by element all rows'. shift: codes_args'. ZEROS: whether zero points are wanted.
    template <int STEPS, bool ZEROS = true>
    __device__ __forceinline__ void load(const msgl_codes_row &l, int shift, uint32_t at, int step,
                                         int row)
    {
        constexpr int ROWS = CODES_ROWS, ALL = STEPS * ROWS;
        if constexpr (!FORM::TWO) {
            constexpr int E = FORM::size_of(1), AT = FORM::array_at(1, ALL);
            const bool wide = FORM::WIDE && l.number == MSGL_NUMBER_F32;
            row += ROWS * (GROUPS > 1 ? step * GROUPS : shift == 0 ? step : 0);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                if constexpr (FORM::KIND == CODES_BYTE) {
                    d[g] = read<1>(at, row + g * ROWS);
                    continue;
                }
                d[g] = wide ? read<4>(at, row + g * ROWS) : read<2>(at, row + g * ROWS);
                if (E == 1) {
                    dmin[g] = ZEROS && l.offset == MSGL_OFFSET_ZERO
                                  ? read<1>(at + AT, row + g * ROWS)
                                  : 0;
                } else {
                    dmin[g] =
                        wide ? read<4>(at + AT, row + g * ROWS) : read<2>(at + AT, row + g * ROWS);
                }
            }
        } else {
            constexpr int C = FORM::ARRAYS / 2;
            static_assert(MSGL_MAX_BLOCK == 2 * CODES_STEP, "a stage has one d");
            d[0] = read<2>(at, row);
            if constexpr (C == 2) dmin[0] = read<2>(at + FORM::array_at(1, ALL), row);
            row += ROWS * step * GROUPS;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                c[g] = read<1>(at + FORM::array_at(C, ALL), row + g * ROWS);
                if constexpr (C == 2) e[g] = read<1>(at + FORM::array_at(3, ALL), row + g * ROWS);
            }
        }
    }
};

// What a group's sum is multiplied by. factor: what all scales are multiplied by.
template <typename FORM>
static __device__ __forceinline__ float group_scale(const msgl_codes_row &l, float factor,
                                                    const codes_scales<FORM> &v, int g)
{
    if constexpr (FORM::KIND == CODES_BYTE) return codes_byte(l.number, v.d[g]) * factor;
    if constexpr (!FORM::TWO) return codes_number(l.number, v.d[g]) * factor;
    if constexpr (FORM::KIND == CODES_I8)
        return msgl__codes_row_half(v.d[0]) * (float)(int8_t)v.c[g];
    return msgl__codes_row_half(v.d[0]) * (float)v.c[g];
}

// What the sum of the group's activations is multiplied by, in forms with an OFFSET.
template <typename FORM>
static __device__ __forceinline__ float
group_offset(const msgl_codes_row &l, const codes_scales<FORM> &v, int g, float scale)
{
    if constexpr (FORM::KIND == CODES_U8) return msgl__codes_row_half(v.dmin[0]) * -(float)v.e[g];
    const float dmin = codes_number(l.number, v.dmin[g]);
    return l.offset == MSGL_OFFSET_MIN ? dmin : -scale * dmin;
}

// --- operands -----------------------------------------------------------------------------------

// What pair() subtracts: the codes' zero point, 0 in forms with an OFFSET.
template <typename T, typename FORM>
static __device__ __forceinline__ uint32_t group_zero(const msgl_codes_row &l,
                                                      const codes_scales<FORM> &v, int g)
{
    if constexpr (FORM::OFFSET) return codes_magic<T>::BITS;
    int zero = l.zero;
    if constexpr (FORM::KIND == CODES_ONE) {
        zero += (int8_t)v.dmin[g];
    }
    return codes_zero<T, FORM::BITS>(zero);
}

// Pair q of a part: low and high are the thread's pieces of it (codes_row.h), those of less than 16
// bits spread so that the columns of a pair are 16 bits apart.
template <typename T, typename FORM>
static __device__ __forceinline__ uint32_t pair(const uint32_t (&low)[FORM::WORDS], uint32_t high,
                                                const int q, uint32_t zero)
{
    if constexpr (FORM::KIND == CODES_BYTE) {
        return codes_e2m1<T>(low[0], q);
    } else if constexpr (FORM::BITS == 8) {
        return codes_eight<T>(low[q / 2], q % 2, zero);
    } else if constexpr (FORM::HIGH == 0) {
        return codes_four<T>(low[0], q, zero);
    } else {
        constexpr uint32_t MASK = (((1u << FORM::HIGH) - 1) << FORM::LOW) * CODES_ONES;
        constexpr uint32_t LOW = ((1u << FORM::LOW) - 1) * CODES_ONES;
        const int left = FORM::LOW - FORM::HIGH * q;
        const uint32_t v = msgl__mask_or<LOW>(low[0] >> FORM::LOW * q, codes_magic<T>::BITS);
        return msgl__subtract_two(msgl__mask_or<MASK>(left >= 0 ? high << left : high >> -left, v),
                                  zero, T());
    }
}

// Rows of BYTES, which the tensor copy has swizzled by as many: 16-byte chunk c of row r of a tile
// is at chunk c ^ swizzle_of(r) of the row.
template <int BYTES> static __device__ __forceinline__ uint32_t swizzle_of(int row)
{
    return BYTES == 128 ? row % 8 : BYTES == 64 ? row / 2 % 4 : BYTES == 32 ? row / 4 % 2 : 0;
}

// Where in its row a thread's piece of part p is, B bits of each code; t: the thread in its quad.
template <int B> static __device__ __forceinline__ uint32_t piece_at(uint32_t swizzle, int p, int t)
{
    const uint32_t byte = (uint32_t)(p * 4 * B + t * B);
    return (byte / 16 ^ swizzle) * 16 + byte % 16;
}

template <int B> static __device__ __forceinline__ void load_piece(uint32_t at, uint32_t *to)
{
    if constexpr (B == 8) {
        const uint2 v = msgl__read_shared<uint2>(at);
        to[0] = v.x, to[1] = v.y;
    } else if constexpr (B == 4) {
        *to = msgl__read_shared<uint32_t>(at);
    } else if constexpr (B == 2) {
        const uint32_t v = msgl__read_shared<uint16_t>(at);
        *to = v | v << 8;
    } else {
        const uint32_t v = msgl__read_shared<uint8_t>(at);
        *to = v | v << 12;
    }
}

#endif
