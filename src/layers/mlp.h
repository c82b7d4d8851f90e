// SPDX-License-Identifier: Apache-2.0
//
// The gated feed-forward block: down(silu(gate(x)) * up(x)) (Shazeer 2020, SwiGLU).
#ifndef MSGL_LAYERS_MLP_H
#define MSGL_LAYERS_MLP_H

#include "layers/linear.h"

// Rows that the feed-forward blocks work on at a time: bounds their temporaries, while the weights,
// read once per block, still cost little beside the products.
#define MSGL_FFN_ROWS 1024

typedef struct msgl_mlp {
    msgl_linear gate_up; // [2 intermediate, hidden]: gate rows, then up rows
    msgl_linear down;    // [hidden, intermediate]
} msgl_mlp;

// Step arena bytes of msgl__mlp for up to max_rows rows.
size_t msgl__mlp_workspace(const msgl_mlp *m, int32_t max_rows);
// in, out [rows, hidden], dense.
void msgl__mlp(msgl_forward *f, const msgl_mlp *m, const float *in, float *out, int32_t rows);

#endif
