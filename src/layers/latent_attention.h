// SPDX-License-Identifier: Apache-2.0
//
// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) up to its output
// projection. A token keeps one latent vector c and one rotary key k_r for all heads. With W_UK and
// W_UV, which would make head h's K and V of c, a score is
//     scale (q_h . W_UK_h c + q_r_h . k_r) = scale ([W_UK_h^T q_h, q_r_h] . [c, k_r])
// and the result is W_UV_h sum_j p_j c_j: queries absorb W_UK, W_UV comes behind the sum, and
// attention runs over the latent vectors as over one K head whose V is the beginning of its K.
//
// Chunks of prompts may be expanded instead (attention/expand.h): K and V of every head are made of
// the latent vectors, which takes fewer operations where many queries share them.
#ifndef MSGL_LAYERS_LATENT_ATTENTION_H
#define MSGL_LAYERS_LATENT_ATTENTION_H

#include "layers/linear.h"

// Which keys a token attends to (kernel/index.h).
typedef struct msgl_latent_index {
    int32_t top_k; // 0: all of them
    bool own;      // this layer chooses; else it has what the last one chose
    int32_t heads, dim;
    msgl_linear q;               // [heads * dim, q_rank]
    msgl_linear k;               // [dim, hidden]
    msgl_linear weights;         // [heads, hidden], results in f32
    float *k_norm, *k_norm_bias; // [dim]
    int32_t group, layer;        // of index keys
} msgl_latent_index;

typedef struct msgl_latent_attention {
    // [q + rank + rotary, hidden]: to q's latent vector (q_rank) or, where that is 0, to q itself,
    // then to c and k_r.
    msgl_linear down;
    float *q_norm;            // [q_rank]
    msgl_linear q_up;         // [num_heads * (nope + rotary), q_rank], unless q_rank is 0
    float *latent_norm;       // [rank], of c
    msgl_weight *k_up, *v_up; // [num_heads] of W_UK_h^T [rank, nope], W_UV_h [v_dim, rank]
    msgl_linear kv_up;        // [num_heads * (nope + v_dim), rank] both at once, if expanded
    float eps;                // of both norms
    int32_t num_heads, q_rank, rank, nope, rotary, v_dim;
    int32_t group; // of layers: msgl_forward.groups
    int32_t rope;  // which of the step's
    msgl_attn_layer geometry;
    msgl_attn_expanded expanded; // whether chunks may be
    msgl_latent_index index;     // then they are not
} msgl_latent_attention;

// Step arena bytes of msgl__latent_attention for up to max_tokens tokens with activations of act.
size_t msgl__latent_workspace(const msgl_latent_attention *a, msgl_dtype act, int32_t max_tokens);
// in [num_tokens, hidden], before `norm` -> out [num_tokens, num_heads * v_dim], before the output
// projection. Stores the tokens' latent vectors. cos_sin [num_tokens, rotary] of its rope.
void msgl__latent_attention(msgl_forward *f, const msgl_latent_attention *a, const msgl_norm *norm,
                            const void *in, const float *cos_sin, void *out);

#endif
