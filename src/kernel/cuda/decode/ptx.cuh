// SPDX-License-Identifier: Apache-2.0
//
// The PTX instructions of the decode kernel, one small function each.
#ifndef MSGL_KERNEL_CUDA_DECODE_PTX_CUH
#define MSGL_KERNEL_CUDA_DECODE_PTX_CUH

#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ uint32_t msgl_smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// L2 fetches 128 bytes at a time: 1-3 % faster from 64x1024 on (one run of each; why was not
// looked into).
// Slot `slot` of slots of `bytes` bytes that start at src; a negative one is zeros.
static __device__ __forceinline__ void msgl_cp_async16(uint32_t dst, const void *src, int32_t slot,
                                                       uint32_t bytes)
{
    asm volatile("{\n"
                 ".reg .pred zeros;\n"
                 ".reg .u64 from;\n"
                 "setp.lt.s32 zeros, %2, 0;\n"
                 "mad.wide.u32 from, %2, %3, %1;\n"
                 "cp.async.cg.shared.global.L2::128B [%0], [from], 16, zeros;\n"
                 "}\n" ::"r"(dst),
                 "l"(src), "r"(slot), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void msgl_cp_async4(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

static __device__ __forceinline__ void msgl_prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

static __device__ __forceinline__ void msgl_cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most N of this thread's newest groups are in flight.
template <int N> static __device__ __forceinline__ void msgl_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void msgl_ldmatrix4(uint32_t addr, uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

static __device__ __forceinline__ void msgl_ldmatrix4_trans(uint32_t addr, uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

// d += a b: a 16 x 16 (row), b 16 x 8 (column), d 16 x 8.
static __device__ __forceinline__ void msgl_mma(float d[4], const uint32_t a[4], uint32_t b0,
                                                uint32_t b1, __nv_bfloat16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void msgl_mma(float d[4], const uint32_t a[4], uint32_t b0,
                                                uint32_t b1, __half)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t msgl_pack2(float lo, float hi, __nv_bfloat16)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&v;
}

static __device__ __forceinline__ uint32_t msgl_pack2(float lo, float hi, __half)
{
    const __half2 v = __floats2half2_rn(lo, hi);
    return *(const uint32_t *)&v;
}

static __device__ __forceinline__ float msgl_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Adds 1 and returns what was there; earlier writes of the CTA's barrier group are visible to who
// sees the sum, and theirs to this thread.
static __device__ __forceinline__ int32_t msgl_count(int32_t *p)
{
    int32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
    return before;
}

#endif
