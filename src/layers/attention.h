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
    float *q_norm, *k_norm; // [head_dim], or NULL
    float eps;
    int32_t num_heads, num_kv_heads, head_dim;
    msgl_attn_layer geometry;
} msgl_attention;

// in [num_tokens, hidden], before `norm` -> out [num_tokens, num_heads * head_dim], before the
// output projection (which is the caller's: after the last layer only some rows need it). Stores
// the tokens' K and V. qkv: temporary [num_tokens, qkv.w.n]; cos_sin [num_tokens, head_dim] of this
// step.
void msgl__attention(msgl_forward *f, const msgl_attention *a, const msgl_norm *norm,
                     const void *in, const float *cos_sin, void *qkv, void *out);

#endif
