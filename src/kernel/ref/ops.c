// SPDX-License-Identifier: Apache-2.0
//
// The reference build of the elementwise families, and the selection by level.
#define MSGL_OPS_NAME(base) base##ref
#include "kernel/ref/ops.inc"
#include "kernel/x86/ops.h"

void msgl__moe_fill_ref(msgl_kernels *k);

void msgl__ops_init(msgl_kernels *k, msgl_cpu_level level)
{
    msgl__ops_fill_ref(k);
    msgl__moe_fill_ref(k);
    (void)level;
#if defined(__x86_64__)
    if (level >= MSGL_CPU_AVX2) msgl__ops_fill_avx2(k);
    if (level >= MSGL_CPU_AVX512) msgl__ops_fill_avx512(k);
#endif
}
