// SPDX-License-Identifier: Apache-2.0
//
// What the attention kernels for Hopper do with the registers that hold a warpgroup's sums
// (ptx/wgmma.cuh says which elements a thread has): softmax over rows of scores, probabilities as
// the next product's operand, rescaling and storing of results.
#ifndef MSGL_CUDA_ATTN_FRAGMENT_SM90_CUH
#define MSGL_CUDA_ATTN_FRAGMENT_SM90_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"

static __device__ __forceinline__ void msgl__fa_store_16(void *to, const uint32_t (&x)[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

// A thread's two rows (r and r + 8 of its warp's 16). Scores of row h are elements 4 j + 2 h and
// 4 j + 2 h + 1: keys 8 j + 2 (lane % 4) and the next. N: keys of a tile.
template <int N> struct msgl_fa_rows {
    float max[2], sum[2]; // of the raw scores; of this thread's keys alone

    __device__ __forceinline__ void begin()
    {
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0;
    }

    // Scores to probabilities; scale[h] is what the row's earlier results are to be multiplied by.
    __device__ __forceinline__ void softmax(float (&s)[N / 2], float (&scale)[2], float log2_scale)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = max[h];
#pragma unroll
            for (int j = 0; j < N / 8; j++)
                m = fmaxf(m, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
            m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
            const float base = m == -INFINITY ? 0.f : m, minus = -base * log2_scale;
            scale[h] = msgl__exp2((max[h] - base) * log2_scale); // exactly 1 if m is max[h]
            max[h] = m;
            float total = 0;
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
#pragma unroll
                for (int e = 4 * j + 2 * h; e < 4 * j + 2 * h + 2; e++) {
                    s[e] = msgl__exp2(fmaf(s[e], log2_scale, minus));
                    total += s[e];
                }
            }
            sum[h] = fmaf(sum[h], scale[h], total);
        }
    }

    // The row's whole sum, in all four threads that have it.
    __device__ __forceinline__ float total(int h) const
    {
        float t = sum[h];
        t += __shfl_xor_sync(0xffffffff, t, 1);
        t += __shfl_xor_sync(0xffffffff, t, 2);
        return t;
    }
};

// Most tiles leave most maxima as they are; multiplying by 1 would change nothing.
template <int SUMS>
static __device__ __forceinline__ void msgl__fa_rescale(float (&o)[SUMS], const float (&scale)[2])
{
    if (!__any_sync(0xffffffff, scale[0] != 1.f || scale[1] != 1.f)) return;
#pragma unroll
    for (int e = 0; e < SUMS; e++) o[e] *= scale[e >> 1 & 1];
}

template <typename T, int SUMS>
static __device__ __forceinline__ void msgl__fa_to_operand(const float (&s)[SUMS],
                                                           uint32_t (&prob)[SUMS / 8][4])
{
#pragma unroll
    for (int k = 0; k < SUMS / 8; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            prob[k][i] = msgl__pack_two(s[8 * k + 2 * i], s[8 * k + 2 * i + 1], T());
    }
}

// Row h of the thread's two, times `factor`, to out: a quad's four threads exchange words so that
// each stores 16 bytes of 64 consecutive ones. All threads of the warp call it; nothing is stored
// unless `valid`, nor from column `columns` on.
template <typename T, int SUMS>
static __device__ __forceinline__ void msgl__fa_store_row(T *out, const float (&o)[SUMS], int h,
                                                          float factor, bool valid, int columns)
{
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < SUMS / 16; i++) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = msgl__pack_two(o[16 * i + 4 * j + 2 * h] * factor,
                                  o[16 * i + 4 * j + 2 * h + 1] * factor, T());
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const uint32_t got = __shfl_xor_sync(0xffffffff, t & 1 ? x[j] : x[j + 1], 1);
            if (t & 1)
                x[j] = got;
            else
                x[j + 1] = got;
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t got = __shfl_xor_sync(0xffffffff, t & 2 ? x[j] : x[j + 2], 2);
            if (t & 2)
                x[j] = got;
            else
                x[j + 2] = got;
        }
        const int column = 32 * i + 8 * t;
        if (valid && column < columns) msgl__fa_store_16(out + column, x);
    }
}

#endif
