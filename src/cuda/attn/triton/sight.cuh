// SPDX-License-Identifier: Apache-2.0
//
// What a lane's two rows of a chunk see: the tokens before theirs, as far as the window reaches,
// or, in a tree of drafts, their paths.
#ifndef MSGL_CUDA_ATTN_TRITON_SIGHT_CUH
#define MSGL_CUDA_ATTN_TRITON_SIGHT_CUH

#include "cuda/attn/triton.h"

struct msgl_triton_sight {
    bool in_tree;
    int32_t prefix;         // keys that are older than the request's new tokens
    int32_t from[2], to[2]; // keys
    uint64_t path[2];       // in a tree, of the new ones

    __device__ __forceinline__ msgl_triton_sight(const msgl_triton_call &c, int32_t older)
        : in_tree(c.tree != NULL), prefix(older)
    {
    }

    // Row r is new token `row` of the request, in the batch `token`. there: whether there is such a
    // token.
    __device__ __forceinline__ void look(const msgl_triton_call &c, int r, int32_t row,
                                         int32_t token, bool there)
    {
        const int32_t window = c.attn.window;
        to[r] = prefix + row + 1;
        path[r] = in_tree && there ? c.tree[token] : 0;
        const int32_t pos = in_tree ? prefix + __popcll(path[r]) - 1 : to[r] - 1;
        from[r] = window >= 0 ? pos - window : 0;
        // What the window has left behind of a path are its first tokens.
        for (int32_t i = prefix; in_tree && i < from[r]; i++) path[r] &= path[r] - 1;
    }

    __device__ __forceinline__ bool sees(int r, int32_t key) const
    {
        const int32_t token = key - prefix;
        return key >= from[r] && key < to[r] &&
               (!in_tree || token < 0 || (path[r] >> token & 1) != 0);
    }
};

#endif
