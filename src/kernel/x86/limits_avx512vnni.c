// SPDX-License-Identifier: Apache-2.0
#include "kernel/limits_internal.h"

#include <immintrin.h>

// Ten accumulators cover two units of latency 5.
double msgl__limits_int8_avx512vnni(long loops)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a;
    __m512i j = a, x = _mm512_set1_epi8(3);
    __asm__ volatile("" : "+v"(x));
    for (long n = 0; n < loops; n++) {
        a = _mm512_dpbusd_epi32(a, x, x);
        b = _mm512_dpbusd_epi32(b, x, x);
        c = _mm512_dpbusd_epi32(c, x, x);
        d = _mm512_dpbusd_epi32(d, x, x);
        e = _mm512_dpbusd_epi32(e, x, x);
        f = _mm512_dpbusd_epi32(f, x, x);
        g = _mm512_dpbusd_epi32(g, x, x);
        h = _mm512_dpbusd_epi32(h, x, x);
        i = _mm512_dpbusd_epi32(i, x, x);
        j = _mm512_dpbusd_epi32(j, x, x);
        __asm__ volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e));
        __asm__ volatile("" : "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j));
    }
    return 10 * 64 * 2;
}
