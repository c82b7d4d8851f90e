// SPDX-License-Identifier: Apache-2.0
//
// Expanded latent attention on Hopper (kernel/expanded.h has the calls). The launchers queue work
// on `stream` (a cudaStream_t) and return a cudaError_t.
#ifndef MSGL_CUDA_ATTN_EXPANDED_H
#define MSGL_CUDA_ATTN_EXPANDED_H

#include "kernel/expanded.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MSGL_EXPANDED_NOPE = 128, MSGL_EXPANDED_ROTARY = 64, MSGL_EXPANDED_V = 128 };

// bf16, rank and rotary multiples of 8; else cudaErrorNotSupported.
int msgl__cuda_gather(const msgl_gather_call *c, void *stream);
// bf16 heads of the dimensions above, else cudaErrorNotSupported; cudaErrorInvalidValue for
// addresses or strides that are not multiples of 16 bytes. c->plan is a device copy of
// msgl__fa_plan_prefill's list, of keys from a request's first of the pass on, with rows of the
// pass for rows of the page table; the launch writes to it.
int msgl__cuda_expanded(const msgl_expanded_call *c, void *stream);
// The second half of a call that merges: partial_out and partial_lse into out and lse, in the rows
// of the pass's request.
int msgl__cuda_expanded_merge(const msgl_expanded_call *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
