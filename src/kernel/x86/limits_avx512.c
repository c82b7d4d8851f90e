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
