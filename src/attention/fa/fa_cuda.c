// SPDX-License-Identifier: Apache-2.0
//
// fa on GPUs: our own kernels over the page table as it is. Decode needs no plan (the kernel shares
// out its work from the lengths in device memory), so a captured graph only needs new lengths; the
// longest that it is captured for decides between the kernels for few requests and for many.
// Prefill takes a work list per step and window.
//
// Latent caches have the kernel of mla_cuda.h in both phases.
//
// Drafts to be verified (trees) have a kernel that needs no plan.
//
// Deterministic: the phase alone chooses the kernel, since a row's bits must not depend on how many
// other tokens its chunk has; otherwise single-token chunks take the decode kernel too.
#include "attention/fa/fa_cuda.h"

#include "attention/fa/plan_prefill.h"
#include "attention/mla_cuda.h"
#include "attention/paged.h"
#include "core/mem.h"
#include "core/round.h"
#include "kernel/cuda/attn/decode.h"
#include "kernel/cuda/plugin.h"

typedef struct fa_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    int32_t windows[MSGL_ATTN_MAX_VARIANTS]; // different ones of the model
    int32_t num_windows;
    msgl_cuda_plans plans; // of prefill: one of plan_bytes for each window
    size_t plan_bytes;
    size_t *used;    // [max_flights, num_windows] bytes of each plan; 0: none
    size_t l2_bytes; // of the GPU
    void *workspace;
    size_t workspace_bytes;
    msgl_mla_cuda mla; // of a latent cache, which needs nothing of the above
} fa_backend;

static bool is_latent(const fa_backend *b)
{
    return b->cfg.pool->spec.kind == MSGL_CACHE_LATENT;
}

static void fa_destroy(msgl_attn_backend *base)
{
    fa_backend *b = (fa_backend *)base;
    if (b == NULL) return;
    msgl_device *d = b->cfg.dev;
    if (b->workspace != NULL) d->ops->free(d, b->workspace, b->workspace_bytes);
    msgl__cuda_plans_destroy(&b->plans);
    msgl__mla_cuda_close(&b->mla);
    msgl__free(b->used);
    msgl__free(b);
}

static int32_t place_of(const fa_backend *b, int32_t window)
{
    int32_t i = 0;
    while (i < b->num_windows && b->windows[i] != window) i++;
    return i;
}

static int take_memory(fa_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    b->num_windows = msgl__attn_windows(&cfg->variants, b->windows);
    b->plan_bytes =
        msgl__round_up(msgl__fa_plan_prefill_size(cfg->num_q_heads, cfg->num_kv_heads,
                                                  cfg->max_running, cfg->max_step_tokens),
                       64);
    const size_t windows = (size_t)b->num_windows;
    const int code = msgl__cuda_plans_create(cfg, "fa", windows * b->plan_bytes, &b->plans, err);
    if (code != 0) return code;
    b->used = msgl__calloc((size_t)cfg->max_flights * windows, sizeof *b->used);
    b->workspace_bytes = msgl__fa_decode_workspace(
        cfg->num_q_heads, cfg->num_kv_heads, cfg->head_dim, cfg->max_running, cfg->deterministic);
    b->workspace = cfg->dev->ops->alloc(cfg->dev, b->workspace_bytes);
    if (b->used != NULL && b->workspace != NULL) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "fa: no memory for a workspace of %zu bytes",
                         b->workspace_bytes);
}

static int fa_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                     msgl_attn_backend **out, msgl_err *err)
{
    fa_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "fa: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    b->plans.dev = cfg->dev;
    b->l2_bytes = cfg->cuda->l2_bytes(cfg->dev);
    int code = msgl__attn_config_check(desc, cfg, err);
    if (code == 0) {
        code = is_latent(b) ? msgl__mla_cuda_open(desc, cfg, &b->mla, err) : take_memory(b, err);
    }
    if (code != 0) {
        fa_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

static int fa_supports(const msgl_attn_needs *n, msgl_err *err)
{
    return n->cache == MSGL_CACHE_LATENT ? msgl__mla_cuda_supports(n, err)
                                         : msgl__cuda_supports(n, err);
}

static size_t plan_window(const fa_backend *b, const msgl_seqs *seqs, int32_t window, char *out)
{
    const msgl_attn_config *cfg = &b->cfg;
    const msgl_fa_prefill_batch p = {.num_q_heads = cfg->num_q_heads,
                                     .num_kv_heads = cfg->num_kv_heads,
                                     .head_dim = cfg->head_dim,
                                     .elem_size = (int32_t)msgl__dtype_size(cfg->pool->spec.dtype),
                                     .window = window,
                                     .l2_bytes = b->l2_bytes,
                                     .batch = seqs->size,
                                     .cu_seqlens_q = seqs->cu_seqlens_q,
                                     .seqlens_k = seqs->seqlens_k,
                                     .table_rows = seqs->table_rows};
    return msgl__fa_plan_prefill(&p, out);
}

static bool decodes(const fa_backend *b, const msgl_seqs *seqs)
{
    return seqs->phase == MSGL_DECODE || (seqs->max_seqlen_q <= 1 && !b->cfg.deterministic);
}

// (Of E4M3, 16 bytes have to be of one head.)
static bool plans(const fa_backend *b, const msgl_seqs *seqs)
{
    const msgl_dtype kv = b->cfg.pool->spec.dtype;
    const bool has = kv == MSGL_E4M3 ? b->cfg.head_dim % 16 == 0 : kv != MSGL_F32;
    return !is_latent(b) && !decodes(b, seqs) && !msgl__cuda_forks(seqs) && has;
}

static int fa_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    fa_backend *b = (fa_backend *)base;
    char *to = msgl__cuda_plan(&b->plans, seqs->flight);
    if (!plans(b, seqs)) return 0;
    for (int32_t i = 0; i < b->num_windows; i++) {
        b->used[seqs->flight * b->num_windows + i] =
            plan_window(b, seqs, b->windows[i], to + (size_t)i * b->plan_bytes);
    }
    return 0;
}

static void fa_copy_in(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const fa_backend *b = (const fa_backend *)base;
    (void)x;
    if (!plans(b, seqs)) return;
    for (int32_t i = 0; i < b->num_windows; i++) {
        msgl__cuda_plans_copy(&b->plans, seqs->flight, (size_t)i * b->plan_bytes,
                              b->used[seqs->flight * b->num_windows + i]);
    }
}

static void fa_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const fa_backend *b = (const fa_backend *)base;
    if (is_latent(b)) msgl__mla_cuda_begin(&b->mla, "fa", x, seqs);
}

static void fa_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                       const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const fa_backend *b = (const fa_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    const msgl_cuda_attn *k = cfg->cuda->attn;
    if (is_latent(b)) {
        msgl__mla_cuda_attend(&b->mla, "fa", x, layer, layer->scale, seqs, in, out);
        return;
    }
    if (msgl__cuda_forks(seqs)) {
        msgl__cuda_attn_tree(cfg, "fa", x, layer, seqs, in, out);
        return;
    }
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    msgl_cuda_attn_call c;
    msgl__cuda_attn_call(cfg, layer, seqs, in, out, &c);
    c.workspace = b->workspace;
    int (*launch)(const msgl_cuda_attn_call *, void *) = k->reference;
    if (plans(b, seqs)) {
        const int32_t place = place_of(b, layer->window);
        if (place == b->num_windows) { // a layer that the configuration does not list
            if (x->status == 0) x->status = MSGL_EINVAL;
            return;
        }
        launch = k->prefill;
        c.plan = b->plans.device + (size_t)place * b->plan_bytes;
    } else if (decodes(b, seqs) && msgl__fa_decode_fits(x->act, cfg->head_dim)) {
        launch = k->decode;
    }
    msgl__cuda_attn_result(x, "fa", launch(&c, cfg->cuda->stream(x->device)));
}

// Length up to which `size` requests are decoded by the kernel for few (few.cu), which wants two
// SMs for every request and KV head: 64 of these fit an H200's 132. (With fewer SMs some of these
// batches have the other kernel after all, and a graph that is not needed.)
static int32_t fa_short_seq_len(const msgl_attn_backend *base, int32_t size)
{
    enum { ITEMS = 64 };
    const msgl_attn_config *cfg = &((const fa_backend *)base)->cfg;
    const int major = cfg->dev->capability / 10;
    const bool has = (major == 9 || major == 10) && !cfg->deterministic && cfg->head_dim <= 128 &&
                     cfg->pool->spec.dtype != MSGL_E4M3 &&
                     msgl__fa_decode_fits(cfg->pool->spec.dtype, cfg->head_dim) &&
                     cfg->num_q_heads <= 8 * cfg->num_kv_heads && size * cfg->num_kv_heads <= ITEMS;
    return has ? MSGL_FA_FEW_LEN : 0;
}

// For few requests the rope kernel apart is faster, by half a microsecond a layer for one and a
// whole one for eight: the decode kernel starts while it runs. But not if they have the kernel
// that starts even earlier (docs/internals/fa-decode.md).
static bool fa_takes_rope(const msgl_attn_backend *base, const msgl_seqs *seqs)
{
    enum { FEW = 8 };
    const fa_backend *b = (const fa_backend *)base;
    const bool starts_early = seqs->max_seqlen_k <= fa_short_seq_len(base, seqs->size);
    return (starts_early || seqs->size > FEW) && decodes(b, seqs) &&
           msgl__fa_decode_fits(msgl__cuda_attn_act(&b->cfg), b->cfg.head_dim);
}

const msgl_attn_desc msgl__attn_fa_cuda = {
    .name = "fa",
    .aliases = {"fa3", NULL},
    .summary = "own kernels: WGMMA prefill on Hopper, memory-speed decode on any GPU",
    .devices = 1u << MSGL_DEVICE_CUDA,
    .min_capability = 80,
    .page_rule = MSGL_PAGE_ANY,
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,
    .sliding_window = true,
    .softcap = true,
    .sinks = true,
    .tree = true,
    .graph = true,
    .supports = fa_supports,
    .create = fa_create,
    .destroy = fa_destroy,
    .prepare = fa_prepare,
    .copy_in = fa_copy_in,
    .begin = fa_begin,
    .forward = fa_forward,
    .takes_rope = fa_takes_rope,
    .short_seq_len = fa_short_seq_len,
};
