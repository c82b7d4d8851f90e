// SPDX-License-Identifier: Apache-2.0
//
// The attention block up to its output projection: fused q, k, v projection, optional q/k norm,
// rotation, and the attention backend over the paged cache.
#ifndef MSGL_LAYERS_ATTENTION_H
#define MSGL_LAYERS_ATTENTION_H

#include "layers/linear.h"

typedef struct msgl_attention {
    msgl_linear qkv;        // [(num_heads + 2 num_kv_heads) * head_dim, hidden]
    msgl_linear out;        // [hidden, num_heads * head_dim]
    float *q_norm, *k_norm; // NULL, or [head_dim], or, with norms_all, [q heads] and [K heads]
    bool norms_all;         // one norm over all heads of q, one over all of K (OLMo 2)
    float eps;
    int32_t num_heads, num_kv_heads, head_dim;
    int32_t group; // of layers: msgl_forward.groups
    int32_t rope;  // which of the step's
    int32_t half;  // rotated dimensions of a head / 2
    msgl_attn_layer geometry;
} msgl_attention;

// in [num_tokens, hidden], before `norm` (or NULL) -> out [num_tokens, num_heads * head_dim],
// before the output projection (which is the caller's: after the last layer only some rows need
// it). Stores the tokens' K and V. qkv: temporary [num_tokens, qkv.w.n]; cos_sin [num_tokens, 2
// half] of its rope.
void msgl__attention(msgl_forward *f, const msgl_attention *a, const msgl_norm *norm,
                     const void *in, const float *cos_sin, void *qkv, void *out);

#endif
