// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_KERNEL_CUDA_GEMM_MID_SM90_H
#define MSGL_KERNEL_CUDA_GEMM_MID_SM90_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

// How a product is cut up. A block makes 64 rows of `in` times `columns` rows of W over one of
// `splits` parts of k. A cluster is splits x across x down blocks: `across` of them, beside
// each other, share the rows of in, `down` of them the rows of W.
typedef struct msgl_mid_plan {
    int columns;       // gated 48, 64 or 96, else 32 or 64
    int splits;        // gated 1
    int across, down;  // 1, 2 or 4
    int shared, least; // most and fewest bytes of shared memory
    bool late;         // the kernel behind may start when the one in front has ended, not before
    bool fetch;        // all weights to the L2 ahead
} msgl_mid_plan;

// All of `c`, at most 256 rows, bf16, as one kernel; false, and nothing queued, where it cannot do
// the call: with a norm, where the feed is not there. plan NULL: the fastest known, and false also
// where another kernel is faster.
bool msgl__cuda_mid_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_mid_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
