// SPDX-License-Identifier: Apache-2.0
#include "kernel/x86/init.h"

#include <immintrin.h>

// Fourteen accumulators cover two units of latency 6.
double msgl__limits_bf16_avx512bf16(long loops)
{
    __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a;
    __m512 k = a, l = a, m = a, o = a;
    __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f00);
    __asm__ volatile("" : "+v"(x));
    for (long n = 0; n < loops; n++) {
        a = _mm512_dpbf16_ps(a, x, x);
        b = _mm512_dpbf16_ps(b, x, x);
        c = _mm512_dpbf16_ps(c, x, x);
        d = _mm512_dpbf16_ps(d, x, x);
        e = _mm512_dpbf16_ps(e, x, x);
        f = _mm512_dpbf16_ps(f, x, x);
        g = _mm512_dpbf16_ps(g, x, x);
        h = _mm512_dpbf16_ps(h, x, x);
        i = _mm512_dpbf16_ps(i, x, x);
        j = _mm512_dpbf16_ps(j, x, x);
        k = _mm512_dpbf16_ps(k, x, x);
        l = _mm512_dpbf16_ps(l, x, x);
        m = _mm512_dpbf16_ps(m, x, x);
        o = _mm512_dpbf16_ps(o, x, x);
        __asm__ volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e));
        __asm__ volatile("" : "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j));
        __asm__ volatile("" : "+v"(k), "+v"(l), "+v"(m), "+v"(o));
    }
    return 14 * 32 * 2;
}
