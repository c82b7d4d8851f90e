// SPDX-License-Identifier: Apache-2.0
//
// The decoder of the Llama family: names of its tensors, and its forward pass.
#include "core/err.h"
#include "layers/embedding.h"
#include "models/model.h"

static void declare_linear(msgl_weight_plan *p, msgl_linear *l, int32_t n, int32_t k, bool bias)
{
    msgl__plan_weight(p, &l->w, n, k);
    if (bias) msgl__plan_vector(p, &l->bias, n);
}

// Rows of a fused projection that come from one tensor, with its bias.
static void declare_part(msgl_weight_plan *p, msgl_linear *l, int32_t row, int32_t rows, bool bias,
                         int32_t layer, const char *name)
{
    msgl__plan_rows(p, &l->w, row, rows, "model.layers.%d.%s.weight", layer, name);
    if (bias) {
        msgl__plan_elements(p, &l->bias, row, rows, 0, "model.layers.%d.%s.bias", layer, name);
    }
}

static void declare_norm(msgl_weight_plan *p, float **v, int32_t dim, int32_t layer,
                         const char *name)
{
    msgl__plan_vector(p, v, dim);
    msgl__plan_elements(p, v, 0, dim, 1, "model.layers.%d.%s.weight", layer, name);
}

static void declare_attention(msgl_weight_plan *p, const msgl_model_config *c, msgl_attention *a,
                              int32_t layer)
{
    const int32_t q = c->num_heads * c->head_dim, kv = c->num_kv_heads * c->head_dim;
    declare_linear(p, &a->qkv, q + 2 * kv, c->hidden_size, c->qkv_bias);
    declare_part(p, &a->qkv, 0, q, c->qkv_bias, layer, "self_attn.q_proj");
    declare_part(p, &a->qkv, q, kv, c->qkv_bias, layer, "self_attn.k_proj");
    declare_part(p, &a->qkv, q + kv, kv, c->qkv_bias, layer, "self_attn.v_proj");
    declare_linear(p, &a->out, c->hidden_size, q, c->o_bias);
    declare_part(p, &a->out, 0, c->hidden_size, c->o_bias, layer, "self_attn.o_proj");
    if (c->qk_norm) {
        declare_norm(p, &a->q_norm, c->head_dim, layer, "self_attn.q_norm");
        declare_norm(p, &a->k_norm, c->head_dim, layer, "self_attn.k_norm");
    }
}

static void declare_mlp(msgl_weight_plan *p, const msgl_model_config *c, msgl_mlp *m, int32_t layer)
{
    const int32_t inter = c->intermediate_size;
    declare_linear(p, &m->gate_up, 2 * inter, c->hidden_size, c->mlp_bias);
    declare_part(p, &m->gate_up, 0, inter, c->mlp_bias, layer, "mlp.gate_proj");
    declare_part(p, &m->gate_up, inter, inter, c->mlp_bias, layer, "mlp.up_proj");
    declare_linear(p, &m->down, c->hidden_size, inter, c->mlp_bias);
    declare_part(p, &m->down, 0, c->hidden_size, c->mlp_bias, layer, "mlp.down_proj");
}

static void declare_moe(msgl_weight_plan *p, const msgl_model_config *c, msgl_moe *m, int32_t layer)
{
    const int32_t inter = c->moe_intermediate_size;
    declare_linear(p, &m->router, c->num_experts, c->hidden_size, false);
    declare_part(p, &m->router, 0, c->num_experts, false, layer, "mlp.gate");
    for (int32_t e = 0; e < c->num_experts; e++) {
        // The experts' arrays belong to the model; only reading them is everyone's.
        msgl_weight *gate_up = (msgl_weight *)&m->experts.gate_up[e];
        msgl_weight *down = (msgl_weight *)&m->experts.down[e];
        const char *const fmt = "model.layers.%d.mlp.experts.%d.%s.weight";
        msgl__plan_weight(p, gate_up, 2 * inter, c->hidden_size);
        msgl__plan_rows(p, gate_up, 0, inter, fmt, layer, e, "gate_proj");
        msgl__plan_rows(p, gate_up, inter, inter, fmt, layer, e, "up_proj");
        msgl__plan_weight(p, down, c->hidden_size, inter);
        msgl__plan_rows(p, down, 0, c->hidden_size, fmt, layer, e, "down_proj");
    }
}

void msgl__decoder_declare(msgl_model *m, msgl_weight_plan *p)
{
    const msgl_model_config *c = &m->cfg;
    msgl__plan_weight(p, &m->embed, c->vocab_size, c->hidden_size);
    msgl__plan_rows(p, &m->embed, 0, c->vocab_size, "model.embed_tokens.weight");
    for (int32_t l = 0; l < c->num_layers && p->status == 0; l++) {
        msgl_decoder_layer *layer = &m->layers[l];
        declare_norm(p, &layer->attn_norm.weight, c->hidden_size, l, "input_layernorm");
        declare_attention(p, c, &layer->attn, l);
        declare_norm(p, &layer->ffn_norm.weight, c->hidden_size, l, "post_attention_layernorm");
        if (layer->sparse) {
            declare_moe(p, c, &layer->moe, l);
        } else {
            declare_mlp(p, c, &layer->mlp, l);
        }
    }
    msgl__plan_vector(p, &m->final_norm.weight, c->hidden_size);
    msgl__plan_elements(p, &m->final_norm.weight, 0, c->hidden_size, 1, "model.norm.weight");
    if (!c->tie_embeddings) {
        msgl__plan_weight(p, &m->lm_head.w, c->vocab_size, c->hidden_size);
        msgl__plan_rows(p, &m->lm_head.w, 0, c->vocab_size, "lm_head.weight");
    }
}

// Activations of one step.
typedef struct buffers {
    float *cos_sin;                  // [tokens, head_dim]
    void *residual;                  // [tokens, hidden]
    void *qkv;                       // [tokens, qkv width]
    void *attn;                      // [tokens, heads * head_dim]
    void *rows_attn, *rows_residual; // the same of the rows that get logits
} buffers;

// Parts of a row's sum of squares.
static size_t feed_parts(const msgl_model_config *c)
{
    return (size_t)c->hidden_size / MSGL_FEED_COLUMNS + 1;
}

static size_t feed_bytes(const msgl_model_config *c, const msgl_kernels *k, msgl_dtype act,
                         int32_t max_tokens)
{
    const int32_t most = k->gemm.feed_rows;
    const size_t rows = (size_t)(max_tokens < most ? max_tokens : most);
    return msgl__activation_bytes(rows, (size_t)c->hidden_size, act) +
           msgl__activation_bytes(rows, feed_parts(c), MSGL_F32);
}

size_t msgl__decoder_workspace(const msgl_model *m, int32_t max_tokens, int32_t max_rows)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_kernels *k = m->target.kernels;
    const msgl_dtype act = m->target.act;
    const size_t t = (size_t)max_tokens, r = (size_t)max_rows, h = (size_t)c->hidden_size;
    const size_t q = (size_t)c->num_heads * (size_t)c->head_dim;
    const size_t kv = (size_t)c->num_kv_heads * (size_t)c->head_dim;
    size_t ffn = 0;
    for (int32_t l = 0; l < c->num_layers; l++) {
        const msgl_decoder_layer *layer = &m->layers[l];
        const size_t need = layer->sparse ? msgl__moe_workspace(&layer->moe, k, act, max_tokens)
                                          : msgl__mlp_workspace(&layer->mlp, k, act, max_tokens);
        if (need > ffn) ffn = need;
    }
    // More ranks than one add their parts up in a buffer first (msgl__linear_add).
    const size_t part = m->target.ranks > 1 ? msgl__activation_bytes(t, h, act) : 0;
    return msgl__activation_bytes(t, (size_t)c->head_dim, MSGL_F32) +
           msgl__activation_bytes(t, h, act) + msgl__activation_bytes(t, q + 2 * kv, act) +
           msgl__activation_bytes(t, q, act) + msgl__activation_bytes(r, q, act) +
           msgl__activation_bytes(r, h, act) + feed_bytes(c, k, act, max_tokens) + ffn + part;
}

static bool take_buffers(const msgl_model_config *c, msgl_forward *f, int32_t num_rows, buffers *b)
{
    const size_t t = (size_t)f->num_tokens, h = (size_t)c->hidden_size;
    const size_t q = (size_t)c->num_heads * (size_t)c->head_dim;
    const size_t kv = (size_t)c->num_kv_heads * (size_t)c->head_dim;
    b->cos_sin = msgl__take_rows(f, t, (size_t)c->head_dim, MSGL_F32);
    b->residual = msgl__activation(f, t, h);
    b->qkv = msgl__activation(f, t, q + 2 * kv);
    b->attn = msgl__activation(f, t, q);
    b->rows_attn = msgl__activation(f, (size_t)num_rows, q);
    b->rows_residual = msgl__activation(f, (size_t)num_rows, h);
    f->feed = (msgl_norm_feed){0};
    if (f->num_tokens <= f->k->gemm.feed_rows) {
        f->feed.scaled = msgl__activation(f, t, h);
        f->feed.sums = msgl__take_rows(f, t, feed_parts(c), MSGL_F32);
    }
    return f->x->status == 0;
}

// The layer behind its attention. next: the first norm of the layer behind it, or NULL.
static void finish_layer(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *next,
                         const void *attn, void *residual, int32_t rows)
{
    // Experts norm the stream themselves.
    const msgl_norm *norm = layer->sparse ? NULL : &layer->ffn_norm;
    msgl__linear_add(f, &layer->attn.out, attn, residual, norm, rows);
    if (layer->sparse) {
        msgl__moe(f, &layer->moe, &layer->ffn_norm, residual, rows);
    } else {
        msgl__mlp(f, &layer->mlp, &layer->ffn_norm, next, residual, rows);
    }
}

void *msgl__decoder_forward(const msgl_model *m, msgl_forward *f, const int32_t *rows,
                            int32_t num_rows)
{
    const msgl_model_config *c = &m->cfg;
    const int32_t tokens = f->num_tokens, q = c->num_heads * c->head_dim;
    const msgl_decoder_layer *last = &m->layers[c->num_layers - 1];
    buffers b;
    if (!take_buffers(c, f, num_rows, &b)) return NULL;
    msgl__embed(f, &m->embed, c->head_dim, b.residual, b.cos_sin);
    for (const msgl_decoder_layer *layer = m->layers; layer <= last; layer++) {
        msgl__attention(f, &layer->attn, &layer->attn_norm, b.residual, b.cos_sin, b.qkv, b.attn);
        if (layer == last) break;
        finish_layer(f, layer, &layer[1].attn_norm, b.attn, b.residual, tokens);
    }
    if (num_rows == 0) return NULL;
    // Behind the last attention only rows that get logits are still of use. When those are all,
    // they are in token order.
    const bool all = num_rows == tokens;
    if (!all) {
        f->k->moe.gather(f->x, b.attn, rows, num_rows, 1, q, b.rows_attn);
        f->k->moe.gather(f->x, b.residual, rows, num_rows, 1, c->hidden_size, b.rows_residual);
    }
    void *residual = all ? b.residual : b.rows_residual;
    finish_layer(f, last, NULL, all ? b.attn : b.rows_attn, residual, num_rows);
    return f->x->status == 0 ? residual : NULL;
}
