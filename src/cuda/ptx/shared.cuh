// SPDX-License-Identifier: Apache-2.0
//
// Shared memory by its 32-bit addresses, which is how the instructions of these headers take it.
// One name for one thing: kernels call these and have no inline assembly for what stands here.
#ifndef MSGL_CUDA_PTX_SHARED_CUH
#define MSGL_CUDA_PTX_SHARED_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t msgl__shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// T: float, float2, float4, or unsigned of 1, 2, 4, 8 or 16 bytes; the address is a multiple of its
// size.
template <typename T> static __device__ __forceinline__ T msgl__read_shared(uint32_t address);

template <> __device__ __forceinline__ float msgl__read_shared<float>(uint32_t address)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}

template <> __device__ __forceinline__ float2 msgl__read_shared<float2>(uint32_t address)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(v.x), "=f"(v.y)
                 : "r"(address)
                 : "memory");
    return v;
}

template <> __device__ __forceinline__ float4 msgl__read_shared<float4>(uint32_t address)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

template <> __device__ __forceinline__ uint8_t msgl__read_shared<uint8_t>(uint32_t address)
{
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return (uint8_t)v;
}

template <> __device__ __forceinline__ uint16_t msgl__read_shared<uint16_t>(uint32_t address)
{
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
    return v;
}

template <> __device__ __forceinline__ uint32_t msgl__read_shared<uint32_t>(uint32_t address)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}

template <> __device__ __forceinline__ uint2 msgl__read_shared<uint2>(uint32_t address)
{
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "r"(address)
                 : "memory");
    return v;
}

template <> __device__ __forceinline__ uint4 msgl__read_shared<uint4>(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void msgl__write_shared(uint32_t address, float v)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

static __device__ __forceinline__ void msgl__write_shared(uint32_t address, float2 v)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}

static __device__ __forceinline__ void msgl__write_shared(uint32_t address, float4 v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y),
                 "f"(v.z), "f"(v.w)
                 : "memory");
}

static __device__ __forceinline__ void msgl__write_shared(uint32_t address, uint32_t v)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

static __device__ __forceinline__ void msgl__write_shared(uint32_t address, uint2 v)
{
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}

static __device__ __forceinline__ void msgl__write_shared(uint32_t address, uint4 v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

#endif
