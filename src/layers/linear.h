// SPDX-License-Identifier: Apache-2.0
//
// y = x W^T + b. A row-parallel layer (its input split over the ranks) sums the ranks' results;
// a column-parallel one (its output split) needs nothing.
#ifndef MSGL_LAYERS_LINEAR_H
#define MSGL_LAYERS_LINEAR_H

#include "layers/forward.h"

typedef struct msgl_linear {
    msgl_weight w;
    float *bias; // [w.n], or NULL
    bool row_parallel;
} msgl_linear;

// in [rows, w.k] with stride ld_in -> out [rows, w.n], dense.
void msgl__linear(msgl_forward *f, const msgl_linear *l, const float *in, size_t ld_in, float *out,
                  int32_t rows);

#endif
