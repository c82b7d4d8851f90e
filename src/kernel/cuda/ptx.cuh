// SPDX-License-Identifier: Apache-2.0
//
// The instructions of sm_80 and later that tiled kernels share, one small function each. Addresses
// in shared memory are 32-bit.
#ifndef MSGL_KERNEL_CUDA_PTX_CUH
#define MSGL_KERNEL_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t msgl__shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ uint4 msgl__read_shared_16(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

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

static __device__ __forceinline__ void msgl__prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Four 8 x 8 matrices of 16-bit elements; lane i names row i % 8 of matrix i / 8.
static __device__ __forceinline__ void msgl__load_matrix_4(uint32_t address, uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void msgl__load_matrix_4_transposed(uint32_t address,
                                                                      uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// d += a b: a 16 x 16 (row), b 16 x 8 (column), d 16 x 8.
#define MSGL_MMA(type, name)                                                                       \
    static __device__ __forceinline__ void msgl__mma(float d[4], const uint32_t a[4], uint32_t b0, \
                                                     uint32_t b1, type)                            \
    {                                                                                              \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, "       \
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                        \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                       \
    }
MSGL_MMA(__nv_bfloat16, "bf16")
MSGL_MMA(__half, "f16")

static __device__ __forceinline__ uint32_t msgl__pack_two(float lo, float hi, __nv_bfloat16)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&v;
}

static __device__ __forceinline__ uint32_t msgl__pack_two(float lo, float hi, __half)
{
    const __half2 v = __floats2half2_rn(lo, hi);
    return *(const uint32_t *)&v;
}

static __device__ __forceinline__ float msgl__exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Adds 1 and returns what was there; earlier writes of the CTA's barrier group are visible to who
// sees the sum, and theirs to this thread.
static __device__ __forceinline__ int32_t msgl__count(int32_t *p)
{
    int32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
    return before;
}

#endif
