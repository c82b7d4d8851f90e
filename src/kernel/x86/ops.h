// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_KERNEL_X86_OPS_H
#define MSGL_KERNEL_X86_OPS_H

#include "kernel/kernel.h"

void msgl__ops_fill_avx2(msgl_kernels *k);
void msgl__ops_fill_avx512(msgl_kernels *k);

#endif
