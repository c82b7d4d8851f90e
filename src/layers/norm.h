// SPDX-License-Identifier: Apache-2.0
//
// RMS norm with its weight (Zhang & Sennrich 2019, eq. 4).
#ifndef MSGL_LAYERS_NORM_H
#define MSGL_LAYERS_NORM_H

#include "layers/forward.h"

typedef struct msgl_norm {
    float *weight; // [dim]
    float eps;
    int32_t dim;
} msgl_norm;

// out = norm(in); both [rows, dim], dense.
static inline void msgl__norm(msgl_forward *f, const msgl_norm *n, const float *in, float *out,
                              int32_t rows)
{
    const size_t ld = (size_t)n->dim;
    f->k->norm.rms_norm(f->x, in, ld, n->weight, n->eps, out, ld, rows, n->dim);
}

// residual += delta; out = norm(residual).
static inline void msgl__add_norm(msgl_forward *f, const msgl_norm *n, float *residual,
                                  const float *delta, float *out, int32_t rows)
{
    f->k->norm.add_rms_norm(f->x, residual, delta, n->weight, n->eps, out, rows, n->dim);
}

#endif
