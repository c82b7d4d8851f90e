// SPDX-License-Identifier: Apache-2.0
//
// The parts of attn_rows.h that AVX-512 and AVX-512-BF16 share: transposing reduction, softmax of a
// row, f32 q.
#ifndef MSGL_KERNEL_X86_ATTN_AVX512_ROWS_H
#define MSGL_KERNEL_X86_ATTN_AVX512_ROWS_H

#include "kernel/x86/attn_avx512.h"
#include "kernel/x86/attn_rows.h"

// Lane j of the result: the sum of all lanes of a[SLOT(j)], added 8, 4, 2, 1 lanes apart.
#define SLOT(j) (((j) / 4 % 2 * 8 + (j) / 8 * 4) + ((j) % 4 == 1 ? 2 : (j) % 4 == 2 ? 1 : (j) % 4))
MSGL_INLINE __m512 reduce_16(const __m512 a[16])
{
    __m512 b[8], c[4], d[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 8], 0x44),
                             _mm512_shuffle_f32x4(a[i], a[i + 8], 0xee));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[i], b[i + 4], 0x88),
                             _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        d[i] = _mm512_add_ps(_mm512_shuffle_ps(c[i], c[i + 2], 0x44),
                             _mm512_shuffle_ps(c[i], c[i + 2], 0xee));
    }
    return _mm512_add_ps(_mm512_shuffle_ps(d[0], d[1], 0x88), _mm512_shuffle_ps(d[0], d[1], 0xdd));
}

// Lanes r * keys + k to s[row + r][key + k], for rows * keys = 16.
MSGL_INLINE void store_scores(rows_scratch *s, int row, int rows, int key, __m512 x)
{
    if (rows == 1) {
        _mm512_store_ps(&s->s[row][key], x);
    } else if (rows == 2) {
        _mm256_store_ps(&s->s[row][key], _mm512_castps512_ps256(x));
        _mm256_store_ps(&s->s[row + 1][key], _mm512_extractf32x8_ps(x, 1));
    } else {
        _mm_store_ps(&s->s[row][key], _mm512_castps512_ps128(x));
        _mm_store_ps(&s->s[row + 1][key], _mm512_extractf32x4_ps(x, 1));
        _mm_store_ps(&s->s[row + 2][key], _mm512_extractf32x4_ps(x, 2));
        _mm_store_ps(&s->s[row + 3][key], _mm512_extractf32x4_ps(x, 3));
    }
}

// Scores to base 2, those outside [lo, hi) to -inf; returns their maxima, lane by lane.
MSGL_INLINE __m512 rows_mask(float *p, const msgl__attn_keys *keys, int lo, int hi, int from,
                             int to)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    const __m512 factor = _mm512_set1_ps(keys->scale * (float)M_LOG2E);
    __m512 top = none;
    for (int key = from; key < to; key += 16) {
        const __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32(key));
        const __mmask16 in = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(lo)) &
                             _mm512_cmplt_epi32_mask(at, _mm512_set1_epi32(hi));
        __m512 x = _mm512_load_ps(p + key);
        x = keys->softcap > 0 ? msgl__softcap_avx512(x, keys->scale, keys->softcap)
                              : _mm512_mul_ps(x, factor);
        x = _mm512_mask_blend_ps(in, none, x);
        top = _mm512_max_ps(top, x);
        _mm512_store_ps(p + key, x);
    }
    return top;
}

// Scores of one row to probabilities. The sum is taken as 16 sums over keys equal mod 16.
MSGL_INLINE void rows_softmax(rows_scratch *s, const msgl__attn_keys *keys, int row, int lo, int hi,
                              int from, int to)
{
    float *p = s->s[row];
    const bool plain = lo <= from && hi >= to && keys->softcap <= 0; // nothing to mask
    __m512 top = _mm512_set1_ps(-INFINITY), factor = _mm512_set1_ps(1);
    if (plain) {
        factor = _mm512_set1_ps(keys->scale * (float)M_LOG2E);
        for (int key = from; key < to; key += 16) {
            top = _mm512_max_ps(top, _mm512_mul_ps(_mm512_load_ps(p + key), factor));
        }
    } else {
        top = rows_mask(p, keys, lo, hi, from, to);
    }
    const float m = _mm512_reduce_max_ps(top);
    const __m512 base = _mm512_set1_ps(m == -INFINITY ? 0 : m);
    __m512 sum = _mm512_setzero_ps();
    for (int key = from; key < to; key += 16) {
        const __m512 score = _mm512_mul_ps(_mm512_load_ps(p + key), factor);
        const __m512 x = msgl__exp2_avx512(_mm512_sub_ps(score, base));
        sum = _mm512_add_ps(sum, x);
        _mm512_store_ps(p + key, x);
    }
    s->m[row] = m;
    s->l[row] = _mm512_reduce_add_ps(sum);
}

#endif
