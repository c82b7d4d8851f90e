// SPDX-License-Identifier: Apache-2.0
//
// Two backends behind one: routes by the batch's phase. Metadata belongs to the backend that
// prepared it, and a batch keeps its phase, so the two never see each other's.
#include "attention/hybrid.h"

#include <stdio.h>

#include "core/mem.h"

typedef struct hybrid_backend {
    msgl_attn_backend base;
    msgl_attn_desc desc; // the pair's own, so that callers find the decode half's graph support
    char name[64];
    msgl_attn_backend *prefill, *decode;
} hybrid_backend;

static msgl_attn_backend *route(const msgl_attn_backend *base, const msgl_batch *batch)
{
    const hybrid_backend *h = (const hybrid_backend *)base;
    return batch->phase == MSGL_PREFILL ? h->prefill : h->decode;
}

static void hybrid_destroy(msgl_attn_backend *base)
{
    hybrid_backend *h = (hybrid_backend *)base;
    if (h == NULL) return;
    if (h->prefill != NULL) h->prefill->desc->destroy(h->prefill);
    if (h->decode != NULL) h->decode->desc->destroy(h->decode);
    msgl__free(h);
}

static int hybrid_prepare_metadata(msgl_attn_backend *base, msgl_batch *batch)
{
    msgl_attn_backend *b = route(base, batch);
    return b->desc->prepare_metadata(b, batch);
}

static void hybrid_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                           const msgl_batch *batch, const void *q, size_t ld, void *out)
{
    msgl_attn_backend *b = route(base, batch);
    b->desc->forward(b, x, layer, batch, q, ld, out);
}

static bool hybrid_takes_rope(const msgl_attn_backend *base, const msgl_batch *batch)
{
    const msgl_attn_backend *b = route(base, batch);
    return b->desc->takes_rope != NULL && b->desc->takes_rope(b, batch);
}

static void hybrid_forward_rope(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                                const msgl_batch *batch, const msgl_rope_call *rope, void *out)
{
    msgl_attn_backend *b = route(base, batch);
    b->desc->forward_rope(b, x, layer, batch, rope, out);
}

static void hybrid_last_indices(const msgl_attn_backend *base, const msgl_batch *batch,
                                int32_t *out)
{
    const msgl_attn_backend *b = route(base, batch);
    b->desc->last_indices(b, batch, out);
}

static int hybrid_init_capture(msgl_attn_backend *base, int32_t max_seq_len,
                               const int32_t *batch_sizes, int32_t num_sizes, msgl_err *err)
{
    msgl_attn_backend *d = ((hybrid_backend *)base)->decode;
    return d->desc->init_capture(d, max_seq_len, batch_sizes, num_sizes, err);
}

static int hybrid_prepare_for_capture(msgl_attn_backend *base, msgl_batch *batch)
{
    msgl_attn_backend *d = ((hybrid_backend *)base)->decode;
    return d->desc->prepare_for_capture(d, batch);
}

static int32_t hybrid_short_seq_len(const msgl_attn_backend *base, int32_t size)
{
    const msgl_attn_backend *d = ((const hybrid_backend *)base)->decode;
    return d->desc->short_seq_len != NULL ? d->desc->short_seq_len(d, size) : 0;
}

static int hybrid_prepare_for_replay(msgl_attn_backend *base, msgl_batch *batch)
{
    msgl_attn_backend *d = ((hybrid_backend *)base)->decode;
    return d->desc->prepare_for_replay(d, batch);
}

int msgl__attn_hybrid_create(const msgl_attn_choice *c, const msgl_attn_config *cfg,
                             msgl_attn_backend **out, msgl_err *err)
{
    hybrid_backend *h = msgl__calloc(1, sizeof *h);
    if (h == NULL) return msgl__err_set(err, MSGL_ENOMEM, "hybrid attention: out of memory");
    int rc = c->prefill->create(cfg, &h->prefill, err);
    if (rc == 0) rc = c->decode->create(cfg, &h->decode, err);
    if (rc != 0) {
        hybrid_destroy(&h->base);
        return rc;
    }
    snprintf(h->name, sizeof h->name, "%s,%s", c->prefill->name, c->decode->name);
    h->desc = *c->decode;
    h->desc.name = h->name;
    h->desc.destroy = hybrid_destroy;
    h->desc.prepare_metadata = hybrid_prepare_metadata;
    h->desc.forward = hybrid_forward;
    h->desc.takes_rope = hybrid_takes_rope;
    h->desc.forward_rope = hybrid_forward_rope;
    h->desc.last_indices = hybrid_last_indices;
    if (h->desc.graph) {
        h->desc.init_capture = hybrid_init_capture;
        h->desc.prepare_for_capture = hybrid_prepare_for_capture;
        h->desc.prepare_for_replay = hybrid_prepare_for_replay;
        h->desc.short_seq_len = hybrid_short_seq_len;
    }
    h->base.desc = &h->desc;
    *out = &h->base;
    return 0;
}
