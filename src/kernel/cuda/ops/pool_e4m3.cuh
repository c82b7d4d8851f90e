// SPDX-License-Identifier: Apache-2.0
//
// An element of a pool of E4M3, for kernels that store any dtype.
#ifndef MSGL_KERNEL_CUDA_OPS_POOL_E4M3_CUH
#define MSGL_KERNEL_CUDA_OPS_POOL_E4M3_CUH

#include "kernel/cuda/ops/vec8.cuh"
#include "kernel/cuda/ptx/e4m3.cuh"

struct pool_e4m3 {
    uint8_t code;
};

template <> __device__ __forceinline__ pool_e4m3 from_f32<pool_e4m3>(float v)
{
    return {(uint8_t)msgl__two_to_e4m3(v, 0)};
}

#endif
