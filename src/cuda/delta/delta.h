// SPDX-License-Identifier: Apache-2.0
//
// Launchers of the kernel family delta on GPUs (kernel/delta.h says what it computes). They only
// queue work on the exec's stream.
#ifndef MSGL_CUDA_DELTA_DELTA_H
#define MSGL_CUDA_DELTA_DELTA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/delta.h"

void msgl__cuda_delta(msgl_exec *x, const msgl_delta_call *c);
bool msgl__cuda_delta_supports(int32_t capability, msgl_dtype act, const msgl_delta_call *dims);
size_t msgl__cuda_delta_scratch(const msgl_delta_call *c);

// Of the above all that the three below do not take: heads of other dimensions than 128, other
// activations than bf16, other GPUs than Hopper, a decay by channel. Takes no scratch.
void msgl__cuda_delta_any(msgl_exec *x, const msgl_delta_call *c);

// The recurrence of one token a request. slices: blocks that share a v head, 1 or
// 2, with the same bits; 0: what is fastest.
void msgl__cuda_delta_decode(msgl_exec *x, const msgl_delta_call *c, int slices);
// The recurrence for each token of requests with some, which may be kept behind any of them: the
// bits of the above in steps of their own.
void msgl__cuda_delta_rows(msgl_exec *x, const msgl_delta_call *c);
// And chunks of tokens. warps: 16 columns of a state each, that a block has: 4 or 8, with the same
// bits; 0: what is fastest.
void msgl__cuda_delta_prefill(msgl_exec *x, const msgl_delta_call *c, int warps);

#ifdef __cplusplus
}
#endif

#endif
