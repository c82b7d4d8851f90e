// SPDX-License-Identifier: Apache-2.0
//
// What the AVX-512 levels of family attn share: exp2, tanh, folding. Only static inline functions:
// each file that includes this is compiled for its own level.
#ifndef MSGL_KERNEL_X86_ATTN_AVX512_H
#define MSGL_KERNEL_X86_ATTN_AVX512_H

#include <immintrin.h>
#include <math.h>

#include "core/attributes.h"
#include "kernel/attn_internal.h"
#include "kernel/x86/attn_exp2.h"

// 2^x within 1 ulp; 0 below -126 (also for -inf), NaN for NaN. See attn_exp2.h.
MSGL_INLINE __m512 msgl__exp2_avx512(__m512 x)
{
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, n);
    __m512 g = _mm512_fmadd_ps(_mm512_set1_ps(MSGL_EXP2_C5), r, _mm512_set1_ps(MSGL_EXP2_C4));
    g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(MSGL_EXP2_C3));
    g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(MSGL_EXP2_C2));
    g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(MSGL_EXP2_C1));
    g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(MSGL_EXP2_C0));
    g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(1));
    const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(keep, g, n);
}

// tanh(x) = 1 - 2 / (e^2x + 1); the absolute error stays below 2e-7, which is what the soft cap
// multiplies.
MSGL_INLINE __m512 msgl__tanh_avx512(__m512 x)
{
    const __m512 e = msgl__exp2_avx512(
        _mm512_mul_ps(_mm512_min_ps(_mm512_set1_ps(40), x), _mm512_set1_ps((float)(2 * M_LOG2E))));
    const __m512 one = _mm512_set1_ps(1);
    return _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), _mm512_add_ps(e, one)));
}

// Capped scores in base 2: log2(e) * cap * tanh(s * scale / cap).
MSGL_INLINE __m512 msgl__softcap_avx512(__m512 s, float scale, float cap)
{
    return _mm512_mul_ps(msgl__tanh_avx512(_mm512_mul_ps(s, _mm512_set1_ps(scale / cap))),
                         _mm512_set1_ps(cap * (float)M_LOG2E));
}

// Rows of (M, L, O) and (m, l, o): see attn.h. 16 rows' factors at a time.
static MSGL_UNUSED void msgl__fold_avx512(int n, int padded_dim, float *M, float *L, float *O,
                                          const float *m, const float *l, const float *o)
{
    for (int at = 0; at < n; at += 16) {
        const int rows = n - at < 16 ? n - at : 16;
        const __mmask16 k = (__mmask16)((1u << rows) - 1);
        const __m512 old = _mm512_maskz_loadu_ps(k, M + at),
                     part = _mm512_maskz_loadu_ps(k, m + at);
        // max_ps returns its second operand when one is NaN: a NaN part stays, an old NaN is in L.
        const __m512 top = _mm512_max_ps(old, part);
        // -inf - -inf: nothing seen so far. The guard makes both factors 0 and leaves zeros.
        const __mmask16 none = _mm512_cmp_ps_mask(top, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ);
        const __m512 base = _mm512_mask_blend_ps(none, top, _mm512_setzero_ps());
        const __m512 a = msgl__exp2_avx512(_mm512_sub_ps(old, base));
        const __m512 b = msgl__exp2_avx512(_mm512_sub_ps(part, base));
        const __m512 sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(k, L + at), a,
                                           _mm512_mul_ps(_mm512_maskz_loadu_ps(k, l + at), b));
        _mm512_mask_storeu_ps(M + at, k, top);
        _mm512_mask_storeu_ps(L + at, k, sum);
        float fa[16], fb[16];
        _mm512_storeu_ps(fa, a);
        _mm512_storeu_ps(fb, b);
        for (int i = 0; i < rows; i++) {
            const __m512 va = _mm512_set1_ps(fa[i]), vb = _mm512_set1_ps(fb[i]);
            float *to = O + (size_t)(at + i) * (size_t)padded_dim;
            const float *from = o + (size_t)(at + i) * (size_t)padded_dim;
            for (int d = 0; d < padded_dim; d += 16) {
                const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(from + d), vb);
                _mm512_storeu_ps(to + d, _mm512_fmadd_ps(_mm512_loadu_ps(to + d), va, x));
            }
        }
    }
}

// bf16 by integer rounding: the instruction would flush subnormals.
MSGL_INLINE __m256i msgl__to_bf16_avx512(__m512 x)
{
    const __m512i u = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(u, 16), one);
    const __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_epi32(u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, up, quiet), 16));
}

// Columns in the order that unpacking pairs of rows within 128-bit lanes leaves: of 32, first 0-3,
// 8-11, 16-19, 24-27, then the rest.
static MSGL_UNUSED void msgl__write_unpacked_avx512(int head_dim, const float *o, float f,
                                                    float *out)
{
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const __m512 vf = _mm512_set1_ps(f);
    for (int d = 0; d < head_dim; d += 32) {
        const int left = head_dim - d;
        const uint32_t mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
        const __m512 a = _mm512_mul_ps(_mm512_loadu_ps(o + d), vf);
        const __m512 b = _mm512_mul_ps(_mm512_loadu_ps(o + d + 16), vf);
        _mm512_mask_storeu_ps(out + d, (__mmask16)mask, _mm512_permutex2var_ps(a, first, b));
        _mm512_mask_storeu_ps(out + d + 16, (__mmask16)(mask >> 16),
                              _mm512_permutex2var_ps(a, second, b));
    }
}

#endif
