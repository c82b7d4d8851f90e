// SPDX-License-Identifier: Apache-2.0
//
// Dual chunk attention by the prefill kernel. A tile of query rows lies in one chunk of dual_len
// tokens, and is up to three items for the computing side, one behind the other: query 0 with the
// keys of its own chunk, query 1 with those of the chunk before, query 2 with all earlier ones. An
// item behind the first one goes on with the rows' maxima, sums and outputs; the last one stores
// them. With dual_len 100, rows at positions 230 .. 299 are the items
//     query 0, keys [200, 300); query 1, keys [100, 200); query 2, keys [0, 100).
#ifndef MSGL_CUDA_ATTN_PREFILL_SM90_DUAL_CUH
#define MSGL_CUDA_ATTN_PREFILL_SM90_DUAL_CUH

#include <stddef.h>

#include "cuda/attn/prefill_sm90/config.cuh"
#include "kernel/dual_chunk.h"

// An item's `turn`: its query, and whether another one follows.
enum { MSGL_FA_DUAL_QUERY = 3, MSGL_FA_DUAL_MORE = 4 };

// The items of one CTA, by one warp: lane i has word i of msgl_fa_prefill_work.
struct msgl_fa_dual_items {
    int tile;  // the words of the current tile
    int query; // whose item is next; of its tile's, 0: the next tile's
    int last;  // of the tile's

    __device__ __forceinline__ msgl_fa_dual_items() : tile(0), query(0), last(0)
    {
    }

    // The next item; all 0 if there is none. next_tile(): the next tile's words.
    template <class NEXT> __device__ __forceinline__ int take(int dual_len, NEXT next_tile)
    {
        enum {
            POS0 = offsetof(msgl_fa_prefill_tile, pos0) / 4,
            TOKENS = offsetof(msgl_fa_prefill_tile, tokens) / 4,
            KEY_LO = offsetof(msgl_fa_prefill_tile, key_lo) / 4,
            KEY_HI = offsetof(msgl_fa_prefill_tile, key_hi) / 4,
            TURN = offsetof(msgl_fa_prefill_tile, turn) / 4,
        };
        const int lane = threadIdx.x & 31;
        if (query == 0) tile = next_tile();
        const int chunk = __shfl_sync(0xffffffff, tile, POS0) / dual_len, own = chunk * dual_len;
        const int key_hi = __shfl_sync(0xffffffff, tile, KEY_HI);
        if (__shfl_sync(0xffffffff, tile, TOKENS) == 0) return 0;
        last = min(chunk, MSGL_DUAL_QUERIES - 1);
        const int turn = query;
        query = turn < last ? turn + 1 : 0;
        const int begin = own - turn * dual_len; // of the keys, unless they are all earlier ones
        if (lane == KEY_LO) return turn == MSGL_DUAL_QUERIES - 1 ? 0 : begin;
        if (lane == KEY_HI) return turn == 0 ? key_hi : begin + dual_len;
        return lane == TURN ? turn | (turn < last ? MSGL_FA_DUAL_MORE : 0) : tile;
    }
};

#endif
