// SPDX-License-Identifier: Apache-2.0
//
// Low-rank adapters of a step of few rows, as decode steps are: tiles of up to 8 rows of one
// adapter. Such a step is a chain of short kernels, so what counts is how many accesses to memory
// wait for each other, and how much code there is: a kernel that runs each instruction once waits
// for them to come from memory, too.
//
// - A, and all of B that a block needs, are on their way to shared memory before the kernel in
//   front has ended.
// - Both kernels may start beside the product in front (msgl__allow_shared's all_shared).
// - The second kernel asks for the first one's sums and for the lines of the output at once.
//
// The weights' rows are the rows of the tensor cores' products and a tile's 8 rows are their
// columns. Limits, of 64 rows with 16 adapters of rank 16 in bfloat16 on an H200 at 4.2 TB/s: q, k
// and v of Qwen3-14B read 7.9 MB of A and 3.7 MB of B, 2.8 us; its gate and up 5.2 and 17.8 MB, 5.5
// us. Operations: 2 * 8 * (k + n) * rank a tile and part, a thousandth of what tensor cores do in
// that time.
#ifndef MSGL_CUDA_GEMM_LORA_FEW_CUH
#define MSGL_CUDA_GEMM_LORA_FEW_CUH

#include "cuda/gemm/lora_tile.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "kernel/lora_tiles.h"

enum {
    FEW_ROWS = MSGL_LORA_LEAST_TILE,
    FEW_RANKS = 16,      // of a fragment
    FEW_MOST_RANK = 128, // of a part; beyond it B does not fit in every GPU's shared memory
};

// --- h = A x ------------------------------------------------------------------------------------

// A piece of rows of A and of x in shared memory. Lanes of a warp read 16 bytes of two rows at a
// time, which fall on all banks.
enum { FEW_PITCH = LORA_SPLIT * 2 + 64, FEW_A_ROWS = 64 };

struct few_shrink {
    char x[FEW_ROWS][FEW_PITCH];
    float sums[LORA_WARPS][FEW_ROWS][FEW_RANKS + 1];
};

static __host__ __device__ __forceinline__ int few_a_rows(int max_ranks)
{
    return max_ranks < FEW_A_ROWS ? max_ranks : FEW_A_ROWS;
}

// Elements [k0, k0 + LORA_SPLIT) of rows [rank, rank + rows) of A; zeros beyond k.
template <typename T>
static __device__ __forceinline__ void few_stage_a(const lora_args &g, const T *a, int rows, int k0,
                                                   char *to)
{
    enum { EACH = LORA_SPLIT / 8 }; // pieces of 16 bytes of a row
    const int column = (int)threadIdx.x % EACH * 8;
    a += k0 + column;
    for (int row = (int)threadIdx.x / EACH; row < rows; row += LORA_THREADS / EACH) {
        const T *from = a + (size_t)row * (size_t)g.c.k;
        char *own = to + row * FEW_PITCH + column * 2;
        if (g.vectors) {
            msgl__copy_async_16(msgl__shared_address(own), from, k0 + column < g.c.k);
        } else {
            *(uint4 *)own = load_row(from, 0, g.c.k - k0 - column, false);
        }
    }
}

// A tile's piece of x, times the norm's weights, of which a row's factor follows behind the sums;
// and the rows' sums of squares. Of a row 16 threads have pieces of 8 elements 32 apart, so that
// squares are added up as tiles of 64 rows do.
template <typename T>
static __device__ __forceinline__ void few_stage_x(const lora_args &g, const tile_rows &t, int k0,
                                                   few_shrink *s)
{
    const int i = (int)threadIdx.x / 16, warp = (int)threadIdx.x % 16 / 4;
    const int column = warp * LORA_WARP_K + (int)threadIdx.x % 4 * 8;
    const int row = max(row_of(g, t, i), 0); // of a row that is none nobody reads the sums
    const T *from = (const T *)g.c.in + (size_t)row * g.c.ld_in;
    uint4 x[LORA_CHUNKS];
    float squares = 0;
#pragma unroll
    for (int c = 0; c < LORA_CHUNKS; c++) {
        x[c] = load_row(from, k0 + column + c * LORA_CHUNK, g.c.k, g.vectors);
    }
#pragma unroll
    for (int c = 0; c < LORA_CHUNKS; c++) {
        const int at = column + c * LORA_CHUNK;
        if (g.squares != NULL) x[c] = times_norm<T>(g, x[c], k0 + at, &squares);
        *(uint4 *)&s->x[i][at * 2] = x[c];
    }
    if (g.squares == NULL) return;
    squares = group_sum(squares, 4);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < LORA_WARPS; w++) {
        sum += __shfl_sync(MSGL_FULL_MASK, squares, (int)threadIdx.x % 32 / 16 * 16 + 4 * w);
    }
    if (threadIdx.x % 16 != 0 || i >= t.count) return;
    g.squares[(size_t)blockIdx.y * (size_t)g.c.rows + (size_t)(t.first + i)] = sum;
}

// Sums of 16 ranks, from row a of A on, to h's ranks from `rank` on. A warp has a quarter of k. Of
// a chunk lane % 4 = 1 has elements [8, 16) of its rows of x and of A: both operands have k in the
// same order, which is all that a sum asks.
template <typename T>
static __device__ __forceinline__ void few_ranks(const lora_args &g, const tile_rows &t,
                                                 const char *a, int rank, int ranks, few_shrink *s)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int own = lane / 4 * FEW_PITCH + (warp * LORA_WARP_K + lane % 4 * 8) * 2;
    float acc[4] = {};
#pragma unroll
    for (int i = 0; i < LORA_CHUNKS; i++) {
        const int at = own + i * LORA_CHUNK * 2;
        const uint4 lo = *(const uint4 *)(a + at), hi = *(const uint4 *)(a + at + 8 * FEW_PITCH);
        const uint4 x = *(const uint4 *)(s->x[0] + at);
        const uint32_t first[4] = {lo.x, hi.x, lo.y, hi.y}, second[4] = {lo.z, hi.z, lo.w, hi.w};
        msgl__mma(acc, first, x.x, x.y, T());
        msgl__mma(acc, second, x.z, x.w, T());
    }
#pragma unroll
    for (int i = 0; i < 4; i++) { // rank lane / 4 or 8 behind, of two rows of the tile
        s->sums[warp][lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = acc[i];
    }
    __syncthreads();
    const int row = (int)threadIdx.x / FEW_RANKS, r = (int)threadIdx.x % FEW_RANKS;
    if (row < t.count && rank + r < ranks) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < LORA_WARPS; w++) sum += s->sums[w][row][r];
        const size_t place = (size_t)blockIdx.y * (size_t)g.c.rows + (size_t)(t.first + row);
        g.h[place * (size_t)g.c.max_ranks + (size_t)(rank + r)] = sum;
    }
    __syncthreads();
}

// Grid: tiles, each block takes every gridDim.x-th, and pieces of k.
template <typename T>
static __global__ void __launch_bounds__(LORA_THREADS)
    lora_few_shrink(const __grid_constant__ lora_args g)
{
    extern __shared__ __align__(128) char smem[]; // [few_a_rows][FEW_PITCH] of A
    __shared__ __align__(16) few_shrink s;
    msgl__pdl_trigger();
    const int k0 = (int)blockIdx.y * LORA_SPLIT;
#pragma unroll 1
    for (int i = (int)blockIdx.x; i < g.c.num_tiles; i += (int)gridDim.x) {
        const tile_rows t = open_tile(g, i);
        if (t.entry == NULL) continue;
        const T *a = (const T *)t.entry->a;
        const int ranks = t.entry->ranks;
#pragma unroll 1
        for (int rank = 0; rank < ranks; rank += FEW_A_ROWS) {
            const int rows = min(FEW_A_ROWS, ranks - rank);
            few_stage_a(g, a + (size_t)rank * (size_t)g.c.k, rows, k0, smem);
            msgl__copy_async_commit();
            if (rank == 0) {
                msgl__pdl_wait();
                few_stage_x<T>(g, t, k0, &s);
            }
            msgl__copy_async_wait<0>();
            __syncthreads();
#pragma unroll 1
            for (int r = 0; r < rows; r += FEW_RANKS) {
                few_ranks<T>(g, t, smem + r * FEW_PITCH, rank + r, ranks, &s);
            }
        }
    }
    msgl__pdl_wait();
}

// --- y += B h -----------------------------------------------------------------------------------

typedef lora_h<FEW_ROWS, FEW_MOST_RANK> few_h;

enum { FEW_B_PAD = 32 }; // bytes behind 8 columns, so that columns 8 apart are 8 banks apart, too

static __host__ __device__ __forceinline__ int few_b_bytes(int columns, int part_rank)
{
    return columns * part_rank * 2 + columns / 8 * FEW_B_PAD;
}

// Where column i of a block has its row of B.
static __device__ __forceinline__ int few_b_at(const lora_args &g, int i)
{
    return i * g.part_rank * 2 + i / 8 * FEW_B_PAD;
}

// B's rows for the block's columns from `column` on, of all parts from `part` on.
template <typename T>
static __device__ __forceinline__ void few_stage_b(const lora_args &g, const msgl_lora_entry *e,
                                                   int part, int column, uint32_t to)
{
    for (; part < e->num_parts; part = next_part(g, e, part + 1, column)) {
        const part_of<T> p = open_part<T>(e, part);
        const int from = max(p.col, column), end = min(p.col + p.n, column + g.columns);
        const unsigned each = (unsigned)p.rank / 8; // pieces of 16 bytes of a column, 2 to 16
        const unsigned inverse = 0xffffffffu / each + 1;
        const T *b = p.b + (size_t)(from - p.col) * (size_t)p.rank;
        for (unsigned i = threadIdx.x; i < (unsigned)(end - from) * each; i += LORA_THREADS) {
            const unsigned c = __umulhi(i, inverse); // i / each, as i is below 2^16
            const int at = few_b_at(g, from - column + (int)c) + (int)(i - c * each) * 16;
            msgl__copy_async_16_line(to + (uint32_t)at, b + (size_t)i * 8, true);
        }
    }
}

// Eight columns of a row of the output, as they are in memory.
template <typename O> struct few_out {
    O v[8];
};

// Columns [column, column + 8) of a row of the call, or those that there are. vectors: all are, in
// a place for 8 at a time. row -1: none.
template <typename O>
static __device__ __forceinline__ void few_load_out(const lora_args &g, int row, int column,
                                                    bool vectors, few_out<O> *out)
{
    const O *p = (const O *)g.c.out + (size_t)max(row, 0) * g.c.ld_out + (size_t)column;
    if (vectors) {
#pragma unroll
        for (size_t i = 0; i < sizeof *out / sizeof(uint4); i++) {
            ((uint4 *)out)[i] = ((const uint4 *)p)[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (column + i < g.c.n) out->v[i] = p[i];
        }
    }
}

template <typename O>
static __device__ __forceinline__ void few_store_out(const lora_args &g, int row, int column,
                                                     bool vectors, const few_out<O> &out)
{
    if (row < 0) return;
    O *p = (O *)g.c.out + (size_t)row * g.c.ld_out + (size_t)column;
    if (vectors) {
#pragma unroll
        for (size_t i = 0; i < sizeof out / sizeof(uint4); i++)
            ((uint4 *)p)[i] = ((uint4 *)&out)[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (column + i < g.c.n) p[i] = out.v[i];
        }
    }
}

// Sums of a set: B's rows are taken so that the four products of a step of k leave a lane columns
// next to each other: those 8 p + 2 f and 8 p + 2 f + 1 are rows p and p + 8 of product f.
template <typename T>
static __device__ __forceinline__ void few_expand_set(const lora_args &g, const few_h *s,
                                                      const char *b, int rank, float sum[2][8])
{
    const int q = (int)threadIdx.x % 4, pair = (int)threadIdx.x % 32 / 4;
    float acc[4][4] = {};
#pragma unroll 1
    for (int step = 0; step < rank / 16; step++) {
        const uint2 h = *(const uint2 *)&s->h[pair][8 * step + 2 * q];
#pragma unroll
        for (int f = 0; f < 4; f++) {
            const char *own = b + 32 * step + 8 * q + 2 * f * g.part_rank * 2;
            const uint2 lo = *(const uint2 *)own, hi = *(const uint2 *)(own + g.part_rank * 2);
            const uint32_t a[4] = {lo.x, hi.x, lo.y, hi.y};
            msgl__mma(acc[f], a, h.x, h.y, T());
        }
    }
#pragma unroll
    for (int f = 0; f < 4; f++) {
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i % 2][2 * f + i / 2] = acc[f][i];
    }
}

// Of a part whose ranks begin `at`. By two warps, so that the third can ask for the factors
// meanwhile.
template <typename T>
static __device__ __forceinline__ void few_fill_h(const lora_args &g, const tile_rows &t, int at,
                                                  int rank, few_h *s)
{
    enum { EACH = 64 / FEW_ROWS }; // threads of a row
    const int row = (int)threadIdx.x / EACH;
    if (row >= FEW_ROWS) return;
    for (int r = (int)threadIdx.x % EACH * 2; r < rank; r += 2 * EACH) {
        s->h[row][r / 2] = packed_h<T>(g, t, row, at + r);
    }
}

static __device__ __forceinline__ void few_fill_factors(const lora_args &g, const tile_rows &t,
                                                        few_h *s)
{
    const int row = (int)threadIdx.x - 64;
    if (row >= 0 && row < FEW_ROWS) s->factors[row] = row_factor(g, t, row);
}

// Adds a lane's sums to 8 columns of two rows, as far as they are the part's.
template <typename T, typename O>
static __device__ __forceinline__ void few_add(const part_of<T> &p, const float factors[2],
                                               const float sum[2][8], int column, few_out<O> out[2])
{
    const bool all = column >= p.col && column + 8 <= p.col + p.n;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (!all && (column + j < p.col || column + j >= p.col + p.n)) continue;
            O *own = &out[half].v[j];
            *own = from_f32<O>(to_f32(*own) + factors[half] * sum[half][j]);
        }
    }
}

// One part of a tile, for the block's columns from `first` on, whose B is there or on its way. Of
// each 256 columns a warp has 64, and a lane those [8 (lane / 4), 8 (lane / 4) + 8) of rows
// lane % 4 * 2 and the next one of the tile. The next 256 columns' lines are on their way while
// these are worked on.
template <typename T, typename O>
static __device__ __forceinline__ void few_expand_part(const lora_args &g, const tile_rows &t,
                                                       const part_of<T> &p, int first,
                                                       const int row[2], const char *b, few_h *s)
{
    const int lane = (int)threadIdx.x % 32, end = min(first + g.columns, g.c.n);
    const bool vectors = g.out_vectors && first + g.columns <= g.c.n;
    int column = first + (int)threadIdx.x / 32 * LORA_WARP_COLUMNS + lane / 4 * 8;
    few_out<O> out[2] = {};
    few_fill_h<T>(g, t, p.at, p.rank, s);
    few_fill_factors(g, t, s);
    few_load_out<O>(g, row[0], column, vectors, &out[0]);
    few_load_out<O>(g, row[1], column, vectors, &out[1]);
    msgl__copy_async_wait<0>();
    __syncthreads();
    const float factors[2] = {s->factors[lane % 4 * 2], s->factors[lane % 4 * 2 + 1]};
#pragma unroll 1
    for (; column - lane / 4 * 8 < end; column += LORA_COLUMNS) {
        few_out<O> next[2] = {};
        if (column + LORA_COLUMNS < end) {
            few_load_out<O>(g, row[0], column + LORA_COLUMNS, vectors, &next[0]);
            few_load_out<O>(g, row[1], column + LORA_COLUMNS, vectors, &next[1]);
        }
        float sum[2][8];
        few_expand_set<T>(g, s, b + few_b_at(g, column - first), p.rank, sum);
        few_add<T, O>(p, factors, sum, column, out);
        few_store_out<O>(g, row[0], column, vectors, out[0]);
        few_store_out<O>(g, row[1], column, vectors, out[1]);
        out[0] = next[0];
        out[1] = next[1];
    }
}

// Grid: tiles, each block takes every gridDim.x-th, and the layer's columns.
template <typename T, typename O>
static __global__ void __launch_bounds__(LORA_THREADS, 6)
    lora_few_expand(const __grid_constant__ lora_args g)
{
    extern __shared__ __align__(128) char smem[];
    __shared__ few_h s;
    msgl__pdl_trigger();
    const int first = (int)blockIdx.y * g.columns, q = (int)threadIdx.x % 4;
#pragma unroll 1
    for (int i = (int)blockIdx.x; i < g.c.num_tiles; i += (int)gridDim.x) {
        const tile_rows t = open_tile(g, i);
        int part = t.entry != NULL ? next_part(g, t.entry, 0, first) : 0;
        if (t.entry == NULL || part == t.entry->num_parts) continue;
        if (i > (int)blockIdx.x) __syncthreads(); // the tile before is done with B and h
        few_stage_b<T>(g, t.entry, part, first, msgl__shared_address(smem));
        msgl__copy_async_commit();
        const int row[2] = {row_of(g, t, 2 * q), row_of(g, t, 2 * q + 1)};
        part_of<T> p = open_part<T>(t.entry, part);
        msgl__pdl_wait();
#pragma unroll 1
        for (;;) {
            few_expand_part<T, O>(g, t, p, first, row, smem, &s);
            part = next_part(g, t.entry, part + 1, first);
            if (part == t.entry->num_parts) break;
            p = open_part<T>(t.entry, part);
            __syncthreads(); // all are done with the part before
        }
    }
    msgl__pdl_wait();
}

#endif
