// SPDX-License-Identifier: Apache-2.0
//
// A product whose matrix is block-diagonal: group g of the outputs reads group g of the inputs
// alone (DeepSeek-V4's projection of attention's results).
#ifndef MSGL_LAYERS_GROUPED_LINEAR_H
#define MSGL_LAYERS_GROUPED_LINEAR_H

#include "layers/forward.h"

typedef struct msgl_grouped_linear {
    msgl_weight *w; // [groups] of [n, k], of this rank
    int32_t groups;
} msgl_grouped_linear;

// in [rows, groups * k] -> out [rows, groups * n], dense.
void msgl__grouped_linear(msgl_forward *f, const msgl_grouped_linear *g, const void *in, void *out,
                          int32_t rows);

#endif
