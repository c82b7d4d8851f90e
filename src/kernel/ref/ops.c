// SPDX-License-Identifier: Apache-2.0
//
// The reference build of the elementwise families.
#define MSGL_OPS_NAME(base) base##ref
#include "kernel/ref/ops.inc"

#include "kernel/ladder.h"

void msgl__moe_fill_ref(msgl_kernels *k);

void msgl__ops_init_ref(msgl_kernels *k)
{
    msgl__ops_fill_ref(k);
    msgl__moe_fill_ref(k);
}
