// SPDX-License-Identifier: Apache-2.0
#include "cuda/backends/call.h"

#include "core/mem.h"
#include "core/round.h"
#include "cuda/attn/prefill.h"

int msgl__cuda_supports(const msgl_attn_needs *needs, msgl_err *err)
{
    if (needs->act == needs->kv_dtype) return 0;
    if (needs->act == MSGL_BF16 && needs->kv_dtype == MSGL_E4M3) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "attention on a GPU: activations are %s and the KV cache is %s; they have "
                         "to be the same, or bfloat16 and fp8_e4m3",
                         msgl__dtype_name(needs->act), msgl__dtype_name(needs->kv_dtype));
}

int msgl__cuda_plans_create(const msgl_attn_config *cfg, const char *name, size_t bytes,
                            msgl_cuda_plans *out, msgl_err *err)
{
    size_t all;
    *out = (msgl_cuda_plans){
        .dev = cfg->dev, .bytes = msgl__round_up(bytes, 64), .num_sets = cfg->max_in_flight};
    if (msgl__size_mul(out->bytes, (size_t)cfg->max_in_flight, &all) != 0) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: plans too large", name);
    }
    out->staging = cfg->dev->ops->host_alloc(cfg->dev, all);
    out->device = cfg->dev->ops->alloc(cfg->dev, out->bytes);
    if (out->staging != NULL && out->device != NULL) return 0;
    msgl__cuda_plans_destroy(out);
    return msgl__err_set(err, MSGL_ENOMEM, "%s: no memory for %zu bytes of plans", name, all);
}

void msgl__cuda_plans_destroy(msgl_cuda_plans *p)
{
    msgl_device *d = p->dev;
    if (p->device != NULL) d->ops->free(d, p->device, p->bytes);
    if (p->staging != NULL) d->ops->host_free(d, p->staging, p->bytes * (size_t)p->num_sets);
    p->staging = p->device = NULL;
}

void msgl__cuda_plans_copy(const msgl_cuda_plans *p, int32_t step_slot, size_t from, size_t bytes)
{
    p->dev->ops->copy_in(p->dev, p->device + from, msgl__cuda_plan(p, step_slot) + from, bytes);
}

void msgl__cuda_attn_call(const msgl_attn_config *cfg, const msgl_attn_layer *layer,
                          const msgl_seqs *seqs, const msgl_attn_input *in, void *out,
                          msgl_cuda_attn_call *c)
{
    const msgl_kv_pool *pool = cfg->pool;
    *c = (msgl_cuda_attn_call){
        .dtype = msgl__cuda_attn_act(cfg),
        .e4m3 = pool->spec.dtype == MSGL_E4M3,
        .num_q_heads = cfg->num_q_heads,
        .num_kv_heads = cfg->num_kv_heads,
        .head_dim = cfg->head_dim,
        .q = in->q,
        .ld_q = in->ld,
        .rope = in->rope,
        .out = out,
        .ld_out = in->ld_out > 0 ? in->ld_out : (size_t)cfg->num_q_heads * (size_t)pool->spec.v_dim,
        .k = msgl__kv_k(pool, layer->layer),
        .v = msgl__kv_v(pool, layer->layer),
        .v_dim = pool->spec.v_dim,
        .num_slots = ((int64_t)pool->num_pages + 1) * pool->page_size,
        .scale = layer->scale * msgl__attn_k_scale(pool, layer),
        .softcap = layer->softcap,
        .out_scale = msgl__attn_v_scale(pool, layer),
        .window = layer->window,
        .both_ways = layer->bidirectional,
        .sinks = layer->sinks,
        .batch = seqs->size,
        .cu_seqlens_q = seqs->dev_cu_seqlens_q,
        .seqlens_k = seqs->dev_seqlens_k,
        .table = cfg->device_table,
        .table_stride = cfg->device_table_stride,
        .paging = msgl__paging_of(cfg->page_size),
        .table_rows = seqs->dev_table_rows,
        .page_size = cfg->page_size,
        .total_q = seqs->num_tokens,
        .max_seqlen_q = seqs->max_seqlen_q,
        .max_seqlen_k = seqs->max_seqlen_k,
        .deterministic = cfg->deterministic,
        .first = in->first,
        .second = in->second,
    };
}

void msgl__cuda_attend_tree(const msgl_attn_config *cfg, const char *name, msgl_exec *x,
                            const msgl_attn_layer *layer, const msgl_seqs *seqs,
                            const msgl_attn_input *in, void *out, void *workspace)
{
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    msgl_cuda_attn_call c;
    msgl__cuda_attn_call(cfg, layer, seqs, in, out, &c);
    c.workspace = workspace;
    void *stream = msgl__cuda_device_stream(x->device);
    msgl__cuda_attn_result(x, name, msgl__cuda_attn_tree(&c, seqs->dev_tree, stream));
}

bool msgl__cuda_attn_dtype(msgl_exec *x, const msgl_attn_config *cfg)
{
    if (x->act == msgl__cuda_attn_act(cfg)) return true;
    if (x->status == 0) x->status = MSGL_EUNSUPPORTED;
    return false;
}

void msgl__cuda_attn_result(msgl_exec *x, const char *name, int code)
{
    if (code == 0) return;
    if (x->device->fault.code == 0) {
        msgl__err_set(&x->device->fault, MSGL_EDEVICE, "%s: CUDA error %d in a launch", name, code);
    }
    x->status = MSGL_EDEVICE;
}
