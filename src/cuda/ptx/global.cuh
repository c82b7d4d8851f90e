// SPDX-License-Identifier: Apache-2.0
//
// Words in global memory by which blocks tell each other something; _sys: also those of other GPUs.
#ifndef MSGL_CUDA_PTX_GLOBAL_CUH
#define MSGL_CUDA_PTX_GLOBAL_CUH

#include <stdint.h>

// Adds 1 and returns what was there; earlier writes of the CTA's barrier group are visible to who
// sees the sum, and theirs to this thread.
static __device__ __forceinline__ int32_t msgl__count(int32_t *p)
{
    int32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
    return before;
}

// Adds 1: who then sees the sum by msgl__load_acquire sees what this thread has written or seen
// before.
static __device__ __forceinline__ void msgl__count_release(int32_t *p)
{
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p) : "memory");
}

// Adds 1 and returns what was there, and says nothing about other memory.
static __device__ __forceinline__ int32_t msgl__count_relaxed(int32_t *p)
{
    int32_t before;
    asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
    return before;
}

// Who reads v by msgl__load_acquire sees what this thread has written or seen before.
static __device__ __forceinline__ void msgl__store_release(int32_t *p, int32_t v)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ int32_t msgl__load_acquire(const int32_t *p)
{
    int32_t v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// The word alone, past the L1; p may be shared memory of the cluster.
static __device__ __forceinline__ void msgl__store_relaxed(int32_t *p, int32_t v)
{
    asm volatile("st.relaxed.gpu.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ int4 msgl__load_relaxed_4(const int32_t *p)
{
    int4 v;
    asm volatile("ld.relaxed.gpu.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void msgl__store_release_sys(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ uint32_t msgl__load_acquire_sys(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// The word alone.
static __device__ __forceinline__ void msgl__store_relaxed_sys(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ uint32_t msgl__load_relaxed_sys(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// Two words, four, each for itself.
static __device__ __forceinline__ void msgl__store_relaxed_sys_2(uint2 *p, uint2 v)
{
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y)
                 : "memory");
}

static __device__ __forceinline__ uint2 msgl__load_relaxed_sys_2(const uint2 *p)
{
    uint2 v;
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void msgl__store_relaxed_sys_4(uint4 *p, uint4 v)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

static __device__ __forceinline__ uint4 msgl__load_relaxed_sys_4(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

// Between two looks at a word of another GPU's.
static __device__ __forceinline__ void msgl__polled(void)
{
}

#endif
