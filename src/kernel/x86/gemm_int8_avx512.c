// SPDX-License-Identifier: Apache-2.0
//
// int8 weights at level AVX-512: as at AVX2, in registers of twice the width.
#include "kernel/x86/gemm.h"
#include "kernel/vec.h"

#include <assert.h>

typedef __m512 acc;
typedef __m512i isum, wvec, xval;

MSGL_INLINE wvec load_int8(const char *line, int sub)
{
    const __m512i bytes = _mm512_loadu_si512(line);
    return sub == 0 ? _mm512_and_si512(bytes, _mm512_set1_epi16(0xff))
                    : _mm512_srli_epi16(bytes, 8);
}
MSGL_INLINE xval broadcast(const char *a, int sub)
{
    int32_t two;
    memcpy(&two, a + 4 * sub, sizeof two);
    return _mm512_set1_epi32(two);
}
MSGL_INLINE isum madd(isum sum, wvec w, xval x)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w, x));
}
#define MSGL_T_SUBS 2
#define MSGL_T_A 8
#include "kernel/x86/gemm_int8_avx512.inc"

void msgl__int8_prepare_avx512(const float *in, size_t ld_in, int rows, int k, char *a,
                               size_t row_bytes)
{
    msgl__int8_prepare(in, ld_in, rows, k, a, row_bytes, true);
}

void msgl__int8_block_avx512(const msgl_gemm_block *b)
{
    int8_block(b);
}
