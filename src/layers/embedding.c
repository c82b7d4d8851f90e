// SPDX-License-Identifier: Apache-2.0
#include "layers/embedding.h"

#include "kernel/device.h"
#include "layers/lora.h"

static void rope_table(msgl_forward *f, const msgl_step_rope *r, float *cos_sin)
{
    const size_t half = (size_t)r->half;
    if (r->dual.len > 0) { // whose frequencies are the same for all requests
        const msgl_dual_table_call c = {.positions = f->positions,
                                        .prompt_lens = f->prompt_lens,
                                        .tokens = f->num_tokens,
                                        .inv_freq = r->inv_freq,
                                        .half = r->half,
                                        .scale = r->scale,
                                        .dual = r->dual,
                                        .cos_sin = cos_sin};
        f->k->rope.dual_table(f->x, &c);
        return;
    }
    for (int32_t i = 0; i < r->num_segments; i++) {
        const msgl_rope_segment *s = &r->segments[i];
        f->k->rope.table(f->x, f->positions + s->first, s->count,
                         r->inv_freq + (size_t)s->row * half, r->half, r->scale,
                         cos_sin + (size_t)s->first * 2 * half);
    }
}

_Static_assert((int)MSGL_MAX_TABLES >= (int)MSGL_MAX_SPANS, "a table for every span");

// What gemm.embed does, one after the other; rows of other ranks are zeros.
static void embed_unfused(msgl_forward *f, const msgl_embed_call *c)
{
    msgl_device *d = f->x->device;
    d->ops->take_tokens(d, &c->tokens, f->ids);
    rope_table(f, &f->ropes[0], c->cos_sin);
    c->w->format->gather(f->x, c->w, f->ids, c->tokens.count, c->out);
}

// With the first rope's table. Of several ranks each has some of the vocabulary's rows. ids: f->ids
// is read later, which a fused kernel leaves as they are.
static void embed(msgl_forward *f, const msgl_weight *w, bool ids, void *out, float *cos_sin)
{
    const int32_t tokens = f->num_tokens;
    const msgl_step_rope *r = &f->ropes[0];
    msgl_embed_call c = {
        .tokens = f->tokens,
        .w = w,
        .out = out,
        .positions = f->positions,
        .inv_freq = r->inv_freq,
        .half = r->half,
        .scale = r->scale,
        .cos_sin = cos_sin,
    };
    const msgl_comm_ops *ops = f->comm->ops;
    const size_t n = (size_t)tokens * (size_t)w->k;
    if (ops->meeting != NULL) c.sum = ops->meeting(f->comm, n + (size_t)tokens);
    const bool fuses = !ids && f->k->gemm.embed != NULL && r->num_segments == 1 && r->dual.len == 0;
    const bool fused = fuses && f->k->gemm.embed(f->x, &c);
    if (!fused) embed_unfused(f, &c);
    if (f->comm->size > 1 && !(fused && c.sum != NULL)) {
        ops->all_reduce(f->comm, f->x, f->x->act, out, n);
    }
}

void msgl__embed(msgl_forward *f, const msgl_weight *w, float scale, bool ids, void *out,
                 float *const cos_sin[MSGL_MAX_ROPES])
{
    embed(f, w, ids || msgl__lora_embeds(f), out, cos_sin[0]);
    for (int32_t i = 1; i < f->num_ropes; i++) rope_table(f, &f->ropes[i], cos_sin[i]);
    msgl__lora_embed(f, out);
    if (scale != 1) f->k->norm.scale(f->x, out, scale, (size_t)f->num_tokens * (size_t)w->k);
    for (int32_t i = 0; i < f->num_embeds; i++) {
        const msgl_embed_run *run = &f->embeds[i];
        f->x->device->ops->copy_in(f->x->device, msgl__row(f, out, run->first, (size_t)w->k),
                                   run->rows,
                                   (size_t)run->count * (size_t)w->k * msgl__dtype_size(f->x->act));
    }
    // Only now the device's page tables have the pages of the new tokens, which lists of pages
    // need.
    for (int32_t g = 0; g < f->num_groups; g++) {
        const msgl_attn *attn = &f->groups[g].attn;
        for (int32_t i = 0; i < f->num_seqs && attn->decode != NULL; i++) {
            msgl__attn_begin(attn, f->x, &f->seqs[i]);
        }
    }
}
