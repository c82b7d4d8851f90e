// SPDX-License-Identifier: Apache-2.0
//
// What an attention sink adds to a row's denominator (attention/attention.h has the formula).
#ifndef MSGL_CUDA_ATTN_SINK_CUH
#define MSGL_CUDA_ATTN_SINK_CUH

#include "cuda/ptx/math.cuh"

// z: the head's sink; m: the maximum of all the row's scores, in base 2. Far above m it is
// infinite, and the row zero as it should be.
static __device__ __forceinline__ float msgl__attn_sink(float z, float m)
{
    return msgl__exp2(z * 1.4426950408889634f - m);
}

#endif
