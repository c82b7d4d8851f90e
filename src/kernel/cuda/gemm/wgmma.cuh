// SPDX-License-Identifier: Apache-2.0
//
// Hopper's own instructions as far as the kernels of *_sm90.cu need them: warpgroup products, bulk
// tensor copies with multicast, and the barriers that these complete on.
#ifndef MSGL_KERNEL_CUDA_GEMM_WGMMA_CUH
#define MSGL_KERNEL_CUDA_GEMM_WGMMA_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernel/cuda/ptx.cuh"

// Names of the sums' registers in the instruction's text.
#define MSGL_ACC_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MSGL_ACC_NAMES_24 MSGL_ACC_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MSGL_ACC_NAMES_32 MSGL_ACC_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define MSGL_ACC_NAMES_40 MSGL_ACC_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MSGL_ACC_NAMES_48 MSGL_ACC_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MSGL_ACC_NAMES_56 MSGL_ACC_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MSGL_ACC_NAMES_64 MSGL_ACC_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MSGL_ACC_NAMES_72 MSGL_ACC_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define MSGL_ACC_NAMES_80 MSGL_ACC_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define MSGL_ACC_NAMES_88 MSGL_ACC_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define MSGL_ACC_NAMES_96 MSGL_ACC_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define MSGL_ACC_NAMES_104 MSGL_ACC_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define MSGL_ACC_NAMES_112 MSGL_ACC_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define MSGL_ACC_NAMES_120 MSGL_ACC_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define MSGL_ACC_NAMES_128 MSGL_ACC_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define MSGL_ACC_8(d, i)                                                                           \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define MSGL_ACC_16(d, i) MSGL_ACC_8(d, i), MSGL_ACC_8(d, i + 8)
#define MSGL_ACC_24(d, i) MSGL_ACC_16(d, i), MSGL_ACC_8(d, i + 16)
#define MSGL_ACC_32(d, i) MSGL_ACC_24(d, i), MSGL_ACC_8(d, i + 24)
#define MSGL_ACC_40(d, i) MSGL_ACC_32(d, i), MSGL_ACC_8(d, i + 32)
#define MSGL_ACC_48(d, i) MSGL_ACC_40(d, i), MSGL_ACC_8(d, i + 40)
#define MSGL_ACC_56(d, i) MSGL_ACC_48(d, i), MSGL_ACC_8(d, i + 48)
#define MSGL_ACC_64(d, i) MSGL_ACC_56(d, i), MSGL_ACC_8(d, i + 56)
#define MSGL_ACC_72(d, i) MSGL_ACC_64(d, i), MSGL_ACC_8(d, i + 64)
#define MSGL_ACC_80(d, i) MSGL_ACC_72(d, i), MSGL_ACC_8(d, i + 72)
#define MSGL_ACC_88(d, i) MSGL_ACC_80(d, i), MSGL_ACC_8(d, i + 80)
#define MSGL_ACC_96(d, i) MSGL_ACC_88(d, i), MSGL_ACC_8(d, i + 88)
#define MSGL_ACC_104(d, i) MSGL_ACC_96(d, i), MSGL_ACC_8(d, i + 96)
#define MSGL_ACC_112(d, i) MSGL_ACC_104(d, i), MSGL_ACC_8(d, i + 104)
#define MSGL_ACC_120(d, i) MSGL_ACC_112(d, i), MSGL_ACC_8(d, i + 112)
#define MSGL_ACC_128(d, i) MSGL_ACC_120(d, i), MSGL_ACC_8(d, i + 120)

// d[64, n] (+)= a[64, 16] b[n, 16]^T; a, b: descriptors of shared memory, rows of k. sums: n / 2;
// x, y and z: the numbers of the operands behind them.
#define MSGL_WGMMA(n, sums, x, y, z, c_type, type)                                                 \
    static __device__ __forceinline__ void msgl__wgmma(float(&d)[sums], uint64_t a, uint64_t b,    \
                                                       int add, c_type)                            \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #z ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type               \
                     " {" MSGL_ACC_NAMES_##sums "}, %" #x ", %" #y ", p, 1, 1, 0, 0;\n}\n"         \
                     : MSGL_ACC_##sums(d, 0)                                                       \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }
#define MSGL_WGMMA_TYPES(n, sums, x, y, z)                                                         \
    MSGL_WGMMA(n, sums, x, y, z, __nv_bfloat16, "bf16")                                            \
    MSGL_WGMMA(n, sums, x, y, z, __half, "f16")

MSGL_WGMMA_TYPES(32, 16, 16, 17, 18)
MSGL_WGMMA_TYPES(48, 24, 24, 25, 26)
MSGL_WGMMA_TYPES(64, 32, 32, 33, 34)
MSGL_WGMMA_TYPES(80, 40, 40, 41, 42)
MSGL_WGMMA_TYPES(96, 48, 48, 49, 50)
MSGL_WGMMA_TYPES(112, 56, 56, 57, 58)
MSGL_WGMMA_TYPES(128, 64, 64, 65, 66)
MSGL_WGMMA_TYPES(160, 80, 80, 81, 82)
MSGL_WGMMA_TYPES(192, 96, 96, 97, 98)
MSGL_WGMMA_TYPES(256, 128, 128, 129, 130)

static __device__ __forceinline__ void msgl__wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

static __device__ __forceinline__ void msgl__wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void msgl__wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

// Rows of 128 bytes, swizzled by 128 bytes, eight rows after another 1024 bytes on.
static __device__ __forceinline__ uint64_t msgl__wgmma_operand(uint32_t shared)
{
    return (uint64_t)((shared & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

template <int N> static __device__ __forceinline__ void msgl__registers_up(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void msgl__registers_down(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}

static __device__ __forceinline__ uint32_t msgl__cluster_rank(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(r));
    return r;
}

static __device__ __forceinline__ uint32_t msgl__cluster_size(void)
{
    uint32_t n;
    asm volatile("mov.u32 %0, %%cluster_nctarank;\n" : "=r"(n));
    return n;
}

// Where `address` of this block's shared memory is in block `rank` of the cluster.
static __device__ __forceinline__ uint32_t msgl__cluster_address(uint32_t address, uint32_t rank)
{
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

// bytes (a multiple of 16) to another block's shared memory; completes on a barrier there.
static __device__ __forceinline__ void msgl__cluster_copy(uint32_t remote, uint32_t src,
                                                          uint32_t bytes, uint32_t remote_barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];\n" ::"r"(remote),
                 "r"(src), "r"(bytes), "r"(remote_barrier)
                 : "memory");
}

// Only that all have come here: nothing is said about their memory operations, and nothing waited
// for.
static __device__ __forceinline__ void msgl__cluster_meet(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.aligned;\n" ::
                     : "memory");
}

// The same in two: what lies between them does not wait.
static __device__ __forceinline__ void msgl__cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}

static __device__ __forceinline__ void msgl__cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.aligned;\n" ::: "memory");
}

// All have come here, and what they did to each other's shared memory is done.
static __device__ __forceinline__ void msgl__cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;\n" ::
                     : "memory");
}

static __device__ __forceinline__ void msgl__barrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(count));
}

static __device__ __forceinline__ void msgl__barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

static __device__ __forceinline__ void msgl__barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

// Arrives at a barrier of this block.
static __device__ __forceinline__ void msgl__barrier_arrive_here(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives at the same barrier of block `rank` of the cluster: it may fill what this thread's
// products have read. (With .release.cluster this would wait for all memory operations of the
// thread.)
static __device__ __forceinline__ void msgl__barrier_arrive(uint32_t barrier, uint32_t rank)
{
    const uint32_t remote = msgl__cluster_address(barrier, rank);
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(remote) : "memory");
}

static __device__ __forceinline__ void msgl__barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nWAIT%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE%=;\nbra WAIT%=;\nDONE%=:\n}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// Fetches a tensor map, a kernel's parameter, ahead of its first use.
static __device__ __forceinline__ void msgl__tensor_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

static __device__ __forceinline__ void msgl__tensor_load(uint32_t dst, const CUtensorMap *map,
                                                         int x, int y, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];\n" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}

// Of a map of pairs of eight rows (msgl__tensor_map_pairs), from pair `pair` on.
static __device__ __forceinline__ void msgl__tensor_load_pairs(uint32_t dst, const CUtensorMap *map,
                                                               int x, int pair, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %3, %4}], [%5];\n" ::"r"(dst),
                 "l"(map), "r"(x), "r"(0), "r"(pair), "r"(barrier)
                 : "memory");
}

// To the same place in every block of `mask`; completes on the same barrier in each.
static __device__ __forceinline__ void msgl__tensor_load_multicast(uint32_t dst,
                                                                   const CUtensorMap *map, int x,
                                                                   int y, uint32_t barrier,
                                                                   uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;\n" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
                 : "memory");
}

static __device__ __forceinline__ void msgl__tensor_store(const CUtensorMap *map, uint32_t src,
                                                          int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n" ::"l"(map),
        "r"(x), "r"(y), "r"(src)
        : "memory");
}

static __device__ __forceinline__ void msgl__tensor_store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

// Until the committed stores but the last PENDING have read shared memory.
template <int PENDING> static __device__ __forceinline__ void msgl__tensor_store_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(PENDING) : "memory");
}

static __device__ __forceinline__ void msgl__tensor_store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

// Behind ordinary stores to shared memory that a tensor store reads.
static __device__ __forceinline__ void msgl__fence_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

static __device__ __forceinline__ void msgl__barrier_group(int id, int threads)
{
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ float4 msgl__read_shared_floats(uint32_t address)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void msgl__write_shared_16(uint32_t address, float4 v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "f"(v.x), "f"(v.y),
                 "f"(v.z), "f"(v.w)
                 : "memory");
}

static __device__ __forceinline__ float2 msgl__read_shared_8(uint32_t address)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n"
                 : "=f"(v.x), "=f"(v.y)
                 : "r"(address)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void msgl__store_matrix_4(uint32_t address, uint32_t a,
                                                            uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(a),
        "r"(b), "r"(c), "r"(d)
        : "memory");
}

// Each matrix transposed: a thread's two elements are in rows 2 (lane % 4) and the next one, column
// lane / 4.
static __device__ __forceinline__ void
msgl__store_matrix_4_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

static __device__ __forceinline__ void msgl__store_matrix_2_transposed(uint32_t address, uint32_t a,
                                                                       uint32_t b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};\n" ::"r"(address),
                 "r"(a), "r"(b)
                 : "memory");
}

#endif
