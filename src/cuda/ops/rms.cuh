// SPDX-License-Identifier: Apache-2.0
//
// The norm's factor of a row of any length.
#ifndef MSGL_CUDA_OPS_RMS_CUH
#define MSGL_CUDA_OPS_RMS_CUH

#include "cuda/ops/vec8.cuh"

// The sum over a block's threads, the same in all of them; `part` [32] is shared memory of this
// call alone.
static __device__ __forceinline__ float block_sum(float v, float *part)
{
    v = group_sum(v, 32);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    const int l = (int)threadIdx.x % 32;
    return group_sum(l < (int)blockDim.x / 32 ? part[l] : 0, 32);
}

// Of a row, by the whole block, once.
template <typename T> static __device__ __forceinline__ float sum_of_squares(const T *row, int dim)
{
    __shared__ float part[32];
    float sum = 0;
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
        const float v = to_f32(row[i]);
        sum += v * v;
    }
    return block_sum(sum, part);
}

// The same: sqrt(mean of squares + eps).
template <typename T>
static __device__ __forceinline__ float root_mean_square(const T *row, float eps, int dim)
{
    return sqrtf(sum_of_squares(row, dim) / (float)dim + eps);
}

#endif
