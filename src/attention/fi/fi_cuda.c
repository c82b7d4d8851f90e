// SPDX-License-Identifier: Apache-2.0
//
// fi on GPUs: FlashInfer's kernels from minisgl-attn-fi.so. The ragged page list that they take is
// made on the device from the engine's page table by the batch's first layer; FlashInfer's planners
// run on the host, into the batch's staging slot, and go to the device with the lengths in one
// copy.
//
// The kernel sees the pool's pages: larger ones are read up to 5 % faster than pages of 1.
//
// Decode takes tensor cores when a KV head serves 4 query heads or more, or when there is no
// CUDA-core kernel for the group (5, 6, 7, 16 ...); FLASHINFER_USE_TENSOR_CORES overrides.
// Prefill takes the Hopper kernel where there is one and requests are long enough; layers with a
// window or a soft cap take the other one. A batch has a plan per kernel and window that its layers
// use, made at the first such layer; there is room for all that the model's layers can ask for.
// Deterministic: tensor cores with fixed tiles and no splits for everything, so that prefill and
// decode agree bit for bit too; layers with a window then read all keys.
#include "attention/fi/fi_cuda.h"

#include <string.h>

#include "attention/fi/cuda/api.h"
#include "attention/fi/tensor_cores.h"
#include "attention/paged.h"
#include "core/mem.h"
#include "kernel/cuda/plugin.h"
#include "kernel/cuda_loader.h"

enum {
    HOPPER_MIN_TOKENS = 512, // new tokens per request, on average, from which Hopper's kernel wins
    TENSOR_CORE_GROUP = 4,
    MAX_PLANS = MSGL_ATTN_MAX_VARIANTS + 1, // a window each, and the Hopper kernel's
};

typedef struct fi_plans { // of a batch
    struct {
        msgl_fi_kernel kernel;
        int32_t window;
        msgl_fi_planned plan;
    } all[MAX_PLANS];
    int32_t count;
    bool graph;
    int32_t first_layer; // that forward saw: it makes the page list; -1: none yet
} fi_plans;

typedef struct fi_backend {
    msgl_cuda_backend common;
    const msgl_fi_api *api;
    msgl_fi_shape shape;
    msgl_fi_kernel decode_kernel;
    bool hopper;
    fi_plans *plans;   // [num_slots + 1], as batches.slots
    int32_t max_plans; // of a batch
    // The backend's part of the metadata: page_indptr, last_page_len, then the plans.
    size_t ints, plan_at, plan_bytes;
    int32_t max_pages; // of a request
    int32_t *pages;    // ragged, device
    size_t pages_bytes;
    void *workspace; // partial results, device
    size_t workspace_bytes;
} fi_backend;

static void fi_destroy(msgl_attn_backend *base)
{
    fi_backend *b = (fi_backend *)base;
    if (b == NULL) return;
    msgl_device *d = b->common.batches.cfg.dev;
    if (b->pages != NULL) d->ops->free(d, b->pages, b->pages_bytes);
    if (b->workspace != NULL) d->ops->free(d, b->workspace, b->workspace_bytes);
    msgl__cuda_batches_destroy(&b->common.batches);
    msgl__free(b->plans);
    msgl__free(b);
}

// The plug-in's table; NULL sets *err.
static const msgl_fi_api *open_plugin(msgl_err *err)
{
    void *symbol = msgl__plugin_open(msgl__attn_fi_cuda.plugin, "msgl_fi_plugin", err);
    if (symbol == NULL) return NULL;
    msgl_fi_plugin_fn fn;
    memcpy(&fn, &symbol, sizeof fn);
    const msgl_fi_api *api = fn();
    if (api->abi == MSGL_FI_ABI) return api;
    msgl__err_set(err, MSGL_EUNSUPPORTED, "%s is of another version of minisgl",
                  msgl__attn_fi_cuda.plugin);
    return NULL;
}

// Every batch that no other kernel takes goes by tensor cores.
static int check_kernel(const msgl_fi_api *api, const msgl_fi_shape *shape, int32_t capability,
                        msgl_err *err)
{
    if (api->has(shape, MSGL_FI_TENSOR_CORES, capability)) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "fi: no kernel for head_dim %d and %s",
                         (int)shape->head_dim, msgl__dtype_name(shape->dtype));
}

static int fi_supports(const msgl_attn_needs *n, msgl_err *err)
{
    bool unused;
    int code = msgl__cuda_supports(n, err);
    if (code == 0) code = msgl__fi_tensor_cores(&unused, err);
    if (code != 0) return code;
    const msgl_fi_api *api = open_plugin(err);
    if (api == NULL) return MSGL_EUNSUPPORTED;
    const msgl_fi_shape shape = {.dtype = n->kv_dtype,
                                 .num_q_heads = n->num_q_heads,
                                 .num_kv_heads = n->num_kv_heads,
                                 .head_dim = n->head_dim,
                                 .page_size = n->page_size};
    return check_kernel(api, &shape, n->capability, err);
}

static int choose_kernels(fi_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->common.batches.cfg;
    const int32_t capability = cfg->dev->capability;
    bool tensor = cfg->num_q_heads / cfg->num_kv_heads >= TENSOR_CORE_GROUP;
    int code = check_kernel(b->api, &b->shape, capability, err);
    if (code == 0) code = msgl__fi_tensor_cores(&tensor, err);
    if (code != 0) return code;
    b->hopper = !cfg->deterministic && b->api->has(&b->shape, MSGL_FI_HOPPER, capability);
    const bool cores = b->api->has(&b->shape, MSGL_FI_CUDA_CORES, capability);
    b->decode_kernel =
        tensor || !cores || cfg->deterministic ? MSGL_FI_TENSOR_CORES : MSGL_FI_CUDA_CORES;
    // Plans of tensor cores are for a window each, unless nothing is split.
    b->max_plans = cfg->deterministic ? 1 : msgl__attn_num_windows(&cfg->variants) + b->hopper;
    return 0;
}

static int take_memory(fi_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->common.batches.cfg;
    msgl_device *d = cfg->dev;
    b->max_pages = (int32_t)(((int64_t)cfg->max_seq_len + cfg->page_size - 1) / cfg->page_size);
    if ((int64_t)cfg->max_running * b->max_pages > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "fi: %d requests of %d tokens exceed its 32-bit index",
                             (int)cfg->max_running, (int)cfg->max_seq_len);
    }
    b->api->sizes(&b->shape, cfg->max_running, cfg->max_step_tokens, &b->plan_bytes,
                  &b->workspace_bytes);
    b->plan_bytes = (b->plan_bytes + 63) & ~(size_t)63;
    b->ints = (((size_t)cfg->max_running + 1) * sizeof(int32_t) + 63) & ~(size_t)63;
    b->plan_at = 2 * b->ints;
    const int code = msgl__cuda_batches_create(
        cfg, "fi", b->plan_at + (size_t)b->max_plans * b->plan_bytes, &b->common.batches, err);
    if (code != 0) return code;
    b->pages_bytes = (size_t)cfg->max_running * (size_t)b->max_pages * sizeof(int32_t);
    b->plans = msgl__calloc((size_t)cfg->num_slots + 1, sizeof *b->plans);
    b->pages = d->ops->alloc(d, b->pages_bytes);
    b->workspace = d->ops->alloc(d, b->workspace_bytes);
    if (b->plans != NULL && b->pages != NULL && b->workspace != NULL) return 0;
    return msgl__err_set(err, MSGL_ENOMEM,
                         "fi: no memory for %zu bytes of page lists and workspace",
                         b->pages_bytes + b->workspace_bytes);
}

static int fi_create(const msgl_attn_config *cfg, msgl_attn_backend **out, msgl_err *err)
{
    fi_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "fi: out of memory");
    b->common.base.desc = &msgl__attn_fi_cuda;
    b->common.batches.cfg = *cfg;
    b->shape = (msgl_fi_shape){.dtype = cfg->pool->dtype,
                               .num_q_heads = cfg->num_q_heads,
                               .num_kv_heads = cfg->num_kv_heads,
                               .head_dim = cfg->head_dim,
                               .page_size = cfg->page_size};
    int code = msgl__attn_config_check(cfg, err);
    if (code == 0 && (b->api = open_plugin(err)) == NULL) code = MSGL_EUNSUPPORTED;
    if (code == 0) code = choose_kernels(b, err);
    if (code == 0) code = take_memory(b, err);
    if (code != 0) {
        fi_destroy(&b->common.base);
        return code;
    }
    *out = &b->common.base;
    return 0;
}

static void fill_pages(const fi_backend *b, const msgl_cuda_batch *md)
{
    const int32_t page = b->shape.page_size;
    int32_t *indptr = (int32_t *)md->extra, *last = (int32_t *)(md->extra + b->ints);
    indptr[0] = 0;
    for (int32_t i = 0; i < md->size; i++) {
        const int32_t pages = (int32_t)(((int64_t)md->seqlens_k[i] + page - 1) / page);
        indptr[i + 1] = indptr[i] + pages;
        last[i] = md->seqlens_k[i] - (pages - 1) * page;
    }
}

// Metadata of a new batch in md, without plans.
static void begin(const fi_backend *b, const msgl_cuda_batch *md, bool graph)
{
    fi_plans *p = &b->plans[md - b->common.batches.slots];
    p->count = 0;
    p->graph = graph;
    p->first_layer = -1;
    fill_pages(b, md);
}

static int fi_prepare_metadata(msgl_attn_backend *base, msgl_batch *batch)
{
    fi_backend *b = (fi_backend *)base;
    begin(b, msgl__cuda_batch_fill(&b->common.batches, batch, false), false);
    return 0;
}

static msgl_fi_kernel choose(const fi_backend *b, const msgl_cuda_batch *md,
                             const msgl_attn_layer *layer)
{
    if (md->max_seqlen_q <= 1) return b->decode_kernel;
    const bool plain = layer->window < 0 && layer->softcap <= 0;
    const bool longer = md->total_q >= (int64_t)HOPPER_MIN_TOKENS * md->size;
    return b->hopper && plain && longer ? MSGL_FI_HOPPER : MSGL_FI_TENSOR_CORES;
}

// Plans into the next place of the staging slot and queues the copy; the lengths go along with the
// first one. Returns the place; negative: failed (no place: the layer has a variant that was not in
// the config).
static int add_plan(const fi_backend *b, msgl_cuda_batch *md, msgl_fi_kernel kernel, int32_t window)
{
    const msgl_attn_config *cfg = &b->common.batches.cfg;
    fi_plans *p = &b->plans[md - b->common.batches.slots];
    const int32_t n = p->count;
    if (n == b->max_plans) return MSGL_EINVAL;
    const size_t at = b->plan_at + (size_t)n * b->plan_bytes;
    const msgl_fi_plan_call c = {.shape = b->shape,
                                 .kernel = kernel,
                                 .batch = md->size,
                                 .qo_indptr = md->cu_seqlens_q,
                                 .page_indptr = (const int32_t *)md->extra,
                                 .kv_len = md->seqlens_k,
                                 .window = window,
                                 .graph = p->graph,
                                 .fixed = cfg->deterministic,
                                 .float_bytes = b->workspace_bytes,
                                 .staging = md->extra + at,
                                 .staging_bytes = b->plan_bytes};
    msgl_fi_planned *plan = &p->all[n].plan;
    msgl_err *fault = &cfg->dev->fault;
    const int code = b->api->plan(&c, plan, fault->code == 0 ? fault : NULL);
    if (code != 0) return code;
    p->all[n].kernel = kernel;
    p->all[n].window = window;
    p->count++;
    if (md->copied) {
        msgl__cuda_batch_copy_extra(&b->common.batches, md, at, plan->bytes);
    } else {
        msgl__cuda_batch_copy(&b->common.batches, md, at + plan->bytes);
    }
    return n;
}

// Place of the plan for a layer, made if it is the first that needs it; negative: failed.
static int plan_for(const fi_backend *b, msgl_cuda_batch *md, const msgl_attn_layer *layer)
{
    const fi_plans *p = &b->plans[md - b->common.batches.slots];
    const msgl_fi_kernel kernel = choose(b, md, layer);
    // Only a splitting tensor-core kernel's work depends on the window.
    const bool windowed = kernel == MSGL_FI_TENSOR_CORES && !b->common.batches.cfg.deterministic;
    const int32_t window = windowed ? layer->window : -1;
    for (int n = 0; n < p->count; n++) {
        if (p->all[n].kernel == kernel && p->all[n].window == window) return n;
    }
    return add_plan(b, md, kernel, window);
}

static int make_pages(const fi_backend *b, const msgl_cuda_batch *md, void *stream)
{
    const msgl_attn_config *cfg = &b->common.batches.cfg;
    msgl_cuda_attn_call c;
    const msgl_attn_layer any = {.window = -1};
    msgl__cuda_batch_call(&b->common.batches, md, &any, cfg->pool->dtype, NULL, 0, NULL, &c);
    const int32_t page = b->shape.page_size;
    const msgl_fi_pages_call p = {.batch = md->size,
                                  .page_size = page,
                                  .table = c.table,
                                  .table_stride = c.table_stride,
                                  .table_rows = c.table_rows,
                                  .page_indptr = msgl__cuda_batch_extra(&b->common.batches, 0),
                                  .max_pages =
                                      (int32_t)(((int64_t)md->max_seqlen_k + page - 1) / page),
                                  .pages = b->pages};
    return b->api->pages(&p, stream);
}

static void fi_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                       const msgl_batch *batch, const void *q, size_t ld, void *out)
{
    fi_backend *b = (fi_backend *)base;
    const msgl_attn_config *cfg = &b->common.batches.cfg;
    msgl_cuda_batch *md = batch->attn_metadata;
    fi_plans *p = &b->plans[md - b->common.batches.slots];
    void *stream = cfg->cuda->stream(x->device);
    const int n = x->act == cfg->pool->dtype ? plan_for(b, md, layer) : MSGL_EUNSUPPORTED;
    if (n < 0) {
        if (x->status == 0) x->status = n;
        return;
    }
    // Every pass over the layers makes the list: a captured graph has to contain it.
    if (p->first_layer < 0) p->first_layer = layer->layer;
    if (p->first_layer == layer->layer) {
        msgl__cuda_attn_result(x, "fi", make_pages(b, md, stream));
    }
    msgl_cuda_attn_call c;
    msgl__cuda_batch_call(&b->common.batches, md, layer, x->act, q, ld, out, &c);
    const msgl_fi_run_call r = {
        .shape = b->shape,
        .plan = &p->all[n].plan,
        .batch = md->size,
        .total_q = md->total_q,
        .q = q,
        .ld_q = ld,
        .k = c.k,
        .v = c.v,
        .out = out,
        .scale = layer->scale,
        .softcap = layer->softcap,
        .window = layer->window,
        .qo_indptr = c.cu_seqlens_q,
        .page_indptr = msgl__cuda_batch_extra(&b->common.batches, 0),
        .last_page_len = msgl__cuda_batch_extra(&b->common.batches, b->ints),
        .pages = b->pages,
        .plan_arrays =
            msgl__cuda_batch_extra(&b->common.batches, b->plan_at + (size_t)n * b->plan_bytes),
        .float_workspace = b->workspace};
    msgl__cuda_attn_result(x, "fi", b->api->run(&r, stream));
}

// A graph's launches and the layout of its plans depend on the number of requests only; what it
// reads is planned anew for every replay, for the layers that the captures met.
static int fi_prepare_for_capture(msgl_attn_backend *base, msgl_batch *batch)
{
    fi_backend *b = (fi_backend *)base;
    const int code = msgl__cuda_prepare_for_capture(base, batch);
    if (code != 0) return code;
    begin(b, batch->attn_metadata, true);
    ((msgl_cuda_batch *)batch->attn_metadata)->copied = false;
    // Lengths go to the device with a plan: one that some layer wants.
    const msgl_attn_variants *v = &b->common.batches.cfg.variants;
    const msgl_attn_layer any = {.window = v->count > 0 ? v->all[0].window : -1};
    const int place = plan_for(b, batch->attn_metadata, &any);
    return place < 0 ? place : 0;
}

static int fi_prepare_for_replay(msgl_attn_backend *base, msgl_batch *batch)
{
    fi_backend *b = (fi_backend *)base;
    if (batch->padded_size < batch->size || batch->padded_size > b->common.batches.graph_max_bs) {
        return MSGL_EINVAL;
    }
    const fi_plans *captured = &b->plans[b->common.batches.cfg.num_slots];
    msgl_cuda_batch *md = msgl__cuda_batch_fill(&b->common.batches, batch, true);
    begin(b, md, true);
    for (int32_t n = 0; n < captured->count; n++) {
        const int place = add_plan(b, md, captured->all[n].kernel, captured->all[n].window);
        if (place < 0) return place;
    }
    return 0;
}

const msgl_attn_desc msgl__attn_fi_cuda = {
    .name = "fi",
    .aliases = {"flashinfer", NULL},
    .summary = "FlashInfer: its kernels, planned per batch",
    .devices = 1u << MSGL_DEVICE_CUDA,
    .min_capability = 80,
    .page_rule = MSGL_PAGE_ANY,
    .head_dims = {64, 128, 256},
    .kv_dtypes = 1u << MSGL_F16 | 1u << MSGL_BF16,
    .sliding_window = true,
    .softcap = true,
    .graph = true,
    .plugin = "minisgl-attn-fi.so",
    .plugin_hint = "make builds it where nvcc is found and FlashInfer's wheel can be downloaded",
    .supports = fi_supports,
    .create = fi_create,
    .destroy = fi_destroy,
    .prepare_metadata = fi_prepare_metadata,
    .forward = fi_forward,
    .last_indices = msgl__cuda_last_indices,
    .init_capture = msgl__cuda_init_capture,
    .prepare_for_capture = fi_prepare_for_capture,
    .prepare_for_replay = fi_prepare_for_replay,
};
