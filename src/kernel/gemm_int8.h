// SPDX-License-Identifier: Apache-2.0
//
// int8 weights inside of kernel family gemm. When a call prepares its rows, activations are
// quantised as the weights are, in the same groups of columns. The product of two groups is a sum
// of integers, exact in 32 bits; with both scales it becomes a float, and those are summed up in
// the order of k. Weights are stored as q + 128, because vpdpbusd multiplies unsigned by signed
// bytes: sum((q + 128) x) = sum(q x) + 128 sum(x), so a group's sum begins with -128 sum(x).
//
// What is inline here is compiled with the flags of the level that uses it. Integers and scales are
// the same at each.
#ifndef MSGL_KERNEL_GEMM_INT8_H
#define MSGL_KERNEL_GEMM_INT8_H

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "kernel/gemm_internal.h"

// Bytes of a panel's group: the integers of 16 features, then their scales.
enum {
    MSGL_INT8_VALUES = MSGL_INT8_GROUP * MSGL_GEMM_LANES,
    MSGL_INT8_PANEL_GROUP = MSGL_INT8_VALUES + MSGL_GEMM_LANES * (int)sizeof(float),
};

// Of a prepared row, one per group. All of them are in front of the row's integers.
typedef struct msgl_int8_head {
    float scale;
    int32_t start; // -128 * sum of the integers
} msgl_int8_head;

static inline int msgl__int8_groups(int k)
{
    return msgl__ceil_div(k, MSGL_INT8_GROUP);
}

static inline size_t msgl__int8_heads_bytes(int k)
{
    return msgl__round_up((size_t)msgl__int8_groups(k) * sizeof(msgl_int8_head), 64);
}

// Where integer i of a feature is in a panel's group.
static inline size_t msgl__int8_at(int lane, int i)
{
    return (size_t)(i / 4 * MSGL_GEMM_LANES * 4 + lane * 4 + i % 4);
}

// The largest |v| of n values, a multiple of 16, as bits: their order is the floats', with infinity
// and NaN behind it.
MSGL_INLINE int32_t msgl__int8_largest(const float *v, const int n)
{
#if defined(__AVX512F__)
    __m512i most = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 16) {
        most = _mm512_max_epi32(most, _mm512_castps_si512(_mm512_abs_ps(_mm512_loadu_ps(v + i))));
    }
    return _mm512_reduce_max_epi32(most);
#elif defined(__AVX2__)
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *)(v + i));
        most = _mm256_max_epi32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
#else
    int32_t bits[MSGL_INT8_GROUP], most = 0;
    memcpy(bits, v, (size_t)n * sizeof *v);
    for (int i = 0; i < n; i++) {
        const int32_t a = bits[i] & 0x7fffffff;
        most = a > most ? a : most;
    }
    return most;
#endif
}

// How each half of 32 values is rounded: q = v * inverse, rounded to nearest even, + shift.
typedef struct msgl_int8_rounding {
    float inverse[2];
    int32_t shift[2];
} msgl_int8_rounding;

// All q are within int8.
MSGL_INLINE void msgl__int8_round(const float *v, const msgl_int8_rounding *by, int8_t *q)
{
#if defined(__AVX512F__)
    for (int i = 0; i < 2; i++) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(v + 16 * i), _mm512_set1_ps(by->inverse[i]));
        const __m512i n = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(by->shift[i]));
        _mm_storeu_si128((__m128i *)(q + 16 * i), _mm512_cvtepi32_epi8(n));
    }
#elif defined(__AVX2__)
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); // of what packing interleaves
    __m256i n[4];
    for (int i = 0; i < 4; i++) {
        const __m256 inverse = _mm256_set1_ps(by->inverse[i / 2]);
        n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(v + 8 * i), inverse));
        n[i] = _mm256_add_epi32(n[i], _mm256_set1_epi32(by->shift[i / 2]));
    }
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(bytes, order));
#else
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    for (int i = 0; i < 32; i++) {
        const float shifted = v[i] * by->inverse[i / 16] + magic;
        int32_t bits, unit;
        memcpy(&bits, &shifted, sizeof bits);
        memcpy(&unit, &magic, sizeof unit);
        q[i] = (int8_t)(bits - unit + by->shift[i / 16]);
    }
#endif
}

// Quantises a group of n <= MSGL_INT8_GROUP values, a multiple of 32, as MSGL_WFORMAT_INT8 says,
// and returns the scale.
MSGL_INLINE float msgl__int8_quantize(const float *v, int8_t *q, const int n)
{
    const int32_t largest = msgl__int8_largest(v, n);
    float most;
    memcpy(&most, &largest, sizeof most);
    if (largest >= 0x7f800000 || most < 1e-30f) {
        memset(q, 0, (size_t)n);
        return largest >= 0x7f800000 ? __builtin_nanf("") : 0;
    }
    const msgl_int8_rounding by = {.inverse = {127 / most, 127 / most}};
    for (int i = 0; i < n; i += 32) msgl__int8_round(v + i, &by, q + i);
    return most / 127;
}

// Of n integers, a multiple of 16. Those + 128 are added up by vpsadbw, in two sums of 16.
MSGL_INLINE int32_t msgl__int8_sum(const int8_t *q, const int n)
{
    int32_t sum = 0;
#if defined(__F16C__)
    for (int i = 0; i < n; i += 16) {
        const __m128i some =
            _mm_xor_si128(_mm_loadu_si128((const __m128i *)(q + i)), _mm_set1_epi8((char)0x80));
        const __m128i sums = _mm_sad_epu8(some, _mm_setzero_si128());
        sum += _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 16 * 128;
    }
#else
    for (int i = 0; i < n; i++) sum += q[i];
#endif
    return sum;
}

// n elements of a source row from `at` on.
MSGL_INLINE void msgl__int8_source(const char *src, msgl_dtype dtype, int at, int n, float *v)
{
    const uint16_t *half = (const uint16_t *)src + at;
    int i = 0;
    if (dtype == MSGL_F32) {
        memcpy(v, (const float *)src + at, (size_t)n * sizeof *v);
    } else if (dtype == MSGL_BF16) {
        for (; i < n; i++) v[i] = msgl__bf16_to_f32(half[i]);
    } else {
#if defined(__F16C__)
        for (; i + 8 <= n; i += 8) {
            const __m128i eight = _mm_loadu_si128((const __m128i *)(half + i));
            _mm256_storeu_ps(v + i, _mm256_cvtph_ps(eight));
        }
#endif
        for (; i < n; i++) v[i] = msgl__f16_to_f32(half[i]);
    }
}

// msgl_gemm_pack_fn of int8.
MSGL_INLINE void msgl__int8_pack_panel(char *panel, int k, int lane, int rows, const char *src,
                                       msgl_dtype src_dtype, size_t ld_src)
{
    const size_t row_bytes = ld_src * msgl__dtype_size(src_dtype);
    for (int at = 0; at < k; at += MSGL_INT8_GROUP, panel += MSGL_INT8_PANEL_GROUP) {
        const int n = k - at < MSGL_INT8_GROUP ? k - at : MSGL_INT8_GROUP;
        for (int r = 0; r < rows; r++) {
            float v[MSGL_INT8_GROUP] = {0}, scale;
            int8_t q[MSGL_INT8_GROUP];
            msgl__int8_source(src + (size_t)r * row_bytes, src_dtype, at, n, v);
            scale = msgl__int8_quantize(v, q, MSGL_INT8_GROUP);
            for (int i = 0; i < MSGL_INT8_GROUP; i++)
                q[i] = (int8_t)(q[i] ^ -128); // + 128, unsigned
            for (int i = 0; i < MSGL_INT8_GROUP; i += 4) {
                memcpy(panel + msgl__int8_at(lane + r, i), q + i, 4);
            }
            memcpy(panel + MSGL_INT8_VALUES + (size_t)(lane + r) * sizeof scale, &scale,
                   sizeof scale);
        }
    }
}

// msgl_gemm_micro.prepare of int8: heads, then the integers as they are, or, if `wide`, as 16 bits:
// of every four the first and third, then the second and fourth.
MSGL_INLINE void msgl__int8_prepare(const float *in, size_t ld_in, int rows, int k, char *a,
                                    size_t row_bytes, const bool wide)
{
    for (int r = 0; r < rows; r++, a += row_bytes, in += ld_in) {
        char *to = a + msgl__int8_heads_bytes(k);
        msgl_int8_head *head = (msgl_int8_head *)a;
        for (int at = 0; at < k; at += MSGL_INT8_GROUP, head++) {
            const float *v = in + at;
            float last[MSGL_INT8_GROUP] = {0};
            int8_t q[MSGL_INT8_GROUP];
            if (k - at < MSGL_INT8_GROUP) v = memcpy(last, v, (size_t)(k - at) * sizeof *v);
            head->scale = msgl__int8_quantize(v, q, MSGL_INT8_GROUP);
            head->start = -128 * msgl__int8_sum(q, MSGL_INT8_GROUP);
            if (wide) {
                for (int i = 0; i < MSGL_INT8_GROUP; i += 4, to += 8) {
                    const int16_t four[4] = {q[i], q[i + 2], q[i + 1], q[i + 3]};
                    memcpy(to, four, sizeof four);
                }
            } else {
                memcpy(to, q, sizeof q);
                to += sizeof q;
            }
        }
    }
}

// msgl_gemm_micro.row_bytes, of rows with integers of `size` bytes.
static inline size_t msgl__int8_row_bytes(int kpad, size_t size)
{
    return msgl__int8_heads_bytes(kpad) + (size_t)kpad * size + 64;
}
size_t msgl__int8_row_bytes_8(int kpad);
size_t msgl__int8_row_bytes_16(int kpad);

#endif
