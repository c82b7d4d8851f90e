// SPDX-License-Identifier: Apache-2.0
//
// The instructions of sm_80 and later that the tiled kernels here use.
#ifndef MSGL_KERNEL_CUDA_GEMM_MMA_CUH
#define MSGL_KERNEL_CUDA_GEMM_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t msgl__shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// 16 bytes to shared memory; zeros instead when there is nothing there.
static __device__ __forceinline__ void msgl__copy_async_16(uint32_t dst, const void *src,
                                                           bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src),
                 "r"(there ? 16 : 0));
}

static __device__ __forceinline__ void msgl__copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::);
}

template <int PENDING> static __device__ __forceinline__ void msgl__copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING));
}

static __device__ __forceinline__ void msgl__load_matrix_4(uint32_t address, uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

// c[16, 8] += a[16, 16] b[8, 16]^T
static __device__ __forceinline__ void msgl__mma(float c[4], const uint32_t a[4], uint32_t b0,
                                                 uint32_t b1, __nv_bfloat16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void msgl__mma(float c[4], const uint32_t a[4], uint32_t b0,
                                                 uint32_t b1, __half)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void msgl__store_pair(__nv_bfloat16 *p, float a, float b)
{
    *(__nv_bfloat162 *)p = __floats2bfloat162_rn(a, b);
}

static __device__ __forceinline__ void msgl__store_pair(__half *p, float a, float b)
{
    *(__half2 *)p = __floats2half2_rn(a, b);
}

static __device__ __forceinline__ float msgl__silu(float v)
{
    return __fdividef(v, 1.0f + __expf(-v)); // 0 where the exponential leaves the range
}

#endif
