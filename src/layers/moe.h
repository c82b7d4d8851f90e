// SPDX-License-Identifier: Apache-2.0
//
// The sparse feed-forward block: a router, and experts that are gated feed-forward blocks.
#ifndef MSGL_LAYERS_MOE_H
#define MSGL_LAYERS_MOE_H

#include "layers/linear.h"
#include "moe/moe.h"

typedef struct msgl_moe {
    msgl_linear router; // [num_experts, hidden]
    msgl_moe_experts experts;
    const msgl_moe_desc *backend;
} msgl_moe;

// Step arena bytes of msgl__moe for up to max_rows rows with activations of act.
size_t msgl__moe_workspace(const msgl_moe *m, const msgl_kernels *k, msgl_dtype act,
                           int32_t max_rows);
// residual [rows, hidden] += the block of norm(residual).
void msgl__moe(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm, void *residual,
               int32_t rows);

#endif
