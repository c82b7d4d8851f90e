// SPDX-License-Identifier: Apache-2.0
//
// The sparse feed-forward block: a router, experts that are feed-forward blocks, and maybe one more
// that every token has (Qwen2-MoE: its result times the sigmoid of one more product; DeepSeek: as
// it is). Experts may be of latent vectors (Nemotron 3 Super): a product of the normed stream,
// which the router and the expert of all tokens read as it is.
#ifndef MSGL_LAYERS_MOE_H
#define MSGL_LAYERS_MOE_H

#include "layers/mlp.h"
#include "moe/moe.h"

typedef struct msgl_moe {
    msgl_linear router; // [num_experts, hidden]
    float *router_norm; // [hidden] weight of a norm of its own, or NULL: the block's
    // Of experts of latent vectors: [latent, hidden] before them and [hidden, latent] behind their
    // sum; else empty.
    msgl_linear latent_in, latent_out;
    msgl_moe_experts experts;
    const msgl_moe_desc *backend;
    bool has_shared, gates_shared;
    msgl_mlp shared;
    msgl_linear shared_gate; // [1, hidden]
} msgl_moe;

// Step arena bytes of msgl__moe for up to max_rows rows with activations of act.
size_t msgl__moe_workspace(const msgl_moe *m, const msgl_kernels *k, msgl_dtype act,
                           int32_t max_rows);
// Joins the block of norm(in) to residual; both [rows, hidden], and `in` may be the residual. norm
// NULL: of `in`, which is not the residual then and may be overwritten. join->next is only looked
// at where the expert of all tokens is the last to be added, by its product.
void msgl__moe(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm, const msgl_join *join,
               const void *in, void *residual, int32_t rows);

#endif
