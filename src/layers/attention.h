// SPDX-License-Identifier: Apache-2.0
//
// The attention block up to its output projection: fused q, k, v projection, optional q/k norm,
// rotation, and the attention backend over the paged cache.
#ifndef MSGL_LAYERS_ATTENTION_H
#define MSGL_LAYERS_ATTENTION_H

#include "layers/block_index.h"
#include "layers/mean_index.h"

typedef struct msgl_attention {
    // [num_heads * head_dim + num_kv_heads * (head_dim + v_dim), hidden]; gated: and num_heads *
    // head_dim more
    msgl_linear qkv;
    float *q_norm, *k_norm; // NULL, or [head_dim], or, with norms_all, [q heads] and [K heads]
    bool norms_all;         // one norm over all heads of q, one over all of K (OLMo 2)
    bool norms_behind;      // each head's, behind the rotation (Hunyuan)
    float clip;             // q, K and V are cut to [-clip, clip] before it (OLMoE); 0: not
    bool norms_layer;       // LayerNorm of each head, weights [heads, head_dim] (StableLM)
    bool gated;             // results times the sigmoid of what is behind V (Qwen3-Next)
    float *v_norm;          // [v_dim] of each head, or NULL
    float eps;
    float value_scale; // of V, so of results
    // num_kv_heads 0: K and V are those of another layer, which geometry.layer is the place of;
    // this one stores none.
    int32_t num_heads, num_kv_heads, head_dim, v_dim;
    int32_t group;     // of layers: msgl_forward.groups
    int32_t rope;      // which of the step's
    int32_t half;      // rotated dimensions of a head / 2
    bool stores_apart; // V is normed or of other dimensions than K, or nothing is stored
    bool dual;         // a token has MSGL_DUAL_QUERIES queries; then there are no norms
    msgl_temper temper;
    msgl_attn_layer geometry;
    // Blocks of keys that each KV head, or that all of them attend to; heads 0 in both: all keys.
    msgl_block_index blocks;
    msgl_mean_index means;
} msgl_attention;

// Whether something has to be done to q, K and V, or to what is rotated, that no product or backend
// that rotates does with them.
static inline bool msgl__rotates_alone(const msgl_attention *a)
{
    return a->temper.every > 0 || a->norms_behind || a->clip > 0 || a->stores_apart;
}

// The same between projection and attention, of products.
static inline bool msgl__rotates_apart(const msgl_attention *a)
{
    return a->norms_all || a->norms_layer || a->gated || msgl__rotates_alone(a);
}

static inline size_t msgl__q_width(const msgl_attention *a)
{
    return (size_t)a->num_heads * (size_t)a->head_dim;
}

// Of the results.
static inline size_t msgl__attention_width(const msgl_attention *a)
{
    return (size_t)a->num_heads * (size_t)a->v_dim;
}

// Step arena bytes of msgl__attention for up to max_tokens tokens with activations of act.
static inline size_t msgl__attention_workspace(const msgl_attention *a, msgl_dtype act,
                                               int32_t max_tokens)
{
    const size_t t = (size_t)max_tokens, queries = a->dual ? MSGL_DUAL_QUERIES : 0;
    return msgl__activation_bytes(t, (size_t)a->qkv.w.n, act) +
           msgl__activation_bytes(t, queries * msgl__q_width(a), act) +
           (a->norms_all ? msgl__activation_bytes(t, 2, MSGL_F32) : 0) +
           msgl__activation_bytes(t, (size_t)a->blocks.qk.w.n, act) +
           msgl__activation_bytes(t, (size_t)a->means.qk.w.n, act);
}
// in [num_tokens, hidden], before `norm` (or NULL) -> out [num_tokens, num_heads * v_dim],
// before the output projection (which is the caller's: after the last layer only some rows need
// it). Stores the tokens' K and V. cos_sin [num_tokens, 2 half] of its rope, or that times
// MSGL_DUAL_SETS.
void msgl__attention(msgl_forward *f, const msgl_attention *a, const msgl_norm *norm,
                     const void *in, const float *cos_sin, void *out);

// The step's sequences one after the other, since answers' and chunks' tokens have kernels of their
// own: q [num_tokens, ld] as a backend wants it -> out [num_tokens, out_ld].
void msgl__attend(const msgl_forward *f, int32_t group, const msgl_attn_layer *geometry,
                  const void *q, size_t ld, void *out, size_t out_ld);

#endif
