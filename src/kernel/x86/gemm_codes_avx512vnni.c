// SPDX-License-Identifier: Apache-2.0
//
// Codes at level AVX-512-VNNI and above. vpdpbusd multiplies unsigned by signed bytes: activations
// are x + 128, so that a sum begins with -128 times the sum of the weights.
#include "kernel/x86/gemm.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

typedef __m512i ivec, wvec;
enum { X_SIZE = 1 };

MSGL_INLINE wvec weights(ivec bytes)
{
    return bytes;
}
MSGL_INLINE ivec weight_sum(wvec w0, wvec w1, wvec w2, wvec w3, const int plain)
{
    (void)plain; // none are
    const __m512i one = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    const __m512i some = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, one, w0), one, w1);
    const __m512i more = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, one, w2), one, w3);
    return _mm512_add_epi32(some, more);
}
MSGL_INLINE ivec offset(ivec weight_sum)
{
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(weight_sum, 7));
}
MSGL_INLINE ivec dot_step(ivec sum, wvec w, const char *x, const int step)
{
    int32_t four;
    memcpy(&four, x + 4 * step, sizeof four);
    return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(four), w);
}
#include "kernel/x86/gemm_codes_avx512.inc"

void msgl__codes_prepare_avx512vnni(const float *in, size_t ld_in, int rows, int k, char *a,
                                    size_t row_bytes)
{
    (void)row_bytes; // rows are interleaved
    msgl__codes_prepare(in, ld_in, rows, k, a, MSGL_CODES_UNSIGNED);
}

void msgl__codes_block_avx512vnni(const msgl_gemm_block *b)
{
    codes_block(b);
}
