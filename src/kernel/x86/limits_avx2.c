// SPDX-License-Identifier: Apache-2.0
#include "kernel/limits_internal.h"

#include <immintrin.h>

// Ten accumulators cover two units of latency 4 to 5.
double msgl__limits_f32_avx2(long loops)
{
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a;
    __m256 x = _mm256_set1_ps(0.5f);
    __asm__ volatile("" : "+x"(x));
    for (long n = 0; n < loops; n++) {
        a = _mm256_fmadd_ps(x, x, a);
        b = _mm256_fmadd_ps(x, x, b);
        c = _mm256_fmadd_ps(x, x, c);
        d = _mm256_fmadd_ps(x, x, d);
        e = _mm256_fmadd_ps(x, x, e);
        f = _mm256_fmadd_ps(x, x, f);
        g = _mm256_fmadd_ps(x, x, g);
        h = _mm256_fmadd_ps(x, x, h);
        i = _mm256_fmadd_ps(x, x, i);
        j = _mm256_fmadd_ps(x, x, j);
        __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e));
        __asm__ volatile("" : "+x"(f), "+x"(g), "+x"(h), "+x"(i), "+x"(j));
    }
    return 10 * 8 * 2;
}

// Pairs of 16 bits, each product added to its sum.
double msgl__limits_int8_avx2(long loops)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a, e = a;
    __m256i f = a, g = a, h = a, i = a, j = a, x = _mm256_set1_epi16(3);
    __asm__ volatile("" : "+x"(x));
    for (long n = 0; n < loops; n++) {
        a = _mm256_add_epi32(a, _mm256_madd_epi16(a, x));
        b = _mm256_add_epi32(b, _mm256_madd_epi16(b, x));
        c = _mm256_add_epi32(c, _mm256_madd_epi16(c, x));
        d = _mm256_add_epi32(d, _mm256_madd_epi16(d, x));
        e = _mm256_add_epi32(e, _mm256_madd_epi16(e, x));
        f = _mm256_add_epi32(f, _mm256_madd_epi16(f, x));
        g = _mm256_add_epi32(g, _mm256_madd_epi16(g, x));
        h = _mm256_add_epi32(h, _mm256_madd_epi16(h, x));
        i = _mm256_add_epi32(i, _mm256_madd_epi16(i, x));
        j = _mm256_add_epi32(j, _mm256_madd_epi16(j, x));
        __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e));
        __asm__ volatile("" : "+x"(f), "+x"(g), "+x"(h), "+x"(i), "+x"(j));
    }
    return 10 * 8 * 2 * 2;
}
