// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include <math.h>

#include "core/mem.h"
#include "models/arch.h"

static void build_attention(const msgl_model *m, int32_t index, msgl_attention *a)
{
    const msgl_model_config *c = &m->cfg;
    a->eps = c->rms_eps;
    a->num_heads = c->num_heads;
    a->num_kv_heads = c->num_kv_heads;
    a->head_dim = c->head_dim;
    a->out.row_parallel = true;
    const bool sliding = (c->layer_flags[index] & MSGL_LAYER_SLIDING) != 0;
    a->geometry = (msgl_attn_layer){
        .layer = index,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .softcap = 0,
        // A window of W keys includes the query's own; the contract counts those before it.
        .window = sliding ? c->sliding_window - 1 : -1,
    };
}

static int32_t sparse_layers(const msgl_model_config *c)
{
    int32_t n = 0;
    for (int32_t l = 0; l < c->num_layers; l++) n += (c->layer_flags[l] & MSGL_LAYER_SPARSE) != 0;
    return n;
}

static void build_layers(msgl_model *m)
{
    const msgl_model_config *c = &m->cfg;
    msgl_weight *experts = m->experts;
    for (int32_t l = 0; l < c->num_layers; l++) {
        msgl_decoder_layer *layer = &m->layers[l];
        layer->attn_norm.eps = layer->ffn_norm.eps = c->rms_eps;
        layer->attn_norm.dim = layer->ffn_norm.dim = c->hidden_size;
        build_attention(m, l, &layer->attn);
        layer->mlp.down.row_parallel = true;
        layer->sparse = (c->layer_flags[l] & MSGL_LAYER_SPARSE) != 0;
        if (!layer->sparse) continue;
        layer->moe.backend = m->moe;
        layer->moe.experts = (msgl_moe_experts){.num_experts = c->num_experts,
                                                .top_k = c->top_k,
                                                .norm_topk = c->norm_topk,
                                                .gate_up = experts,
                                                .down = experts + c->num_experts};
        experts += 2 * (size_t)c->num_experts;
    }
    m->final_norm = (msgl_norm){.eps = c->rms_eps, .dim = c->hidden_size};
}

int msgl__model_build(msgl_model *m, const msgl_kernels *k, const msgl_moe_desc *moe,
                      msgl_dtype dtype, msgl_err *err)
{
    m->kernels = k;
    m->moe = moe;
    m->layers = msgl__calloc((size_t)m->cfg.num_layers, sizeof *m->layers);
    m->experts = msgl__calloc((size_t)sparse_layers(&m->cfg) * 2 * (size_t)m->cfg.num_experts,
                              sizeof *m->experts);
    if (m->layers == NULL || m->experts == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "model: out of memory");
    }
    build_layers(m);
    msgl__weight_plan_init(&m->plan, k, dtype, err);
    m->cfg.arch->declare(m, &m->plan);
    return m->plan.status;
}

void msgl__model_free(msgl_model *m)
{
    msgl__weight_plan_free(&m->plan);
    msgl__free(m->layers);
    msgl__free(m->experts);
    m->layers = NULL;
    m->experts = NULL;
}

int msgl__model_load(msgl_model *m, void *region, const char *dir, msgl_exec *x,
                     msgl_load_progress progress, void *ctx, msgl_err *err)
{
    msgl__weight_plan_place(&m->plan, region);
    if (m->cfg.tie_embeddings) m->lm_head.w = m->embed;
    int code;
    if (dir == NULL) {
        code = msgl__weights_dummy(&m->plan, x, progress, ctx, err);
    } else {
        msgl_checkpoint *ckpt = NULL;
        code = msgl__checkpoint_open(dir, &ckpt, err);
        if (code == 0) code = msgl__weights_check(&m->plan, ckpt, err);
        if (code == 0) code = msgl__weights_load(&m->plan, ckpt, x, progress, ctx, err);
        msgl__checkpoint_close(ckpt);
    }
    msgl__weight_plan_free(&m->plan);
    return code;
}

void msgl__model_logits(const msgl_model *m, msgl_forward *f, const float *hidden, int32_t rows,
                        float *logits)
{
    msgl__linear(f, &m->lm_head, hidden, (size_t)m->cfg.hidden_size, logits, rows);
}

size_t msgl__model_scratch(const msgl_model *m, int32_t max_tokens)
{
    const msgl_model_config *c = &m->cfg;
    size_t most = 0;
    const int32_t widths[] = {c->hidden_size, c->num_heads * c->head_dim, c->intermediate_size,
                              c->moe_intermediate_size};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        int32_t rows = max_tokens;
        if (c->top_k > 0) { // an expert's rows are at most all assignments of a block
            const int32_t block = max_tokens < MSGL_FFN_ROWS ? max_tokens : MSGL_FFN_ROWS;
            if (block * c->top_k > rows) rows = block * c->top_k;
        }
        const size_t bytes = m->kernels->gemm.scratch_size(rows, widths[i]);
        if (bytes > most) most = bytes;
    }
    return most;
}
