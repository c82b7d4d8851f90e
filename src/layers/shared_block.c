// SPDX-License-Identifier: Apache-2.0
#include "layers/shared_block.h"

#include "kernel/device.h"

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t msgl__shared_block_workspace(const msgl_shared_block *b, msgl_dtype act, int32_t max_tokens)
{
    const size_t t = (size_t)max_tokens, hidden = (size_t)b->out.w.n;
    const size_t attention = msgl__attention_workspace(&b->attn, act, max_tokens) +
                             msgl__low_rank_bytes(&b->qkv_low_rank, act, max_tokens);
    // Gate and up apart, for the low-rank part between; a block of rows is no more than all.
    const size_t ffn = msgl__activation_bytes(t, (size_t)b->mlp.down.w.k, act) +
                       msgl__activation_bytes(t, (size_t)b->mlp.gate_up.w.n, act) +
                       msgl__low_rank_bytes(&b->mlp_low_rank, act, max_tokens);
    return msgl__activation_bytes(t, 2 * hidden, act) +
           msgl__activation_bytes(t, msgl__attention_width(&b->attn), act) +
           msgl__activation_bytes(t, hidden, act) + larger(attention, ffn);
}

// Every rank has a part of the sum.
static void sum_ranks(msgl_forward *f, void *rows, size_t n)
{
    if (f->comm->size > 1) f->comm->ops->all_reduce(f->comm, f->x, f->x->act, rows, n);
}

void msgl__shared_block(msgl_forward *f, const msgl_shared_block *b, const void *stream,
                        const float *cos_sin, void *out)
{
    const size_t t = (size_t)f->num_tokens, hidden = (size_t)b->out.w.n, mark = f->arena->used;
    void *both = msgl__activation(f, t, 2 * hidden);
    void *attended = msgl__activation(f, t, msgl__attention_width(&b->attn));
    void *block = msgl__activation(f, t, hidden);
    if (f->x->status != 0) return;
    f->x->device->ops->copy(f->x->device, f->first_stream, stream,
                            t * hidden * msgl__dtype_size(f->x->act));
    f->k->act.join_columns(f->x, f->x->act, f->first_stream, (int)hidden, f->num_tokens,
                           2 * (int)hidden, both);
    msgl__norm(f, &b->norm, both, both, f->num_tokens);
    msgl__attention(f, &b->attn, NULL, both, cos_sin, attended);
    msgl__linear(f, &b->attn_out, NULL, attended, block, f->num_tokens);
    sum_ranks(f, block, t * hidden);
    // Its own input is no longer needed.
    msgl__mlp_apart(f, &b->mlp, &b->ffn_norm, NULL, block, both, f->num_tokens);
    msgl__linear(f, &b->out, NULL, both, out, f->num_tokens);
    f->k->norm.add(f->x, out, stream, NULL, 0, 1, f->num_tokens, (int)hidden);
    f->arena->used = mark;
}
