// SPDX-License-Identifier: Apache-2.0
//
// trtllm on Hopper: TensorRT-LLM's decode kernel there, XQA, from minisgl-attn-trtllm.so, over a
// block table made on the device as a pass begins. TensorRT-LLM's own prefill kernels are
// binaries for other GPUs; prefill is fa's, over the same pages, and so are answers of layers with
// a soft cap, which XQA lacks. bmm1_scale is the layer's with that of K, bmm2_scale that of V.
#include "cuda/backends/trtllm.h"

#include <string.h>

#include "attention/paged.h"
#include "core/mem.h"
#include "core/round.h"
#include "cuda/backends/fa.h"
#include "cuda/trtllm/api.h"
#include "utils/plugin.h"

typedef struct trtllm_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_attn_backend *fa;
    const msgl_trtllm_api *api;
    msgl_xqa_shape shape;
    msgl_xqa_device device;
    int32_t kernel_page, pages_stride;
    char *memory; // device: block table, semaphores, scratch
    size_t memory_bytes, semaphores_at, scratch_at;
} trtllm_backend;

static void trtllm_destroy(msgl_attn_backend *base)
{
    trtllm_backend *b = (trtllm_backend *)base;
    if (b == NULL) return;
    msgl_device *d = b->cfg.dev;
    if (b->fa != NULL) b->fa->desc->destroy(b->fa);
    if (b->memory != NULL) d->ops->free(d, b->memory, b->memory_bytes);
    msgl__free(b);
}

// The plug-in's table; NULL sets *err.
static const msgl_trtllm_api *open_plugin(msgl_err *err)
{
    void *symbol = msgl__plugin_open(msgl__attn_trtllm_cuda.plugin, "msgl_trtllm_plugin", err);
    if (symbol == NULL) return NULL;
    msgl_trtllm_plugin_fn fn;
    memcpy(&fn, &symbol, sizeof fn);
    const msgl_trtllm_api *api = fn();
    if (api->abi == MSGL_TRTLLM_ABI) return api;
    msgl__err_set(err, MSGL_EUNSUPPORTED, "%s is of another version of minisgl",
                  msgl__attn_trtllm_cuda.plugin);
    return NULL;
}

// The decode kernel for the shape: the page size that it works with in *kernel_page.
static int find_kernel(const msgl_trtllm_api *api, const msgl_xqa_shape *shape, int32_t capability,
                       int32_t *kernel_page, msgl_err *err)
{
    if (capability / 10 != 9) {
        return msgl__err_set(
            err, MSGL_EUNSUPPORTED,
            "trtllm: its decode kernel is compiled for Hopper (9.0) only; this GPU "
            "has %d.%d; choose fi or fa",
            (int)capability / 10, (int)capability % 10);
    }
    *kernel_page = api->kernel_page_size(shape);
    if (*kernel_page != 0) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "trtllm: no kernel for %s, head_dim %d, %d query heads per KV head and "
                         "pages of %d",
                         msgl__dtype_name(shape->dtype), (int)shape->head_dim,
                         (int)(shape->num_q_heads / shape->num_kv_heads), (int)shape->page_size);
}

static int trtllm_supports(const msgl_attn_needs *n, msgl_err *err)
{
    const int code = msgl__cuda_supports(n, err);
    if (code != 0) return code;
    const msgl_trtllm_api *api = open_plugin(err);
    if (api == NULL) return MSGL_EUNSUPPORTED;
    const msgl_xqa_shape shape = {.dtype = n->kv_dtype,
                                  .num_q_heads = n->num_q_heads,
                                  .num_kv_heads = n->num_kv_heads,
                                  .head_dim = n->head_dim,
                                  .page_size = n->page_size};
    int32_t unused;
    return find_kernel(api, &shape, n->capability, &unused, err);
}

static int load_kernel(trtllm_backend *b, msgl_err *err)
{
    const int32_t capability = b->cfg.dev->capability;
    int code = find_kernel(b->api, &b->shape, capability, &b->kernel_page, err);
    if (code != 0) return code;
    code = b->api->prepare(&b->shape, &b->device);
    if (code == 0) return 0;
    return msgl__err_set(err, MSGL_EDEVICE, "trtllm: CUDA error %d while loading its kernel", code);
}

static size_t part(size_t *at, size_t bytes)
{
    const size_t here = *at;
    *at += msgl__round_up(bytes, 256);
    return here;
}

static int take_memory(trtllm_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    const size_t running = (size_t)cfg->max_running;
    const int code = msgl__attn_fa_cuda.create(&msgl__attn_fa_cuda, cfg, &b->fa, err);
    if (code != 0) return code;
    b->pages_stride = msgl__ceil_div(cfg->max_seq_len, b->kernel_page);
    size_t at = 0;
    (void)part(&at, running * (size_t)b->pages_stride * sizeof(int32_t));
    b->semaphores_at = part(&at, running * (size_t)cfg->num_kv_heads * sizeof(uint32_t));
    b->scratch_at = part(&at, b->api->scratch_bytes(&b->shape, &b->device, cfg->max_running));
    b->memory_bytes = at;
    b->memory = cfg->dev->ops->alloc(cfg->dev, at);
    if (b->memory != NULL) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "trtllm: no memory for a workspace of %zu bytes", at);
}

static int trtllm_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                         msgl_attn_backend **out, msgl_err *err)
{
    trtllm_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "trtllm: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    b->shape = (msgl_xqa_shape){.dtype = cfg->pool->spec.dtype,
                                .num_q_heads = cfg->num_q_heads,
                                .num_kv_heads = cfg->num_kv_heads,
                                .head_dim = cfg->head_dim,
                                .page_size = cfg->page_size};
    int code = msgl__attn_config_check(desc, cfg, err);
    if (code == 0 && (b->api = open_plugin(err)) == NULL) code = MSGL_EUNSUPPORTED;
    if (code == 0) code = load_kernel(b, err);
    if (code == 0) code = take_memory(b, err);
    if (code != 0) {
        trtllm_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

static int trtllm_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    msgl_attn_backend *fa = ((trtllm_backend *)base)->fa;
    return seqs->phase == MSGL_PREFILL ? fa->desc->prepare(fa, seqs) : 0; // answers need nothing
}

static void trtllm_copy_in(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    msgl_attn_backend *fa = ((trtllm_backend *)base)->fa;
    if (seqs->phase == MSGL_PREFILL) fa->desc->copy_in(fa, x, seqs);
}

// The block table of a decode pass.
static void trtllm_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const trtllm_backend *b = (const trtllm_backend *)base;
    if (seqs->phase == MSGL_PREFILL) return;
    const msgl_xqa_pages_call p = {.batch = seqs->size,
                                   .page_size = b->kernel_page,
                                   .parts = b->cfg.page_size / b->kernel_page,
                                   .table = b->cfg.device_table,
                                   .table_stride =
                                       b->cfg.device_table_stride / (size_t)b->cfg.page_size,
                                   .table_rows = seqs->dev_table_rows,
                                   .seqlens_k = seqs->dev_seqlens_k,
                                   .pages = (int32_t *)b->memory,
                                   .pages_stride = b->pages_stride,
                                   .max_pages = msgl__ceil_div(seqs->max_seqlen_k, b->kernel_page)};
    msgl__cuda_attn_result(x, "trtllm", b->api->pages(&p, msgl__cuda_device_stream(x->device)));
}

static void decode(const trtllm_backend *b, msgl_exec *x, const msgl_attn_layer *layer,
                   const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const msgl_attn_config *cfg = &b->cfg;
    const msgl_xqa_call call = {.shape = b->shape,
                                .batch = seqs->size,
                                .max_seqlen_k = seqs->max_seqlen_k,
                                .q = in->q,
                                .ld_q = in->ld,
                                .out = out,
                                .k = msgl__kv_k(cfg->pool, layer->layer),
                                .v = msgl__kv_v(cfg->pool, layer->layer),
                                .bmm1_scale = layer->scale * msgl__attn_k_scale(cfg->pool, layer),
                                .bmm2_scale = msgl__attn_v_scale(cfg->pool, layer),
                                .window = layer->window,
                                .sinks = layer->sinks,
                                .seqlens_k = seqs->dev_seqlens_k,
                                .pages = (const int32_t *)b->memory,
                                .pages_stride = b->pages_stride,
                                .semaphores = (uint32_t *)(b->memory + b->semaphores_at),
                                .scratch = b->memory + b->scratch_at,
                                .device = b->device,
                                .pdl = true,
                                .deterministic = cfg->deterministic};
    msgl__cuda_attn_result(x, "trtllm", b->api->decode(&call, msgl__cuda_device_stream(x->device)));
}

static void trtllm_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                           const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const trtllm_backend *b = (const trtllm_backend *)base;
    if (seqs->phase == MSGL_PREFILL || layer->softcap > 0) {
        b->fa->desc->forward(b->fa, x, layer, seqs, in, out);
    } else if (msgl__cuda_attn_dtype(x, &b->cfg)) {
        decode(b, x, layer, seqs, in, out);
    }
}

#define TRTLLM                                                                                     \
    .aliases = {NULL}, .min_capability = 90, .page_rule = MSGL_PAGE_SET, .page_override = 64,      \
    .head_dims = {64, 128, 256}, .max_group = 16,                                                  \
    .kv_dtypes = 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3, .sliding_window = true,       \
    .softcap = true, .softcap_by = "fa", .sinks = true, .reads_behind_window = true, .tree = true, \
    .graph = true, .plugin = "minisgl-attn-trtllm.so",                                             \
    .plugin_hint = "make builds it where nvcc is found and FlashInfer's wheel can be downloaded",  \
    .supports = trtllm_supports, .create = trtllm_create, .destroy = trtllm_destroy,               \
    .prepare = trtllm_prepare, .copy_in = trtllm_copy_in, .begin = trtllm_begin,                   \
    .forward = trtllm_forward

const msgl_attn_desc msgl__attn_trtllm_cuda = {
    TRTLLM,
    .name = "trtllm",
    .summary = "TensorRT-LLM: XQA decode on Hopper, prefill as fa",
    .page_sizes = {16, 32, 64},
};

const msgl_attn_desc msgl__attn_trtllm_mha_cuda = {
    TRTLLM,
    .name = "trtllm_mha",
    .summary = "trtllm with pages of 128 too",
    .page_sizes = {16, 32, 64, 128},
};
