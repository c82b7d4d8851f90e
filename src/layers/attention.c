// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

void msgl__attention(msgl_forward *f, const msgl_attention *a, const msgl_norm *norm,
                     const void *in, const float *cos_sin, void *qkv, void *out)
{
    const msgl_rope_call rope = {
        .qkv = qkv,
        .ld = (size_t)a->qkv.w.n,
        .tokens = f->batch->num_tokens,
        .num_q_heads = a->num_heads,
        .num_kv_heads = a->num_kv_heads,
        .head_dim = a->head_dim,
        .q_weight = a->q_norm,
        .k_weight = a->k_norm,
        .eps = a->eps,
        .cos_sin = cos_sin,
        .half = a->head_dim / 2,
        .kv_dtype = f->pool->dtype,
        .k_pool = msgl__kv_k(f->pool, a->geometry.layer),
        .v_pool = msgl__kv_v(f->pool, a->geometry.layer),
        .slots = f->out_loc,
    };
    const msgl_attn_desc *attn = f->attn->desc;
    if (attn->takes_rope != NULL && attn->takes_rope(f->attn, f->batch)) {
        msgl__linear(f, &a->qkv, norm, in, qkv, rope.tokens);
        attn->forward_rope(f->attn, f->x, &a->geometry, f->batch, &rope, out);
    } else {
        msgl__linear_rope(f, &a->qkv, norm, in, &rope);
        attn->forward(f->attn, f->x, &a->geometry, f->batch, qkv, rope.ld, out);
    }
    msgl__arena_reset(f->x->scratch);
}
