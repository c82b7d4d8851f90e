// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_ATTN_REFERENCE_H
#define MSGL_CUDA_ATTN_REFERENCE_H

#include "cuda/attn/call.h"

#ifdef __cplusplus
extern "C" {
#endif

// Queues one layer's attention on `stream` (a cudaStream_t): any dtype, any head_dim that is a
// multiple of 8 up to 576, prefill and decode, K and V apart or a latent cache, no plan, no
// workspace. c->total_q rows are computed. A row's result depends on its own request only. Returns
// a cudaError_t.
int msgl__cuda_attn_reference(const msgl_cuda_attn_call *c, void *stream);
// The same where new tokens form trees: tree [total_q] is msgl_seqs' dev_tree.
int msgl__cuda_attn_reference_tree(const msgl_cuda_attn_call *c, const uint64_t *tree,
                                   void *stream);

#ifdef __cplusplus
}
#endif

#endif
