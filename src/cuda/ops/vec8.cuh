// SPDX-License-Identifier: Apache-2.0
//
// Eight activations at a time as f32: one 16-byte access for bf16 and f16, two for f32. All
// arithmetic of these kernels is f32; rounding to nearest even happens in store8 and nowhere else.
#ifndef MSGL_CUDA_OPS_VEC8_CUH
#define MSGL_CUDA_OPS_VEC8_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "cuda/ptx/mma.cuh"

#define MSGL_FULL_MASK 0xffffffffu

static __device__ __forceinline__ float to_f32(float v)
{
    return v;
}
static __device__ __forceinline__ float to_f32(__half v)
{
    return __half2float(v);
}
static __device__ __forceinline__ float to_f32(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

template <typename T> static __device__ __forceinline__ T from_f32(float v);
template <> __device__ __forceinline__ float from_f32<float>(float v)
{
    return v;
}
template <> __device__ __forceinline__ __half from_f32<__half>(float v)
{
    return __float2half_rn(v);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}

static __device__ __forceinline__ void load8(const float *p, float v[8])
{
    const float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

template <typename T> static __device__ __forceinline__ void unpack8(const uint4 u, float v[8], T)
{
    const uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = msgl__unpack_two(w[i], T());
        v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
}

template <typename T> static __device__ __forceinline__ void load8(const T *p, float v[8])
{
    unpack8(*(const uint4 *)p, v, T());
}

static __device__ __forceinline__ void store8(float *p, const float v[8])
{
    ((float4 *)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

template <typename T> static __device__ __forceinline__ uint4 pack8(const float v[8], T)
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = msgl__pack_two(v[2 * i], v[2 * i + 1], T());
    return make_uint4(w[0], w[1], w[2], w[3]);
}

template <typename T> static __device__ __forceinline__ void store8(T *p, const float v[8])
{
    *(uint4 *)p = pack8(v, T());
}

// N neighbouring elements: 8 as above, or 1 of any alignment.
template <int N, typename T> static __device__ __forceinline__ void load_n(const T *p, float v[N])
{
    static_assert(N == 8 || N == 1, "eight or one");
    if constexpr (N == 8) {
        load8(p, v);
    } else {
        v[0] = to_f32(*p);
    }
}

template <int N, typename T> static __device__ __forceinline__ void store_n(T *p, const float v[N])
{
    static_assert(N == 8 || N == 1, "eight or one");
    if constexpr (N == 8) {
        store8(p, v);
    } else {
        *p = from_f32<T>(v[0]);
    }
}

// Elements [at, at + 8) of a row of dim; zeros behind it. VECTORS: dim is a multiple of 8, and
// eight of the row are one access.
template <bool VECTORS, typename T>
static __device__ __forceinline__ void load8_within(const T *row, int at, int dim, float v[8])
{
    if constexpr (VECTORS) {
        load8(row + at, v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = at + i < dim ? to_f32(row[at + i]) : 0.f;
    }
}

// Sum over aligned groups of `lanes` lanes (a power of two), the same in all of them.
static __device__ __forceinline__ float group_sum(float v, int lanes)
{
    for (int step = lanes / 2; step > 0; step /= 2) v += __shfl_xor_sync(MSGL_FULL_MASK, v, step);
    return v;
}

// Calls fn<T>(...) for the activation's type.
#define MSGL_BY_DTYPE(dtype, fn, ...)                                                              \
    do {                                                                                           \
        if ((dtype) == MSGL_BF16) {                                                                \
            fn<__nv_bfloat16>(__VA_ARGS__);                                                        \
        } else if ((dtype) == MSGL_F16) {                                                          \
            fn<__half>(__VA_ARGS__);                                                               \
        } else {                                                                                   \
            fn<float>(__VA_ARGS__);                                                                \
        }                                                                                          \
    } while (0)

static __host__ __device__ __forceinline__ bool aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

#endif
