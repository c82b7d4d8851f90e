// SPDX-License-Identifier: Apache-2.0
//
// Index queries and keys by which all heads of a layer choose the same blocks of keys, each block
// by the mean of its index keys (kernel/index.h).
#ifndef MSGL_LAYERS_MEAN_INDEX_H
#define MSGL_LAYERS_MEAN_INDEX_H

#include "layers/linear.h"

typedef struct msgl_mean_index {
    int32_t heads, dim, size; // heads: of queries, 0: there is none; size: of blocks
    int32_t half;             // rotated dimensions / 2
    int32_t rope;             // which of the step's
    msgl_linear qk;           // [heads * dim + dim, hidden]; every rank has all of it
    float *q_norm, *k_norm;   // [dim]
    float eps;
    int32_t group, layer; // of index keys
} msgl_mean_index;

// Stores the index keys of the step's tokens, for attention in group `attended`, and returns their
// queries, rotated, the beginning of rows of qk.w.n elements in the step arena; NULL on failure
// (exec->status). in [num_tokens, hidden], before `norm`; cos_sin [num_tokens, 2 half].
const void *msgl__mean_index(msgl_forward *f, const msgl_mean_index *i, int32_t attended,
                             const msgl_norm *norm, const void *in, const float *cos_sin);

#endif
