// SPDX-License-Identifier: Apache-2.0
#include "kernel/limits_internal.h"

#include <immintrin.h>

#define NAME msgl__limits_f32_avx512
#define VECTOR __m512
#define LANES 16
#define REG "v"
#define SET1 _mm512_set1_ps
#define FMADD _mm512_fmadd_ps
#include "kernel/x86/limits_fma.inc"
