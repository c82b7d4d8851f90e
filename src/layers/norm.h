// SPDX-License-Identifier: Apache-2.0
//
// RMS norm with its weight (Zhang & Sennrich 2019, eq. 4), or LayerNorm (Ba et al. 2016, eq. 4). An
// RMS norm is mostly given to the projection behind it, which may do both at once; products know no
// mean, so what they read behind a LayerNorm is normed by itself.
#ifndef MSGL_LAYERS_NORM_H
#define MSGL_LAYERS_NORM_H

#include "layers/forward.h"

typedef struct msgl_norm {
    float *weight; // [dim]
    float *bias;   // [dim], or NULL; of LayerNorm
    float eps;
    int32_t dim;
    bool centred; // LayerNorm: less the mean
} msgl_norm;

// out = norm(in); both [rows, dim], dense.
static inline void msgl__norm(msgl_forward *f, const msgl_norm *n, const void *in, void *out,
                              int32_t rows)
{
    const size_t ld = (size_t)n->dim;
    const msgl_norm_kernels *k = &f->k->norm;
    if (n->centred) {
        k->layer_norm(f->x, in, ld, n->weight, n->bias, n->eps, out, ld, rows, n->dim);
    } else {
        k->rms_norm(f->x, in, ld, n->weight, n->eps, out, ld, rows, n->dim);
    }
}

#endif
