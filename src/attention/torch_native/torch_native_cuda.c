// SPDX-License-Identifier: Apache-2.0
//
// torch_native on GPUs: the reference kernel for every phase, dtype and head dimension. The
// baseline that the fast backends are compared with.
#include "attention/torch_native/torch_native_cuda.h"

#include "core/mem.h"
#include "kernel/cuda/plugin.h"

typedef struct torch_backend {
    msgl_attn_backend base;
    msgl_cuda_batches batches;
} torch_backend;

static void torch_destroy(msgl_attn_backend *base)
{
    torch_backend *b = (torch_backend *)base;
    if (b == NULL) return;
    msgl__cuda_batches_destroy(&b->batches);
    msgl__free(b);
}

static int torch_create(const msgl_attn_config *cfg, msgl_attn_backend **out, msgl_err *err)
{
    torch_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "torch_native: out of memory");
    b->base.desc = &msgl__attn_torch_native_cuda;
    const int code = msgl__cuda_batches_create(cfg, "torch_native", 0, &b->batches, err);
    if (code != 0) {
        torch_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

static int torch_prepare_metadata(msgl_attn_backend *base, msgl_batch *batch)
{
    (void)msgl__cuda_batch_fill(&((torch_backend *)base)->batches, batch, false);
    return 0;
}

static void torch_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                          const msgl_batch *batch, const void *q, size_t ld, void *out)
{
    const torch_backend *b = (const torch_backend *)base;
    const msgl_attn_config *cfg = &b->batches.cfg;
    msgl_cuda_batch *md = batch->attn_metadata;
    if (x->act != cfg->pool->dtype) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    msgl_cuda_attn_call c;
    msgl__cuda_batch_call(&b->batches, md, layer, x->act, q, ld, out, &c);
    if (!md->copied) msgl__cuda_batch_copy(&b->batches, md, 0);
    void *stream = cfg->cuda->stream(x->device);
    msgl__cuda_attn_result(x, "torch_native", cfg->cuda->attn->reference(&c, stream));
}

static void torch_last_indices(const msgl_attn_backend *base, const msgl_batch *batch, int32_t *out)
{
    (void)base;
    msgl__cuda_batch_last_indices(batch, out);
}

static int torch_init_capture(msgl_attn_backend *base, int32_t max_seq_len,
                              const int32_t *batch_sizes, int32_t num_sizes, msgl_err *err)
{
    return msgl__cuda_batches_init_capture(&((torch_backend *)base)->batches, "torch_native",
                                           max_seq_len, batch_sizes, num_sizes, err);
}

static int torch_prepare_for_capture(msgl_attn_backend *base, msgl_batch *batch)
{
    return msgl__cuda_batch_capture(&((torch_backend *)base)->batches, batch);
}

static int torch_prepare_for_replay(msgl_attn_backend *base, msgl_batch *batch)
{
    return msgl__cuda_batch_replay(&((torch_backend *)base)->batches, batch);
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
    .create = torch_create,
    .destroy = torch_destroy,
    .prepare_metadata = torch_prepare_metadata,
    .forward = torch_forward,
    .last_indices = torch_last_indices,
    .init_capture = torch_init_capture,
    .prepare_for_capture = torch_prepare_for_capture,
    .prepare_for_replay = torch_prepare_for_replay,
};
