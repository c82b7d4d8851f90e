// SPDX-License-Identifier: Apache-2.0
//
// torch_native on GPUs: the reference kernel for every phase, dtype and head dimension. The
// baseline that the fast backends are compared with.
#include "attention/torch_native/torch_native_cuda.h"

#include "attention/paged.h"
#include "core/mem.h"
#include "kernel/cuda/plugin.h"

typedef struct torch_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
} torch_backend;

static void torch_destroy(msgl_attn_backend *base)
{
    msgl__free(base);
}

static int torch_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                        msgl_attn_backend **out, msgl_err *err)
{
    const int code = msgl__attn_config_check(desc, cfg, err);
    if (code != 0) return code;
    torch_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "torch_native: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    *out = &b->base;
    return 0;
}

static void torch_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                          const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const msgl_attn_config *cfg = &((const torch_backend *)base)->cfg;
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    msgl_cuda_attn_call c;
    msgl__cuda_attn_call(cfg, layer, seqs, in, out, &c);
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
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,
    .sliding_window = true,
    .softcap = true,
    .sinks = true,
    .graph = true,
    .supports = msgl__cuda_supports,
    .create = torch_create,
    .destroy = torch_destroy,
    .forward = torch_forward,
};
