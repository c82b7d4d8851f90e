// SPDX-License-Identifier: Apache-2.0
//
// Weights that are quantised while loading (int8, q4), by the rules of kernel/wformat.h: on the
// device, straight into rows of codes (codes_row.h). What multiplies, expands or looks up a file's
// codes does the same with these.
#ifndef MSGL_CUDA_GEMM_QUANTIZE_H
#define MSGL_CUDA_GEMM_QUANTIZE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/exec.h"
#include "kernel/wformat.h"

// Columns [from, from + cols) of rows [row, row + rows) of w; src: [rows, cols], dense, on the
// device. from: a multiple of 64. With the last columns come those that fill up the rows' blocks,
// as zeros.
void msgl__cuda_quantize(msgl_exec *x, const msgl_weight *w, size_t row, size_t rows, size_t from,
                         size_t cols, const void *src, msgl_dtype src_dtype);

#ifdef __cplusplus
}
#endif

#endif
