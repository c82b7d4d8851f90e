// SPDX-License-Identifier: Apache-2.0
//
// Words of two 16-bit floats: logic on their bits, and arithmetic (sm_80).
#ifndef MSGL_CUDA_PTX_PAIRS_CUH
#define MSGL_CUDA_PTX_PAIRS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// (a & MASK) | b as one operation; of C's two the compiler makes two where b is known to it.
template <uint32_t MASK>
static __device__ __forceinline__ uint32_t msgl__mask_or(uint32_t a, uint32_t b)
{
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(a), "n"(MASK), "r"(b));
    return v;
}

// (a & MASK) ^ b.
template <uint32_t MASK>
static __device__ __forceinline__ uint32_t msgl__mask_xor(uint32_t a, uint32_t b)
{
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(v) : "r"(a), "n"(MASK), "r"(b));
    return v;
}

static __device__ __forceinline__ uint32_t msgl__subtract_two(uint32_t a, uint32_t b, __nv_bfloat16)
{
    const __nv_bfloat162 v = __hsub2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    return *(const uint32_t *)&v;
}

static __device__ __forceinline__ uint32_t msgl__subtract_two(uint32_t a, uint32_t b, __half)
{
    const __half2 v = __hsub2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&v;
}

// Subnormal numbers count.
static __device__ __forceinline__ uint32_t msgl__multiply_two(uint32_t a, uint32_t b, __nv_bfloat16)
{
    const __nv_bfloat162 v = __hmul2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    return *(const uint32_t *)&v;
}

static __device__ __forceinline__ uint32_t msgl__multiply_two(uint32_t a, uint32_t b, __half)
{
    const __half2 v = __hmul2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&v;
}

#endif
