// SPDX-License-Identifier: Apache-2.0
#include "attention/cuda_batch.h"

#include "attention/paged.h"
#include "core/mem.h"

enum { ALIGN = 64 };

static size_t align_up(size_t n)
{
    return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

int msgl__cuda_supports(const msgl_attn_needs *needs, msgl_err *err)
{
    if (needs->act == needs->kv_dtype) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "attention on a GPU: activations are %s and the KV cache is %s; they have "
                         "to be the same",
                         msgl__dtype_name(needs->act), msgl__dtype_name(needs->kv_dtype));
}

int msgl__cuda_batches_create(const msgl_attn_config *cfg, const char *name, size_t extra_bytes,
                              msgl_cuda_batches *out, msgl_err *err)
{
    *out = (msgl_cuda_batches){.cfg = *cfg};
    const int code = msgl__attn_config_check(cfg, err);
    if (code != 0) return code;
    const size_t slots = (size_t)cfg->num_slots + 1;
    const size_t ints = align_up(((size_t)cfg->max_running + 1) * sizeof(int32_t));
    size_t all;
    out->extra_at = 3 * ints;
    out->extra_bytes = align_up(extra_bytes);
    if (msgl__size_add(out->extra_at, out->extra_bytes, &out->set_bytes) != 0 ||
        msgl__size_mul(out->set_bytes, slots, &all) != 0) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: metadata too large", name);
    }
    out->slots = msgl__calloc(slots, sizeof *out->slots);
    out->staging = cfg->dev->ops->host_alloc(cfg->dev, all);
    out->device = cfg->dev->ops->alloc(cfg->dev, out->set_bytes);
    if (out->slots == NULL || out->staging == NULL || out->device == NULL) {
        msgl__cuda_batches_destroy(out);
        return msgl__err_set(err, MSGL_ENOMEM, "%s: no memory for %zu bytes of metadata", name,
                             all);
    }
    for (size_t i = 0; i < slots; i++) {
        char *at = out->staging + i * out->set_bytes;
        msgl_cuda_batch *md = &out->slots[i];
        md->cu_seqlens_q = msgl__attn_carve(&at, ints);
        md->seqlens_k = msgl__attn_carve(&at, ints);
        md->table_rows = msgl__attn_carve(&at, ints);
        md->extra = at;
    }
    return 0;
}

void msgl__cuda_batches_destroy(msgl_cuda_batches *b)
{
    msgl_device *d = b->cfg.dev;
    const size_t slots = (size_t)b->cfg.num_slots + 1;
    if (b->device != NULL) d->ops->free(d, b->device, b->set_bytes);
    if (b->staging != NULL) d->ops->host_free(d, b->staging, b->set_bytes * slots);
    msgl__free(b->slots);
    b->slots = NULL;
    b->staging = b->device = NULL;
}

// Padding: one key, in the dummy page.
static void fill_dummies(const msgl_cuda_batches *b, msgl_cuda_batch *md, int32_t from, int32_t to)
{
    for (int32_t i = from; i < to; i++) {
        md->cu_seqlens_q[i + 1] = md->cu_seqlens_q[i] + 1;
        md->seqlens_k[i] = 1;
        md->table_rows[i] = b->cfg.page_table->max_running;
    }
    md->size = to;
    md->total_q = md->cu_seqlens_q[to];
}

msgl_cuda_batch *msgl__cuda_batch_fill(const msgl_cuda_batches *b, msgl_batch *batch, bool padded)
{
    msgl_cuda_batch *md = &b->slots[batch->slot];
    md->max_seqlen_q = md->max_seqlen_k = 1;
    md->copied = false;
    md->cu_seqlens_q[0] = 0;
    for (int32_t i = 0; i < batch->size; i++) {
        const msgl_batch_req *r = &batch->reqs[i];
        const int32_t q_len = msgl__extend_len(r);
        md->cu_seqlens_q[i + 1] = md->cu_seqlens_q[i] + q_len;
        md->seqlens_k[i] = r->device_len;
        md->table_rows[i] = r->table_idx;
        if (q_len > md->max_seqlen_q) md->max_seqlen_q = q_len;
        if (r->device_len > md->max_seqlen_k) md->max_seqlen_k = r->device_len;
    }
    const bool more = padded && batch->padded_size > batch->size;
    fill_dummies(b, md, batch->size, more ? batch->padded_size : batch->size);
    batch->attn_metadata = md;
    return md;
}

void msgl__cuda_batch_copy(const msgl_cuda_batches *b, msgl_cuda_batch *md, size_t extra)
{
    msgl_device *d = b->cfg.dev;
    d->ops->copy_in(d, b->device, md->cu_seqlens_q, b->extra_at + extra);
    md->copied = true;
}

void msgl__cuda_batch_copy_extra(const msgl_cuda_batches *b, const msgl_cuda_batch *md, size_t from,
                                 size_t bytes)
{
    msgl_device *d = b->cfg.dev;
    d->ops->copy_in(d, msgl__cuda_batch_extra(b, from), md->extra + from, bytes);
}

void msgl__cuda_batch_call(const msgl_cuda_batches *b, const msgl_cuda_batch *md,
                           const msgl_attn_layer *layer, msgl_dtype act, const void *q, size_t ld,
                           void *out, msgl_cuda_attn_call *c)
{
    const msgl_attn_config *cfg = &b->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    const int32_t *device = (const int32_t *)b->device;
    const size_t ints = b->extra_at / 3 / sizeof *device;
    *c = (msgl_cuda_attn_call){
        .dtype = act,
        .num_q_heads = cfg->num_q_heads,
        .num_kv_heads = cfg->num_kv_heads,
        .head_dim = cfg->head_dim,
        .q = q,
        .ld_q = ld,
        .out = out,
        .ld_out = (size_t)cfg->num_q_heads * (size_t)cfg->head_dim,
        .k = msgl__kv_k(pool, layer->layer),
        .v = msgl__kv_v(pool, layer->layer),
        .num_slots = ((int64_t)pool->num_pages + 1) * pool->page_size,
        .scale = layer->scale,
        .softcap = layer->softcap,
        .out_scale = 1,
        .window = layer->window,
        .batch = md->size,
        .cu_seqlens_q = device,
        .seqlens_k = device + ints,
        .table = cfg->device_table,
        .table_stride = cfg->device_table_stride,
        .table_rows = device + 2 * ints,
        .page_size = cfg->page_size,
        .total_q = md->total_q,
        .max_seqlen_q = md->max_seqlen_q,
        .max_seqlen_k = md->max_seqlen_k,
        .deterministic = cfg->deterministic,
    };
}

void msgl__cuda_last_indices(const msgl_attn_backend *base, const msgl_batch *batch, int32_t *out)
{
    (void)base;
    const msgl_cuda_batch *md = batch->attn_metadata;
    for (int32_t i = 0; i < batch->size; i++) out[i] = md->cu_seqlens_q[i + 1] - 1;
}

int msgl__cuda_init_capture(msgl_attn_backend *base, int32_t max_seq_len,
                            const int32_t *batch_sizes, int32_t num_sizes, msgl_err *err)
{
    msgl_cuda_batches *b = &((msgl_cuda_backend *)base)->batches;
    int32_t max_bs = 0;
    for (int32_t i = 0; i < num_sizes; i++) {
        if (batch_sizes[i] > max_bs) max_bs = batch_sizes[i];
    }
    if (max_bs < 1 || max_bs > b->cfg.max_running || max_seq_len < 1 ||
        max_seq_len > b->cfg.max_seq_len) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "%s: capture of batch size %d and length %d is not within %d and %d",
                             base->desc->name, (int)max_bs, (int)max_seq_len,
                             (int)b->cfg.max_running, (int)b->cfg.max_seq_len);
    }
    b->graph_max_bs = max_bs;
    return 0;
}

int msgl__cuda_prepare_for_capture(msgl_attn_backend *base, msgl_batch *batch)
{
    const msgl_cuda_batches *b = &((msgl_cuda_backend *)base)->batches;
    if (batch->padded_size < 1 || batch->padded_size > b->graph_max_bs) return MSGL_EINVAL;
    msgl_cuda_batch *md = &b->slots[b->cfg.num_slots];
    md->cu_seqlens_q[0] = 0;
    fill_dummies(b, md, 0, batch->padded_size);
    md->max_seqlen_q = 1;
    md->max_seqlen_k = batch->max_seq_len;
    msgl__cuda_batch_copy(b, md, 0);
    batch->attn_metadata = md;
    return 0;
}

int msgl__cuda_prepare_for_replay(msgl_attn_backend *base, msgl_batch *batch)
{
    const msgl_cuda_batches *b = &((msgl_cuda_backend *)base)->batches;
    if (batch->padded_size < batch->size || batch->padded_size > b->graph_max_bs) {
        return MSGL_EINVAL;
    }
    msgl__cuda_batch_copy(b, msgl__cuda_batch_fill(b, batch, true), 0);
    return 0;
}

void msgl__cuda_attn_result(msgl_exec *x, const char *name, int code)
{
    if (code == 0) return;
    if (x->device->fault.code == 0) {
        msgl__err_set(&x->device->fault, MSGL_EDEVICE, "%s: CUDA error %d in a launch", name, code);
    }
    x->status = MSGL_EDEVICE;
}
