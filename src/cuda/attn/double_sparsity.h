// SPDX-License-Identifier: Apache-2.0
//
// Double sparsity's kernels (docs/internals/double-sparsity.md), for every GPU from sm_80 on: bf16
// and f16. All only queue work on `stream` (a cudaStream_t) and return a cudaError_t. Nothing of a
// launch depends on lengths, but for upper bounds.
#ifndef MSGL_CUDA_ATTN_DOUBLE_SPARSITY_H
#define MSGL_CUDA_ATTN_DOUBLE_SPARSITY_H

#include "cuda/attn/triton.h"

#ifdef __cplusplus
extern "C" {
#endif

// One layer. All arrays are device memory.
typedef struct msgl_sparse_call {
    // Lists, and what stages 1 leave. Its attention is to the requests that are not sparse.
    msgl_triton_call dense;
    int32_t *num_kv_splits;   // dense's, where sparse requests get 0
    void *labels;             // [slots, num_kv_heads, heavy_channels] of attn.dtype
    const uint16_t *channels; // [num_kv_heads, heavy_channels]
    int32_t heavy_channels, heavy_tokens;
    int32_t least; // keys of a sparse request, >= heavy_tokens
    int32_t round; // requests at a time
    // Candidates of each query head, [round, num_q_heads, room]: their scores in an
    // order-preserving form, and which tokens of the request they are. room: msgl__sparse_room
    // (double_sparsity/cut.h) of the longest request that there may be.
    uint32_t *orders;
    int32_t *tokens;
    size_t room;
    int32_t *done; // [round, num_q_heads], 0 between launches
} msgl_sparse_call;

// Once a step of answers, behind triton's lists: num_kv_splits of sparse requests to 0.
int msgl__cuda_sparse_begin(const msgl_sparse_call *c, void *stream);
// Writes the labels of all new tokens, whose K is in the pool: where sparse_decode does not.
int msgl__cuda_sparse_labels(const msgl_sparse_call *c, void *stream);
// Answers: writes the new tokens' labels, and attends to the chosen tokens of sparse requests.
int msgl__cuda_sparse_decode(const msgl_sparse_call *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
