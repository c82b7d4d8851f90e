// SPDX-License-Identifier: Apache-2.0
//
// How double_sparsity cuts a request's keys: each split's scores lie in a block's shared memory,
// and what it passes on are its own largest ones. In arithmetic that sizes the room of the backend
// and is the kernels'. No result depends on the cut.
#ifndef MSGL_CUDA_ATTN_DOUBLE_SPARSITY_CUT_H
#define MSGL_CUDA_ATTN_DOUBLE_SPARSITY_CUT_H

#include "attention/triton/splits.h"

enum {
    MSGL_SPARSE_HEADS = 8,          // query heads of a block, at most: columns of an mma
    MSGL_SPARSE_BYTES = 82 << 10,   // a block's for these heads; two blocks fit into Hopper's
    MSGL_SPARSE_COUNT_BYTES = 4096, // of these for each head's choice
    MSGL_SPARSE_LEAST_KEYS = 512,   // of a split of a request that has more
    MSGL_SPARSE_FILL_SPLITS = 32,   // no more for the sake of idle processors
};

// A block's query heads.
MSGL_TRITON_FN int32_t msgl__sparse_rows(int32_t group)
{
    return msgl__triton_min(group, MSGL_SPARSE_HEADS);
}

// Scores from one head's to the next one's: so eight keys of four heads lie in different banks.
MSGL_TRITON_FN int32_t msgl__sparse_pitch(int32_t keys)
{
    return keys + 4;
}

// Keys of a split, at most: a multiple of 32, and more than MSGL_SPARSE_LEAST_KEYS.
MSGL_TRITON_FN int32_t msgl__sparse_most_keys(int32_t group)
{
    const int32_t bytes = MSGL_SPARSE_BYTES / msgl__sparse_rows(group) - MSGL_SPARSE_COUNT_BYTES;
    return (bytes / 4 - msgl__sparse_pitch(0)) / 32 * 32;
}

// Splits that requests of up to max_len keys need on `blocks` blocks each, or, if there are too few
// of them for all `cores`, more.
MSGL_TRITON_FN int32_t msgl__sparse_splits(int32_t group, int32_t max_len, int64_t blocks,
                                           int32_t cores)
{
    const int32_t need = msgl__triton_div(max_len, msgl__sparse_most_keys(group));
    const int32_t fill = blocks >= cores ? 1 : cores / (int32_t)blocks;
    const int32_t useful = msgl__triton_min(fill, MSGL_SPARSE_FILL_SPLITS);
    return need > useful ? need : useful;
}

// Candidates of a query head for which there has to be room, a multiple of 4.
MSGL_TRITON_FN int32_t msgl__sparse_room(int32_t group, int32_t max_len, int32_t heavy_tokens)
{
    const int64_t splits = msgl__sparse_splits(group, max_len, 1, MSGL_SPARSE_FILL_SPLITS);
    const int64_t all = splits * heavy_tokens;
    return ((all < max_len ? (int32_t)all : max_len) + 3) / 4 * 4;
}

// A request's cut into at most `most` splits, of which the last ones may be empty.
typedef struct msgl_sparse_cut {
    int32_t each; // keys of a split, a multiple of 32; the last one that has some may have fewer
    int32_t kept; // candidates of a split of so many
} msgl_sparse_cut;

MSGL_TRITON_FN msgl_sparse_cut msgl__sparse_cut(int32_t len, int32_t most, int32_t heavy_tokens)
{
    const int32_t n = msgl__triton_min(msgl__triton_div(len, MSGL_SPARSE_LEAST_KEYS), most);
    msgl_sparse_cut c;
    c.each = msgl__triton_div(msgl__triton_div(len, n), 32) * 32;
    c.kept = msgl__triton_min(c.each, heavy_tokens);
    return c;
}

// The largest `each` of requests of up to max_len keys.
MSGL_TRITON_FN int32_t msgl__sparse_most_each(int32_t max_len, int32_t most)
{
    const int32_t each = msgl__sparse_cut(max_len, most, 1).each;
    return each > MSGL_SPARSE_LEAST_KEYS ? each : MSGL_SPARSE_LEAST_KEYS;
}

// Candidates of a request, which lie one split's behind the other's.
MSGL_TRITON_FN int32_t msgl__sparse_candidates(msgl_sparse_cut c, int32_t len)
{
    return len / c.each * c.kept + msgl__triton_min(len % c.each, c.kept);
}

#endif
