// SPDX-License-Identifier: Apache-2.0
//
// Layers of the decoder family: how they are built, the names of their tensors, the forward pass.
#include "models/decoder.h"

#include <math.h>
#include <stdio.h>

#include "core/mem.h"
#include "layers/embedding.h"

static const msgl_decoder_config *config_of(const msgl_model *m)
{
    return &m->cfg.decoder;
}

static bool has(const msgl_decoder_config *d, int32_t layer, int flag)
{
    return (d->layer_flags[layer] & flag) != 0;
}

// A window of W keys includes the query's own; the contract counts those before it.
static int32_t window_of(const msgl_decoder_config *d, int32_t layer)
{
    return has(d, layer, MSGL_LAYER_SLIDING) ? d->sliding_window - 1 : -1;
}

// Layers before `end` that have the window, or have it not.
static int32_t count_layers(const msgl_decoder_config *d, int32_t end, bool window)
{
    int32_t n = 0;
    for (int32_t l = 0; l < end; l++) n += (window_of(d, l) >= 0) == window;
    return n;
}

// A group of the layers that see all tokens, and one of those with the window.
static void caches(const msgl_model_config *c, msgl_dtype dtype, msgl_cache_specs *out)
{
    const msgl_decoder_config *d = &c->decoder;
    *out = (msgl_cache_specs){0};
    for (int window = 0; window < 2; window++) {
        const int32_t num_layers = count_layers(d, c->num_layers, window);
        if (num_layers == 0) continue;
        out->all[out->count++] = (msgl_cache_spec){.kind = MSGL_CACHE_KV,
                                                   .num_layers = num_layers,
                                                   .window = window ? d->sliding_window - 1 : -1,
                                                   .num_heads = c->num_kv_heads,
                                                   .k_dim = c->head_dim,
                                                   .v_dim = c->head_dim,
                                                   .dtype = dtype};
    }
}

static msgl_attn_variants variants(const msgl_model_config *c, int32_t group)
{
    msgl_cache_specs specs;
    msgl_attn_variants v = {0};
    caches(c, c->dtype, &specs);
    (void)msgl__attn_variants_add(&v, specs.all[group].window, c->decoder.attn_softcap);
    return v;
}

// --- building ----------------------------------------------------------------------------------

static void build_attention(const msgl_model *m, int32_t index, msgl_attention *a)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder_config *d = &c->decoder;
    a->eps = d->rms_eps;
    a->norms_all = d->qk_norm == MSGL_QK_NORM_ALL;
    a->num_heads = c->num_heads;
    a->num_kv_heads = c->num_kv_heads;
    a->head_dim = c->head_dim;
    a->rope = has(d, index, MSGL_LAYER_SECOND_ROPE) ? 1 : 0;
    a->half = c->ropes[a->rope].dim / 2;
    a->out.row_parallel = true;
    const int32_t window = window_of(d, index);
    a->group = window >= 0 && count_layers(d, c->num_layers, false) > 0 ? 1 : 0;
    a->geometry = (msgl_attn_layer){
        .layer = count_layers(d, index, window >= 0),
        .scale = d->attn_scale,
        .softcap = d->attn_softcap,
        .window = window,
    };
}

static msgl_norm norm_named(const msgl_model *m, const char *name)
{
    return (msgl_norm){.eps = m->cfg.decoder.rms_eps, .dim = name != NULL ? m->cfg.hidden_size : 0};
}

static const msgl_norm *norm_or_null(const msgl_norm *n)
{
    return n->dim > 0 ? n : NULL;
}

static void build_moe(const msgl_model *m, msgl_weight *experts, msgl_moe *moe)
{
    const msgl_decoder_config *d = config_of(m);
    moe->backend = m->target.moe;
    moe->experts =
        (msgl_moe_experts){.num_experts = d->num_experts,
                           .router = {.top_k = d->top_k, .norm_topk = d->norm_topk, .scale = 1},
                           .gate_up = experts,
                           .down = experts + d->num_experts};
    moe->has_shared = d->shared_intermediate_size > 0;
    moe->gates_shared = true;
}

static void build_layers(msgl_model *m, msgl_decoder *decoder)
{
    const msgl_decoder_config *d = config_of(m);
    const msgl_decoder_names *names = &d->names;
    msgl_weight *experts = decoder->experts;
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        msgl_decoder_layer *layer = &decoder->layers[l];
        layer->attn_norm = norm_named(m, names->attn_norm);
        layer->attn_post_norm = norm_named(m, names->attn_post_norm);
        layer->ffn_norm = norm_named(m, names->ffn_norm);
        layer->ffn_post_norm = norm_named(m, names->ffn_post_norm);
        build_attention(m, l, &layer->attn);
        layer->mlp.activation = d->activation;
        layer->mlp.down.row_parallel = true;
        layer->sparse = has(d, l, MSGL_LAYER_SPARSE);
        if (!layer->sparse) continue;
        build_moe(m, experts, &layer->moe);
        experts += 2 * (size_t)d->num_experts;
    }
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        msgl_decoder_layer *layer = &decoder->layers[l];
        const bool last = l + 1 == m->cfg.num_layers;
        // Experts norm the stream themselves.
        layer->attn_join =
            (msgl_join){.norm = norm_or_null(&layer->attn_post_norm),
                        .scale = d->residual_scale,
                        .next = layer->sparse ? NULL : norm_or_null(&layer->ffn_norm)};
        layer->ffn_join = (msgl_join){.norm = norm_or_null(&layer->ffn_post_norm),
                                      .scale = d->residual_scale,
                                      .next = last ? NULL : norm_or_null(&layer[1].attn_norm)};
    }
    m->final_norm = (msgl_norm){.eps = d->rms_eps, .dim = m->cfg.hidden_size};
}

static int build(msgl_model *m, msgl_err *err)
{
    const msgl_decoder_config *d = config_of(m);
    size_t sparse = 0;
    for (int32_t l = 0; l < m->cfg.num_layers; l++) sparse += has(d, l, MSGL_LAYER_SPARSE);
    msgl_decoder *decoder = m->layers = msgl__calloc(1, sizeof *decoder);
    if (decoder != NULL) {
        decoder->layers = msgl__calloc((size_t)m->cfg.num_layers, sizeof *decoder->layers);
        decoder->experts =
            msgl__calloc(sparse * 2 * (size_t)d->num_experts, sizeof *decoder->experts);
    }
    if (decoder == NULL || decoder->layers == NULL || decoder->experts == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "model: out of memory");
    }
    build_layers(m, decoder);
    if (d->rounds_embed_scale) {
        float scale;
        msgl__store_f32(&scale, m->target.dtype, 0, d->embed_scale);
        m->cfg.decoder.embed_scale = msgl__load_f32(&scale, m->target.dtype, 0);
    }
    return 0;
}

static void free_layers(msgl_model *m)
{
    msgl_decoder *decoder = m->layers;
    if (decoder == NULL) return;
    msgl__free(decoder->layers);
    msgl__free(decoder->experts);
    msgl__free(decoder);
    m->layers = NULL;
}

// --- tensors and products ----------------------------------------------------------------------

// Where declarations of one layer go.
typedef struct declaring {
    msgl_model *m;
    msgl_weight_plan *p;
    int32_t layer;
} declaring;

static void declare_linear(const declaring *d, msgl_linear *l, int32_t n, int32_t k, bool bias,
                           const msgl_linear_use *use)
{
    msgl__plan_weight(d->p, &l->w, n, k);
    if (bias) msgl__plan_vector(d->p, &l->bias, n);
    msgl__products_add(&d->m->products, l, use);
}

// Rows of a projection that come from one tensor, with its bias. pairs: of neighbours that begin
// every head of `head` rows and rotate together.
static void declare_heads(const declaring *d, msgl_linear *l, int32_t row, int32_t rows, bool bias,
                          int32_t head, int32_t pairs, const char *name)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    msgl__plan_rows(d->p, &l->w, row, rows, "%slayers.%d.%s.weight", prefix, d->layer, name);
    msgl__plan_pairs(d->p, head, 0, pairs);
    if (!bias) return;
    msgl__plan_elements(d->p, &l->bias, row, rows, 0, "%slayers.%d.%s.bias", prefix, d->layer,
                        name);
    msgl__plan_pairs(d->p, head, 0, pairs);
}

static void declare_part(const declaring *d, msgl_linear *l, int32_t row, int32_t rows, bool bias,
                         const char *name)
{
    declare_heads(d, l, row, rows, bias, 0, 0, name);
}

static void declare_norm(const declaring *d, float **v, int32_t dim, const char *name)
{
    const msgl_decoder_config *c = config_of(d->m);
    msgl__plan_vector(d->p, v, dim);
    msgl__plan_elements(d->p, v, 0, dim, 1, "%slayers.%d.%s.weight", c->names.prefix, d->layer,
                        name);
    if (c->norm_plus_one) msgl__plan_add_one(d->p);
}

static void declare_norm_of_stream(const declaring *d, msgl_norm *n, const char *name)
{
    if (name != NULL) declare_norm(d, &n->weight, n->dim, name);
}

static void declare_qkv(const declaring *d, msgl_attention *a, int32_t q, int32_t kv)
{
    const msgl_decoder_config *c = config_of(d->m);
    const bool bias = c->qkv_bias;
    if (c->names.qkv != NULL) {
        declare_part(d, &a->qkv, 0, q + 2 * kv, bias, c->names.qkv);
        return;
    }
    const int32_t head = a->head_dim, pairs = c->interleaved ? a->half : 0;
    declare_heads(d, &a->qkv, 0, q, bias, head, pairs, "self_attn.q_proj");
    declare_heads(d, &a->qkv, q, kv, bias, head, pairs, "self_attn.k_proj");
    declare_part(d, &a->qkv, q + kv, kv, bias, "self_attn.v_proj");
}

static void declare_attention(const declaring *d, msgl_decoder_layer *layer)
{
    const msgl_model_config *c = &d->m->cfg;
    const msgl_decoder_config *dc = config_of(d->m);
    msgl_attention *a = &layer->attn;
    const int32_t q = c->num_heads * c->head_dim, kv = c->num_kv_heads * c->head_dim;
    const msgl_linear_use qkv_use = {.norm = norm_or_null(&layer->attn_norm),
                                     .rotates = a->norms_all ? NULL : a};
    const msgl_linear_use out_use = {
        .adds = msgl__joins_directly(&layer->attn_join, d->m->target.ranks),
        .next = layer->attn_join.next};
    declare_linear(d, &a->qkv, q + 2 * kv, c->hidden_size, dc->qkv_bias, &qkv_use);
    declare_qkv(d, a, q, kv);
    declare_linear(d, &a->out, c->hidden_size, q, dc->o_bias, &out_use);
    declare_part(d, &a->out, 0, c->hidden_size, dc->o_bias, "self_attn.o_proj");
    if (dc->qk_norm != MSGL_QK_NORM_NONE) {
        declare_norm(d, &a->q_norm, a->norms_all ? q : c->head_dim, "self_attn.q_norm");
        declare_norm(d, &a->k_norm, a->norms_all ? kv : c->head_dim, "self_attn.k_norm");
    }
}

// A feed-forward block whose tensors begin with `name`.
static void declare_mlp(const declaring *d, msgl_mlp *m, int32_t inter, const msgl_norm *norm,
                        const msgl_join *join, const char *name)
{
    const int32_t hidden = d->m->cfg.hidden_size;
    const msgl_decoder_config *c = config_of(d->m);
    const msgl_linear_use up_use = {
        .rows = MSGL_ROWS_BLOCK, .norm = norm, .gated = true, .activation = m->activation};
    const bool adds = join != NULL && msgl__joins_directly(join, d->m->target.ranks);
    const msgl_linear_use down_use = {
        .rows = MSGL_ROWS_BLOCK, .adds = adds, .next = adds ? join->next : NULL};
    char tensor[64];
    declare_linear(d, &m->gate_up, 2 * inter, hidden, c->mlp_bias, &up_use);
    if (c->names.gate_up != NULL) {
        declare_part(d, &m->gate_up, 0, 2 * inter, c->mlp_bias, c->names.gate_up);
    } else {
        snprintf(tensor, sizeof tensor, "%s.gate_proj", name);
        declare_part(d, &m->gate_up, 0, inter, c->mlp_bias, tensor);
        snprintf(tensor, sizeof tensor, "%s.up_proj", name);
        declare_part(d, &m->gate_up, inter, inter, c->mlp_bias, tensor);
    }
    declare_linear(d, &m->down, hidden, inter, c->mlp_bias, &down_use);
    snprintf(tensor, sizeof tensor, "%s.down_proj", name);
    declare_part(d, &m->down, 0, hidden, c->mlp_bias, tensor);
}

static void declare_expert(const declaring *d, msgl_moe *m, int32_t e)
{
    const int32_t inter = config_of(d->m)->moe_intermediate_size, hidden = d->m->cfg.hidden_size;
    const msgl_decoder_names *n = &config_of(d->m)->names;
    // The experts' arrays belong to the model; only reading them is everyone's.
    msgl_weight *gate_up = (msgl_weight *)&m->experts.gate_up[e];
    msgl_weight *down = (msgl_weight *)&m->experts.down[e];
    const char *const fmt = "%slayers.%d.%s.%d.%s.weight";
    msgl__plan_weight(d->p, gate_up, 2 * inter, hidden);
    msgl__plan_rows(d->p, gate_up, 0, inter, fmt, n->prefix, d->layer, n->experts, e, n->gate);
    msgl__plan_rows(d->p, gate_up, inter, inter, fmt, n->prefix, d->layer, n->experts, e, n->up);
    msgl__plan_weight(d->p, down, hidden, inter);
    msgl__plan_rows(d->p, down, 0, hidden, fmt, n->prefix, d->layer, n->experts, e, n->down);
}

static void declare_moe(const declaring *d, msgl_moe *m, const msgl_norm *norm)
{
    const msgl_decoder_config *c = config_of(d->m);
    const int32_t hidden = d->m->cfg.hidden_size;
    msgl__plan_exact_weight(d->p, &m->router.w, c->num_experts, hidden);
    declare_part(d, &m->router, 0, c->num_experts, false, c->names.router);
    for (int32_t e = 0; e < c->num_experts; e++) declare_expert(d, m, e);
    msgl__products_add_experts(&d->m->products, m);
    if (!m->has_shared) return;
    const msgl_linear_use gate_use = {.rows = MSGL_ROWS_BLOCK, .norm = norm, .f32_out = true};
    declare_mlp(d, &m->shared, c->shared_intermediate_size, norm, NULL, c->names.shared);
    msgl__plan_exact_weight(d->p, &m->shared_gate.w, 1, hidden);
    msgl__products_add(&d->m->products, &m->shared_gate, &gate_use);
    declare_part(d, &m->shared_gate, 0, 1, false, c->names.shared_gate);
}

static void declare(msgl_model *m, msgl_weight_plan *p)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder_names *n = &c->decoder.names;
    const msgl_decoder *decoder = m->layers;
    char embed[48], norm[48], head[48];
    snprintf(embed, sizeof embed, "%sembed_tokens.weight", n->prefix);
    snprintf(norm, sizeof norm, "%snorm.weight", n->prefix);
    snprintf(head, sizeof head, "%s.weight", n->head);
    msgl__model_declare_ends(m, p, embed, norm, head, c->decoder.norm_plus_one);
    for (int32_t l = 0; l < c->num_layers && p->status == 0; l++) {
        msgl_decoder_layer *layer = &decoder->layers[l];
        const declaring d = {.m = m, .p = p, .layer = l};
        const msgl_norm *ffn_norm = norm_or_null(&layer->ffn_norm);
        declare_norm_of_stream(&d, &layer->attn_norm, n->attn_norm);
        declare_attention(&d, layer);
        declare_norm_of_stream(&d, &layer->attn_post_norm, n->attn_post_norm);
        declare_norm_of_stream(&d, &layer->ffn_norm, n->ffn_norm);
        if (layer->sparse) {
            declare_moe(&d, &layer->moe, ffn_norm);
        } else {
            declare_mlp(&d, &layer->mlp, c->decoder.intermediate_size, ffn_norm, &layer->ffn_join,
                        "mlp");
        }
        declare_norm_of_stream(&d, &layer->ffn_post_norm, n->ffn_post_norm);
    }
}

// --- forward -----------------------------------------------------------------------------------

// Activations of one step.
typedef struct buffers {
    float *cos_sin[MSGL_MAX_ROPES];  // [tokens, 2 half] each
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

// What a layer takes beside the step's buffers.
static size_t layer_bytes(const msgl_model *m, const msgl_decoder_layer *l, int32_t max_tokens)
{
    const msgl_kernels *k = m->target.kernels;
    const msgl_dtype act = m->target.act;
    const size_t t = (size_t)max_tokens, hidden = (size_t)m->cfg.hidden_size;
    const int ranks = m->target.ranks;
    const bool direct =
        msgl__joins_directly(&l->attn_join, ranks) && msgl__joins_directly(&l->ffn_join, ranks);
    const size_t ffn = l->sparse ? msgl__moe_workspace(&l->moe, k, act, max_tokens)
                                 : msgl__mlp_workspace(&l->mlp, k, act, max_tokens);
    return ffn + (direct ? 0 : msgl__activation_bytes(t, hidden, act)); // msgl__linear_add
}

static size_t workspace(const msgl_model *m, int32_t max_tokens, int32_t max_rows)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder *decoder = m->layers;
    const msgl_dtype act = m->target.act;
    const size_t t = (size_t)max_tokens, r = (size_t)max_rows, h = (size_t)c->hidden_size;
    const size_t q = (size_t)c->num_heads * (size_t)c->head_dim;
    const size_t kv = (size_t)c->num_kv_heads * (size_t)c->head_dim;
    size_t layers = 0, angles = 0;
    for (int32_t l = 0; l < c->num_layers; l++) {
        const size_t need = layer_bytes(m, &decoder->layers[l], max_tokens);
        if (need > layers) layers = need;
    }
    for (int32_t i = 0; i < c->num_ropes; i++) {
        angles += msgl__activation_bytes(t, (size_t)c->ropes[i].dim, MSGL_F32);
    }
    return angles + msgl__activation_bytes(t, h, act) + msgl__activation_bytes(t, q + 2 * kv, act) +
           msgl__activation_bytes(t, q, act) + msgl__activation_bytes(r, q, act) +
           msgl__activation_bytes(r, h, act) + feed_bytes(c, m->target.kernels, act, max_tokens) +
           layers;
}

static bool take_buffers(const msgl_model_config *c, msgl_forward *f, int32_t num_rows, buffers *b)
{
    const size_t t = (size_t)f->num_tokens, h = (size_t)c->hidden_size;
    const size_t q = (size_t)c->num_heads * (size_t)c->head_dim;
    const size_t kv = (size_t)c->num_kv_heads * (size_t)c->head_dim;
    for (int32_t i = 0; i < c->num_ropes; i++) {
        b->cos_sin[i] = msgl__take_rows(f, t, (size_t)c->ropes[i].dim, MSGL_F32);
    }
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

// The layer behind its attention.
static void finish_layer(msgl_forward *f, const msgl_decoder_layer *layer, const void *attn,
                         void *residual, int32_t rows)
{
    const msgl_norm *norm = norm_or_null(&layer->ffn_norm);
    msgl__linear_add(f, &layer->attn.out, attn, residual, &layer->attn_join, rows);
    if (layer->sparse) {
        msgl__moe(f, &layer->moe, norm, &layer->ffn_join, residual, rows);
    } else {
        msgl__mlp(f, &layer->mlp, norm, &layer->ffn_join, residual, rows);
    }
}

static void *forward(const msgl_model *m, msgl_forward *f, const int32_t *rows, int32_t num_rows)
{
    const msgl_model_config *c = &m->cfg;
    const int32_t tokens = f->num_tokens, q = c->num_heads * c->head_dim;
    const msgl_decoder_layer *layers = ((const msgl_decoder *)m->layers)->layers;
    const msgl_decoder_layer *last = &layers[c->num_layers - 1];
    buffers b;
    if (!take_buffers(c, f, num_rows, &b)) return NULL;
    msgl__embed(f, &m->embed, c->decoder.embed_scale, b.residual, b.cos_sin);
    for (const msgl_decoder_layer *layer = layers; layer <= last; layer++) {
        msgl__attention(f, &layer->attn, norm_or_null(&layer->attn_norm), b.residual,
                        b.cos_sin[layer->attn.rope], b.qkv, b.attn);
        if (layer == last) break;
        finish_layer(f, layer, b.attn, b.residual, tokens);
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
    finish_layer(f, last, all ? b.attn : b.rows_attn, residual, num_rows);
    return f->x->status == 0 ? residual : NULL;
}

const msgl_family msgl__decoder_family = {
    .configure = msgl__decoder_configure,
    .caches = caches,
    .variants = variants,
    .build = build,
    .free = free_layers,
    .declare = declare,
    .workspace = workspace,
    .forward = forward,
};
