// SPDX-License-Identifier: Apache-2.0
//
// Tiles' stages on a line, one tile after the other, that is cut into as many equal segments
// (stream-K) as there are blocks, or clusters, at a time: none idles, whatever the number of tiles.
// A segment may begin and end inside a tile. Who has a tile's first stage finishes it: the others
// write their sums to the workspace and raise a flag, and it adds them in the order of k, so that
// results have the same bits every time.
//
// Who waits: a block works through its segment from the front, so what others wait for (the end of
// a tile that it did not begin) comes first and what it waits for itself comes last. Segments are
// handed out from the end of the line: a block waits only for blocks of lower index. Blocks are
// started in the order of their index (as every GPU does, though CUDA does not promise it), so that
// nothing depends on all of them running at once.
//
// Flags are zero between kernels: who reads sums lowers their flag. The workspace and the flags are
// touched only behind the wait for the kernel in front, so that kernels which follow each other
// early share them.
#ifndef MSGL_CUDA_GEMM_LINE_CUH
#define MSGL_CUDA_GEMM_LINE_CUH

#include <stdint.h>

#include "cuda/device.cuh"
#include "cuda/gemm/lt.cuh"
#include "cuda/ptx/global.cuh"

typedef struct gemm_line {
    int32_t stages;              // of a tile
    int32_t per_segment, longer; // stages of a segment; how many segments have one more
    float *sums;                 // [segments][cluster][sums of a thread / 4][workers] float4
    int32_t *flags;              // [segments][cluster][warps]
} gemm_line;

// The stages [begin, end) of the line.
struct line_segment {
    int index, begin, end;
};

// Cuts a line of `tiles` tiles into `most` segments, or as many as have `least` stages. Returns how
// many, or 0 where there is no room for sums and flags: `floats` and `warps` of a segment.
static inline int line_cut(const msgl_cuda_device *d, gemm_line *line, int64_t tiles, int stages,
                           int64_t most, int least, size_t floats, int warps)
{
    const int64_t all = tiles * stages, cuts = (all + least - 1) / least;
    const int64_t segments = cuts < most ? cuts : most;
    if (all > INT32_MAX || segments * warps > MSGL_GEMM_FLAGS ||
        (size_t)segments * floats * sizeof(float) > d->blas->workspace_bytes) {
        return 0;
    }
    line->stages = stages;
    line->per_segment = (int32_t)(all / segments);
    line->longer = (int32_t)(all % segments);
    line->sums = (float *)d->blas->workspace;
    line->flags = d->blas->flags;
    return (int)segments;
}

#ifdef __CUDACC__

static __device__ __forceinline__ int line_segment_stages(const gemm_line &line, int segment)
{
    return line.per_segment + (segment < line.longer);
}

// This block's, of a cluster of CLUSTER.
template <int CLUSTER>
static __device__ __forceinline__ line_segment line_segment_of(const gemm_line &line)
{
    line_segment s;
    s.index = (int)(gridDim.x / CLUSTER - 1 - blockIdx.x / CLUSTER);
    s.begin = s.index * line.per_segment + (s.index < line.longer ? s.index : line.longer);
    s.end = s.begin + line_segment_stages(line, s.index);
    return s;
}

// By each of WORKERS threads, the first of a block: its sums, in the order of its registers, for
// the same thread of another block. block: the segment's index times the cluster's size, and the
// rank.
template <int WORKERS, int SUMS>
static __device__ __forceinline__ void line_leave(const gemm_line &line, const float (&acc)[SUMS],
                                                  int block)
{
    float4 *to = (float4 *)line.sums + (size_t)block * (SUMS / 4 * WORKERS) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SUMS / 4; i++) {
        __stcg(to + i * WORKERS,
               make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        msgl__store_release(line.flags + block * (WORKERS / 32) + threadIdx.x / 32, 1);
    }
}

// Adds the sums of the tile's last `rest` stages, which the segments behind this one have.
template <int WORKERS, int CLUSTER, int SUMS>
static __device__ __forceinline__ void line_add(const gemm_line &line, float (&acc)[SUMS],
                                                const line_segment &own, int rank, int rest)
{
    // Float4 that are on their way at a time: of several blocks, or some of one.
    constexpr int FOURS = SUMS / 4, BATCH = FOURS <= 16 ? (FOURS < 8 ? 8 : FOURS) : 8;
    constexpr int BLOCKS = BATCH / FOURS > 1 ? BATCH / FOURS : 1, SOME = BATCH / BLOCKS;
    constexpr int BETWEEN = CLUSTER * FOURS * WORKERS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = (own.index + 1) * CLUSTER + rank;
    int num = 0;
    for (; rest > 0; num++) rest -= line_segment_stages(line, own.index + 1 + num);
    for (int i = lane; i < num; i += 32) {
        int32_t *flag = line.flags + (block + i * CLUSTER) * (WORKERS / 32) + warp;
        while (msgl__load_acquire(flag) == 0) {
        }
        *flag = 0; // nobody raises it again before this kernel has ended
    }
    __syncwarp();
    const float4 *from = (const float4 *)line.sums + (size_t)block * (FOURS * WORKERS);
    from += threadIdx.x;
#pragma unroll 1
    for (int first = 0; first < num; first += BLOCKS, from += BLOCKS * BETWEEN) {
#pragma unroll
        for (int part = 0; part < FOURS; part += SOME) {
            float4 v[BLOCKS][SOME];
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
                for (int i = 0; i < SOME; i++) {
                    v[b][i] = make_float4(0, 0, 0, 0);
                    if (first + b < num && part + i < FOURS) {
                        v[b][i] = __ldcg(from + b * BETWEEN + (part + i) * WORKERS);
                    }
                }
            }
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
                for (int i = 0; i < SOME; i++) {
                    if (part + i >= FOURS) continue;
                    float *sum = acc + 4 * (part + i);
                    sum[0] += v[b][i].x, sum[1] += v[b][i].y;
                    sum[2] += v[b][i].z, sum[3] += v[b][i].w;
                }
            }
        }
    }
}

#endif

#endif
