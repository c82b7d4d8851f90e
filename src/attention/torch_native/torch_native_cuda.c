// SPDX-License-Identifier: Apache-2.0
//
// torch_native on GPUs: the reference kernel for every phase, dtype and head dimension. The
// baseline that the fast backends are compared with.
#include "attention/torch_native/torch_native_cuda.h"

#include "core/mem.h"
#include "kernel/cuda/plugin.h"

typedef struct torch_backend {
    msgl_cuda_backend common;
} torch_backend;

static void torch_destroy(msgl_attn_backend *base)
{
    torch_backend *b = (torch_backend *)base;
    if (b == NULL) return;
    msgl__cuda_batches_destroy(&b->common.batches);
    msgl__free(b);
}

static int torch_create(const msgl_attn_config *cfg, msgl_attn_backend **out, msgl_err *err)
{
    torch_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "torch_native: out of memory");
    b->common.base.desc = &msgl__attn_torch_native_cuda;
    const int code = msgl__cuda_batches_create(cfg, "torch_native", 0, &b->common.batches, err);
    if (code != 0) {
        torch_destroy(&b->common.base);
        return code;
    }
    *out = &b->common.base;
    return 0;
}

static int torch_prepare_metadata(msgl_attn_backend *base, msgl_batch *batch)
{
    (void)msgl__cuda_batch_fill(&((torch_backend *)base)->common.batches, batch, false);
    return 0;
}

static void torch_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                          const msgl_batch *batch, const void *q, size_t ld, void *out)
{
    const torch_backend *b = (const torch_backend *)base;
    const msgl_attn_config *cfg = &b->common.batches.cfg;
    msgl_cuda_batch *md = batch->attn_metadata;
    if (x->act != cfg->pool->dtype) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    msgl_cuda_attn_call c;
    msgl__cuda_batch_call(&b->common.batches, md, layer, x->act, q, ld, out, &c);
    if (!md->copied) msgl__cuda_batch_copy(&b->common.batches, md, 0);
    void *stream = cfg->cuda->stream(x->device);
    msgl__cuda_attn_result(x, "torch_native", cfg->cuda->attn->reference(&c, stream));
}

const msgl_attn_desc msgl__attn_torch_native_cuda = {
    .name = "torch_native",
    .aliases = {NULL},
    .summary = "one warp per query and head, f32 arithmetic: the readable baseline",
    .devices = 1u << MSGL_DEVICE_CUDA,
    .min_capability = 80,
    .page_rule = MSGL_PAGE_ANY,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16,
    .sliding_window = true,
    .softcap = true,
    .graph = true,
    .supports = msgl__cuda_supports,
    .create = torch_create,
    .destroy = torch_destroy,
    .prepare_metadata = torch_prepare_metadata,
    .forward = torch_forward,
    .last_indices = msgl__cuda_last_indices,
    .init_capture = msgl__cuda_init_capture,
    .prepare_for_capture = msgl__cuda_prepare_for_capture,
    .prepare_for_replay = msgl__cuda_prepare_for_replay,
};
