// SPDX-License-Identifier: Apache-2.0
//
// Index queries and keys by which the KV heads of a layer choose blocks of keys (kernel/index.h):
// a query for each KV head, and one key a token for all of them.
#ifndef MSGL_LAYERS_BLOCK_INDEX_H
#define MSGL_LAYERS_BLOCK_INDEX_H

#include "layers/linear.h"

typedef struct msgl_block_index {
    int32_t heads, dim;     // heads: KV heads of this rank; 0: there is none
    int32_t half;           // rotated dimensions / 2
    msgl_linear qk;         // [heads * dim + dim, hidden]
    float *q_norm, *k_norm; // [dim]
    float eps;
    int32_t group, layer; // of index keys
} msgl_block_index;

// Stores the index keys of the step's tokens and returns their queries, rotated, the beginning of
// rows of qk.w.n elements in the step arena; NULL on failure (exec->status). in [num_tokens,
// hidden], before `norm`; cos_sin [num_tokens, 2 half].
const void *msgl__block_index(msgl_forward *f, const msgl_block_index *i, const msgl_norm *norm,
                              const void *in, const float *cos_sin);

#endif
