// SPDX-License-Identifier: Apache-2.0
#include "kernel/kernel.h"

void msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level)
{
    *k = (msgl_kernels){.level = level};
    msgl__gemm_init(&k->gemm, level);
    msgl__attn_init(&k->attn, level);
    msgl__ops_init(k, level);
}
