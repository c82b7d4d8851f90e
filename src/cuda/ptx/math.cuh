// SPDX-License-Identifier: Apache-2.0
//
// The special function unit's approximations.
#ifndef MSGL_CUDA_PTX_MATH_CUH
#define MSGL_CUDA_PTX_MATH_CUH

static __device__ __forceinline__ float msgl__exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float msgl__rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
