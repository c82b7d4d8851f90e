// SPDX-License-Identifier: Apache-2.0
//
// Counter-based random numbers: Philox 4x32 (Salmon et al. 2011, "Parallel random numbers: as easy
// as 1, 2, 3") with seven rounds, the fewest that the authors found to pass BigCrush. A number
// depends on its key and place alone, whoever computes it.
#ifndef MSGL_CUDA_OPS_PHILOX_CUH
#define MSGL_CUDA_OPS_PHILOX_CUH

#include <stdint.h>

#define PHILOX_ROUNDS 7

// The four random words at counter (a, b, c, d) of the stream `seed`.
static __device__ __forceinline__ uint4 philox(uint64_t seed, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d)
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t p = (uint64_t)0xd2511f53u * a, q = (uint64_t)0xcd9e8d57u * c;
        a = (uint32_t)(q >> 32) ^ b ^ key0;
        b = (uint32_t)q;
        c = (uint32_t)(p >> 32) ^ d ^ key1;
        d = (uint32_t)p;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return make_uint4(a, b, c, d);
}

#endif
