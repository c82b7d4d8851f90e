// SPDX-License-Identifier: Apache-2.0
#include "kernel/x86/init.h"

#include <immintrin.h>

#define NAME msgl__limits_int8_avx512vnni
#define VECTOR __m512i
#define REG "v"
#define OPERAND _mm512_set1_epi8(3)
#define STEP(sum, x) _mm512_dpbusd_epi32(sum, x, x)
#define OPERATIONS (64 * 2)
#include "kernel/x86/limits_loop.inc"
