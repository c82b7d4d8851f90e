// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_GEMM_MID_SM90_H
#define MSGL_CUDA_GEMM_MID_SM90_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

// How a product is cut up: a block makes 64 rows of `in` times `columns` rows of W over one of
// the `splits` ranges of k, which are a cluster.
typedef struct msgl_mid_plan {
    int columns;       // gated 48, 64, 96, 144 or 208, else 32 or 64, or 80 to add to the output
    int splits;        // 1 to 8; gated 1
    int shared, least; // most and fewest bytes of shared memory
} msgl_mid_plan;

// Whether a plan is known for the call: at most 256 rows, bf16, outputs that fill the GPU at most
// once; with a norm, where its norm_stats are there.
bool msgl__cuda_mid_sm90_can(const msgl_exec *x, const msgl_linear_call *c);
// All of `c` as one kernel; false, and nothing queued, where it cannot do the call. plan NULL: the
// one that is known.
bool msgl__cuda_mid_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_mid_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
