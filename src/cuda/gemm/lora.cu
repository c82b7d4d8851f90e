// SPDX-License-Identifier: Apache-2.0
//
// Low-rank adapters of a linear layer (msgl_lora_tiles_call): h = A x, then y += B h, each one
// kernel for all adapters, rows and parts. A block has a tile: rows of one adapter. The first
// kernel cuts k into pieces of LORA_SPLIT, a block each, and leaves their partial sums; the second
// one adds them up, in the order of k, and has a multiple of LORA_COLUMNS columns a block. With so
// many rows that tiles alone fill the GPU, one block takes all pieces, and adds them up in the same
// order, so that a row's bits do not depend on how many rows there are. Here: tiles of up to 64
// rows, and f32; lora_few.cuh: tiles of up to 8 rows, of decode steps.
//
// Both kernels read their weights, which no kernel writes, before they wait for the kernel in front
// (cuda/launch.cuh).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/device.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lora_few.cuh"
#include "cuda/gemm/lora_tile.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/mma.cuh"

enum {
    SPLIT_ROWS = 512, // up to here partial sums go through memory
    SETS = LORA_WARP_COLUMNS / 32,
    FRAGMENTS = MSGL_LORA_MOST_TILE / 16, // of a tile's rows
    GROUPS = 4,                           // of 8 ranks at a time
};

// --- 16-bit values, by tensor cores -------------------------------------------------------------

// The weights of one piece for a warp: rank rows [rank, rank + 8 GROUPS) in fragments of 8.
template <typename T>
static __device__ void load_a(const lora_args &g, const msgl_lora_entry *e, int rank, int k0,
                              uint4 a[LORA_CHUNKS][GROUPS])
{
    const int lane = (int)threadIdx.x % 32, k = g.c.k;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        const int row = rank + 8 * j + lane / 4;
        const T *p = row < e->ranks ? (const T *)e->a + (size_t)row * (size_t)k : NULL;
#pragma unroll
        for (int i = 0; i < LORA_CHUNKS; i++) {
            a[i][j] = load_row(p, k0 + i * LORA_CHUNK + lane % 4 * 8, k, g.vectors);
        }
    }
}

// A warp's rows of x: two to a fragment of 16, lane / 4 and 8 more.
template <typename T> struct x_rows {
    const T *row[FRAGMENTS][2];
    float squares[FRAGMENTS][2];
};

// acc += x A^T over the warp's quarter of a piece. Of a chunk lane % 4 = 1 has elements [8, 16) of
// its rows of x and of A: both operands have k in the same order, which is all that a sum asks.
template <typename T>
static __device__ void multiply_piece(const lora_args &g, const uint4 a[LORA_CHUNKS][GROUPS],
                                      int k0, x_rows<T> *x, float acc[FRAGMENTS][GROUPS][4])
{
    const int column = (int)threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < LORA_CHUNKS; i++) {
        const int at = k0 + i * LORA_CHUNK + column;
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
            uint4 lo = load_row(x->row[f][0], at, g.c.k, g.vectors);
            uint4 hi = load_row(x->row[f][1], at, g.c.k, g.vectors);
            if (g.squares != NULL) {
                lo = times_norm<T>(g, lo, at, &x->squares[f][0]);
                hi = times_norm<T>(g, hi, at, &x->squares[f][1]);
            }
            const uint32_t first[4] = {lo.x, hi.x, lo.y, hi.y},
                           second[4] = {lo.z, hi.z, lo.w, hi.w};
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                msgl__mma(acc[f][j], first, a[i][j].x, a[i][j].y, T());
                msgl__mma(acc[f][j], second, a[i][j].z, a[i][j].w, T());
            }
        }
    }
}

struct shrink_shared {
    enum { ROWS = 16 * FRAGMENTS, RANKS = 8 * GROUPS, STRIDE = RANKS + 8 }; // 8: other banks
    float sums[LORA_WARPS][ROWS][STRIDE];
    float squares[LORA_WARPS][ROWS];
};

// Each warp's sums of a piece to shared memory.
template <typename T>
static __device__ void leave_sums(shrink_shared *s, const float acc[FRAGMENTS][GROUPS][4],
                                  x_rows<T> *x)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = 16 * f + 8 * half + lane / 4;
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                *(float2 *)&s->sums[warp][row][8 * j + lane % 4 * 2] =
                    make_float2(acc[f][j][2 * half], acc[f][j][2 * half + 1]);
            }
            const float sum = group_sum(x->squares[f][half], 4);
            if (lane % 4 == 0) s->squares[warp][row] = sum;
            x->squares[f][half] = 0;
        }
    }
}

// One group of ranks of a tile: pieces [piece, end), whose sums are added up in their order and go
// to the first one's place in h. The weights of that one are there.
template <typename T>
static __device__ void shrink_group(const lora_args &g, const tile_rows &t, int rank, int piece,
                                    int end, uint4 a[LORA_CHUNKS][GROUPS], x_rows<T> *x,
                                    shrink_shared *s)
{
    typedef shrink_shared shared;
    enum { EACH = shared::ROWS * shared::RANKS / LORA_THREADS };
    const int k_of_warp = (int)threadIdx.x / 32 * LORA_WARP_K, tid = (int)threadIdx.x;
    float total[EACH] = {}, squares = 0;
    for (int p = piece; p < end; p++) {
        float acc[FRAGMENTS][GROUPS][4] = {};
        if (p > piece) load_a<T>(g, t.entry, rank, p * LORA_SPLIT + k_of_warp, a);
        multiply_piece<T>(g, a, p * LORA_SPLIT + k_of_warp, x, acc);
        leave_sums<T>(s, acc, x);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = tid + i * LORA_THREADS, row = at / shared::RANKS, r = at % shared::RANKS;
            float sum = 0;
            for (int w = 0; w < LORA_WARPS; w++) sum += s->sums[w][row][r];
            total[i] += sum;
        }
        if (tid < shared::ROWS) {
            float sum = 0;
            for (int w = 0; w < LORA_WARPS; w++) sum += s->squares[w][tid];
            squares += sum;
        }
        __syncthreads();
    }
    const size_t place = (size_t)piece * (size_t)g.c.rows + (size_t)t.first;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = tid + i * LORA_THREADS, row = at / shared::RANKS;
        const int r = rank + at % shared::RANKS;
        if (row >= t.count || r >= t.entry->ranks) continue;
        g.h[(place + (size_t)row) * (size_t)g.c.max_ranks + (size_t)r] = total[i];
    }
    if (g.squares != NULL && rank == 0 && tid < t.count) {
        g.squares[place + (size_t)tid] = squares;
    }
}

// Grid: tiles, and pieces of k or 1.
template <typename T>
static __global__ void __launch_bounds__(LORA_THREADS)
    lora_shrink(const __grid_constant__ lora_args g)
{
    __shared__ shrink_shared s;
    msgl__pdl_trigger();
    const tile_rows t = open_tile(g, (int)blockIdx.x);
    if (t.entry == NULL) {
        msgl__pdl_wait();
        return;
    }
    const int all = (g.c.k + LORA_SPLIT - 1) / LORA_SPLIT, lane = (int)threadIdx.x % 32;
    const int piece = g.pieces > 1 ? (int)blockIdx.y : 0, end = g.pieces > 1 ? piece + 1 : all;
    const int k0 = piece * LORA_SPLIT + (int)threadIdx.x / 32 * LORA_WARP_K;
    x_rows<T> x = {};
    uint4 a[LORA_CHUNKS][GROUPS];
    load_a<T>(g, t.entry, 0, k0, a);
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = row_of(g, t, 16 * f + 8 * half + lane / 4);
            x.row[f][half] = row < 0 ? NULL : (const T *)g.c.in + (size_t)row * g.c.ld_in;
        }
    }
    msgl__pdl_wait();
    const int ranks = t.entry->ranks;
    for (int rank = 0; rank < ranks; rank += 8 * GROUPS) {
        if (rank > 0) load_a<T>(g, t.entry, rank, k0, a);
        shrink_group<T>(g, t, rank, piece, end, a, &x, &s);
    }
}

typedef lora_h<16 * FRAGMENTS, LORA_MAX_RANK> expand_shared;

// Of a part whose ranks begin `at`.
template <typename T>
static __device__ void fill_h(const lora_args &g, const tile_rows &t, int at, int rank,
                              expand_shared *s)
{
    const int pairs = rank / 2;
    for (int i = (int)threadIdx.x; i < 16 * FRAGMENTS * pairs; i += LORA_THREADS) {
        const int row = i / pairs, r = i % pairs * 2;
        s->h[row][r / 2] = packed_h<T>(g, t, row, at + r);
    }
}

// A part's B, columns [16 step, 16 step + 16) of 32 rows: the layer's columns [column, column +
// 32). Fragment j has those 8 i + 2 j and 8 i + 2 j + 1 for i < 4, so that a lane gets 8 columns
// next to each other from four of them; and lane % 4 = 1 elements [4, 8) of the 16, as of h.
template <typename T>
static __device__ void load_b(const part_of<T> &p, int column, int step, uint2 out[4])
{
    const int lane = (int)threadIdx.x % 32, pair = lane / 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int row = column + 8 * (pair / 2) + 2 * j + pair % 2 - p.col;
        out[j] = make_uint2(0, 0);
        if (row < 0 || row >= p.n) continue;
        out[j] = *(const uint2 *)(p.b + (size_t)row * (size_t)p.rank + 16 * step + lane % 4 * 4);
    }
}

// out[i] += v[i] for columns [column, column + 8), as far as they are in [from, end).
template <typename O>
static __device__ void add_columns(O *out, const float v[8], int column, int from, int end,
                                   bool vectors)
{
    if (column >= end || column + 8 <= from) return;
    if (vectors && column >= from && column + 8 <= end) {
        float old[8];
        load8(out + column, old);
#pragma unroll
        for (int i = 0; i < 8; i++) old[i] += v[i];
        store8(out + column, old);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (column + i < from || column + i >= end) continue;
        out[column + i] = from_f32<O>(to_f32(out[column + i]) + v[i]);
    }
}

template <typename T>
static __device__ void add_row(const lora_args &g, int row, const float v[8], int column, int from,
                               int end)
{
    if (row < 0) return;
    const size_t at = (size_t)row * g.c.ld_out;
    if (g.c.f32_out) {
        add_columns((float *)g.c.out + at, v, column, from, end, g.out_vectors);
    } else {
        add_columns((T *)g.c.out + at, v, column, from, end, g.out_vectors);
    }
}

// A warp's 32 columns from `column` on of a part. begun: B's first 16 columns.
template <typename T>
static __device__ void expand_set(const lora_args &g, const tile_rows &t, const expand_shared *s,
                                  const part_of<T> &p, int column, const uint2 begun[4])
{
    const int lane = (int)threadIdx.x % 32, pair = lane / 4, at = lane % 4 * 2;
    float acc[FRAGMENTS][4][4] = {};
    uint2 now[4] = {begun[0], begun[1], begun[2], begun[3]};
    for (int step = 0; step < p.rank / 16; step++) {
        if (step > 0) load_b(p, column, step, now);
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
            const uint2 lo = *(const uint2 *)&s->h[16 * f + pair][8 * step + at];
            const uint2 hi = *(const uint2 *)&s->h[16 * f + 8 + pair][8 * step + at];
            const uint32_t a[4] = {lo.x, hi.x, lo.y, hi.y};
#pragma unroll
            for (int j = 0; j < 4; j++) msgl__mma(acc[f][j], a, now[j].x, now[j].y, T());
        }
    }
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = 16 * f + 8 * half + pair;
            const float factor = s->factors[row];
            float v[8];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[2 * j] = factor * acc[f][j][2 * half];
                v[2 * j + 1] = factor * acc[f][j][2 * half + 1];
            }
            add_row<T>(g, row_of(g, t, row), v, column + 4 * at, p.col, p.col + p.n);
        }
    }
}

// B's first 16 columns for a warp's columns from `column` on.
template <typename T>
static __device__ void begin_b(const part_of<T> &p, int column, uint2 out[SETS][4])
{
#pragma unroll
    for (int i = 0; i < SETS; i++) {
        load_b(p, column + 32 * i, 0, out[i]);
    }
}

// The warp's columns of a part, in each LORA_COLUMNS of the block's from `own` to end, while B of
// the next ones is on its way.
template <typename T>
static __device__ void expand_part(const lora_args &g, const tile_rows &t, const expand_shared *s,
                                   const part_of<T> &p, int own, int end, uint2 begun[SETS][4])
{
    for (int column = own; column < end; column += LORA_COLUMNS) {
        uint2 next[SETS][4] = {};
        if (column + LORA_COLUMNS < end) begin_b(p, column + LORA_COLUMNS, next);
#pragma unroll
        for (int i = 0; i < SETS; i++) {
            const int at = column + 32 * i;
            if (at < p.col + p.n && at + 32 > p.col) {
                expand_set<T>(g, t, s, p, at, begun[i]);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) begun[i][j] = next[i][j];
        }
    }
}

// Grid: tiles, and the layer's columns.
template <typename T>
static __global__ void __launch_bounds__(LORA_THREADS)
    lora_expand(const __grid_constant__ lora_args g)
{
    __shared__ expand_shared s;
    msgl__pdl_trigger();
    const tile_rows t = open_tile(g, (int)blockIdx.x);
    const int column = (int)blockIdx.y * g.columns;
    const int own = column + (int)threadIdx.x / 32 * LORA_WARP_COLUMNS;
    int part = t.entry != NULL ? next_part(g, t.entry, 0, column) : 0;
    if (t.entry == NULL || part == t.entry->num_parts) {
        msgl__pdl_wait();
        return;
    }
    for (bool waits = true; part < t.entry->num_parts;
         part = next_part(g, t.entry, part + 1, column), waits = false) {
        const part_of<T> p = open_part<T>(t.entry, part);
        uint2 begun[SETS][4];
        begin_b(p, own, begun);
        if (waits) {
            msgl__pdl_wait();
            if (threadIdx.x < 16 * FRAGMENTS)
                s.factors[threadIdx.x] = row_factor(g, t, (int)threadIdx.x);
        } else {
            __syncthreads(); // the part before is done with h
        }
        fill_h<T>(g, t, p.at, p.rank, &s);
        __syncthreads();
        expand_part<T>(g, t, &s, p, own, column + g.columns, begun);
    }
}

// --- f32 ----------------------------------------------------------------------------------------

enum { F32_ROWS = 16 }; // of a tile, at a time

// A warp's products: of row i of the tile with rank r, over a piece.
static __device__ float f32_dot(const lora_args &g, const float *x, const float *a, int k0)
{
    float sum = 0;
    for (int k = k0 + (int)threadIdx.x % 32; k < k0 + LORA_SPLIT && k < g.c.k; k += 32) {
        sum += x[k] * (g.squares != NULL ? g.c.norm[k] : 1.0f) * a[k];
    }
    return group_sum(sum, 32);
}

static __device__ float f32_squares(const lora_args &g, const float *x, int k0)
{
    float sum = 0;
    for (int k = k0 + (int)threadIdx.x % 32; k < k0 + LORA_SPLIT && k < g.c.k; k += 32) {
        sum += x[k] * x[k];
    }
    return group_sum(sum, 32);
}

static __global__ void __launch_bounds__(LORA_THREADS)
    lora_shrink_f32(const __grid_constant__ lora_args g)
{
    msgl__pdl_trigger();
    const tile_rows t = open_tile(g, (int)blockIdx.x);
    msgl__pdl_wait();
    if (t.entry == NULL) return;
    const int all = (g.c.k + LORA_SPLIT - 1) / LORA_SPLIT, ranks = t.entry->ranks;
    const int piece = g.pieces > 1 ? (int)blockIdx.y : 0, end = g.pieces > 1 ? piece + 1 : all;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const size_t place = (size_t)piece * (size_t)g.c.rows + (size_t)t.first;
    for (int i = warp; i < t.count * (ranks + 1); i += LORA_WARPS) { // rank `ranks`: the squares
        const int at = i / (ranks + 1), r = i % (ranks + 1), row = row_of(g, t, at);
        if (row < 0 || (r == ranks && g.squares == NULL)) continue;
        const float *x = (const float *)g.c.in + (size_t)row * g.c.ld_in;
        const float *a = (const float *)t.entry->a + (size_t)(r < ranks ? r : 0) * (size_t)g.c.k;
        float sum = 0;
        for (int p = piece; p < end; p++) {
            sum += r < ranks ? f32_dot(g, x, a, p * LORA_SPLIT) : f32_squares(g, x, p * LORA_SPLIT);
        }
        if (lane != 0) continue;
        float *out = r < ranks ? &g.h[(place + (size_t)at) * (size_t)g.c.max_ranks + (size_t)r]
                               : &g.squares[place + (size_t)at];
        *out = sum;
    }
}

// Rows [0, rows) of a tile, whose h is there, for the block's columns of one part.
static __device__ void f32_add(const lora_args &g, const tile_rows &t, int rows,
                               const float h[F32_ROWS][LORA_MAX_RANK], const part_of<float> &p,
                               int column)
{
    for (int i = (int)threadIdx.x; i < g.columns; i += LORA_THREADS) {
        const int of_part = column + i - p.col;
        if (of_part < 0 || of_part >= p.n) continue;
        for (int j = 0; j < rows; j++) {
            const int row = row_of(g, t, j);
            float sum = 0;
            if (row < 0) continue;
            for (int r = 0; r < p.rank; r++) {
                sum += h[j][r] * p.b[(size_t)of_part * (size_t)p.rank + r];
            }
            ((float *)g.c.out)[(size_t)row * g.c.ld_out + (size_t)(column + i)] += sum;
        }
    }
}

static __global__ void __launch_bounds__(LORA_THREADS)
    lora_expand_f32(const __grid_constant__ lora_args g)
{
    __shared__ float h[F32_ROWS][LORA_MAX_RANK], factors[F32_ROWS];
    msgl__pdl_trigger();
    const tile_rows all = open_tile(g, (int)blockIdx.x);
    msgl__pdl_wait();
    if (all.entry == NULL) return;
    const int column = (int)blockIdx.y * g.columns;
    for (int first = 0; first < all.count; first += F32_ROWS) {
        const int rows = all.count - first < F32_ROWS ? all.count - first : F32_ROWS;
        const tile_rows t = {all.entry, all.first + first, rows};
        if ((int)threadIdx.x < rows) factors[threadIdx.x] = row_factor(g, t, (int)threadIdx.x);
        for (int part = next_part(g, t.entry, 0, column); part < t.entry->num_parts;
             part = next_part(g, t.entry, part + 1, column)) {
            const part_of<float> p = open_part<float>(t.entry, part);
            __syncthreads(); // factors are there, or the part before is done with h
            for (int i = (int)threadIdx.x; i < rows * p.rank / 2; i += LORA_THREADS) {
                const int j = 2 * i / p.rank, r = 2 * i % p.rank;
                const float2 v = sum_h(g, t.first + j, p.at + r);
                h[j][r] = v.x * factors[j];
                h[j][r + 1] = v.y * factors[j];
            }
            __syncthreads();
            f32_add(g, t, rows, h, p, column);
        }
        __syncthreads();
    }
}

// --- launches -----------------------------------------------------------------------------------

static int pieces_of(int rows, int k)
{
    return rows <= SPLIT_ROWS ? (k + LORA_SPLIT - 1) / LORA_SPLIT : 1;
}

// So many that all blocks are there at once, about, as a block that is not cannot begin early.
static int columns_of(const msgl_exec *x, int tiles, int n, int most)
{
    enum { BLOCKS = 5 }; // of an SM
    const int64_t blocks = (int64_t)tiles * ((n + LORA_COLUMNS - 1) / LORA_COLUMNS);
    const int64_t there = (int64_t)BLOCKS * msgl__cuda_device(x)->sm_count;
    int each = 1;
    while (each < most && each * there < blocks) each *= 2;
    return LORA_COLUMNS * each;
}

// x times the norm's weights may be beyond f16's largest number, so there it is normed first.
static bool norm_first(msgl_exec *x, msgl_lora_tiles_call *c)
{
    if (c->norm == NULL || x->act != MSGL_F16) return true;
    void *normed = msgl__arena_alloc(x->scratch, (size_t)c->m * (size_t)c->k * sizeof(uint16_t));
    if (normed == NULL) return false;
    msgl__cuda_rms_norm(x, c->in, c->ld_in, c->norm, c->norm_eps, normed, (size_t)c->k, c->m, c->k);
    c->in = normed;
    c->ld_in = (size_t)c->k;
    c->norm = NULL;
    return true;
}

// A kernel that wants as much of an SM's memory for shared memory as the products beside it can
// start before these end.
template <auto KERNEL>
static void start(msgl_exec *x, const lora_args &g, int tiles, int columns, int shared)
{
    MSGL_CUDA_TRY(x, msgl__allow_shared<KERNEL>((size_t)(shared > 0 ? shared : 1), true));
    const dim3 grid((unsigned)tiles, (unsigned)columns);
    MSGL_CUDA_TRY(
        x, msgl__launch(KERNEL, grid, dim3(LORA_THREADS), (size_t)shared, msgl__cuda_stream(x), g));
}

// There is room for rows / tile_rows tiles that are full and for one that is not of each adapter.
// A step of few rows an adapter has the latter: it gets as many blocks, which also take the others.
static int few_tiles(const msgl_lora_tiles_call *c)
{
    const int adapters = c->num_tiles - c->rows / c->tile_rows;
    return adapters > 0 ? adapters : c->num_tiles;
}

template <typename T> static void few_rows(msgl_exec *x, lora_args *g)
{
    enum { MOST = 4, B_BYTES = 64 << 10 };
    static_assert(B_BYTES / (LORA_COLUMNS * 2) / FEW_MOST_RANK >= 1, "B of one step fits");
    const int tiles = few_tiles(&g->c), most = B_BYTES / (LORA_COLUMNS * 2) / g->part_rank;
    g->columns = columns_of(x, tiles, g->c.n, most > MOST ? MOST : most);
    start<lora_few_shrink<T>>(x, *g, tiles, g->pieces, few_a_rows(g->c.max_ranks) * FEW_PITCH);
    const int grid = (g->c.n + g->columns - 1) / g->columns;
    const int b = few_b_bytes(g->columns, g->part_rank);
    if (g->c.f32_out) {
        start<lora_few_expand<T, float>>(x, *g, tiles, grid, b);
    } else {
        start<lora_few_expand<T, T>>(x, *g, tiles, grid, b);
    }
}

template <auto SHRINK, auto EXPAND> static void many_rows(msgl_exec *x, lora_args *g)
{
    enum { MOST = 8 };
    g->columns = columns_of(x, g->c.num_tiles, g->c.n, MOST);
    start<SHRINK>(x, *g, g->c.num_tiles, g->pieces, 0);
    start<EXPAND>(x, *g, g->c.num_tiles, (g->c.n + g->columns - 1) / g->columns, 0);
}

void msgl__cuda_lora_tiles(msgl_exec *x, const msgl_lora_tiles_call *call)
{
    if (x->status != 0 || call->m == 0 || call->num_tiles == 0 || call->rows == 0) return;
    lora_args g = {};
    g.c = *call;
    bool room = norm_first(x, &g.c);
    g.pieces = pieces_of(g.c.rows, g.c.k);
    g.part_rank = g.c.max_ranks / g.c.parts;
    const size_t places = (size_t)g.pieces * (size_t)g.c.rows;
    g.h = (float *)msgl__arena_alloc(x->scratch, places * (size_t)g.c.max_ranks * sizeof(float));
    if (g.c.norm != NULL) {
        g.squares = (float *)msgl__arena_alloc(x->scratch, places * sizeof(float));
        room = room && g.squares != NULL;
    }
    if (!room || g.h == NULL) {
        x->status = MSGL_ENOMEM;
        return;
    }
    g.vectors = g.c.k % 8 == 0 && g.c.ld_in % 8 == 0 && aligned16(g.c.in) &&
                (g.c.norm == NULL || aligned16(g.c.norm));
    g.out_vectors = g.c.ld_out % 8 == 0 && aligned16(g.c.out);
    const bool few =
        g.c.tile_rows <= FEW_ROWS && g.c.rows <= SPLIT_ROWS && g.part_rank <= FEW_MOST_RANK;
    if (x->act == MSGL_F32) {
        many_rows<lora_shrink_f32, lora_expand_f32>(x, &g);
    } else if (x->act == MSGL_BF16 && few) {
        few_rows<__nv_bfloat16>(x, &g);
    } else if (x->act == MSGL_BF16) {
        many_rows<lora_shrink<__nv_bfloat16>, lora_expand<__nv_bfloat16>>(x, &g);
    } else if (few) {
        few_rows<__half>(x, &g);
    } else {
        many_rows<lora_shrink<__half>, lora_expand<__half>>(x, &g);
    }
}

size_t msgl__cuda_lora_scratch(const msgl_lora_size *s, msgl_dtype act)
{
    enum { ALIGN = 64, ALLOCATIONS = 3 };
    const size_t split_rows = (size_t)(s->rows < SPLIT_ROWS ? s->rows : SPLIT_ROWS);
    const size_t split = split_rows * (size_t)pieces_of(1, s->k);
    const size_t places = split > (size_t)s->rows ? split : (size_t)s->rows;
    const size_t normed = act == MSGL_F16 ? (size_t)s->rows * (size_t)s->k * sizeof(uint16_t) : 0;
    return places * ((size_t)s->ranks + 1) * sizeof(float) + normed + ALLOCATIONS * ALIGN;
}
