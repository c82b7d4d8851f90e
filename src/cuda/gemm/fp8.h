// SPDX-License-Identifier: Apache-2.0
//
// Products of FP8 weights, which a GPU multiplies as they are: activations become E4M3 too
// (fp8_rows.h). Hopper only. docs/decisions/052.
#ifndef MSGL_CUDA_GEMM_FP8_H
#define MSGL_CUDA_GEMM_FP8_H

#include <stdbool.h>

#include "cuda/gemm/codes_row.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

// Whether a matrix, which is no weight's of parts, is E4M3 with a scale for each row or for 128
// columns of one, in a shape that there are products for. *l: its layout.
bool msgl__fp8_weight(const msgl_weight *w, msgl_codes_row *l);

// Whether all parts of the weight are such ones, and the call's shape fits. A norm in front is none
// of its business: it is done here.
bool msgl__cuda_fp8_can(const msgl_exec *x, const msgl_linear_call *c);
// All of a call that can be done; false without a kernel after all.
bool msgl__cuda_fp8(msgl_exec *x, const msgl_linear_call *c);
// Scratch of a call whose weight has FP8.
size_t msgl__cuda_fp8_scratch(const msgl_linear_call *c);

#ifdef __cplusplus
}
#endif

#endif
