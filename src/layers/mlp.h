// SPDX-License-Identifier: Apache-2.0
//
// The feed-forward block: gated, down(f(gate(x)) * up(x)) (Shazeer 2020, SwiGLU and GEGLU), or
// plain, down(f(up(x))).
#ifndef MSGL_LAYERS_MLP_H
#define MSGL_LAYERS_MLP_H

#include "layers/linear.h"

typedef struct msgl_mlp {
    // [2 intermediate, hidden]: gate rows, then up rows; plain: [intermediate, hidden], up alone
    msgl_linear gate_up;
    msgl_linear down;           // [hidden, intermediate]
    msgl_activation activation; // of the gate
    bool plain;
    msgl_pointwise pointwise; // where plain
    float *params;            // of pointwise (kernel/pointwise.h), or NULL
} msgl_mlp;

// Step arena bytes of msgl__mlp for up to max_rows rows with activations of act; without what
// msgl__linear_add takes.
size_t msgl__mlp_workspace(const msgl_mlp *m, const msgl_kernels *k, msgl_dtype act,
                           int32_t max_rows);
// out [rows, intermediate] = f(gate(x)) * up(x), or f(up(x)), of x = norm(in) (norm NULL: in).
// handover: as of msgl__linear_gated; what is plain leaves nothing there.
void msgl__mlp_up(msgl_forward *f, const msgl_mlp *m, const msgl_norm *norm, const void *in,
                  void *out, int32_t rows, msgl_handover *handover);
// Joins the block of norm(in) (norm NULL: of in) to residual; both [rows, hidden], and `in` may be
// the residual.
void msgl__mlp(msgl_forward *f, const msgl_mlp *m, const msgl_norm *norm, const msgl_join *join,
               const void *in, void *residual, int32_t rows);

// out [rows, hidden] = after(block of norm(in)) (after NULL: of that itself), which is added to
// nothing yet.
void msgl__mlp_apart(msgl_forward *f, const msgl_mlp *m, const msgl_norm *norm,
                     const msgl_norm *after, const void *in, void *out, int32_t rows);

// Rows of a feed-forward block that are worked on at a time.
static inline int32_t msgl__ffn_rows(const msgl_kernels *k, int32_t rows)
{
    return rows < k->gemm.block_rows ? rows : k->gemm.block_rows;
}

#endif
