// SPDX-License-Identifier: Apache-2.0
//
// Kernel family gemm on GPUs. Weights stay row-major [n, k] as in the file. Products of more rows
// than the small-m kernels take go to cuBLASLt by an algorithm that was measured (lt.cuh), the
// grouped product of a mixture of experts to a kernel of our own.
#ifndef MSGL_KERNEL_CUDA_GEMM_GEMM_H
#define MSGL_KERNEL_CUDA_GEMM_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

// The kernel table's functions (kernel/gemm.h says what they compute).
size_t msgl__cuda_packed_size(msgl_dtype dtype, int n, int k);
void msgl__cuda_pack(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                     msgl_dtype src_dtype, size_t ld_src);
void msgl__cuda_gemm_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                            void *out);
void msgl__cuda_linear(msgl_exec *x, const msgl_linear_call *c);
bool msgl__cuda_linear_rope(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope);
size_t msgl__cuda_linear_scratch(const msgl_linear_call *c);
void msgl__cuda_grouped(msgl_exec *x, const msgl_grouped_call *c);
size_t msgl__cuda_grouped_scratch(const msgl_grouped_call *c);

// Measures algorithms for products of shape->w with ms[0..num) rows, and keeps the fastest in
// memory and, when the device was opened with a cache folder, on disk. Only w (dtype, n, k, data),
// bias, gated, accumulate and f32_out of the shape matter. Waits for the device; takes inputs and
// outputs from x->scratch and leaves out counts of rows that do not fit there. For start-up: not
// inside a capture and not inside a step.
void msgl__cuda_gemm_tune(msgl_exec *x, const msgl_linear_call *shape, const int32_t *ms,
                          int32_t num);

#ifdef __cplusplus
}
#endif

#endif
