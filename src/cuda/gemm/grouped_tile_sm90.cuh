// SPDX-License-Identifier: Apache-2.0
//
// What grouped products on Hopper share (grouped_sm90.cu, grouped_fp8_sm90.cu): which tile of which
// expert a block works on.
#ifndef MSGL_CUDA_GEMM_GROUPED_TILE_SM90_CUH
#define MSGL_CUDA_GEMM_GROUPED_TILE_SM90_CUH

#include "cuda/device.cuh"
#include "cuda/gemm/grouped.cuh"
#include "cuda/gemm/stage.cuh"
#include "cuda/tensor_map.cuh"

enum { GROUP_ROWS = 64 }; // of a multiplying warpgroup's product

typedef struct span {
    int32_t expert, row, rows; // of in
    int32_t tile;              // of W's rows
} span;

// a / b without the integer division's hundred instructions: a step of few rows runs each of them
// once, and they come from memory.
static __device__ __forceinline__ int32_t quotient(int32_t a, int32_t b)
{
    int32_t q = (int32_t)__fdividef((float)a, (float)b);
    q += (q + 1) * b <= a;
    q -= q * b > a;
    return q;
}

// The expert of tile `index`, found by all threads of the block at once; ends with a barrier.
static __device__ __forceinline__ int32_t find_expert(const msgl_grouped_args &g,
                                                      const int32_t *first, int32_t index)
{
    __shared__ int32_t found; // left alone when there are fewer tiles
#pragma unroll 1
    for (int32_t e = (int32_t)threadIdx.x; e < g.num_experts; e += (int32_t)blockDim.x) {
        if (first[e] * g.column_tiles <= index && index < first[e + 1] * g.column_tiles) found = e;
    }
    __syncthreads();
    return found;
}

// Tile `index` of an expert in [low, high): those of one expert and the same columns are
// neighbours, as in msgl__find_tile. An expert's rows are cut into equal row tiles, or, HEIGHT > 0,
// into ones of HEIGHT rows and a rest.
template <int HEIGHT = 0>
static __device__ __forceinline__ span find_span(const msgl_grouped_args &g, const int32_t *first,
                                                 int32_t index, int32_t low, int32_t high)
{
#pragma unroll 1
    while (high - low > 1) {
        const int32_t middle = (low + high) / 2;
        if (first[middle] * g.column_tiles <= index) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const int32_t *const offsets = first + g.num_experts + 1;
    const int32_t begin = offsets[low], all = offsets[low + 1] - begin;
    const int32_t row_tiles = first[low + 1] - first[low];
    const int32_t within = index - first[low] * g.column_tiles;
    span s;
    s.expert = low;
    s.tile = quotient(within, row_tiles);
    const int32_t height = HEIGHT > 0 ? HEIGHT : quotient(all + row_tiles - 1, row_tiles);
    const int32_t row_tile = within - s.tile * row_tiles;
    const int32_t left = all - row_tile * height;
    s.row = begin + row_tile * height;
    s.rows = left < height ? left : height;
    return s;
}

// Eights of rows of every expert's W, whose rows are g->k elements without gaps and whose experts
// are `stride` bytes apart; gated: of gate, of up, ... A box is `rows` rows of 128 bytes, loaded
// from (column, 0, 0, eight or pair of eights, expert) on.
static inline bool map_eights(CUtensorMap *map, msgl_dtype type, const void *w,
                              const msgl_grouped_args *g, size_t stride, bool gated, int rows)
{
    const cuuint64_t size = msgl__dtype_size(type), row = (cuuint64_t)g->k * size;
    const cuuint64_t halves = gated ? 2 : 1, half = (cuuint64_t)g->n / halves;
    const cuuint64_t dims[5] = {(cuuint64_t)g->k, 8, halves, half / 8, (cuuint64_t)g->num_experts};
    const cuuint64_t strides[4] = {row, half * row, 8 * row, (cuuint64_t)stride};
    const cuuint32_t box[5] = {(cuuint32_t)(ROW_BYTES / size), 8, (cuuint32_t)halves,
                               (cuuint32_t)(rows / 8 / (int)halves), 1};
    return msgl__tensor_map_encode(map, type, w, 5, dims, strides, box);
}

#endif
