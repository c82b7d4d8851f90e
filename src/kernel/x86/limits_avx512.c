// SPDX-License-Identifier: Apache-2.0
#include "kernel/x86/init.h"

#include <immintrin.h>

#define NAME msgl__limits_f32_avx512
#define VECTOR __m512
#define REG "v"
#define OPERAND _mm512_set1_ps(0.5f)
#define STEP(sum, x) _mm512_fmadd_ps(x, x, sum)
#define OPERATIONS (16 * 2)
#include "kernel/x86/limits_loop.inc"

// Pairs of 16 bits.
#define NAME msgl__limits_int8_avx512
#define VECTOR __m512i
#define REG "v"
#define OPERAND _mm512_set1_epi16(3)
#define STEP(sum, x) _mm512_add_epi32(sum, _mm512_madd_epi16(sum, x))
#define OPERATIONS (16 * 2 * 2)
#include "kernel/x86/limits_loop.inc"
