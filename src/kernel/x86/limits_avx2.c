// SPDX-License-Identifier: Apache-2.0
#include "kernel/x86/init.h"

#include <immintrin.h>

#define NAME msgl__limits_f32_avx2
#define VECTOR __m256
#define REG "x"
#define OPERAND _mm256_set1_ps(0.5f)
#define STEP(sum, x) _mm256_fmadd_ps(x, x, sum)
#define OPERATIONS (8 * 2)
#include "kernel/x86/limits_loop.inc"

// Pairs of bytes, added up in 16 bits.
#define NAME msgl__limits_int8_avx2
#define VECTOR __m256i
#define REG "x"
#define OPERAND _mm256_set1_epi8(3)
#define STEP(sum, x) _mm256_add_epi16(sum, _mm256_maddubs_epi16(sum, x))
#define OPERATIONS (16 * 2 * 2)
#include "kernel/x86/limits_loop.inc"
