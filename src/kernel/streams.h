// SPDX-License-Identifier: Apache-2.0
//
// Kernel family streams: gated residual streams, the form of hyper-connections (Zhu et al. 2024,
// "Hyper-Connections") that Qwen4-Exp has. A token has n residual streams X_s of `dim` elements
// each, which begin as its embedding. With Y_s = norm_s(X_s), Y all of them side by side, and A, B
// and C the weights of products, a block F (attention, experts) reads and leaves
//
//   in = 1/n sum over s of sigmoid((B silu(A Y / n))_s) Y_s         elementwise
//   X_s = X_s + 2 sigmoid((C Y)_s / n) F(in)
//
// Rows are of exec->act and dense, but where a stride is given.
#ifndef MSGL_KERNEL_STREAMS_H
#define MSGL_KERNEL_STREAMS_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/exec.h"

enum { MSGL_MAX_STREAMS = 16 };

// NULL: this device has none.
typedef struct msgl_streams_kernels {
    // out[r, s, :] = in[r, :] for the n streams s of a row; in [rows, dim].
    void (*spread)(msgl_exec *x, const void *in, int rows, int n, int dim, void *out);
    // p[r, i] = silu(p[r, i] / n) for i < dim; rows ld apart.
    void (*squash)(msgl_exec *x, void *p, size_t ld, int rows, int n, int dim);
    // out[r, :] = 1/n sum over s of sigmoid(gates[r, s, :]) in[r, s, :]; out [rows, dim].
    void (*mix)(msgl_exec *x, const void *gates, const void *in, int rows, int n, int dim,
                void *out);
    // streams[r, s, :] += 2 sigmoid(weights[r, s] / n) block[r, :]; block [rows, dim], rows of
    // weights ld apart.
    void (*inject)(msgl_exec *x, const void *weights, size_t ld, const void *block, int rows, int n,
                   int dim, void *streams);
    // p [rows, dim] becomes 0.
    void (*clear)(msgl_exec *x, void *p, int rows, int dim);
} msgl_streams_kernels;

#endif
