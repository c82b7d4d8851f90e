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
