// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/fp8_sm90/kernel.cuh"

bool msgl__fp8_sm90_many(msgl_exec *x, const fp8_launch_args *a)
{
    return a->slabs == 2 ? fp8_launch<fp8_shape<64, 2>>(x, *a)
                         : fp8_launch<fp8_shape<64, 1>>(x, *a);
}
