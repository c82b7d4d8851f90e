// SPDX-License-Identifier: Apache-2.0
//
// Instead of src/cuda/ptx/math.cuh.
#ifndef MSGL_KERNEL_CUDA_PTX_MATH_CUH
#define MSGL_KERNEL_CUDA_PTX_MATH_CUH

#include "emulator.h"

static inline float msgl__exp2(float x)
{
    return exp2f(x);
}

static inline float msgl__rcp(float x)
{
    return 1 / x;
}

#endif
