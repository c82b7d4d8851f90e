// SPDX-License-Identifier: Apache-2.0
//
// Grouped products by Hopper's warpgroup instructions (grouped_sm90.cu).
#ifndef MSGL_CUDA_GEMM_GROUPED_SM90_CUH
#define MSGL_CUDA_GEMM_GROUPED_SM90_CUH

#include "cuda/gemm/grouped.cuh"
#include "kernel/exec.h"

// Whether the kernels take g (stride and pointers as in a launch); `rows` does not matter, so that
// a shape has the same sums for all of them.
bool msgl__cuda_grouped_sm90_takes(const msgl_exec *x, const msgl_grouped_args *g, bool gated,
                                   msgl_dtype dtype);
// Whether `rows` rows are to be gathered before: the kernel for many rows reads dense ones.
bool msgl__cuda_grouped_sm90_dense(const msgl_grouped_args *g, int32_t rows);
void msgl__cuda_grouped_sm90(msgl_exec *x, const msgl_grouped_args *g, int32_t rows, bool gated,
                             msgl_dtype dtype);

#endif
