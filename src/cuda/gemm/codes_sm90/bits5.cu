// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/codes_sm90/kernel.cuh"

bool msgl__codes_sm90_5(msgl_exec *x, const codes_launch_args *a)
{
    const msgl_codes_row *l = &a->l;
    const bool offset = l->offset == MSGL_OFFSET_MIN || l->offset == MSGL_OFFSET_FLOAT;
    if (l->scaling == MSGL_SCALING_U8) return codes_launch_form<codes_form<5, 32, CODES_U8>>(x, *a);
    if (offset) return codes_launch_form<codes_form<5, 32, CODES_MIN>>(x, *a);
    return codes_launch_form<codes_form<5, 32, CODES_ONE>>(x, *a);
}
