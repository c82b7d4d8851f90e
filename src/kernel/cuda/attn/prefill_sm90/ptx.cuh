// SPDX-License-Identifier: Apache-2.0
//
// Hopper's asynchronous copies and barriers, one instruction per helper. Shared-memory addresses
// are 32-bit as __cvta_generic_to_shared gives them.
#ifndef MSGL_KERNEL_CUDA_ATTN_PREFILL_SM90_PTX_CUH
#define MSGL_KERNEL_CUDA_ATTN_PREFILL_SM90_PTX_CUH

#include <cuda.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t msgl__smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void msgl__mbar_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

static __device__ __forceinline__ void msgl__mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives and announces `bytes` of copies that complete on this barrier.
static __device__ __forceinline__ void msgl__mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

// Returns once the barrier's phase with this parity is over.
static __device__ __forceinline__ void msgl__mbar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void msgl__mbar_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders this thread's earlier shared-memory stores before later reads by WGMMA and TMA.
static __device__ __forceinline__ void msgl__async_proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void msgl__bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int N> static __device__ __forceinline__ void msgl__more_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void msgl__fewer_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Box at (c0, c1, c2) of a 3-D tensor map to shared memory, completing on `bar`.
static __device__ __forceinline__ void msgl__tma_load(uint32_t dst, const CUtensorMap *map,
                                                      uint32_t bar, int c0, int c1, int c2)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}

static __device__ __forceinline__ void msgl__tma_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// 16 bytes global to shared, zeros if !valid (src is then not read).
static __device__ __forceinline__ void msgl__cp_async16(uint32_t dst, const void *src, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

// Arrives when this thread's copies so far are complete; the barrier's count includes it.
static __device__ __forceinline__ void msgl__cp_async_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}

static __device__ __forceinline__ void msgl__cp_async_wait_all(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lane i names row i % 8 of matrix i / 8.
static __device__ __forceinline__ void msgl__ldmatrix(uint32_t (&a)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void msgl__store16(void *to, const uint32_t (&x)[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

static __device__ __forceinline__ float msgl__exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float msgl__rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
