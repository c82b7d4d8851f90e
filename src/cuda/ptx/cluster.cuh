// SPDX-License-Identifier: Apache-2.0
//
// Blocks of a cluster (sm_90): who they are, where they meet, and each other's shared memory.
#ifndef MSGL_CUDA_PTX_CLUSTER_CUH
#define MSGL_CUDA_PTX_CLUSTER_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t msgl__cluster_rank(void)
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

static __device__ __forceinline__ uint32_t msgl__cluster_size(void)
{
    uint32_t n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}

// Only that all have come here: nothing is said about their memory operations, and nothing waited
// for.
static __device__ __forceinline__ void msgl__cluster_meet(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

// The same in two: what lies between them does not wait.
static __device__ __forceinline__ void msgl__cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// As the first of the two: and what this thread did to others' shared memory is done.
static __device__ __forceinline__ void msgl__cluster_arrive_done(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

static __device__ __forceinline__ void msgl__cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// All have come here, and what they did to each other's shared memory is done.
static __device__ __forceinline__ void msgl__cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// Where `address` of this block's shared memory is in block `rank` of the cluster.
static __device__ __forceinline__ uint32_t msgl__cluster_address(uint32_t address, uint32_t rank)
{
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

// The same as a pointer.
template <typename T> static __device__ __forceinline__ T *msgl__cluster_pointer(T *p, int rank)
{
    uint64_t remote;
    asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(p), "r"(rank));
    return (T *)remote;
}

// What is at `remote`, an address of msgl__cluster_address.
static __device__ __forceinline__ float2 msgl__cluster_read_8(uint32_t remote)
{
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(v.x), "=f"(v.y)
                 : "r"(remote)
                 : "memory");
    return v;
}

// bytes (a multiple of 16) to another block's shared memory; completes on a barrier there.
static __device__ __forceinline__ void msgl__cluster_copy(uint32_t remote, uint32_t src,
                                                          uint32_t bytes, uint32_t remote_barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(remote),
                 "r"(src), "r"(bytes), "r"(remote_barrier)
                 : "memory");
}

// A value, in the same way.
static __device__ __forceinline__ void msgl__cluster_store(uint32_t remote, float v,
                                                           uint32_t remote_barrier)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(remote),
        "f"(v), "r"(remote_barrier)
        : "memory");
}

static __device__ __forceinline__ void msgl__cluster_store(uint32_t remote, float4 v,
                                                           uint32_t remote_barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(remote),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(remote_barrier)
                 : "memory");
}

static __device__ __forceinline__ void msgl__cluster_store(uint32_t remote, uint64_t v,
                                                           uint32_t remote_barrier)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(remote),
        "l"(v), "r"(remote_barrier)
        : "memory");
}

#endif
