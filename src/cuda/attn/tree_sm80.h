// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_ATTN_TREE_SM80_H
#define MSGL_CUDA_ATTN_TREE_SM80_H

#include "cuda/attn/call.h"

#ifdef __cplusplus
extern "C" {
#endif

// Of a launch: partials of one token's heads that the workspace has room for, and splits at most.
enum { MSGL_TREE_PARTIALS = 1024, MSGL_TREE_SPLITS = 16 };

// Bytes of workspace in which partials of split keys are kept.
static inline size_t msgl__attn_tree_workspace(int32_t num_q_heads, int32_t head_dim)
{
    const size_t dim = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
    return (size_t)MSGL_TREE_PARTIALS * (size_t)num_q_heads * (2 + dim) * sizeof(float);
}

// Queues one layer's attention of new tokens that form trees on `stream` (a cudaStream_t): tensor
// cores of any GPU from sm_80 on, bf16 and f16, head_dim a multiple of 8 up to 256, no plan. tree
// [total_q] is msgl_seqs' dev_tree. c->workspace: msgl__attn_tree_workspace, or NULL, and keys are
// not split. Requests without new tokens are allowed. The launch depends on batch, total_q and
// max_seqlen_k alone, which may be bounds of a captured graph. Returns a cudaError_t;
// cudaErrorNotSupported for other dtypes and dimensions.
int msgl__cuda_fa_tree_sm80(const msgl_cuda_attn_call *c, const uint64_t *tree, void *stream);

#ifdef __cplusplus
}
#endif

#endif
