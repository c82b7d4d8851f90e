// SPDX-License-Identifier: Apache-2.0
//
// triton on GPUs: own kernels in CUDA C (cuda/attn/triton.h). A step's metadata is made on
// the device, from lengths and page table, at addresses that never change: captured graphs follow
// the lengths. On Hopper chunks of K and V are fa's, whose kernel has WGMMA, unless their tokens
// form trees.
#include "cuda/backends/triton.h"

#include "attention/paged.h"
#include "attention/triton/splits.h"
#include "core/mem.h"
#include "core/round.h"
#include "cuda/attn/triton.h"
#include "cuda/backends/call.h"
#include "cuda/backends/fa.h"

typedef struct triton_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    int32_t windows[MSGL_ATTN_MAX_VARIANTS]; // different ones of the model
    int32_t num_windows;
    char *memory; // of all that follows
    size_t memory_bytes;
    msgl_triton_lists lists[2]; // by phase: a step may have both
    float *attn_logits, *attn_lse;
    msgl_attn_backend *fa; // or NULL
} triton_backend;

static void triton_destroy(msgl_attn_backend *base)
{
    triton_backend *b = (triton_backend *)base;
    if (b == NULL) return;
    if (b->fa != NULL) b->fa->desc->destroy(b->fa);
    if (b->memory != NULL) b->cfg.dev->ops->free(b->cfg.dev, b->memory, b->memory_bytes);
    msgl__free(b);
}

// Gives all arrays their places from *at on; with at counting from NULL, measures them.
static void carve(triton_backend *b, char **at)
{
    const msgl_attn_config *cfg = &b->cfg;
    const size_t running = (size_t)cfg->max_running;
    const size_t splits = running * (size_t)cfg->num_q_heads * MSGL_TRITON_MAX_SPLITS;
    b->attn_logits = msgl__attn_carve(at, splits * (size_t)cfg->pool->spec.v_dim * sizeof(float));
    b->attn_lse = msgl__attn_carve(at, splits * sizeof(float));
    for (int phase = 0; phase < 2; phase++) {
        msgl_triton_lists *l = &b->lists[phase];
        l->kv_indptr = msgl__attn_carve(at, (running + 1) * 4);
        l->kv_indices = msgl__attn_carve(at, running * (size_t)cfg->max_seq_len * 4);
        l->num_kv_splits = msgl__attn_carve(at, (size_t)b->num_windows * running * 4);
        l->splits_stride = cfg->max_running;
    }
}

static int triton_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                         msgl_attn_backend **out, msgl_err *err)
{
    int code = msgl__attn_config_check(desc, cfg, err);
    if (code != 0) return code;
    if ((int64_t)cfg->max_running * cfg->max_seq_len > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "triton: %d requests of %d tokens exceed its 32-bit index",
                             (int)cfg->max_running, (int)cfg->max_seq_len);
    }
    triton_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "triton: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    b->num_windows = msgl__attn_windows(&cfg->variants, b->windows);
    char *at = NULL;
    carve(b, &at);
    b->memory_bytes = (size_t)(uintptr_t)at;
    b->memory = cfg->dev->ops->alloc(cfg->dev, b->memory_bytes);
    if (b->memory == NULL) {
        msgl__err_set(err, MSGL_ENOMEM, "triton: no memory for %zu bytes", b->memory_bytes);
        triton_destroy(&b->base);
        return MSGL_ENOMEM;
    }
    at = b->memory;
    carve(b, &at);
    if (cfg->dev->capability / 10 == 9 && !msgl__attn_latent(cfg)) {
        code = msgl__attn_fa_cuda.create(&msgl__attn_fa_cuda, cfg, &b->fa, err);
    }
    if (code != 0) {
        triton_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

// fa, if it serves these sequences.
static msgl_attn_backend *fa_for(const msgl_attn_backend *base, const msgl_seqs *seqs)
{
    const bool chunks = seqs->phase == MSGL_PREFILL && seqs->tree == NULL;
    return chunks ? ((const triton_backend *)base)->fa : NULL;
}

static int triton_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    msgl_attn_backend *fa = fa_for(base, seqs);
    return fa != NULL ? fa->desc->prepare(fa, seqs) : 0;
}

static void triton_copy_in(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    msgl_attn_backend *fa = fa_for(base, seqs);
    if (fa != NULL) fa->desc->copy_in(fa, x, seqs);
}

static int triton_supports(const msgl_attn_needs *n, msgl_err *err)
{
    const int code = msgl__cuda_supports(n, err);
    if (code != 0 || n->cache != MSGL_CACHE_LATENT || n->v_dim <= MSGL_TRITON_MAX_V_DIM)
        return code;
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "triton: no kernel for latent vectors of %d + %d",
                         (int)n->v_dim, (int)(n->head_dim - n->v_dim));
}

static void triton_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const triton_backend *b = (const triton_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    msgl_triton_lists_call c = {.lists = b->lists[seqs->phase],
                                .batch = seqs->size,
                                .num_q_heads = cfg->num_q_heads,
                                .num_kv_heads = cfg->num_kv_heads,
                                .seqlens_k = seqs->dev_seqlens_k,
                                .table = cfg->device_table,
                                .table_rows = seqs->dev_table_rows,
                                .table_stride = cfg->device_table_stride,
                                .paging = msgl__paging_of(cfg->page_size),
                                .max_seqlen_k = seqs->max_seqlen_k,
                                .deterministic = cfg->deterministic};
    if (fa_for(base, seqs) != NULL) {
        b->fa->desc->begin(b->fa, x, seqs);
        return;
    }
    if (seqs->phase == MSGL_DECODE) c.num_windows = b->num_windows;
    for (int32_t i = 0; i < c.num_windows; i++) c.windows[i] = b->windows[i];
    void *stream = msgl__cuda_device_stream(x->device);
    msgl__cuda_attn_result(x, "triton", msgl__cuda_triton_lists(&c, stream));
}

void msgl__triton_cuda_call(const msgl_attn_backend *base, const msgl_attn_layer *layer,
                            const msgl_seqs *seqs, const msgl_attn_input *in, void *out,
                            msgl_triton_call *c)
{
    const triton_backend *b = (const triton_backend *)base;
    const msgl_triton_lists *lists = &b->lists[seqs->phase];
    *c = (msgl_triton_call){.kv_indptr = lists->kv_indptr,
                            .kv_indices = lists->kv_indices,
                            .num_kv_splits = lists->num_kv_splits,
                            .attn_logits = b->attn_logits,
                            .attn_lse = b->attn_lse,
                            .tree = seqs->dev_tree};
    msgl__cuda_attn_call(&b->cfg, layer, seqs, in, out, &c->attn);
}

int32_t *msgl__triton_cuda_splits(const msgl_attn_backend *base)
{
    return ((const triton_backend *)base)->lists[MSGL_DECODE].num_kv_splits;
}

static void triton_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                           const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const triton_backend *b = (const triton_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    const msgl_triton_lists *lists = &b->lists[seqs->phase];
    int32_t w = 0;
    if (fa_for(base, seqs) != NULL) {
        b->fa->desc->forward(b->fa, x, layer, seqs, in, out);
        return;
    }
    while (w < b->num_windows && b->windows[w] != layer->window) w++;
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    if (w == b->num_windows) { // a layer that the configuration does not list
        if (x->status == 0) x->status = MSGL_EINVAL;
        return;
    }
    msgl_triton_call c;
    msgl__triton_cuda_call(base, layer, seqs, in, out, &c);
    c.num_kv_splits += (size_t)w * (size_t)lists->splits_stride;
    void *stream = msgl__cuda_device_stream(x->device);
    const int code = seqs->phase == MSGL_DECODE ? msgl__cuda_triton_decode(&c, stream)
                                                : msgl__cuda_triton_extend(&c, stream);
    msgl__cuda_attn_result(x, "triton", code);
}

const msgl_attn_desc msgl__attn_triton_cuda = {
    .name = "triton",
    .aliases = {NULL},
    .summary = "SGLang's two stages in CUDA C: splits of the keys, then their merge",
    .min_capability = 80,
    .page_rule = MSGL_PAGE_FLATTENED,
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .kv_dtypes = 1u << MSGL_F16 | 1u << MSGL_BF16,
    .sliding_window = true,
    .softcap = true,
    .sinks = true,
    .tree = true,
    .graph = true,
    .device_lists = true,
    .supports = triton_supports,
    .create = triton_create,
    .destroy = triton_destroy,
    .prepare = triton_prepare,
    .copy_in = triton_copy_in,
    .begin = triton_begin,
    .forward = triton_forward,
};
