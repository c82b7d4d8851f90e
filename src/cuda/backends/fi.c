// SPDX-License-Identifier: Apache-2.0
//
// fi on GPUs: FlashInfer's kernels from minisgl-attn-fi.so. The ragged page list that they take is
// made on the device from the engine's page table as a pass begins; FlashInfer's planners run on
// the host, into memory of the step's slot, and go to the device in one copy.
//
// The kernel sees the pool's pages: larger ones are read up to 5 % faster than pages of 1.
//
// Decode takes tensor cores when a KV head serves 4 query heads or more, or when there is no
// CUDA-core kernel for the group (5, 6, 7, 16 ...) or the pool (E4M3); FLASHINFER_USE_TENSOR_CORES
// overrides. Prefill takes the Hopper kernel where there is one and requests are long enough;
// layers with a window or a soft cap take the other one. Drafts to be verified (trees) go by fa's
// kernel for them: FlashInfer's mask is a list of bits for every query and key. A step has a plan
// per kernel and window that the model's layers use. Deterministic: tensor cores with fixed tiles
// and no splits for everything, so that prefill and decode agree bit for bit too; layers with a
// window then read all keys. Attention sinks go into the results afterwards, by their LSE.
#include "cuda/backends/fi.h"

#include <string.h>

#include "attention/fi/tensor_cores.h"
#include "attention/paged.h"
#include "core/mem.h"
#include "core/round.h"
#include "cuda/attn/tree_sm80.h"
#include "cuda/attn/sink.h"
#include "utils/plugin.h"

enum {
    TENSOR_CORE_GROUP = 4,
    MAX_PLANS = MSGL_ATTN_MAX_VARIANTS + 1, // a window each, and the Hopper kernel's
    PHASES = 2,
};

typedef struct fi_plan { // of the layers that need this kernel and window
    msgl_fi_kernel kernel;
    int32_t window;
    size_t at; // in the slot's set
    msgl_fi_planned planned;
} fi_plan;

typedef struct fi_step { // of one slot and phase
    fi_plan plans[MAX_PLANS];
    int32_t num_plans;
    int32_t num_pages; // of all requests
    size_t used;       // bytes of the set
} fi_step;

typedef struct fi_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    const msgl_fi_api *api;
    msgl_fi_shape shape;
    msgl_fi_kernel decode_kernel, latent_kernel;
    bool hopper;
    int32_t max_plans; // of a step
    fi_step *steps;    // [max_in_flight, PHASES]
    // A set: page_indptr, last_page_len, then the plans.
    msgl_cuda_plans sets[PHASES];
    size_t ints, plan_at, plan_bytes;
    int32_t max_pages; // of a request
    int32_t *pages;    // device: ragged lists, answers' from the front, chunks' up to the end
    size_t num_pages;  // that it has room for
    void *workspace;   // partial results, device
    size_t workspace_bytes;
    float *lse; // [max_step_tokens, num_q_heads], device; NULL: no layer has sinks
    size_t lse_bytes;
} fi_backend;

static void fi_destroy(msgl_attn_backend *base)
{
    fi_backend *b = (fi_backend *)base;
    if (b == NULL) return;
    msgl_device *d = b->cfg.dev;
    if (b->pages != NULL) d->ops->free(d, b->pages, b->num_pages * sizeof *b->pages);
    if (b->workspace != NULL) d->ops->free(d, b->workspace, b->workspace_bytes);
    if (b->lse != NULL) d->ops->free(d, b->lse, b->lse_bytes);
    for (int i = 0; i < PHASES; i++) msgl__cuda_plans_destroy(&b->sets[i]);
    msgl__free(b->steps);
    msgl__free(b);
}

const msgl_fi_api *msgl__fi_open(msgl_err *err)
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

msgl_fi_shape msgl__fi_shape(const msgl_attn_config *cfg)
{
    return (msgl_fi_shape){.dtype = cfg->pool->spec.dtype,
                           .num_q_heads = cfg->num_q_heads,
                           .num_kv_heads = cfg->num_kv_heads,
                           .head_dim = cfg->head_dim,
                           .v_dim = cfg->pool->spec.v_dim,
                           .page_size = cfg->page_size};
}

static bool is_latent(const msgl_fi_shape *s)
{
    return s->v_dim < s->head_dim;
}

// Every batch that no other kernel takes goes by tensor cores.
static int check_kernel(const msgl_fi_api *api, const msgl_fi_shape *shape, int32_t capability,
                        msgl_err *err)
{
    const msgl_fi_kernel kernel = is_latent(shape) ? MSGL_FI_LATENT : MSGL_FI_TENSOR_CORES;
    if (api->has(shape, kernel, capability)) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "fi: no kernel for head_dim %d and %s",
                         (int)shape->head_dim, msgl__dtype_name(shape->dtype));
}

// What FlashInfer's kernel for latent caches lacks.
static int check_latent(const msgl_attn_needs *n, msgl_err *err)
{
    bool plain = !n->tree;
    for (int32_t i = 0; i < n->variants.count; i++) {
        const msgl_attn_variant *v = &n->variants.all[i];
        plain = plain && v->window < 0 && v->softcap <= 0 && !v->sinks;
    }
    if (n->cache != MSGL_CACHE_LATENT || (plain && n->kv_dtype != MSGL_E4M3)) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "fi: latent attention: its kernel has no %s",
                         plain ? "fp8_e4m3 cache" : "window, soft cap, sinks or trees");
}

static int fi_supports(const msgl_attn_needs *n, msgl_err *err)
{
    bool unused;
    int code = msgl__cuda_supports(n, err);
    if (code == 0) code = check_latent(n, err);
    if (code == 0) code = msgl__fi_tensor_cores(&unused, err);
    if (code != 0) return code;
    const msgl_fi_api *api = msgl__fi_open(err);
    if (api == NULL) return MSGL_EUNSUPPORTED;
    const msgl_fi_shape shape = {.dtype = n->kv_dtype,
                                 .num_q_heads = n->num_q_heads,
                                 .num_kv_heads = n->num_kv_heads,
                                 .head_dim = n->head_dim,
                                 .v_dim = n->v_dim > 0 ? n->v_dim : n->head_dim,
                                 .page_size = n->page_size};
    return check_kernel(api, &shape, n->capability, err);
}

static int choose_kernels(fi_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    const int32_t capability = cfg->dev->capability;
    bool tensor = cfg->num_q_heads / cfg->num_kv_heads >= TENSOR_CORE_GROUP;
    int code = check_kernel(b->api, &b->shape, capability, err);
    if (code == 0) code = msgl__fi_tensor_cores(&tensor, err);
    if (code != 0) return code;
    b->hopper = !cfg->deterministic && b->api->has(&b->shape, MSGL_FI_HOPPER, capability);
    const bool cores = b->api->has(&b->shape, MSGL_FI_CUDA_CORES, capability);
    b->decode_kernel =
        tensor || !cores || cfg->deterministic ? MSGL_FI_TENSOR_CORES : MSGL_FI_CUDA_CORES;
    const bool wgmma = b->api->has(&b->shape, MSGL_FI_LATENT_HOPPER, capability);
    b->latent_kernel = wgmma ? MSGL_FI_LATENT_HOPPER : MSGL_FI_LATENT;
    // Plans of tensor cores are for a window each, unless nothing is split.
    int32_t windows[MSGL_ATTN_MAX_VARIANTS];
    b->max_plans = cfg->deterministic ? 1 : msgl__attn_windows(&cfg->variants, windows) + b->hopper;
    return 0;
}

static bool any_sinks(const msgl_attn_variants *v)
{
    bool any = false;
    for (int32_t i = 0; i < v->count; i++) any = any || v->all[i].sinks;
    return any;
}

static int take_memory(fi_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    msgl_device *d = cfg->dev;
    b->max_pages = msgl__ceil_div(cfg->max_seq_len, cfg->page_size);
    if ((int64_t)cfg->max_running * b->max_pages > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "fi: %d requests of %d tokens exceed its 32-bit index",
                             (int)cfg->max_running, (int)cfg->max_seq_len);
    }
    b->api->sizes(&b->shape, cfg->max_running, cfg->max_step_tokens, &b->plan_bytes,
                  &b->workspace_bytes);
    const size_t tree =
        is_latent(&b->shape) ? 0 : msgl__attn_tree_workspace(cfg->num_q_heads, cfg->head_dim);
    if (b->workspace_bytes < tree) b->workspace_bytes = tree;
    b->plan_bytes = msgl__round_up(b->plan_bytes, 64);
    b->ints = msgl__round_up(((size_t)cfg->max_running + 1) * sizeof(int32_t), 64);
    b->plan_at = 2 * b->ints;
    const size_t most = (size_t)b->max_plans;
    for (int i = 0; i < PHASES; i++) {
        const int code =
            msgl__cuda_plans_create(cfg, "fi", b->plan_at + most * b->plan_bytes, &b->sets[i], err);
        if (code != 0) return code;
    }
    b->num_pages = (size_t)cfg->max_running * (size_t)b->max_pages;
    b->steps = msgl__calloc((size_t)cfg->max_in_flight * PHASES, sizeof *b->steps);
    b->pages = d->ops->alloc(d, b->num_pages * sizeof *b->pages);
    b->workspace = d->ops->alloc(d, b->workspace_bytes);
    b->lse_bytes = any_sinks(&cfg->variants)
                       ? (size_t)cfg->max_step_tokens * (size_t)cfg->num_q_heads * sizeof *b->lse
                       : 0;
    if (b->lse_bytes > 0) b->lse = d->ops->alloc(d, b->lse_bytes);
    const bool all =
        b->pages != NULL && b->workspace != NULL && (b->lse != NULL) == (b->lse_bytes > 0);
    if (b->steps != NULL && all) return 0;
    return msgl__err_set(err, MSGL_ENOMEM,
                         "fi: no memory for %zu bytes of page lists and workspace",
                         b->num_pages * sizeof *b->pages + b->workspace_bytes + b->lse_bytes);
}

static int fi_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                     msgl_attn_backend **out, msgl_err *err)
{
    fi_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "fi: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    for (int i = 0; i < PHASES; i++) b->sets[i].dev = cfg->dev;
    b->shape = msgl__fi_shape(cfg);
    int code = msgl__attn_config_check(desc, cfg, err);
    if (code == 0 && (b->api = msgl__fi_open(err)) == NULL) code = MSGL_EUNSUPPORTED;
    if (code == 0) code = choose_kernels(b, err);
    if (code == 0) code = take_memory(b, err);
    if (code != 0) {
        fi_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

static fi_step *step_of(const fi_backend *b, const msgl_seqs *seqs)
{
    return &b->steps[seqs->step_slot * PHASES + (int32_t)seqs->phase];
}

void msgl__fi_count_pages(const int32_t *lens, int32_t n, int32_t page, int32_t *indptr,
                          int32_t *last)
{
    indptr[0] = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t pages = msgl__ceil_div(lens[i], page);
        indptr[i + 1] = indptr[i] + pages;
        last[i] = pages > 0 ? lens[i] - (pages - 1) * page : 0;
    }
}

static void fill_pages(const fi_backend *b, const msgl_seqs *seqs, char *set, fi_step *step)
{
    int32_t *indptr = (int32_t *)set, *last = (int32_t *)(set + b->ints);
    msgl__fi_count_pages(seqs->seqlens_k, seqs->size, b->shape.page_size, indptr, last);
    step->num_pages = indptr[seqs->size];
    step->num_plans = 0;
    step->used = b->plan_at;
}

static msgl_fi_kernel choose(const fi_backend *b, const msgl_seqs *seqs, const msgl_attn_variant *v)
{
    if (is_latent(&b->shape)) return b->latent_kernel;
    if (seqs->max_seqlen_q <= 1) return b->decode_kernel;
    const bool plain = v->window < 0 && v->softcap <= 0;
    return b->hopper && plain && msgl__fi_hopper_wins(seqs) ? MSGL_FI_HOPPER : MSGL_FI_TENSOR_CORES;
}

// Kernel and window of the plan that a layer takes.
static fi_plan plan_key(const fi_backend *b, const msgl_seqs *seqs, const msgl_attn_variant *v)
{
    const msgl_fi_kernel kernel = choose(b, seqs, v);
    // Only a splitting tensor-core kernel's work depends on the window.
    const bool windowed = kernel == MSGL_FI_TENSOR_CORES && !b->cfg.deterministic;
    return (fi_plan){.kernel = kernel, .window = windowed ? v->window : -1};
}

// The step's plan of this kernel and window, or NULL.
static fi_plan *find_plan(fi_step *step, const fi_plan *key)
{
    for (int32_t i = 0; i < step->num_plans; i++) {
        fi_plan *p = &step->plans[i];
        if (p->kernel == key->kernel && p->window == key->window) return p;
    }
    return NULL;
}

static int add_plan(const fi_backend *b, const msgl_seqs *seqs, char *set,
                    const msgl_attn_variant *v, fi_step *step)
{
    fi_plan plan = plan_key(b, seqs, v);
    if (find_plan(step, &plan) != NULL) return 0;
    plan.at = step->used;
    const msgl_fi_plan_call c = {.shape = b->shape,
                                 .kernel = plan.kernel,
                                 .batch = seqs->size,
                                 .qo_indptr = seqs->cu_seqlens_q,
                                 .page_indptr = (const int32_t *)set,
                                 .kv_len = seqs->seqlens_k,
                                 .window = plan.window,
                                 .graph = seqs->graph,
                                 .fixed = b->cfg.deterministic,
                                 .float_bytes = b->workspace_bytes,
                                 .staging = set + plan.at,
                                 .staging_bytes = b->plan_bytes};
    msgl_err *fault = &b->cfg.dev->fault;
    const int code = b->api->plan(&c, &plan.planned, fault->code == 0 ? fault : NULL);
    if (code != 0) return code;
    // A graph finds each plan at the same place, whatever the ones before it used.
    step->used += seqs->graph ? b->plan_bytes : msgl__round_up(plan.planned.bytes, 64);
    step->plans[step->num_plans++] = plan;
    return 0;
}

static int fi_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    const fi_backend *b = (const fi_backend *)base;
    const msgl_attn_variants *v = &b->cfg.variants;
    const msgl_attn_variant plain = {.window = -1};
    if (msgl__cuda_forks(seqs)) return 0;
    char *set = msgl__cuda_plan(&b->sets[seqs->phase], seqs->step_slot);
    fi_step *step = step_of(b, seqs);
    fill_pages(b, seqs, set, step);
    int code = v->count == 0 ? add_plan(b, seqs, set, &plain, step) : 0;
    for (int32_t i = 0; i < v->count && code == 0; i++) {
        code = add_plan(b, seqs, set, &v->all[i], step);
    }
    return code;
}

static void fi_copy_in(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const fi_backend *b = (const fi_backend *)base;
    (void)x;
    if (msgl__cuda_forks(seqs)) return;
    msgl__cuda_plans_copy(&b->sets[seqs->phase], seqs->step_slot, 0, step_of(b, seqs)->used);
}

// Where the page list of the sequences begins: of answers at the front, where graphs find it, of
// chunks so that it ends with the memory. Together they fit, as no step has more requests.
static int32_t *pages_of(const fi_backend *b, const msgl_seqs *seqs)
{
    const size_t own = (size_t)step_of(b, seqs)->num_pages;
    return seqs->phase == MSGL_DECODE ? b->pages : b->pages + (b->num_pages - own);
}

void msgl__fi_list_pages(const msgl_fi_api *api, const msgl_attn_backend *b,
                         const msgl_attn_config *cfg, msgl_exec *x, const msgl_seqs *seqs,
                         const int32_t *indptr, int32_t *pages)
{
    const msgl_fi_pages_call p = {.batch = seqs->size,
                                  .table = cfg->device_table,
                                  .table_stride = cfg->device_table_stride / (size_t)cfg->page_size,
                                  .table_rows = seqs->dev_table_rows,
                                  .page_indptr = indptr,
                                  .max_pages = msgl__ceil_div(seqs->max_seqlen_k, cfg->page_size),
                                  .pages = pages};
    msgl__cuda_attn_result(x, b->desc->name, api->pages(&p, msgl__cuda_device_stream(x->device)));
}

static void fi_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const fi_backend *b = (const fi_backend *)base;
    if (msgl__cuda_forks(seqs)) return;
    msgl__fi_list_pages(b->api, base, &b->cfg, x, seqs,
                        (const int32_t *)b->sets[seqs->phase].device, pages_of(b, seqs));
}

int msgl__fi_add_sinks(const msgl_attn_config *cfg, const msgl_attn_layer *layer,
                       const msgl_seqs *seqs, const float *lse, void *out, void *stream)
{
    const msgl_sink_call c = {.dtype = msgl__cuda_attn_act(cfg),
                              .tokens = seqs->num_tokens,
                              .num_q_heads = cfg->num_q_heads,
                              .head_dim = cfg->head_dim,
                              .out = out,
                              .lse = lse,
                              .sinks = layer->sinks};
    return msgl__cuda_sink(&c, stream);
}

static void fi_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                       const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const fi_backend *b = (const fi_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    const msgl_attn_variant v = {.window = layer->window, .softcap = layer->softcap};
    if (msgl__cuda_forks(seqs)) {
        msgl__cuda_attend_tree(cfg, "fi", x, layer, seqs, in, out, b->workspace);
        return;
    }
    const fi_plan key = plan_key(b, seqs, &v), *plan = find_plan(step_of(b, seqs), &key);
    const char *set = b->sets[seqs->phase].device;
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    const bool sinks = layer->sinks != NULL;
    if (plan == NULL || (sinks && b->lse == NULL)) { // a layer that the configuration does not list
        if (x->status == 0) x->status = MSGL_EINVAL;
        return;
    }
    const msgl_fi_run_call r = {.shape = b->shape,
                                .plan = &plan->planned,
                                .batch = seqs->size,
                                .total_q = seqs->num_tokens,
                                .q = in->q,
                                .ld_q = in->ld,
                                .k = msgl__kv_k(cfg->pool, layer->layer),
                                .v = msgl__kv_v(cfg->pool, layer->layer),
                                .out = out,
                                .lse = sinks ? b->lse : NULL,
                                .scale = layer->scale * msgl__attn_k_scale(cfg->pool, layer),
                                .softcap = layer->softcap,
                                .out_scale = msgl__attn_v_scale(cfg->pool, layer),
                                .window = layer->window,
                                .qo_indptr = seqs->dev_cu_seqlens_q,
                                .page_indptr = (const int32_t *)set,
                                .last_page_len = (const int32_t *)(set + b->ints),
                                .pages = pages_of(b, seqs),
                                .plan_arrays = set + plan->at,
                                .float_workspace = b->workspace};
    void *stream = msgl__cuda_device_stream(x->device);
    int code = b->api->run(&r, stream);
    if (sinks && code == 0) code = msgl__fi_add_sinks(cfg, layer, seqs, b->lse, out, stream);
    msgl__cuda_attn_result(x, "fi", code);
}

const msgl_attn_desc msgl__attn_fi_cuda = {
    MSGL_FI_CUDA,
    .name = "fi",
    .summary = "FlashInfer: its kernels, planned per batch",
    .supports = fi_supports,
    .create = fi_create,
    .destroy = fi_destroy,
    .prepare = fi_prepare,
    .copy_in = fi_copy_in,
    .begin = fi_begin,
    .forward = fi_forward,
};
