// SPDX-License-Identifier: Apache-2.0
//
// An element of a pool of E4M3, for kernels that store any dtype.
#ifndef MSGL_CUDA_OPS_POOL_E4M3_CUH
#define MSGL_CUDA_OPS_POOL_E4M3_CUH

#include <type_traits>

#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/e4m3.cuh"

struct pool_e4m3 {
    uint8_t code;
};

template <> __device__ __forceinline__ pool_e4m3 from_f32<pool_e4m3>(float v)
{
    return {(uint8_t)msgl__two_to_e4m3(v, 0)};
}

static __device__ __forceinline__ void store8(pool_e4m3 *p, const float v[8])
{
    *(uint2 *)p = msgl__eight_to_e4m3(v);
}

// What values are multiplied by before they are stored in a pool of KV with this scale.
template <typename KV> static __device__ __forceinline__ float pool_factor(float scale)
{
    return std::is_same<KV, pool_e4m3>::value ? 1 / scale : 1;
}

#endif
