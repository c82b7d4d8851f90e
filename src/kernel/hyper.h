// SPDX-License-Identifier: Apache-2.0
//
// Kernel family hyper: the residual as n streams that every block reads and leaves mixed
// (manifold-constrained hyper-connections; Xie et al. 2025, arXiv 2512.24880, on Zhu et al. 2024).
// With the row X [n, dim] of a token, flat and divided by its root mean square, a product gives
// n + n + n^2 numbers, of which
//
//     pre  = sigmoid(scale_0 h + base) + eps          [n]     what the block reads is pre X
//     post = 2 sigmoid(scale_1 h + base)              [n]
//     comb = Sinkhorn(softmax(scale_2 H + base) + eps) [n, n]  columns and rows in turn to sums of
//     1
//
// and a block's result y leaves X' = post y^T + comb^T X. All streams begin as a token's embedding
// (msgl_streams_kernels.spread).
#ifndef MSGL_KERNEL_HYPER_H
#define MSGL_KERNEL_HYPER_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/exec.h"

enum { MSGL_MAX_HYPER_STREAMS = 16 };

typedef struct msgl_hyper {
    int32_t streams, dim; // n <= MSGL_MAX_HYPER_STREAMS, and of a stream: 2 n + n^2 or more
    int32_t iterations;   // of Sinkhorn, 1 or more; of the head not read
    float eps, norm_eps;
    const float *fn;    // [2 n + n^2, n * dim]; of the head [n, n * dim]
    const float *base;  // [2 n + n^2], of the head [n]
    const float *scale; // [3], of the head [1]
} msgl_hyper;

// Floats of a row's post and comb.
static inline int32_t msgl__hyper_mix(int32_t streams)
{
    return streams + streams * streams;
}

// Rows are [rows, n * dim] and [rows, dim] of exec->act, dense; mix [rows, msgl__hyper_mix]. NULL:
// not on this device.
typedef struct msgl_hyper_kernels {
    // out = what a block reads, mix = post and comb for its `close`, and result [rows, dim] = 0,
    // which the block adds to.
    void (*open)(msgl_exec *x, const msgl_hyper *h, const void *in, int32_t rows, float *mix,
                 void *out, void *result);
    // streams = post block^T + comb^T streams.
    void (*close)(msgl_exec *x, const msgl_hyper *h, const float *mix, const void *block,
                  int32_t rows, void *streams);
    // out = pre in, which is all that there is of the head.
    void (*head)(msgl_exec *x, const msgl_hyper *h, const void *in, int32_t rows, void *out);
} msgl_hyper_kernels;

#endif
