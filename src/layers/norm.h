// SPDX-License-Identifier: Apache-2.0
//
// RMS norm with its weight (Zhang & Sennrich 2019, eq. 4). Mostly it is given to the projection
// behind it, which may do both at once.
#ifndef MSGL_LAYERS_NORM_H
#define MSGL_LAYERS_NORM_H

#include "layers/forward.h"

typedef struct msgl_norm {
    float *weight; // [dim]
    float eps;
    int32_t dim;
} msgl_norm;

// out = norm(in); both [rows, dim], dense.
static inline void msgl__norm(msgl_forward *f, const msgl_norm *n, const void *in, void *out,
                              int32_t rows)
{
    const size_t ld = (size_t)n->dim;
    f->k->norm.rms_norm(f->x, in, ld, n->weight, n->eps, out, ld, rows, n->dim);
}

#endif
