// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/codes_sm90/kernel.cuh"

bool msgl__codes_sm90_8(msgl_exec *x, const codes_launch_args *a)
{
    if (a->l.span == 32) return codes_launch_form<codes_form<8, 32, CODES_ONE>>(x, *a);
    if (a->l.span == 64) return codes_launch_form<codes_form<8, 64, CODES_ONE>>(x, *a);
    return codes_launch_form<codes_form<8, 128, CODES_ONE>>(x, *a);
}
