// SPDX-License-Identifier: Apache-2.0
//
// What all kernels of low-rank adapters (lora.cu) have in common: a block's tile, its rows, an
// adapter's parts, and sums over the pieces of k.
#ifndef MSGL_CUDA_GEMM_LORA_TILE_CUH
#define MSGL_CUDA_GEMM_LORA_TILE_CUH

#include "cuda/ops/vec8.cuh"
#include "kernel/calls.h"

enum {
    LORA_WARPS = 4,
    LORA_THREADS = LORA_WARPS * 32,
    LORA_SPLIT = 512, // of k, a warp has a quarter of it
    LORA_WARP_K = LORA_SPLIT / LORA_WARPS,
    LORA_CHUNK = 32, // of k, which a lane's 16 bytes of a row are 8 elements of
    LORA_CHUNKS = LORA_WARP_K / LORA_CHUNK,
    LORA_COLUMNS = 256, // of a block of the second kernel at a time
    LORA_WARP_COLUMNS = LORA_COLUMNS / LORA_WARPS,
    LORA_MAX_RANK = 256, // of a part
};

struct lora_args {
    msgl_lora_tiles_call c;
    float *h;       // [pieces, rows, max_ranks] partial sums, by place in the order
    float *squares; // [pieces, rows] of the row's sum of squares; NULL: there is no norm
    int pieces;     // of h
    int columns;    // of a block of the second kernel, a multiple of LORA_COLUMNS
    int part_rank;  // most that a part can have
    bool vectors;   // rows of in, A and the norm's weights can be read 8 elements at a time
    bool out_vectors;
};

// The rows of a block's tile that are the call's.
struct tile_rows {
    const msgl_lora_entry *entry; // NULL: there is nothing to do
    int first, count;             // places in the order
};

// All threads get the same, from what no kernel of the step writes.
static __device__ tile_rows open_tile(const lora_args &g, int tile)
{
    const msgl_lora_tile t = g.c.tiles[tile];
    tile_rows r = {NULL, t.first, t.rows};
    if (t.rows == 0) return r;
    const msgl_lora_entry *e = g.c.entries + (size_t)t.slot * (size_t)g.c.stride;
    const void *a = e->a; // on its way together with the order's two
    // Rows of a slot ascend: the tile has some of the call's unless all are on one side.
    const int lowest = g.c.order[t.first], highest = g.c.order[t.first + t.rows - 1];
    if (a != NULL && highest >= g.c.first && lowest < g.c.first + g.c.m) r.entry = e;
    return r;
}

// Row i of the tile as a row of the call; -1: it is none of it.
static __device__ int row_of(const lora_args &g, const tile_rows &t, int i)
{
    if (i >= t.count) return -1;
    const int row = g.c.order[t.first + i] - g.c.first;
    return row >= 0 && row < g.c.m ? row : -1;
}

// Elements [at, at + 8) of a row of k; zeros beyond its end, and where p is NULL.
template <typename T> static __device__ uint4 load_row(const T *p, int at, int k, bool vectors)
{
    if (p == NULL || at >= k) return make_uint4(0, 0, 0, 0);
    if (vectors) return *(const uint4 *)(p + at); // k is a multiple of 8
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = at + i < k ? to_f32(p[at + i]) : 0.0f;
    return pack8(v, T());
}

// Multiplies by the norm's weights and adds to the sum of squares.
template <typename T>
static __device__ uint4 times_norm(const lora_args &g, uint4 x, int at, float *squares)
{
    float v[8], w[8];
    if (at >= g.c.k) return x;
    unpack8(x, v, T());
    if (g.vectors) {
        load8(g.c.norm + at, w);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = at + i < g.c.k ? g.c.norm[at + i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        *squares += v[i] * v[i];
        v[i] *= w[i];
    }
    return pack8(v, T());
}

static __device__ __forceinline__ void add_to(float *sum, float v)
{
    *sum += v;
}
static __device__ __forceinline__ void add_to(float2 *sum, float2 v)
{
    sum->x += v.x;
    sum->y += v.y;
}

// The sum of p[i * step], i < pieces, in that order. AT_ONCE of them are on their way together.
template <typename V>
static __device__ __forceinline__ V sum_pieces(const V *p, size_t step, int pieces)
{
    enum { AT_ONCE = 10 };
    V sum = {};
    for (int first = 0; first < pieces; first += AT_ONCE) {
        V v[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            v[i] = {};
            if (first + i < pieces) v[i] = __ldcg(&p[(size_t)(first + i) * step]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) add_to(&sum, v[i]);
    }
    return sum;
}

// h of place `at` in the order and ranks r, which is even, and r + 1 of all parts'.
static __device__ __forceinline__ float2 sum_h(const lora_args &g, int at, int r)
{
    const size_t ranks = (size_t)g.c.max_ranks; // even
    const float *p = g.h + (size_t)at * ranks + (size_t)r;
    return sum_pieces((const float2 *)p, (size_t)g.c.rows * ranks / 2, g.pieces);
}

// h of a tile's rows and of one part, rounded and in shared memory, and what the norm makes of it:
// a factor, which comes to the sums of B h.
template <int ROWS, int MOST_RANK> struct lora_h {
    uint32_t h[ROWS][(MOST_RANK + 16) / 2]; // pairs; 16: rows begin 8 banks apart
    float factors[ROWS];
};

// Of row i of a tile h's ranks r, which is even, and r + 1 of all parts'; zeros behind its rows.
template <typename T>
static __device__ __forceinline__ uint32_t packed_h(const lora_args &g, const tile_rows &t, int i,
                                                    int r)
{
    float2 v = make_float2(0, 0);
    if (i < t.count) v = sum_h(g, t.first + i, r);
    return msgl__pack_two(v.x, v.y, T());
}

// 1 / sqrt(mean of squares + eps) of row i of a tile, or 1 without a norm.
static __device__ __forceinline__ float row_factor(const lora_args &g, const tile_rows &t, int i)
{
    if (g.squares == NULL || i >= t.count) return 1;
    const float sum = sum_pieces(g.squares + t.first + i, (size_t)g.c.rows, g.pieces);
    return rsqrtf(sum / (float)g.c.k + g.c.norm_eps);
}

// The first part from `part` on that has some of the block's columns, from `column` on.
static __device__ int next_part(const lora_args &g, const msgl_lora_entry *e, int part, int column)
{
    while (part < e->num_parts && (e->parts[part].col >= column + g.columns ||
                                   e->parts[part].col + e->parts[part].n <= column)) {
        part++;
    }
    return part;
}

// What a block is to multiply by: a part's B.
template <typename T> struct part_of {
    const T *b;
    int rank, at, col, n;
};

template <typename T> static __device__ part_of<T> open_part(const msgl_lora_entry *e, int part)
{
    return {(const T *)e->parts[part].b, e->parts[part].rank, e->parts[part].at, e->parts[part].col,
            e->parts[part].n};
}

#endif
