// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_GEMM_WIDE_SM90_H
#define MSGL_CUDA_GEMM_WIDE_SM90_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

// A product of many rows with what stands behind it, one kernel: gated, or with `rope`, whose qkv
// is the call's output, rotated and stored. With rope, the columns of K and V in the output are
// left as they were: the pool has them.
bool msgl__cuda_wide_sm90_can(const msgl_exec *x, const msgl_linear_call *c,
                              const msgl_rope_call *rope);
// False, and nothing queued, where it cannot do the call: with a norm, too.
bool msgl__cuda_wide_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope);

#ifdef __cplusplus
}
#endif

#endif
