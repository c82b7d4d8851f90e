// SPDX-License-Identifier: Apache-2.0
//
// fa on GPUs: our own kernels over the page table as it is. Decode needs no plan (the kernel shares
// out its work from the lengths in device memory), so a captured graph only needs new lengths; the
// longest that it is captured for decides between the kernels for few requests and for many.
// Prefill takes a work list per batch and window, planned at the first layer that needs it.
//
// Deterministic: the phase alone chooses the kernel, since a row's bits must not depend on how many
// other tokens its chunk has; otherwise single-token chunks take the decode kernel too.
#include "attention/fa/fa_cuda.h"

#include "attention/fa/plan_prefill.h"
#include "attention/paged.h"
#include "core/mem.h"
#include "kernel/cuda/decode/decode.h"
#include "kernel/cuda/plugin.h"

typedef struct fa_plans { // of a batch
    int32_t windows[MSGL_ATTN_MAX_VARIANTS];
    int32_t count;
} fa_plans;

typedef struct fa_backend {
    msgl_cuda_backend common;
    fa_plans *plans; // [num_slots + 1], as batches.slots
    int32_t max_windows;
    size_t plan_bytes;
    size_t l2_bytes; // of the GPU
    void *workspace;
    size_t workspace_bytes;
} fa_backend;

static void fa_destroy(msgl_attn_backend *base)
{
    fa_backend *b = (fa_backend *)base;
    if (b == NULL) return;
    msgl_device *d = b->common.batches.cfg.dev;
    if (b->workspace != NULL) d->ops->free(d, b->workspace, b->workspace_bytes);
    msgl__cuda_batches_destroy(&b->common.batches);
    msgl__free(b->plans);
    msgl__free(b);
}

static int fa_create(const msgl_attn_config *cfg, msgl_attn_backend **out, msgl_err *err)
{
    fa_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "fa: out of memory");
    b->common.base.desc = &msgl__attn_fa_cuda;
    b->common.batches.cfg = *cfg;
    b->l2_bytes = cfg->cuda->l2_bytes(cfg->dev);
    int code = msgl__attn_config_check(cfg, err);
    if (code != 0) goto fail;
    b->plan_bytes = (msgl__fa_plan_prefill_size(cfg->num_q_heads, cfg->num_kv_heads,
                                                cfg->max_running, cfg->max_step_tokens) +
                     63) &
                    ~(size_t)63;
    b->max_windows = msgl__attn_num_windows(&cfg->variants);
    code = msgl__cuda_batches_create(cfg, "fa", (size_t)b->max_windows * b->plan_bytes,
                                     &b->common.batches, err);
    if (code != 0) goto fail;
    b->plans = msgl__calloc((size_t)cfg->num_slots + 1, sizeof *b->plans);
    b->workspace_bytes = msgl__fa_decode_workspace(
        cfg->num_q_heads, cfg->num_kv_heads, cfg->head_dim, cfg->max_running, cfg->deterministic);
    b->workspace = cfg->dev->ops->alloc(cfg->dev, b->workspace_bytes);
    if (b->plans == NULL || b->workspace == NULL) {
        code = msgl__err_set(err, MSGL_ENOMEM, "fa: no memory for a workspace of %zu bytes",
                             b->workspace_bytes);
        goto fail;
    }
    *out = &b->common.base;
    return 0;
fail:
    fa_destroy(&b->common.base);
    return code;
}

static int fa_prepare_metadata(msgl_attn_backend *base, msgl_batch *batch)
{
    fa_backend *b = (fa_backend *)base;
    (void)msgl__cuda_batch_fill(&b->common.batches, batch, false);
    b->plans[batch->slot].count = 0;
    return 0;
}

static size_t plan_window(const fa_backend *b, const msgl_cuda_batch *md, int32_t window, char *out)
{
    const msgl_attn_config *cfg = &b->common.batches.cfg;
    const msgl_fa_prefill_batch p = {.num_q_heads = cfg->num_q_heads,
                                     .num_kv_heads = cfg->num_kv_heads,
                                     .head_dim = cfg->head_dim,
                                     .elem_size = (int32_t)msgl__dtype_size(cfg->pool->dtype),
                                     .window = window,
                                     .l2_bytes = b->l2_bytes,
                                     .batch = md->size,
                                     .cu_seqlens_q = md->cu_seqlens_q,
                                     .seqlens_k = md->seqlens_k,
                                     .table_rows = md->table_rows};
    return msgl__fa_plan_prefill(&p, out);
}

// The device copy of the batch's plan for a window, made if it is the first layer with it; the
// lengths go along with the first plan. NULL: the window was not in the config.
static const void *prefill_plan(fa_backend *b, msgl_cuda_batch *md, int32_t window)
{
    fa_plans *plans = &b->plans[md - b->common.batches.slots];
    int32_t i = 0;
    while (i < plans->count && plans->windows[i] != window) i++;
    if (i == b->max_windows) return NULL;
    const size_t at = (size_t)i * b->plan_bytes;
    if (i == plans->count) {
        const size_t bytes = plan_window(b, md, window, md->extra + at);
        if (md->copied) {
            msgl__cuda_batch_copy_extra(&b->common.batches, md, at, bytes);
        } else {
            msgl__cuda_batch_copy(&b->common.batches, md, bytes);
        }
        plans->windows[plans->count++] = window;
    }
    return msgl__cuda_batch_extra(&b->common.batches, at);
}

static bool decodes(const fa_backend *b, const msgl_batch *batch)
{
    const msgl_cuda_batch *md = batch->attn_metadata;
    return batch->phase == MSGL_DECODE ||
           (md->max_seqlen_q <= 1 && !b->common.batches.cfg.deterministic);
}

static void attend(fa_backend *b, msgl_exec *x, const msgl_attn_layer *layer,
                   const msgl_batch *batch, const void *q, size_t ld, const msgl_rope_call *rope,
                   void *out)
{
    const msgl_attn_config *cfg = &b->common.batches.cfg;
    const msgl_cuda_attn *k = cfg->cuda->attn;
    msgl_cuda_batch *md = batch->attn_metadata;
    void *stream = cfg->cuda->stream(x->device);
    if (x->act != cfg->pool->dtype) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    msgl_cuda_attn_call c;
    msgl__cuda_batch_call(&b->common.batches, md, layer, x->act, q, ld, out, &c);
    c.rope = rope;
    c.workspace = b->workspace;
    const bool decode = decodes(b, batch);
    int (*launch)(const msgl_cuda_attn_call *, void *) = k->reference;
    if (decode && msgl__fa_decode_fits(x->act, cfg->head_dim)) {
        launch = k->decode;
    } else if (!decode && x->act != MSGL_F32) {
        launch = k->prefill;
        c.plan = prefill_plan(b, md, layer->window);
        if (c.plan == NULL) {
            x->status = MSGL_EINVAL;
            return;
        }
    }
    if (!md->copied) msgl__cuda_batch_copy(&b->common.batches, md, 0);
    msgl__cuda_attn_result(x, "fa", launch(&c, stream));
}

static void fa_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                       const msgl_batch *batch, const void *q, size_t ld, void *out)
{
    attend((fa_backend *)base, x, layer, batch, q, ld, NULL, out);
}

// Length up to which `size` requests are decoded by the kernel for few (decode/few.cu), which wants
// two SMs for every request and KV head: 64 of these fit an H200's 132. (With fewer SMs some of
// these batches have the other kernel after all, and a graph that is not needed.)
static int32_t fa_short_seq_len(const msgl_attn_backend *base, int32_t size)
{
    enum { ITEMS = 64 };
    const msgl_attn_config *cfg = &((const fa_backend *)base)->common.batches.cfg;
    const int major = cfg->dev->capability / 10;
    const bool has = (major == 9 || major == 10) && !cfg->deterministic && cfg->head_dim <= 128 &&
                     msgl__fa_decode_fits(cfg->pool->dtype, cfg->head_dim) &&
                     cfg->num_q_heads <= 8 * cfg->num_kv_heads && size * cfg->num_kv_heads <= ITEMS;
    return has ? MSGL_FA_FEW_LEN : 0;
}

// For few requests the rope kernel apart is faster, by half a microsecond a layer for one and a
// whole one for eight: the decode kernel starts while it runs. But not if they have the kernel
// that starts even earlier (docs/internals/fa-decode.md).
static bool fa_takes_rope(const msgl_attn_backend *base, const msgl_batch *batch)
{
    enum { FEW = 8 };
    const fa_backend *b = (const fa_backend *)base;
    const msgl_attn_config *cfg = &b->common.batches.cfg;
    const msgl_cuda_batch *md = batch->attn_metadata;
    const bool starts_early = md->max_seqlen_k <= fa_short_seq_len(base, batch->padded_size);
    return (starts_early || batch->padded_size > FEW) && decodes(b, batch) &&
           msgl__fa_decode_fits(cfg->pool->dtype, cfg->head_dim);
}

static void fa_forward_rope(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                            const msgl_batch *batch, const msgl_rope_call *rope, void *out)
{
    attend((fa_backend *)base, x, layer, batch, rope->qkv, rope->ld, rope, out);
}

const msgl_attn_desc msgl__attn_fa_cuda = {
    .name = "fa",
    .aliases = {"fa3", NULL},
    .summary = "own kernels: WGMMA prefill on Hopper, memory-speed decode on any GPU",
    .devices = 1u << MSGL_DEVICE_CUDA,
    .min_capability = 80,
    .page_rule = MSGL_PAGE_ANY,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16,
    .sliding_window = true,
    .softcap = true,
    .graph = true,
    .supports = msgl__cuda_supports,
    .create = fa_create,
    .destroy = fa_destroy,
    .prepare_metadata = fa_prepare_metadata,
    .forward = fa_forward,
    .takes_rope = fa_takes_rope,
    .forward_rope = fa_forward_rope,
    .last_indices = msgl__cuda_last_indices,
    .init_capture = msgl__cuda_init_capture,
    .prepare_for_capture = msgl__cuda_prepare_for_capture,
    .prepare_for_replay = msgl__cuda_prepare_for_replay,
    .short_seq_len = fa_short_seq_len,
};
