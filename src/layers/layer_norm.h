// SPDX-License-Identifier: Apache-2.0
//
// Layer norm with its weight and bias (Ba, Kiros & Hinton 2016, eq. 4).
#ifndef MSGL_LAYERS_LAYER_NORM_H
#define MSGL_LAYERS_LAYER_NORM_H

#include "layers/forward.h"

typedef struct msgl_layer_norm {
    float *weight, *bias; // [dim]; bias NULL: none
    float eps;
    int32_t dim;
} msgl_layer_norm;

// out = norm(in); both [rows, dim], dense; out may be in.
static inline void msgl__layer_norm(msgl_forward *f, const msgl_layer_norm *n, const void *in,
                                    void *out, int32_t rows)
{
    const size_t ld = (size_t)n->dim;
    if (rows == 0) return;
    f->k->norm.layer_norm(f->x, in, ld, n->weight, n->bias, n->eps, out, ld, rows, n->dim);
}

#endif
