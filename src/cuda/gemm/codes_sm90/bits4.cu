// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/codes_sm90/kernel.cuh"

bool msgl__codes_sm90_4(msgl_exec *x, const codes_launch_args *a)
{
    const msgl_codes_row *l = &a->l;
    if (l->looked_up) {
        return l->span == 16 ? codes_launch_form<codes_form<4, 16, CODES_BYTE>>(x, *a)
                             : codes_launch_form<codes_form<4, 32, CODES_BYTE>>(x, *a);
    }
    if (l->scaling == MSGL_SCALING_U8) return codes_launch_form<codes_form<4, 32, CODES_U8>>(x, *a);
    const bool offset = l->offset == MSGL_OFFSET_MIN || l->offset == MSGL_OFFSET_FLOAT;
    if (offset && l->span == 32) return codes_launch_form<codes_form<4, 32, CODES_MIN>>(x, *a);
    if (offset && l->span == 64) return codes_launch_form<codes_form<4, 64, CODES_MIN>>(x, *a);
    if (offset) return codes_launch_form<codes_form<4, 128, CODES_MIN>>(x, *a);
    if (l->span == 32) return codes_launch_form<codes_form<4, 32, CODES_ONE>>(x, *a);
    if (l->span == 64) return codes_launch_form<codes_form<4, 64, CODES_ONE>>(x, *a);
    return codes_launch_form<codes_form<4, 128, CODES_ONE>>(x, *a);
}
