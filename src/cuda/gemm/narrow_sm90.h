// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_GEMM_NARROW_SM90_H
#define MSGL_CUDA_GEMM_NARROW_SM90_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

// How a product is cut up: 64 x groups rows of W per block, k into `splits` ranges.
typedef struct msgl_narrow_plan {
    int groups; // 1; with a norm 1 or 2
    int splits; // 1 to 8
} msgl_narrow_plan;

bool msgl__cuda_narrow_sm90_can(const msgl_exec *x, const msgl_linear_call *c);
// All of `c`, at most 64 rows, as one kernel; false, and nothing queued, where it cannot do the
// call. plan NULL: the one that is known.
bool msgl__cuda_narrow_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_narrow_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
