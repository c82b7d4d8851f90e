// SPDX-License-Identifier: Apache-2.0
//
// What benchmarks multiply: products of zeros run faster and draw less power than real ones.
#ifndef MSGL_BENCH_CUDA_NOISE_CUH
#define MSGL_BENCH_CUDA_NOISE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

// Values in [-scale, scale).
static __global__ void noise(__nv_bfloat16 *p, size_t n, float scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 0x9e3779b9u + (uint32_t)(i >> 32);
        h = (h ^ (h >> 15)) * 0x85ebca6bu;
        h = (h ^ (h >> 13)) * 0xc2b2ae35u;
        p[i] = __float2bfloat16((float)(int32_t)(h ^ (h >> 16)) * 0x1p-31f * scale);
    }
}

enum : uint32_t { NOISE_TO_ONE = 0x807f807fu, NOISE_TO_TWO = 0x80ff80ffu }; // random bits of a pair

// n pairs of bf16 of magnitude [0.5, 1), or [0.5, 2).
static __global__ void noise_pairs(uint32_t *p, size_t n, uint32_t bits, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        p[i] = (x & bits) | 0x3f003f00u;
    }
}

#endif
