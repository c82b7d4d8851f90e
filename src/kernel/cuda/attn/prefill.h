// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_KERNEL_CUDA_ATTN_PREFILL_H
#define MSGL_KERNEL_CUDA_ATTN_PREFILL_H

#include "kernel/cuda/attn/call.h"

// The prefill kernel of the current device: the Hopper one on sm_90, the general one elsewhere.
// c->plan is the Hopper kernel's, which the general one does without. Returns a cudaError_t.
int msgl__cuda_fa_prefill(const msgl_cuda_attn_call *c, void *stream);

#endif
