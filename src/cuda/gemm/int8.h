// SPDX-License-Identifier: Apache-2.0
//
// int8 weights (MSGL_WFORMAT_INT8) on a GPU: [n, k rounded up to whole groups] bytes q + 128, then
// [n, groups] f32 scales. Products expand them to integers of the activations' type in registers,
// sum up a group with the activations as they are, and scale that sum: activations are not
// quantised.
#ifndef MSGL_CUDA_GEMM_INT8_H
#define MSGL_CUDA_GEMM_INT8_H

#include "kernel/calls.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t msgl__cuda_int8_packed_size(const msgl_wformat *f, int n, int k);
// Quantises columns [from, from + cols) of rows [row, row + rows) of w; src: dense, on the device.
// from: a multiple of the group.
void msgl__cuda_int8_quantize(msgl_exec *x, msgl_weight *w, size_t row, size_t rows, size_t from,
                              size_t cols, const void *src, msgl_dtype src_dtype);
void msgl__cuda_int8_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                            void *out);

// As msgl_product_kernel says (table.cuh). A warp multiplies two features with a few rows, for
// calls that wait for the weights; the sum of a row does not depend on the others.
bool msgl__cuda_int8_rows_can(const msgl_exec *x, const msgl_linear_call *c);
bool msgl__cuda_int8_rows(msgl_exec *x, const msgl_linear_call *c);
// Tiles by tensor cores: half precision, aligned rows. Here neither.
bool msgl__cuda_int8_tiles_can(const msgl_exec *x, const msgl_linear_call *c);
bool msgl__cuda_int8_tiles(msgl_exec *x, const msgl_linear_call *c);

#ifdef __cplusplus
}
#endif

#endif
