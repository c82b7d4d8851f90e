// SPDX-License-Identifier: Apache-2.0
//
// What the products' kernels do to their sums before they store them.
#ifndef MSGL_CUDA_GEMM_EPILOGUE_CUH
#define MSGL_CUDA_GEMM_EPILOGUE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ int msgl__clamp_to(int v, int most)
{
    return v < 0 ? 0 : v < most ? v : most;
}

static __device__ __forceinline__ void msgl__store_pair(__nv_bfloat16 *p, float a, float b)
{
    *(__nv_bfloat162 *)p = __floats2bfloat162_rn(a, b);
}

static __device__ __forceinline__ void msgl__store_pair(__half *p, float a, float b)
{
    *(__half2 *)p = __floats2half2_rn(a, b);
}

static __device__ __forceinline__ float msgl__silu(float v)
{
    return __fdividef(v, 1.0f + __expf(-v)); // 0 where the exponential leaves the range
}

#endif
