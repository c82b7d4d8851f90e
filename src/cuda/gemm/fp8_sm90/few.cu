// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/fp8_sm90/kernel.cuh"

bool msgl__fp8_sm90_few(msgl_exec *x, const fp8_launch_args *a)
{
    if (a->slabs == 2) {
        return a->tokens == 8    ? fp8_launch<fp8_shape<8, 2>>(x, *a)
               : a->tokens == 16 ? fp8_launch<fp8_shape<16, 2>>(x, *a)
                                 : fp8_launch<fp8_shape<32, 2>>(x, *a);
    }
    return a->tokens == 8    ? fp8_launch<fp8_shape<8, 1>>(x, *a)
           : a->tokens == 16 ? fp8_launch<fp8_shape<16, 1>>(x, *a)
                             : fp8_launch<fp8_shape<32, 1>>(x, *a);
}
