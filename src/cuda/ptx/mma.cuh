// SPDX-License-Identifier: Apache-2.0
//
// A warp's products (sm_80) and their fragments: 8 x 8 matrices of 16-bit elements between shared
// memory and registers, and pairs of elements in a register. Storing them is sm_90's.
#ifndef MSGL_CUDA_PTX_MMA_CUH
#define MSGL_CUDA_PTX_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

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

static __device__ __forceinline__ float2 msgl__unpack_two(uint32_t v, __nv_bfloat16)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

static __device__ __forceinline__ float2 msgl__unpack_two(uint32_t v, __half)
{
    return __half22float2(*(const __half2 *)&v);
}

// Four matrices; lane i names row i % 8 of matrix i / 8.
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

static __device__ __forceinline__ void msgl__store_matrix_4(uint32_t address, uint32_t a,
                                                            uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// Each matrix transposed: a thread's two elements are in rows 2 (lane % 4) and the next one, column
// lane / 4.
static __device__ __forceinline__ void
msgl__store_matrix_4_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

static __device__ __forceinline__ void msgl__store_matrix_2_transposed(uint32_t address, uint32_t a,
                                                                       uint32_t b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
                 "r"(a), "r"(b)
                 : "memory");
}

// The transpose of a matrix in a warp's registers.
static __device__ __forceinline__ uint32_t msgl__transpose_8(uint32_t r)
{
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r));
    return r;
}

#endif
