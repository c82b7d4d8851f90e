// SPDX-License-Identifier: Apache-2.0
//
// Index keys and queries on their way into the pool, a warp a vector.
#ifndef MSGL_CUDA_OPS_INDEX_VECTOR_CUH
#define MSGL_CUDA_OPS_INDEX_VECTOR_CUH

#include "cuda/ops/vec8.cuh"

// Pair i of a head, in place.
template <typename T>
static __device__ __forceinline__ void rotate_pair(T *head, const float *cos_sin, int half, int i)
{
    const float c = cos_sin[i], s = cos_sin[half + i];
    const float a = to_f32(head[i]), b = to_f32(head[half + i]);
    head[i] = from_f32<T>(a * c - b * s);
    head[half + i] = from_f32<T>(b * c + a * s);
}

// A LayerNorm, or without a bias an RMS norm, then the rotation of the first 2 half elements. row:
// shared memory, [dim], which may be `in`.
template <typename T>
static __device__ __forceinline__ void norm_and_rotate(const T *in, int dim, int half, float eps,
                                                       const float *weight, const float *bias,
                                                       const float *cos_sin, float *row)
{
    const int lane = (int)threadIdx.x % 32;
    float sum = 0, squares = 0;
    for (int i = lane; bias != NULL && i < dim; i += 32) sum += to_f32(in[i]);
    const float mean = bias != NULL ? group_sum(sum, 32) / (float)dim : 0.f;
    for (int i = lane; i < dim; i += 32) {
        const float d = to_f32(in[i]) - mean;
        squares += d * d;
    }
    const float inv = 1.0f / sqrtf(group_sum(squares, 32) / (float)dim + eps);
    for (int i = lane; i < dim; i += 32) {
        const float normed = (to_f32(in[i]) - mean) * inv * weight[i];
        row[i] = bias != NULL ? normed + bias[i] : normed;
    }
    __syncwarp();
    for (int i = lane; i < half; i += 32) rotate_pair(row, cos_sin, half, i);
    __syncwarp();
}

template <typename T>
static __device__ __forceinline__ void store_row(const float *row, int dim, T *to)
{
    for (int i = (int)threadIdx.x % 32; i < dim; i += 32) to[i] = from_f32<T>(row[i]);
}

#endif
