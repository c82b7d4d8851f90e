// SPDX-License-Identifier: Apache-2.0
#include "cuda/backends/latent.h"

#include "attention/paged.h"
#include "core/mem.h"
#include "cuda/attn/mla.h"
#include "cuda/backends/call.h"

typedef struct mla_backend {
    msgl_attn_backend base;
    msgl_mla_cuda mla;
} mla_backend;

int msgl__mla_cuda_supports(const msgl_attn_needs *n, msgl_err *err)
{
    const int code = msgl__cuda_supports(n, err);
    if (code != 0) return code;
    if (n->capability / 10 != 9) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "latent attention: its kernel is for Hopper (9.0); this GPU has %d.%d",
                             (int)n->capability / 10, (int)n->capability % 10);
    }
    const bool dtype = n->kv_dtype == MSGL_BF16 || n->kv_dtype == MSGL_E4M3;
    if (n->head_dim != MSGL_MLA_ROW || n->v_dim != MSGL_MLA_LATENT || !dtype ||
        n->num_q_heads > MSGL_MLA_MAX_HEADS) {
        return msgl__err_set(
            err, MSGL_EUNSUPPORTED,
            "latent attention: no kernel for %d query heads and vectors of %d + %d "
            "%s elements; allowed: up to %d heads, 512 + 64 bfloat16 or fp8_e4m3 elements",
            (int)n->num_q_heads, (int)n->v_dim, (int)(n->head_dim - n->v_dim),
            msgl__dtype_name(n->kv_dtype), (int)MSGL_MLA_MAX_HEADS);
    }
    for (int32_t i = 0; i < n->variants.count; i++) {
        if (!n->variants.all[i].sinks) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "latent attention: its kernel has no attention sinks");
    }
    return 0;
}

// The largest power of two that divides the pool's: within a page slots follow one another.
static int32_t kernel_page(int32_t page_size)
{
    int32_t page = 1;
    while (page < MSGL_MLA_MAX_PAGE && page_size % (2 * page) == 0) page *= 2;
    return page;
}

int msgl__mla_cuda_open(const msgl_attn_desc *desc, const msgl_attn_config *cfg, msgl_mla_cuda *m,
                        msgl_err *err)
{
    *m = (msgl_mla_cuda){.cfg = *cfg, .page_size = kernel_page(cfg->page_size)};
    const int code = msgl__attn_config_check(desc, cfg, err);
    if (code != 0) return code;
    const msgl_device_ops *ops = cfg->dev->ops;
    const int32_t heads = cfg->num_q_heads;
    size_t bytes = m->workspace_bytes = msgl__mla_workspace_bytes(heads, cfg->max_step_tokens);
    m->workspace = ops->alloc(cfg->dev, bytes);
    bool all = m->workspace != NULL;
    for (int phase = 0; phase < 2; phase++) {
        const int32_t ragged = phase == MSGL_PREFILL ? cfg->max_step_tokens : 0;
        m->phases[phase].bytes = msgl__mla_plan_bytes(heads, cfg->max_running, ragged);
        m->phases[phase].plan = ops->alloc(cfg->dev, m->phases[phase].bytes);
        bytes += m->phases[phase].bytes;
        all = all && m->phases[phase].plan != NULL;
    }
    if (all) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "%s: no memory for a workspace of %zu bytes", desc->name,
                         bytes);
}

void msgl__mla_cuda_close(msgl_mla_cuda *m)
{
    msgl_device *d = m->cfg.dev;
    if (m->workspace != NULL) d->ops->free(d, m->workspace, m->workspace_bytes);
    for (int phase = 0; phase < 2; phase++) {
        if (m->phases[phase].plan == NULL) continue;
        d->ops->free(d, m->phases[phase].plan, m->phases[phase].bytes);
    }
}

// What plan and launches have in common.
static msgl_mla_call make_call(const msgl_mla_cuda *m, const msgl_seqs *seqs)
{
    const msgl_attn_config *cfg = &m->cfg;
    const bool answers = seqs->phase == MSGL_DECODE;
    return (msgl_mla_call){.num_heads = cfg->num_q_heads,
                           .batch = seqs->size,
                           .q_len = answers ? 1 : seqs->max_seqlen_q,
                           .seqlens_k = seqs->dev_seqlens_k,
                           .table = cfg->device_table,
                           .table_stride = cfg->device_table_stride,
                           .paging = msgl__paging_of(cfg->page_size),
                           .table_rows = seqs->dev_table_rows,
                           .page_size = m->page_size,
                           .cu_seqlens_q = answers ? NULL : seqs->dev_cu_seqlens_q,
                           .total_q = seqs->num_tokens,
                           .tree = answers ? NULL : seqs->dev_tree,
                           .e4m3 = cfg->pool->spec.dtype == MSGL_E4M3,
                           .deterministic = cfg->deterministic,
                           .plan = m->phases[seqs->phase].plan,
                           .workspace = m->workspace};
}

void msgl__mla_cuda_begin(const msgl_mla_cuda *m, const char *name, msgl_exec *x,
                          const msgl_seqs *seqs)
{
    const msgl_mla_call c = make_call(m, seqs);
    msgl__cuda_attn_result(x, name, msgl__cuda_mla_plan(&c, msgl__cuda_device_stream(x->device)));
}

void msgl__mla_cuda_attend(const msgl_mla_cuda *m, const char *name, msgl_exec *x,
                           const msgl_attn_layer *layer, float scale, const msgl_seqs *seqs,
                           const msgl_attn_input *in, void *out)
{
    const msgl_attn_config *cfg = &m->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    msgl_mla_call c = make_call(m, seqs);
    c.q = in->q;
    c.ld_q = in->ld;
    c.out = out;
    c.ld_out = (size_t)cfg->num_q_heads * MSGL_MLA_LATENT;
    c.kv = msgl__kv_k(pool, layer->layer);
    c.num_slots = ((int64_t)pool->num_pages + 1) * pool->page_size;
    c.scale = scale * msgl__attn_k_scale(pool, layer);
    c.out_scale = msgl__attn_v_scale(pool, layer);
    msgl__cuda_attn_result(x, name, msgl__cuda_mla(&c, msgl__cuda_device_stream(x->device)));
}

static void mla_destroy(msgl_attn_backend *base)
{
    if (base == NULL) return;
    msgl__mla_cuda_close(&((mla_backend *)base)->mla);
    msgl__free(base);
}

static int mla_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                      msgl_attn_backend **out, msgl_err *err)
{
    mla_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", desc->name);
    b->base.desc = desc;
    const int code = msgl__mla_cuda_open(desc, cfg, &b->mla, err);
    if (code != 0) {
        mla_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

static void mla_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    msgl__mla_cuda_begin(&((const mla_backend *)base)->mla, base->desc->name, x, seqs);
}

static void mla_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                        const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    msgl__mla_cuda_attend(&((const mla_backend *)base)->mla, base->desc->name, x, layer,
                          layer->scale, seqs, in, out);
}

// FlashMLA's metadata, who has which blocks of keys, is the plan of this kernel, made on the
// device. CUTLASS and TensorRT-LLM have no such kernel for Hopper.
#define LATENT                                                                                     \
    .aliases = {NULL}, .prefill_by = "fa", .min_capability = 90, .page_rule = MSGL_PAGE_SET,       \
    .caches = 1u << MSGL_CACHE_LATENT, .kv_dtypes = 1u << MSGL_BF16 | 1u << MSGL_E4M3,             \
    .tree = true, .graph = true, .supports = msgl__mla_cuda_supports, .create = mla_create,        \
    .destroy = mla_destroy, .begin = mla_begin, .forward = mla_forward

const msgl_attn_desc msgl__attn_flashmla_cuda = {
    LATENT,
    .name = "flashmla",
    .summary = "own latent attention with FlashMLA's pages of 64; prompts by fa",
    .page_sizes = {64},
    .page_override = 64,
};

const msgl_attn_desc msgl__attn_trtllm_mla_cuda = {
    LATENT,
    .name = "trtllm_mla",
    .summary = "own latent attention with TensorRT-LLM's pages of 32 or 64; prompts by fa",
    .page_sizes = {32, 64},
    .page_override = 64,
};

const msgl_attn_desc msgl__attn_cutlass_mla_cuda = {
    LATENT,
    .name = "cutlass_mla",
    .summary = "own latent attention with CUTLASS's pages of 128; prompts by fa",
    .page_sizes = {128},
    .page_override = 128,
};
