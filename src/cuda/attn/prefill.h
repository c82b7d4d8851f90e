// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_ATTN_PREFILL_H
#define MSGL_CUDA_ATTN_PREFILL_H

#include "cuda/attn/call.h"

// The prefill kernel of the current device: the Hopper one on sm_90, the general one elsewhere.
// c->plan is the Hopper kernel's, which the general one does without. Returns a cudaError_t.
int msgl__cuda_fa_prefill(const msgl_cuda_attn_call *c, void *stream);

// Attention where new tokens form trees, on every GPU and for every dtype and head dimension of
// the reference kernel, without a plan. tree [total_q]: msgl_seqs' dev_tree. c->workspace: of
// msgl__attn_tree_workspace, with anything in it; or NULL, and keys are not split.
int msgl__cuda_attn_tree(const msgl_cuda_attn_call *c, const uint64_t *tree, void *stream);

#endif
