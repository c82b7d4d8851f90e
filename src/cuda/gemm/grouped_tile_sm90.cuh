// SPDX-License-Identifier: Apache-2.0
//
// What grouped products on Hopper share (grouped_sm90.cu, grouped_fp8_sm90.cu): which tile of which
// expert a block works on, and how a warpgroup's sums become rows of out. A tile's rows are rows of
// W, 64 of each warpgroup, and its columns an expert's rows of `in`.
#ifndef MSGL_CUDA_GEMM_GROUPED_TILE_SM90_CUH
#define MSGL_CUDA_GEMM_GROUPED_TILE_SM90_CUH

#include "cuda/device.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/grouped.cuh"
#include "cuda/gemm/stage.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    GROUP_ROWS = 64, // of W per multiplying warpgroup
    CHUNK = 16,      // columns that go to out at a time
    CHUNK_BYTES = CHUNK * GROUP_ROWS * 2,
    MAX_EXPERTS = 512, // their places fit beside the stages
};

// --- tiles --------------------------------------------------------------------------------------

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

// --- sums ---------------------------------------------------------------------------------------
//
// A thread of warp w of a group holds, of rows 16 w + lane / 4 and the eighth one behind, columns
// 8 j + 2 (lane % 4) and the next one of every j: acc[4 j], acc[4 j + 1] of the first row,
// acc[4 j + 2], acc[4 j + 3] of the second.

// Columns [CHUNK c, CHUNK c + CHUNK) to a buffer: a row of it is a column, with 32 (gated) or 64
// features, whose pieces of 16 bytes are swizzled.
template <typename T, bool GATED, int SUMS>
static __device__ __forceinline__ void fill_chunk(const float (&acc)[SUMS], int c, uint32_t buffer)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const float *v = acc + c * (CHUNK / 2);
    const int column = lane % CHUNK; // whose address this lane gives
    if (GATED) {
        uint32_t two[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            two[j] = msgl__pack_two(msgl__silu(v[4 * j]) * v[4 * j + 2],
                                    msgl__silu(v[4 * j + 1]) * v[4 * j + 3], T());
        }
        const int piece = warp ^ (column / 2 % 4);
        msgl__store_matrix_2_transposed(buffer + (uint32_t)(column * 64 + piece * 16), two[0],
                                        two[1]);
    } else {
        const int piece = (2 * warp + lane / 16) ^ (column % 8);
        msgl__store_matrix_4_transposed(
            buffer + (uint32_t)(column * 128 + piece * 16), msgl__pack_two(v[0], v[1], T()),
            msgl__pack_two(v[4], v[5], T()), msgl__pack_two(v[2], v[3], T()),
            msgl__pack_two(v[6], v[7], T()));
    }
}

// All of this group's sums to out. places: where its columns go, -1: nowhere.
template <typename T, bool GATED, int N>
static __device__ __forceinline__ void store(const msgl_grouped_args &g, const float (&acc)[N / 2],
                                             int rows, int feature, const int32_t *places,
                                             uint32_t buffers)
{
    enum { PIECES = GATED ? 4 : 8 };
    const int group = threadIdx.x / GROUP, t = threadIdx.x % GROUP;
    const int column = t / PIECES, piece = t % PIECES, at = feature + piece * 8;
    const bool mine = column < CHUNK && at < (GATED ? g.n / 2 : g.n);
    const int swizzled = GATED ? piece ^ (column / 2 % 4) : piece ^ (column % 8);
#pragma unroll
    for (int c = 0; c < N / CHUNK; c++) {
        if (c * CHUNK >= rows) break;
        const uint32_t buffer = buffers + (uint32_t)(c % 2 * CHUNK_BYTES);
        fill_chunk<T, GATED, N / 2>(acc, c, buffer);
        msgl__named_barrier_sync(group, GROUP);
        const int32_t to = mine ? places[c * CHUNK + column] : -1;
        if (to >= 0) {
            *(uint4 *)((T *)g.out + (size_t)to * g.ld_out + at) =
                msgl__read_shared<uint4>(buffer + (uint32_t)(column * PIECES * 16 + swizzled * 16));
        }
    }
}

#endif
