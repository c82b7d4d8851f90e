// SPDX-License-Identifier: Apache-2.0
//
// From f32 to E4M3 with a scale, for kernels that make rows of fp8_rows.h.
#ifndef MSGL_CUDA_GEMM_FP8_ROWS_CUH
#define MSGL_CUDA_GEMM_FP8_ROWS_CUH

#include "cuda/ptx/e4m3.cuh"

// The scale of values of this largest magnitude, and what they are multiplied by.
static __device__ __forceinline__ float fp8_scale(float largest, float *by)
{
    const bool none = largest < 0x1p-100f; // not of a NaN
    *by = none ? 0 : __fdiv_rn(448.0f, largest);
    return none ? 0 : __fdiv_rn(largest, 448.0f);
}

// The larger magnitude; NaN if one is.
static __device__ __forceinline__ float fp8_larger(float largest, float v)
{
    v = fabsf(v);
    return v > largest || isnan(v) ? v : largest;
}

// Half a piece of codes_row.h: of columns c, c + 1, c + 8 and c + 9, c a multiple of 2 whose bit 3
// is 0. Columns 34, 35, 42 and 43 are bytes 8 to 11 of the second 32.
static __device__ __forceinline__ uint32_t fp8_pack(float c0, float c1, float c8, float c9)
{
    return msgl__two_to_e4m3(c0, c8) | msgl__two_to_e4m3(c1, c9) << 16;
}

#endif
