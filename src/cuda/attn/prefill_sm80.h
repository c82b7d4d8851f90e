// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_ATTN_PREFILL_SM80_H
#define MSGL_CUDA_ATTN_PREFILL_SM80_H

#include "cuda/attn/call.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MSGL_TREE_SPLITS = 320, MSGL_TREE_ROWS = 64 }; // of a launch, where keys are split

// Bytes of workspace in which partials of trees are kept.
static inline size_t msgl__attn_tree_workspace(int32_t head_dim)
{
    const size_t dim = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
    return (size_t)MSGL_TREE_SPLITS * MSGL_TREE_ROWS * (2 + dim) * sizeof(float);
}

// Queues one layer's prefill attention on `stream` (a cudaStream_t): tensor cores of any GPU from
// sm_80 on, bf16 and f16, head_dim a multiple of 8 up to 256, no plan, no workspace. Returns a
// cudaError_t; cudaErrorNotSupported for other dtypes and dimensions.
int msgl__cuda_fa_prefill_sm80(const msgl_cuda_attn_call *c, void *stream);
// The same where new tokens form trees: tree [total_q] is msgl_seqs' dev_tree. c->workspace:
// msgl__attn_tree_workspace, or NULL.
int msgl__cuda_fa_tree_sm80(const msgl_cuda_attn_call *c, const uint64_t *tree, void *stream);

#ifdef __cplusplus
}
#endif

#endif
