// SPDX-License-Identifier: Apache-2.0
//
// Kernel family gemm: y = x W^T + b with W packed once at load, and row lookup in a packed W (tied
// embeddings). Activations are f32; with bf16 weights they are rounded to bf16 (nearest even)
// before the product at every ISA level; sums are f32. f16 and f32 weights multiply f32
// activations.
//
// A row of y depends only on that row of x and on W: not on m, not on the number of threads. (Sums
// run over k in an order fixed by the ISA level.) This is what makes a request's tokens independent
// of what else is in the batch.
#ifndef MSGL_KERNEL_GEMM_H
#define MSGL_KERNEL_GEMM_H

#include <stddef.h>

#include "kernel/calls.h"
#include "kernel/exec.h"

typedef struct msgl_gemm_kernels {
    const char *name; // ISA level of this table, for reports
    // Bytes of the packed form (padding included); 0 when the product overflows.
    size_t (*packed_size)(msgl_dtype dtype, int n, int k);
    // Packs rows [row, row + rows) of W from row-major host memory src (first row at src, ld_src
    // elements apart). Any row; parallel over the pool; rows may arrive in any order. data must be
    // zeroed.
    void (*pack)(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                 msgl_dtype src_dtype, size_t ld_src);
    // out[i, 0..k) = W[ids[i], :] as f32, for i < rows. ids on the device, each in [0, n).
    void (*gather)(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, float *out);
    // out[i, 0..n) = x[i, 0..k) W^T + bias (bias [n] f32 or NULL), i < m, m >= 0. Strides in
    // elements.
    void (*linear)(msgl_exec *x, const msgl_weight *w, const float *bias, const float *in,
                   size_t ld_in, float *out, size_t ld_out, int m);
    // Expert e multiplies rows [offsets[e], offsets[e+1]) of in and writes the same rows of out;
    // all experts share n, k and dtype. offsets [num_experts + 1] on the device.
    void (*grouped)(msgl_exec *x, const msgl_weight *experts, int num_experts,
                    const int32_t *offsets, const float *in, size_t ld_in, float *out,
                    size_t ld_out);
    // Largest scratch that linear/grouped take from exec->scratch for m rows of k inputs.
    size_t (*scratch_size)(int m, int k);
} msgl_gemm_kernels;

#endif
