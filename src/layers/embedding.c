// SPDX-License-Identifier: Apache-2.0
#include "layers/embedding.h"

#include "kernel/device.h"

static void rope_table(msgl_forward *f, int32_t dim, float *cos_sin)
{
    const size_t half = (size_t)dim / 2;
    for (int32_t i = 0; i < f->num_segments; i++) {
        const msgl_rope_segment *s = &f->segments[i];
        f->k->rope.table(f->x, f->positions + s->first, s->count,
                         f->inv_freq + (size_t)s->row * half, (int)half, f->rope_scale,
                         cos_sin + (size_t)s->first * (size_t)dim);
    }
}

static void embed(msgl_forward *f, const msgl_weight *w, int32_t dim, void *out, float *cos_sin)
{
    const int32_t tokens = f->num_tokens;
    const msgl_embed_call c = {
        .tokens = tokens,
        .pool = f->token_pool,
        .index = f->id_index,
        .table = f->page_table,
        .slots = f->out_loc,
        .w = w,
        .out = out,
        .positions = f->positions,
        .inv_freq = f->inv_freq,
        .half = dim / 2,
        .scale = f->rope_scale,
        .cos_sin = cos_sin,
    };
    if (f->k->gemm.embed != NULL && f->num_segments == 1 && f->k->gemm.embed(f->x, &c)) return;
    msgl_device *d = f->x->device;
    d->ops->take_tokens(d, f->token_pool, f->id_index, tokens, f->ids, f->page_table, f->out_loc);
    rope_table(f, dim, cos_sin);
    f->k->gemm.gather(f->x, w, f->ids, tokens, out);
}

void msgl__embed(msgl_forward *f, const msgl_weight *w, int32_t dim, void *out, float *cos_sin)
{
    embed(f, w, dim, out, cos_sin);
    // Only now the device's page table has the slots of the new tokens, which lists of pages need.
    for (int32_t i = 0; i < f->num_seqs; i++) msgl__attn_begin(f->attn, f->x, &f->seqs[i]);
}
