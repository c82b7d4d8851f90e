// SPDX-License-Identifier: Apache-2.0
//
// Unsigned integers in the order of floats, for maxima and radix selection.
#ifndef MSGL_CUDA_OPS_ORDERED_CUH
#define MSGL_CUDA_OPS_ORDERED_CUH

#include <stdint.h>

// -0 and 0 are one. Every number and infinity gives more than 0.
static __device__ __forceinline__ uint32_t ordered(float v)
{
    const uint32_t u = __float_as_uint(v + 0.0f);
    return u ^ ((u >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

static __device__ __forceinline__ float from_ordered(uint32_t u)
{
    return __uint_as_float(u ^ ((u >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

#endif
