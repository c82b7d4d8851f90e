// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_ATTN_WIDE_SM80_H
#define MSGL_CUDA_ATTN_WIDE_SM80_H

#include "cuda/attn/call.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MSGL_WIDE_DIM = 512,       // most elements of a head's K and of its V
    MSGL_WIDE_SPLITS = 16,     // of a row's keys, at most
    MSGL_WIDE_PARTIALS = 1024, // (split, token) pairs of a launch that is not deterministic
};

// Whether there is a kernel: bf16 and f16, dimensions that are multiples of 8; of E4M3, of 16.
static inline bool msgl__fa_wide_fits(msgl_dtype kv_dtype, int32_t head_dim, int32_t v_dim)
{
    const int32_t unit = kv_dtype == MSGL_E4M3 ? 16 : 8;
    return kv_dtype != MSGL_F32 && head_dim <= MSGL_WIDE_DIM && v_dim <= MSGL_WIDE_DIM &&
           head_dim % unit == 0 && v_dim % unit == 0;
}

// Bytes of workspace for steps of up to max_running answers.
size_t msgl__fa_wide_workspace(int32_t num_q_heads, int32_t head_dim, int32_t v_dim,
                               int32_t max_running, bool deterministic);

// Queues one layer's attention on `stream` (a cudaStream_t) for what msgl__fa_wide_fits says, K and
// V apart: chunks, answers (one query a request), or new tokens that form trees (tree [total_q] is
// msgl_seqs' dev_tree; else NULL); no plan. c->workspace: of msgl__fa_wide_workspace, with anything
// in it. Launches depend on batch, total_q and the longest lengths alone, which may be bounds of a
// captured graph. Returns a cudaError_t; cudaErrorNotSupported for other dtypes and dimensions.
int msgl__cuda_fa_wide(const msgl_cuda_attn_call *c, bool answers, const uint64_t *tree,
                       void *stream);

#ifdef __cplusplus
}
#endif

#endif
