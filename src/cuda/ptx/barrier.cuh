// SPDX-License-Identifier: Apache-2.0
//
// Barriers of a block. mbarrier: an object in shared memory that counts arrivals, and bytes of
// asynchronous copies, in phases (sm_90). named_barrier: one of the block's sixteen, for some of
// its warps. Those of a cluster are in cluster.cuh.
#ifndef MSGL_CUDA_PTX_BARRIER_CUH
#define MSGL_CUDA_PTX_BARRIER_CUH

#include <stdint.h>

#include "cuda/ptx/cluster.cuh"

static __device__ __forceinline__ void msgl__mbarrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

// Behind the last init, by the thread that did it: all of the cluster, and copies, find them.
static __device__ __forceinline__ void msgl__mbarrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void msgl__mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the same barrier of block `rank` of the cluster: it may fill what this thread's
// products have read. (With .release.cluster this would wait for all memory operations of the
// thread.)
static __device__ __forceinline__ void msgl__mbarrier_arrive_at(uint32_t barrier, uint32_t rank)
{
    const uint32_t remote = msgl__cluster_address(barrier, rank);
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}

// Arrives, and announces `bytes` of copies that complete on this barrier.
static __device__ __forceinline__ void msgl__mbarrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Until the phase of this parity is over. NS: how long a thread may sleep at a time; 0: as long as
// the hardware likes.
template <uint32_t NS = 0>
static __device__ __forceinline__ void msgl__mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    if constexpr (NS == 0) {
        asm volatile("{\n.reg .pred p;\nWAIT%=:\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                     "@p bra DONE%=;\nbra WAIT%=;\nDONE%=:\n}\n" ::"r"(barrier),
                     "r"(parity)
                     : "memory");
    } else {
        asm volatile("{\n.reg .pred p;\nWAIT%=:\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, %2;\n"
                     "@p bra DONE%=;\nbra WAIT%=;\nDONE%=:\n}\n" ::"r"(barrier),
                     "r"(parity), "n"(NS)
                     : "memory");
    }
}

// Whether it is over, after waiting a little.
static __device__ __forceinline__ bool msgl__mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

// Until `threads` threads, whole warps, have come to barrier `id` of the block. 0 is __syncthreads.
static __device__ __forceinline__ void msgl__named_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same, all threads of which say something: whether any of them said true.
static __device__ __forceinline__ bool msgl__named_barrier_any(int id, int threads, bool said)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\n"
                 "setp.ne.u32 p, %3, 0;\n"
                 "bar.red.or.pred q, %1, %2, p;\n"
                 "selp.u32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"((uint32_t)said)
                 : "memory");
    return any != 0;
}

// Comes there and goes on.
static __device__ __forceinline__ void msgl__named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's ordinary accesses to shared memory before later ones by the asynchronous
// proxy: bulk and tensor copies, and warpgroups' products.
static __device__ __forceinline__ void msgl__fence_async_proxy(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
