// SPDX-License-Identifier: Apache-2.0
#include "kernel/limits_internal.h"

#include <immintrin.h>

#define NAME msgl__limits_f32_avx2
#define VECTOR __m256
#define LANES 8
#define REG "x"
#define SET1 _mm256_set1_ps
#define FMADD _mm256_fmadd_ps
#include "kernel/x86/limits_fma.inc"
