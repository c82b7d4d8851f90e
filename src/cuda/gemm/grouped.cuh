// SPDX-License-Identifier: Apache-2.0
//
// What the grouped kernels share: which rows and columns a block works on. The host knows only the
// total of the rows, so every block finds its tiles from the offsets itself.
#ifndef MSGL_CUDA_GEMM_GROUPED_CUH
#define MSGL_CUDA_GEMM_GROUPED_CUH

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/owner.cuh"
#include "kernel/calls.h"

// Of a launch: their places fit beside the stages.
enum { MSGL_MOST_EXPERTS = 512 };

typedef struct msgl_grouped_args {
    const void *w; // expert e's [n, k] is `stride` elements after e - 1's
    size_t stride;
    int32_t n, k, num_experts;
    const int32_t *offsets; // [num_experts + 1]
    const void *in;
    size_t ld_in;
    const int32_t *from; // NULL, or: row j is row from[j] / from_per of in
    int32_t from_per;
    void *out;
    size_t ld_out;
    const int32_t *to; // NULL, or: row j goes to row to[j] of out
    int32_t column_tiles;
    bool inputs_ready; // offsets, from and to are older than the kernel in front
} msgl_grouped_args;

typedef struct msgl_tile {
    int32_t expert;
    int32_t row, end; // of this tile's first row, behind the expert's last
    int32_t column;   // tile of columns
} msgl_tile;

// Whether all of them are stored as this dtype.
static inline bool msgl__experts_are(const msgl_weight *experts, int32_t num, msgl_dtype dtype)
{
    for (int32_t e = 0; e < num; e++) {
        if (!msgl__weight_is(&experts[e], dtype)) return false;
    }
    return true;
}

// Elements from one expert's weights to the next one's, which are stored as a dtype; 0 when they do
// not lie at equal distances.
size_t msgl__expert_stride(const msgl_weight *experts, int32_t num);

// What msgl__count_tiles leaves in shared memory.
static inline size_t msgl__tiles_bytes(int32_t num_experts)
{
    return 2 * ((size_t)num_experts + 1) * sizeof(int32_t);
}

// first[e] = tiles of BM rows before expert e, for e <= num_experts, and behind them a copy of
// g.offsets: whatever follows finds its rows without another way to the L2. All threads of the
// block; ends with a barrier.
template <int BM>
static __device__ void msgl__count_tiles(const msgl_grouped_args &g, int32_t *first)
{
    __shared__ int32_t warps[32];
    int32_t *const offsets = first + g.num_experts + 1;
    const int32_t threads = (int32_t)blockDim.x;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int32_t before = 0;
    if (threadIdx.x == 0) first[0] = 0;
#pragma unroll 1
    for (int32_t e0 = 0; e0 < g.num_experts; e0 += threads) {
        const int32_t e = e0 + (int32_t)threadIdx.x;
        const bool there = e < g.num_experts;
        int32_t sum = 0;
        if (there) {
            const int32_t begin = __ldcg(g.offsets + e), end = __ldcg(g.offsets + e + 1);
            sum = (end - begin + BM - 1) / BM;
            offsets[e] = begin;
            if (e + 1 == g.num_experts) offsets[e + 1] = end;
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int32_t left = __shfl_up_sync(0xffffffffu, sum, d);
            if (lane >= d) sum += left;
        }
        if (lane == 31) warps[warp] = sum;
        __syncthreads();
        if (there) {
#pragma unroll 1
            for (int w = 0; w < warp; w++) sum += warps[w];
            first[e + 1] = before + sum;
        }
        __syncthreads();
        if (e0 + threads < g.num_experts) before = first[e0 + threads];
    }
}

// Tiles of one expert are neighbours, those of the same columns first: blocks that run at the same
// time read the same weights.
template <int BM>
static __device__ msgl_tile msgl__find_tile(const msgl_grouped_args &g, const int32_t *first,
                                            int32_t index)
{
    const int32_t *const offsets = first + g.num_experts + 1;
    const int32_t row_tile = index / g.column_tiles;
    const int32_t expert = msgl__owner_of(first, g.num_experts, row_tile);
    const int32_t tiles = first[expert + 1] - first[expert];
    const int32_t within = index - first[expert] * g.column_tiles;
    msgl_tile t;
    t.expert = expert;
    t.row = offsets[expert] + within % tiles * BM;
    t.end = offsets[expert + 1];
    t.column = within / tiles;
    return t;
}

#endif
