// SPDX-License-Identifier: Apache-2.0
//
// E4M3 (core/dtype.h) in registers: to f16, which has every value of it, and from f32. One
// instruction for two from sm_89 on, some more before.
#ifndef MSGL_CUDA_PTX_E4M3_CUH
#define MSGL_CUDA_PTX_E4M3_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

// Four, the first in the lowest byte, as two pairs of f16.
static __device__ __forceinline__ void msgl__e4m3_to_f16(uint32_t four, uint32_t pairs[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    // (The function below would shift: the instruction takes either half.)
    asm("{\n.reg .b16 lo, hi;\n"
        "mov.b32 {lo, hi}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, lo;\n"
        "cvt.rn.f16x2.e4m3x2 %1, hi;\n}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(four));
#else
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const __nv_fp8x2_storage_t two = (__nv_fp8x2_storage_t)(four >> (16 * i));
        const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3);
        pairs[i] = (uint32_t)h.y << 16 | h.x;
    }
#endif
}

static __device__ __forceinline__ uint4 msgl__eight_to_f16(uint32_t first, uint32_t second)
{
    uint32_t a[2], b[2];
    msgl__e4m3_to_f16(first, a);
    msgl__e4m3_to_f16(second, b);
    return make_uint4(a[0], a[1], b[0], b[1]);
}

static __device__ __forceinline__ uint32_t msgl__two_to_e4m3(float lo, float hi)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, __NV_E4M3);
}

// Rounds to nearest even; beyond 448 it saturates.
static __device__ __forceinline__ uint2 msgl__eight_to_e4m3(const float v[8])
{
    return make_uint2(msgl__two_to_e4m3(v[0], v[1]) | msgl__two_to_e4m3(v[2], v[3]) << 16,
                      msgl__two_to_e4m3(v[4], v[5]) | msgl__two_to_e4m3(v[6], v[7]) << 16);
}

// Of [key 0: a, b; key 1: a, b], pairs of f16 of a and of b: what a transposed matrix of 16-bit
// elements has of two keys' bytes.
static __device__ __forceinline__ void msgl__e4m3_to_f16_by_element(uint32_t v, uint32_t &a,
                                                                    uint32_t &b)
{
    uint32_t pairs[2];
    msgl__e4m3_to_f16(__byte_perm(v, 0, 0x3120), pairs);
    a = pairs[0], b = pairs[1];
}

// Queries as f16: what is beyond its range becomes its largest.
static __device__ __forceinline__ uint32_t msgl__bf16_to_f16(uint32_t two)
{
    const float lo = __uint_as_float(two << 16), hi = __uint_as_float(two & 0xffff0000u);
    const __half2 h =
        __floats2half2_rn(fminf(fmaxf(lo, -65504.f), 65504.f), fminf(fmaxf(hi, -65504.f), 65504.f));
    return *(const uint32_t *)&h;
}

#endif
