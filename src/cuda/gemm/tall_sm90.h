// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_GEMM_TALL_SM90_H
#define MSGL_CUDA_GEMM_TALL_SM90_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

// How a product is cut up: a block makes 64 rows of W times `columns` rows of `in` over one of
// the `splits` ranges of k, which are a cluster.
typedef struct msgl_tall_plan {
    int columns;       // 48 to 128, a multiple of 16
    int splits;        // 1 to 8; gated 1
    int shared, least; // most and fewest bytes of shared memory
} msgl_tall_plan;

// Whether a plan is known for the call: at most 256 rows, bf16, outputs that fill the GPU at most
// once or by split sums; with a norm, where its norm_stats are there.
bool msgl__cuda_tall_sm90_can(const msgl_exec *x, const msgl_linear_call *c);
// All of `c` as one kernel; false, and nothing queued, where it cannot do the call. plan NULL: the
// one that is known.
bool msgl__cuda_tall_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_tall_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
