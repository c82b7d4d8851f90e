// SPDX-License-Identifier: Apache-2.0
//
// Weights that no product kernel takes as they are (codes, weights with parts): some rows at a time
// become activations' values in scratch, which the kernels for plain weights then multiply.
// docs/decisions/049.
#ifndef MSGL_CUDA_GEMM_EXPAND_H
#define MSGL_CUDA_GEMM_EXPAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/exec.h"
#include "kernel/wformat.h"

// Rows [row, row + rows) of each of `num` weights to out, [num, rows, k] of exec->act: dense, but
// for out_stride elements from one weight to the next. A product behind it must not read its
// weights before it has waited for the kernel in front (launch.cuh).
typedef struct msgl_expand_call {
    const msgl_weight *w; // [num] of one n and k, host
    int32_t num;
    int32_t row, rows;
    const int32_t *offsets; // NULL, or [num + 1], device: those of experts, of which rows that
                            // nothing is multiplied by are left out
    void *out;              // aligned to 16 bytes, and so is out_stride
    size_t out_stride;
} msgl_expand_call;

// MSGL_EUNSUPPORTED of a weight in formats that cannot be expanded.
void msgl__cuda_expand(msgl_exec *x, const msgl_expand_call *c);

// Rows of k columns that are expanded at a time: a multiple of 128.
int32_t msgl__cuda_slab_rows(int k, msgl_dtype act);
// Bytes of scratch that a slab takes of `rows` rows in all.
size_t msgl__cuda_slab_bytes(size_t rows, int k, msgl_dtype act);

// msgl_wformat.gather of codes.
void msgl__cuda_codes_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                             void *out);

#ifdef __cplusplus
}
#endif

#endif
