// SPDX-License-Identifier: Apache-2.0
//
// Grouped products of FP8 experts by FP8 activations (fp8_rows.h) on Hopper, for the many rows that
// prompts have. docs/decisions/053.
#ifndef MSGL_CUDA_GEMM_GROUPED_FP8_SM90_CUH
#define MSGL_CUDA_GEMM_GROUPED_FP8_SM90_CUH

#include "cuda/gemm/experts_codes.cuh"
#include "cuda/gemm/grouped.cuh"

// Whether c is such a product, but for its bias and another gate than silu, which come behind it.
// *m: of its experts.
bool msgl__cuda_grouped_fp8_takes(const msgl_exec *x, const msgl_grouped_call *c, codes_matrix *m);
// The call as g has it, without bias, whose gate is silu: quantises the rows and multiplies them,
// rows by index without gathering values. Sets x->status on failure.
void msgl__cuda_grouped_fp8(msgl_exec *x, const msgl_grouped_call *c, const msgl_grouped_args *g,
                            const codes_matrix *m, bool gated);
// Bytes of scratch that it takes; from_per > 0: with rows by index.
size_t msgl__cuda_grouped_fp8_scratch(const msgl_grouped_call *c);

#endif
