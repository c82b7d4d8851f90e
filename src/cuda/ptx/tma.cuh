// SPDX-License-Identifier: Apache-2.0
//
// Bulk and tensor copies between global and shared memory (TMA, sm_90). Loads complete on an
// mbarrier that expects their bytes (barrier.cuh), stores by groups. tensor_map.cuh makes the maps.
#ifndef MSGL_CUDA_PTX_TMA_CUH
#define MSGL_CUDA_PTX_TMA_CUH

#include <cuda.h>
#include <stdint.h>

// bytes: a multiple of 16, as both addresses.
static __device__ __forceinline__ void msgl__bulk_load(uint32_t dst, const void *src,
                                                       uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(barrier)
                 : "memory");
}

// The other way; completes by groups, as tensor stores below do.
static __device__ __forceinline__ void msgl__bulk_store(void *dst, uint32_t src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
                 "r"(bytes)
                 : "memory");
}

// Fetches a tensor map, a kernel's parameter, ahead of its first use.
static __device__ __forceinline__ void msgl__tensor_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box at the given place of a map of as many dimensions, the innermost first.
static __device__ __forceinline__ void msgl__tensor_load(uint32_t dst, const CUtensorMap *map,
                                                         int x, int y, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void msgl__tensor_load(uint32_t dst, const CUtensorMap *map,
                                                         int x, int y, int z, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void msgl__tensor_load(uint32_t dst, const CUtensorMap *map,
                                                         int x, int y, int z, int u,
                                                         uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void msgl__tensor_load(uint32_t dst, const CUtensorMap *map,
                                                         int x, int y, int z, int u, int v,
                                                         uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(barrier)
                 : "memory");
}

// To the same place in every block of `mask`; completes on the same barrier in each.
static __device__ __forceinline__ void msgl__tensor_load_multicast(uint32_t dst,
                                                                   const CUtensorMap *map, int x,
                                                                   int y, uint32_t barrier,
                                                                   uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
                 : "memory");
}

// Of what is read once: it leaves the L2 before what is there for longer.
static __device__ __forceinline__ uint64_t msgl__read_once(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// With such a policy, into this block, or to the same place in every block of `mask`.
static __device__ __forceinline__ void msgl__tensor_load_by(uint64_t policy, uint32_t dst,
                                                            const CUtensorMap *map, int x, int y,
                                                            int z, int u, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(barrier), "l"(policy)
                 : "memory");
}

// What is at src was written before a msgl__fence_async_proxy.
static __device__ __forceinline__ void msgl__tensor_store(const CUtensorMap *map, uint32_t src,
                                                          int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(x), "r"(y), "r"(src)
        : "memory");
}

static __device__ __forceinline__ void msgl__tensor_store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until the committed stores but the last PENDING have read shared memory.
template <int PENDING> static __device__ __forceinline__ void msgl__tensor_store_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

static __device__ __forceinline__ void msgl__tensor_store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif
