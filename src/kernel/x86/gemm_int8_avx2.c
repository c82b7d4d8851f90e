// SPDX-License-Identifier: Apache-2.0
//
// int8 weights at level AVX2: the bytes of a line are taken apart into 16 bits, of which vpmaddwd
// multiplies and adds pairs without saturating (vpmaddubsw would).
#include "kernel/x86/gemm.h"

#include <assert.h>

typedef struct pair {
    __m256 lo, hi; // features 0-7, 8-15
} pair;
typedef struct ipair {
    __m256i lo, hi;
} ipair;
typedef pair acc;
typedef ipair isum, wvec;
typedef __m256i xval;

// As in gemm_avx2.c.
#define MSGL_T_ROWS_1 6
#define MSGL_T_ROWS_2 2
#define MSGL_T_ROWS_4 1
#define MSGL_T_SHAPES(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(1, 2) X(2, 2) X(1, 4)

MSGL_INLINE isum start(const char *head)
{
    const __m256i v = _mm256_set1_epi32(((const msgl_int8_head *)head)->start);
    return (ipair){v, v};
}
MSGL_INLINE xval broadcast(const char *a, int sub)
{
    int32_t two;
    memcpy(&two, a + 4 * sub, sizeof two);
    return _mm256_set1_epi32(two);
}
MSGL_INLINE __m256i half(const char *p, int sub)
{
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)p);
    return sub == 0 ? _mm256_and_si256(bytes, _mm256_set1_epi16(0xff))
                    : _mm256_srli_epi16(bytes, 8);
}
MSGL_INLINE wvec load_int8(const char *line, int sub)
{
    return (ipair){half(line, sub), half(line + 32, sub)};
}
MSGL_INLINE isum madd(isum sum, wvec w, xval x)
{
    return (ipair){_mm256_add_epi32(sum.lo, _mm256_madd_epi16(w.lo, x)),
                   _mm256_add_epi32(sum.hi, _mm256_madd_epi16(w.hi, x))};
}
MSGL_INLINE acc load(const float *p)
{
    return (pair){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
MSGL_INLINE void store(float *out, acc sum)
{
    _mm256_storeu_ps(out, sum.lo);
    _mm256_storeu_ps(out + 8, sum.hi);
}
MSGL_INLINE void add(float *out, acc sum)
{
    _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), sum.lo));
    _mm256_storeu_ps(out + 8, _mm256_add_ps(_mm256_loadu_ps(out + 8), sum.hi));
}
MSGL_INLINE void fold(float *sum, isum i, acc scales, const char *head)
{
    const __m256 s = _mm256_set1_ps(((const msgl_int8_head *)head)->scale);
    const acc before = load(sum);
    store(
        sum,
        (pair){_mm256_fmadd_ps(_mm256_cvtepi32_ps(i.lo), _mm256_mul_ps(scales.lo, s), before.lo),
               _mm256_fmadd_ps(_mm256_cvtepi32_ps(i.hi), _mm256_mul_ps(scales.hi, s), before.hi)});
}
#define MSGL_T(name) int8_##name
#define MSGL_T_LOAD_W load_int8
#define MSGL_T_SUBS 2
#define MSGL_T_LINE 64
#define MSGL_T_K 4
#define MSGL_T_A 8
#define MSGL_T_GATED 0
#define MSGL_T_GROUP (MSGL_INT8_GROUP / 4)
#include "kernel/x86/gemm_avx.inc"

void msgl__int8_prepare_avx2(const float *in, size_t ld_in, int rows, int k, char *a,
                             size_t row_bytes)
{
    msgl__int8_prepare(in, ld_in, rows, k, a, row_bytes, true);
}

void msgl__int8_block_avx2(const msgl_gemm_block *b)
{
    int8_block(b);
}
