// SPDX-License-Identifier: Apache-2.0
#include "attention/mla_cuda.h"

#include "attention/cuda_call.h"
#include "attention/paged.h"
#include "core/mem.h"
#include "kernel/cuda/plugin.h"

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
    for (int32_t i = 0; i < n->variants.count; i++) {
        if (!n->variants.all[i].sinks) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "latent attention: its kernel has no attention sinks");
    }
    const bool dtype = n->kv_dtype == MSGL_BF16 || n->kv_dtype == MSGL_E4M3;
    if (n->head_dim == MSGL_MLA_ROW && n->v_dim == MSGL_MLA_LATENT && dtype &&
        n->num_q_heads <= MSGL_MLA_MAX_HEADS) {
        return 0;
    }
    return msgl__err_set(
        err, MSGL_EUNSUPPORTED,
        "latent attention: no kernel for %d query heads and vectors of %d + %d "
        "%s elements; allowed: up to %d heads, 512 + 64 bfloat16 or fp8_e4m3 elements",
        (int)n->num_q_heads, (int)n->v_dim, (int)(n->head_dim - n->v_dim),
        msgl__dtype_name(n->kv_dtype), (int)MSGL_MLA_MAX_HEADS);
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
    const struct msgl_cuda_api *api = m->cfg.cuda;
    msgl__cuda_attn_result(x, name, api->attn->mla_plan(&c, api->stream(x->device)));
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
    msgl__cuda_attn_result(x, name, cfg->cuda->attn->mla(&c, cfg->cuda->stream(x->device)));
}

int msgl__mla_cuda_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                          msgl_attn_backend **out, msgl_err *err)
{
    mla_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", desc->name);
    b->base.desc = desc;
    const int code = msgl__mla_cuda_open(desc, cfg, &b->mla, err);
    if (code != 0) {
        msgl__mla_cuda_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

void msgl__mla_cuda_destroy(msgl_attn_backend *base)
{
    if (base == NULL) return;
    msgl__mla_cuda_close(&((mla_backend *)base)->mla);
    msgl__free(base);
}

void msgl__mla_cuda_backend_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    msgl__mla_cuda_begin(&((const mla_backend *)base)->mla, base->desc->name, x, seqs);
}

void msgl__mla_cuda_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                            const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    msgl__mla_cuda_attend(&((const mla_backend *)base)->mla, base->desc->name, x, layer,
                          layer->scale, seqs, in, out);
}
