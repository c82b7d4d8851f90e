// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_GEMM_CODES_SM90_H
#define MSGL_CUDA_GEMM_CODES_SM90_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

enum { MSGL_CODES_SM90_ROWS = 1024 }; // most of a call

// Whether all parts of the weight are codes that have a kernel, and the call's shape fits them. A
// norm in front is none of its business: it is done here, by msgl_norm_stats or by its own kernel.
bool msgl__cuda_codes_sm90_can(const msgl_exec *x, const msgl_linear_call *c);
// All of `c`; false, and at most a norm queued, where it cannot do the call.
bool msgl__cuda_codes_sm90(msgl_exec *x, const msgl_linear_call *c);

#ifdef __cplusplus
}
#endif

#endif
