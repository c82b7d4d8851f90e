// SPDX-License-Identifier: Apache-2.0
//
// Tiles' stages on a line, one tile after the other, that is cut into as many equal segments
// (stream-K) as there are blocks, or clusters, at a time: none idles, whatever the number of tiles.
// A segment may begin and end inside a tile. Who has a tile's first stage finishes it: the others
// write their sums to the workspace and raise a flag, and it adds them in the order of k, so that
// results have the same bits every time.
//
// Kernels whose blocks finish a tile together have few tiles cut each by itself, into about as many
// pieces as the others: a segment has one piece then, and a tile as few as can be. Example: of 40
// tiles for 132 multiprocessors 12 are cut in four and 28 in three. None idles here either: a
// multiprocessor without a block would get two of the next kernel's (turns.cuh).
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
    int32_t stages; // of a tile
    // What is cut by itself, a tile or the whole line, is a run of so many stages. The first runs
    // have cuts + 1 segments, and the others `cuts`.
    int32_t run, cuts, more;
    float *sums;    // [segments][cluster][sums of a thread / 4][workers] float4
    int32_t *flags; // [segments][cluster][warps]
} gemm_line;

// The stages [begin, end) of the line.
struct line_segment {
    int index, begin, end;
};

// Cuts a line of `tiles` tiles into `most` segments, or as many as have `least` stages. Returns how
// many, or 0 where there is no room for sums and flags: `floats` and `warps` of a segment. apart:
// few tiles are cut each by itself.
static inline int line_cut(const msgl_cuda_device *d, gemm_line *line, int64_t tiles, int stages,
                           int64_t most, int least, size_t floats, int warps, bool apart)
{
    const int64_t all = tiles * stages, finest = (all + least - 1) / least;
    const int64_t segments = finest < most ? finest : most;
    if (all > INT32_MAX || segments * warps > MSGL_GEMM_FLAGS ||
        (size_t)segments * floats * sizeof(float) > d->blas->workspace_bytes) {
        return 0;
    }
    // The longest piece of a tile by itself may be half as long again as the mean.
    const int64_t cuts = segments / tiles;
    const bool by_tile = apart && 3 * cuts * tiles >= 2 * segments;
    line->stages = stages;
    line->run = by_tile ? stages : (int32_t)all;
    line->cuts = (int32_t)(by_tile ? cuts : segments);
    line->more = (int32_t)(by_tile ? segments % tiles : 0);
    line->sums = (float *)d->blas->workspace;
    line->flags = d->blas->flags;
    return (int)segments;
}

#ifdef __CUDACC__

// A segment among those of its run.
struct line_place {
    int run, index, of;
    int per_segment, longer; // stages of each; how many have one more

    __device__ __forceinline__ line_place(const gemm_line &line, int segment)
    {
        const int behind = segment - line.more * (line.cuts + 1);
        of = line.cuts + (behind < 0);
        run = behind < 0 ? segment / of : line.more + behind / of;
        index = (behind < 0 ? segment : behind) % of;
        per_segment = line.run / of;
        longer = line.run % of;
    }
    __device__ __forceinline__ int stages() const
    {
        return per_segment + (index < longer);
    }
};

// The segment that stage `at` of the line is in.
static __device__ __forceinline__ int line_segment_at(const gemm_line &line, int at)
{
    const int run = at / line.run, rest = at - run * line.run;
    const int first = run * line.cuts + (run < line.more ? run : line.more);
    const line_place p(line, first);
    const int behind = rest - p.longer * (p.per_segment + 1);
    return first + (behind < 0 ? rest / (p.per_segment + 1) : p.longer + behind / p.per_segment);
}

// This block's, of a cluster of CLUSTER.
template <int CLUSTER>
static __device__ __forceinline__ line_segment line_segment_of(const gemm_line &line)
{
    line_segment s;
    s.index = (int)(gridDim.x / CLUSTER - 1 - blockIdx.x / CLUSTER);
    const line_place p(line, s.index);
    s.begin =
        p.run * line.run + p.index * p.per_segment + (p.index < p.longer ? p.index : p.longer);
    s.end = s.begin + p.stages();
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
    const int num = rest > 0 ? line_segment_at(line, own.end + rest - 1) - own.index : 0;
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
