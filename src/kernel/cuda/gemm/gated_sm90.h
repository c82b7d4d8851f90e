// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_KERNEL_CUDA_GEMM_GATED_SM90_H
#define MSGL_KERNEL_CUDA_GEMM_GATED_SM90_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

// A gated product without norm and bias as one kernel; false, and nothing queued, where it cannot
// do the call or, unless `always`, is not the fastest way.
bool msgl__cuda_gated_sm90(msgl_exec *x, const msgl_linear_call *c, bool always);

// Whether it is the fastest way for m rows of w.
bool msgl__cuda_gated_sm90_wins(const msgl_exec *x, const msgl_weight *w, int32_t m);

#ifdef __cplusplus
}
#endif

#endif
