// SPDX-License-Identifier: Apache-2.0
//
// Products of few rows (decode), limited by how fast the weights arrive. docs/internals/gemv.md
#ifndef MSGL_CUDA_GEMM_GEMV_H
#define MSGL_CUDA_GEMM_GEMV_H

#include <stdbool.h>

#include "kernel/calls.h"
#include "kernel/exec.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether these kernels take the call: 16 rows at most, aligned, not f32, where the device is not
// deterministic (their sums have an order of their own).
bool msgl__cuda_gemv_can(const msgl_exec *x, const msgl_linear_call *c);
// Queues all of `c` as one kernel; false, and nothing queued, where they do not take it or this GPU
// has not enough shared memory for it.
bool msgl__cuda_gemv(msgl_exec *x, const msgl_linear_call *c);

#ifdef __cplusplus
}
#endif

#endif
