// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/codes_sm90/kernel.cuh"

bool msgl__codes_sm90_6(msgl_exec *x, const codes_launch_args *a)
{
    return codes_launch_form<codes_form<6, 16, CODES_I8>>(x, *a);
}
