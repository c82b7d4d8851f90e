// SPDX-License-Identifier: Apache-2.0
//
// What the benchmarks of products multiply: values in [-scale, scale), since products of zeros run
// faster and draw less power than real ones.
#ifndef MSGL_BENCH_CUDA_NOISE_CUH
#define MSGL_BENCH_CUDA_NOISE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

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

#endif
