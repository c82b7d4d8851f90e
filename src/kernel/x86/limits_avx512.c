// SPDX-License-Identifier: Apache-2.0
#include "kernel/limits_internal.h"

#include <immintrin.h>

double msgl__limits_f32_avx512(long loops)
{
    __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a;
    __m512 x = _mm512_set1_ps(0.5f);
    __asm__ volatile("" : "+v"(x));
    for (long n = 0; n < loops; n++) {
        a = _mm512_fmadd_ps(x, x, a);
        b = _mm512_fmadd_ps(x, x, b);
        c = _mm512_fmadd_ps(x, x, c);
        d = _mm512_fmadd_ps(x, x, d);
        e = _mm512_fmadd_ps(x, x, e);
        f = _mm512_fmadd_ps(x, x, f);
        g = _mm512_fmadd_ps(x, x, g);
        h = _mm512_fmadd_ps(x, x, h);
        i = _mm512_fmadd_ps(x, x, i);
        j = _mm512_fmadd_ps(x, x, j);
        __asm__ volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e));
        __asm__ volatile("" : "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j));
    }
    return 10 * 16 * 2;
}

// Pairs of 16 bits, each product added to its sum.
double msgl__limits_int8_avx512(long loops)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a, e = a;
    __m512i f = a, g = a, h = a, i = a, j = a, x = _mm512_set1_epi16(3);
    __asm__ volatile("" : "+v"(x));
    for (long n = 0; n < loops; n++) {
        a = _mm512_add_epi32(a, _mm512_madd_epi16(a, x));
        b = _mm512_add_epi32(b, _mm512_madd_epi16(b, x));
        c = _mm512_add_epi32(c, _mm512_madd_epi16(c, x));
        d = _mm512_add_epi32(d, _mm512_madd_epi16(d, x));
        e = _mm512_add_epi32(e, _mm512_madd_epi16(e, x));
        f = _mm512_add_epi32(f, _mm512_madd_epi16(f, x));
        g = _mm512_add_epi32(g, _mm512_madd_epi16(g, x));
        h = _mm512_add_epi32(h, _mm512_madd_epi16(h, x));
        i = _mm512_add_epi32(i, _mm512_madd_epi16(i, x));
        j = _mm512_add_epi32(j, _mm512_madd_epi16(j, x));
        __asm__ volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e));
        __asm__ volatile("" : "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j));
    }
    return 10 * 16 * 2 * 2;
}
