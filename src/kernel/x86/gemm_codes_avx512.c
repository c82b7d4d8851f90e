// SPDX-License-Identifier: Apache-2.0
//
// Codes at level AVX-512: in 16 bits, of which vpmaddwd multiplies and adds pairs.
#include "kernel/x86/gemm.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

typedef __m512i ivec;
typedef struct wvec {
    __m512i even, odd; // of the bytes
} wvec;
enum { X_SIZE = 2 };

MSGL_INLINE wvec weights(ivec bytes)
{
    return (wvec){_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), _mm512_srai_epi16(bytes, 8)};
}
MSGL_INLINE ivec weight_sum(wvec w0, wvec w1, wvec w2, wvec w3, const int plain)
{
    (void)plain; // none are
    const __m512i even =
        _mm512_add_epi16(_mm512_add_epi16(w0.even, w1.even), _mm512_add_epi16(w2.even, w3.even));
    const __m512i odd =
        _mm512_add_epi16(_mm512_add_epi16(w0.odd, w1.odd), _mm512_add_epi16(w2.odd, w3.odd));
    return _mm512_madd_epi16(_mm512_add_epi16(even, odd), _mm512_set1_epi16(1));
}
MSGL_INLINE ivec offset(ivec weight_sum)
{
    (void)weight_sum;
    return _mm512_setzero_si512();
}
MSGL_INLINE ivec dot_step(ivec sum, wvec w, const char *x, const int step)
{
    int32_t even, odd;
    memcpy(&even, x + 8 * step, sizeof even);
    memcpy(&odd, x + 8 * step + 4, sizeof odd);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(w.even, _mm512_set1_epi32(even)));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w.odd, _mm512_set1_epi32(odd)));
}
#include "kernel/x86/gemm_codes_avx512.inc"

void msgl__codes_prepare_avx512(const float *in, size_t ld_in, int rows, int k, char *a,
                                size_t row_bytes)
{
    (void)row_bytes; // rows are interleaved
    msgl__codes_prepare(in, ld_in, rows, k, a, MSGL_CODES_WIDE);
}

void msgl__codes_block_avx512(const msgl_gemm_block *b)
{
    codes_block(b);
}
