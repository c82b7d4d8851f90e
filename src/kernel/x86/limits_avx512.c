// SPDX-License-Identifier: Apache-2.0
#include "kernel/limits_internal.h"

#include <immintrin.h>

#define NAME msgl__limits_f32_avx512
#define VECTOR __m512
#define REG "v"
#define OPERAND _mm512_set1_ps(0.5f)
#define STEP(sum, x) _mm512_fmadd_ps(x, x, sum)
#define OPERATIONS (16 * 2)
#include "kernel/x86/limits_loop.inc"
