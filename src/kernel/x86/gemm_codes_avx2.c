// SPDX-License-Identifier: Apache-2.0
//
// Codes at level AVX2, eight features at a time. vpmaddubsw multiplies unsigned by signed bytes and
// adds pairs, saturating beyond 32,767; |x| <= 127. Plain codes are unsigned, and several pairs fit
// 16 bits: of 5 bits four steps' (31 * 127 * 2 * 4 is 31,496), of 6 bits two (32,004). Other
// weights are multiplied as |w|, with w's sign given to x, a step at a time.
#include "kernel/x86/gemm.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

typedef __m256i ivec, wvec;
typedef __m256 fvec;
enum { LANES = 8, X_SIZE = 1, PLAIN = 1 };

MSGL_INLINE wvec weights(ivec bytes)
{
    return bytes;
}
// Of plain codes four bytes fit one: 4 * 63 is 252.
MSGL_INLINE ivec weight_sum(wvec w0, wvec w1, wvec w2, wvec w3, const int plain)
{
    const __m256i one = _mm256_set1_epi8(1);
    __m256i pairs;
    if (plain > 0) {
        const __m256i four = _mm256_add_epi8(_mm256_add_epi8(w0, w1), _mm256_add_epi8(w2, w3));
        pairs = _mm256_maddubs_epi16(four, one);
    } else {
        pairs = _mm256_add_epi16(
            _mm256_add_epi16(_mm256_maddubs_epi16(one, w0), _mm256_maddubs_epi16(one, w1)),
            _mm256_add_epi16(_mm256_maddubs_epi16(one, w2), _mm256_maddubs_epi16(one, w3)));
    }
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
MSGL_INLINE ivec offset(ivec weight_sum)
{
    (void)weight_sum;
    return _mm256_setzero_si256();
}
MSGL_INLINE __m256i four_of(const char *x, const int step)
{
    int32_t four;
    memcpy(&four, x + 4 * step, sizeof four);
    return _mm256_set1_epi32(four);
}
MSGL_INLINE ivec dot_plain(ivec sum, wvec w0, wvec w1, wvec w2, wvec w3, const char *x,
                           const int step, const int bits)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i first = _mm256_add_epi16(_mm256_maddubs_epi16(w0, four_of(x, step)),
                                           _mm256_maddubs_epi16(w1, four_of(x, step + 1)));
    const __m256i second = _mm256_add_epi16(_mm256_maddubs_epi16(w2, four_of(x, step + 2)),
                                            _mm256_maddubs_epi16(w3, four_of(x, step + 3)));
    if (bits <= 5) {
        const __m256i all = _mm256_madd_epi16(_mm256_add_epi16(first, second), ones);
        return _mm256_add_epi32(sum, all);
    }
    return _mm256_add_epi32(_mm256_add_epi32(sum, _mm256_madd_epi16(first, ones)),
                            _mm256_madd_epi16(second, ones));
}
MSGL_INLINE ivec dot_signed(ivec sum, wvec w, const char *x, const int step)
{
    const __m256i signs = _mm256_sign_epi8(four_of(x, step), w);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), signs);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
MSGL_INLINE ivec dot(ivec sum, wvec w0, wvec w1, wvec w2, wvec w3, const char *x, const int step,
                     const int plain)
{
    if (plain > 0) return dot_plain(sum, w0, w1, w2, w3, x, step, plain);
    sum = dot_signed(dot_signed(sum, w0, x, step), w1, x, step + 1);
    return dot_signed(dot_signed(sum, w2, x, step + 2), w3, x, step + 3);
}
MSGL_INLINE ivec iload(const char *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
MSGL_INLINE ivec iadd(ivec a, ivec b)
{
    return _mm256_add_epi32(a, b);
}
MSGL_INLINE ivec splat8(char v)
{
    return _mm256_set1_epi8(v);
}
MSGL_INLINE ivec table8(const int8_t *values)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)values));
}
MSGL_INLINE ivec look_up8(ivec table, ivec codes)
{
    return _mm256_shuffle_epi8(table, codes);
}
MSGL_INLINE ivec and8(ivec v, const int mask)
{
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}
MSGL_INLINE ivec or8(ivec a, ivec b)
{
    return _mm256_or_si256(a, b);
}
MSGL_INLINE ivec sub8(ivec a, ivec b)
{
    return _mm256_sub_epi8(a, b);
}
MSGL_INLINE ivec left16(ivec v, const int bits)
{
    return bits == 0 ? v : _mm256_slli_epi16(v, bits);
}
MSGL_INLINE ivec right16(ivec v, const int bits)
{
    return bits == 0 ? v : _mm256_srli_epi16(v, bits);
}
MSGL_INLINE fvec fload(const float *p)
{
    return _mm256_loadu_ps(p);
}
MSGL_INLINE void fstore(float *p, fvec v)
{
    _mm256_storeu_ps(p, v);
}
MSGL_INLINE fvec splat(float v)
{
    return _mm256_set1_ps(v);
}
MSGL_INLINE fvec times(fvec a, fvec b)
{
    return _mm256_mul_ps(a, b);
}
MSGL_INLINE fvec madd(fvec a, fvec b, fvec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
MSGL_INLINE fvec to_floats(ivec v)
{
    return _mm256_cvtepi32_ps(v);
}
#include "kernel/x86/gemm_codes.inc"

void msgl__codes_prepare_avx2(const float *in, size_t ld_in, int rows, int k, char *a,
                              size_t row_bytes)
{
    (void)row_bytes; // rows are interleaved
    msgl__codes_prepare(in, ld_in, rows, k, a, MSGL_CODES_SIGNED);
}

void msgl__codes_block_avx2(const msgl_gemm_block *b)
{
    codes_block(b);
}
