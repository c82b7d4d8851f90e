// SPDX-License-Identifier: Apache-2.0
//
// Products of few rows (decode), limited by how fast the weights arrive. docs/internals/gemv.md
#ifndef MSGL_KERNEL_CUDA_GEMV_GEMV_H
#define MSGL_KERNEL_CUDA_GEMV_GEMV_H

#include <stdbool.h>

#include "kernel/calls.h"
#include "kernel/exec.h"

#ifdef __cplusplus
extern "C" {
#endif

// Queues all of `c` as one kernel; false: nothing was queued, because these kernels do not take
// this call (too many rows, f32, unaligned), or the device is deterministic: their sums have an
// order of their own.
bool msgl__cuda_gemv(msgl_exec *x, const msgl_linear_call *c);

#ifdef __cplusplus
}
#endif

#endif
