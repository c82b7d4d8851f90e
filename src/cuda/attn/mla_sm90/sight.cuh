// SPDX-License-Identifier: Apache-2.0
//
// The keys that a thread's two query rows (r and r + 8 of a tile) see.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_SIGHT_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_SIGHT_CUH

#include "cuda/attn/mla_sm90/config.cuh"

struct msgl_mla_sight {
    int keys_end[2]; // of the rows in the current unit; in a tree, their tokens
    int sure_end;    // keys up to here are seen by all rows; in a tree, the older ones

    // Of keys_end, that of a row by its place in the unit.
    static __device__ __forceinline__ int end(const msgl_mla_params &p, const msgl_mla_unit &unit,
                                              int row)
    {
        const int first = unit.first_row % p.heads, behind = (first + row) / p.heads; // in tokens
        if (p.tree == NULL) return unit.seen + behind;
        return min(unit.first_row / p.heads + behind, (unit.first_row + unit.rows - 1) / p.heads);
    }

    __device__ __forceinline__ void begin(const msgl_mla_params &p, const msgl_mla_unit &unit)
    {
        sure_end = p.tree == NULL ? unit.seen : unit.old;
    }

    // row: the first one's place in the unit.
    __device__ __forceinline__ void begin(const msgl_mla_params &p, const msgl_mla_unit &unit,
                                          int row)
    {
        begin(p, unit);
#pragma unroll
        for (int h = 0; h < 2; h++) keys_end[h] = end(p, unit, row + 8 * h);
    }

    // The keys of a tile, not all of which are older, that a token in a tree sees, a bit each.
    __device__ __forceinline__ uint64_t path(const msgl_mla_params &p, int token, int base) const
    {
        const uint64_t word = p.tree[token];
        const int old = sure_end - base; // in the tile
        return old <= 0 ? word >> -old : word << old | ((1ull << old) - 1);
    }

    // Scores of the keys from `base` on, as msgl_fa_rows has them.
    template <int N>
    __device__ __forceinline__ void mask(const msgl_mla_params &p, float (&s)[N], int base) const
    {
        const int pair = 2 * (threadIdx.x & 3);
        if (base + 2 * N <= sure_end) return;
        if (p.tree != NULL) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint64_t seen = path(p, keys_end[h], base) >> pair;
#pragma unroll
                for (int j = 0; j < N / 4; j++) {
                    if ((seen >> 8 * j & 1) == 0) s[4 * j + 2 * h] = -INFINITY;
                    if ((seen >> 8 * j & 2) == 0) s[4 * j + 2 * h + 1] = -INFINITY;
                }
            }
            return;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int end = keys_end[h] - base - pair;
#pragma unroll
            for (int j = 0; j < N / 4; j++) {
                if (8 * j >= end) s[4 * j + 2 * h] = -INFINITY;
                if (8 * j + 1 >= end) s[4 * j + 2 * h + 1] = -INFINITY;
            }
        }
    }
};

#endif
