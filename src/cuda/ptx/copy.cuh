// SPDX-License-Identifier: Apache-2.0
//
// A thread's own asynchronous copies from global to shared memory (sm_80), reads of what is used
// once, and prefetches.
#ifndef MSGL_CUDA_PTX_COPY_CUH
#define MSGL_CUDA_PTX_COPY_CUH

#include <stdint.h>

// 16 bytes to shared memory; zeros, and src is not read, unless `there`.
static __device__ __forceinline__ void msgl__copy_async_16(uint32_t dst, const void *src,
                                                           bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(there ? 16 : 0)
                 : "memory");
}

// The same, and the L2 fetches 128 bytes: for what is read once from end to end.
static __device__ __forceinline__ void msgl__copy_async_16_line(uint32_t dst, const void *src,
                                                                bool there)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void msgl__copy_async_4(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

static __device__ __forceinline__ void msgl__copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most PENDING of this thread's newest groups are in flight.
template <int PENDING> static __device__ __forceinline__ void msgl__copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Until none of this thread's copies is in flight, of a group or not.
static __device__ __forceinline__ void msgl__copy_async_wait_all(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Arrives at an mbarrier when this thread's copies so far are complete; the barrier's count
// includes it. sm_90.
static __device__ __forceinline__ void msgl__copy_async_arrive(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// 16 bytes that nobody reads again soon. (Not .nc: such a load the compiler moves behind a wait for
// the kernel in front.)
static __device__ __forceinline__ uint4 msgl__read_once(const void *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void msgl__prefetch_l1(const void *p)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

static __device__ __forceinline__ void msgl__prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

#endif
