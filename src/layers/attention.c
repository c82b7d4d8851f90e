// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

void msgl__rope_table(msgl_forward *f, int32_t dim, float *cos_sin)
{
    const size_t half = (size_t)dim / 2;
    for (int32_t i = 0; i < f->num_segments; i++) {
        const msgl_rope_segment *s = &f->segments[i];
        f->k->rope.table(f->x, f->positions + s->first, s->count,
                         f->inv_freq + (size_t)s->row * half, (int)half, f->rope_scale,
                         cos_sin + (size_t)s->first * (size_t)dim);
    }
}

void msgl__attention(msgl_forward *f, const msgl_attention *a, const float *in,
                     const float *cos_sin, float *qkv, float *out)
{
    const int32_t tokens = f->batch->num_tokens;
    const size_t ld = (size_t)a->qkv.w.n;
    msgl__linear(f, &a->qkv, in, (size_t)a->qkv.w.k, qkv, tokens);
    f->k->rope.qk_norm_rope(f->x, qkv, ld, tokens, a->num_heads, a->num_kv_heads, a->head_dim,
                            a->q_norm, a->k_norm, a->eps, cos_sin, a->head_dim / 2);
    f->attn->desc->forward(f->attn, f->x, &a->geometry, f->batch, qkv, ld, out);
    msgl__arena_reset(f->x->scratch);
}
