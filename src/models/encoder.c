// SPDX-License-Identifier: Apache-2.0
//
// Layers of the encoder family: how they are built, and the forward pass.
#include "models/encoder.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "kernel/device.h"
#include "layers/embedding.h"
#include "layers/lora.h"
#include "models/declare.h"

// What BERT has.
static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    e->attn_bias = e->ffn_bias = e->norm_bias = e->head_bias = true;
    e->pointwise = MSGL_POINTWISE_GELU;
    e->pool = MSGL_POOL_MEAN;
    e->embed_scale = 1;
    e->attn_scale = 1.0f / sqrtf((float)c->head_dim);
    e->intermediate_size = msgl__json_int(r, "intermediate_size", 1, MSGL_MAX_INTERMEDIATE);
    const bool fixed_heads = c->arch->default_head_dim == 0;
    if (r->status == 0 && fixed_heads && c->num_heads * c->head_dim != c->hidden_size) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "num_attention_heads",
                          msgl__json_get(r, "num_attention_heads"),
                          "a divisor of hidden_size, whose heads are all of it");
    }
    if (r->status == 0 && c->head_dim % 8 != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "num_attention_heads",
                          msgl__json_get(r, "num_attention_heads"),
                          "heads of a multiple of 8 dimensions");
    }
}

void msgl__encoder_read_gate(msgl_json_reader *r, const char *key, const char *usual,
                             msgl_encoder_config *e)
{
    static const char *const names[] = {
        [MSGL_SILU] = "silu", [MSGL_GELU_TANH] = "gelu_pytorch_tanh", [MSGL_GELU_ERF] = "gelu"};
    const char *name = msgl__json_str_or(r, key, usual);
    e->gated = true;
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        if (names[i] == NULL || strcmp(name, names[i]) != 0) continue;
        e->activation = (msgl_activation)i;
        return;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                      "silu, gelu_pytorch_tanh, gelu");
}

bool msgl__encoder_read_layer_types(msgl_json_reader *r, msgl_model_config *c)
{
    const json_t *types = msgl__json_get(r, "layer_types");
    if (types == NULL) return false;
    if (json_array_size(types) != (size_t)c->num_layers) {
        msgl__json_reject(r, MSGL_EFORMAT, "layer_types", types,
                          "a list with a kind for each layer");
        return true;
    }
    for (int32_t l = 0; l < c->num_layers; l++) {
        const char *kind = json_string_value(json_array_get(types, (size_t)l));
        c->encoder.sliding[l] = kind != NULL && strcmp(kind, "sliding_attention") == 0;
        if (c->encoder.sliding[l] || (kind != NULL && strcmp(kind, "full_attention") == 0))
            continue;
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "layer_types", types,
                          "full_attention, sliding_attention");
    }
    return true;
}

void msgl__encoder_read_labels(msgl_json_reader *r, msgl_model_config *c)
{
    msgl__config_read_labels(r, c);
    c->encoder.pool = MSGL_POOL_FIRST;
}

// K and V of one layer, which the next one writes over. A window needs none of its own: requests
// keep all their tokens for the one step that they are in.
static void caches(const msgl_model_config *c, int32_t ranks, msgl_dtype dtype, msgl_dtype act,
                   msgl_cache_specs *out)
{
    (void)act;
    *out = (msgl_cache_specs){.count = 1};
    out->all[0] = (msgl_cache_spec){.kind = MSGL_CACHE_KV,
                                    .num_layers = 1,
                                    .window = -1,
                                    .num_heads = msgl__shard_size(c->num_kv_heads, ranks),
                                    .k_dim = c->head_dim,
                                    .v_dim = c->head_dim,
                                    .dtype = dtype};
}

static int check_ranks(const msgl_model_config *c, int32_t ranks, int32_t *expert_ranks,
                       msgl_err *err)
{
    const msgl_shared_dim shared[] = {
        {"num_attention_heads", c->num_heads, false},
        {"num_key_value_heads", c->num_kv_heads, true},
        {"intermediate_size", c->encoder.intermediate_size, false},
    };
    *expert_ranks = 1;
    return msgl__check_shared(shared, MSGL_COUNT(shared), ranks, err);
}

// Keys that a token of this layer sees to each side; -1: all.
static int32_t window_of(const msgl_encoder_config *e, int32_t layer)
{
    return e->sliding[layer] ? e->window : -1;
}

static msgl_attn_variants variants(const msgl_model_config *c, int32_t group)
{
    msgl_attn_variants v = {0};
    (void)group;
    for (int32_t l = 0; l < c->num_layers; l++) {
        const msgl_attn_variant one = {.window = window_of(&c->encoder, l), .bidirectional = true};
        (void)msgl__attn_variants_add(&v, one);
    }
    return v;
}

// --- building ----------------------------------------------------------------------------------

static msgl_norm norm_named(const msgl_model *m, const char *name)
{
    return (msgl_norm){.eps = m->cfg.encoder.norm_eps,
                       .dim = name != NULL ? m->cfg.hidden_size : 0,
                       .centred = !m->cfg.encoder.rms};
}

// A block's result, behind its own norm if there is one, is added to the stream.
static msgl_join join_behind(const msgl_norm *norm)
{
    return (msgl_join){.norm = norm->dim > 0 ? norm : NULL, .scale = 1};
}

static void build_layer(const msgl_model *m, int32_t index, msgl_encoder_layer *layer)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_encoder_config *e = &c->encoder;
    const int32_t window = window_of(e, index);
    const int32_t rope = window >= 0 && c->num_ropes > 1 ? 1 : 0;
    layer->attn = (msgl_attention){
        .num_heads = msgl__shard_size(c->num_heads, m->target.ranks),
        .num_kv_heads = msgl__shard_size(c->num_kv_heads, m->target.ranks),
        .head_dim = c->head_dim,
        .v_dim = c->head_dim,
        .value_scale = 1,
        .rope = rope,
        .half = c->ropes[rope].type == MSGL_ROPE_NONE ? 0 : c->ropes[rope].dim / 2,
        .eps = e->norm_eps,
        .geometry = {.scale = e->attn_scale,
                     .window = window,
                     .bidirectional = true,
                     .k_scale = 1,
                     .v_scale = 1},
    };
    const bool no_norm = e->first_norm_missing && index == 0;
    layer->attn_norm = norm_named(m, no_norm ? NULL : e->names.attn_norm);
    layer->ffn_norm = norm_named(m, e->names.ffn_norm);
    layer->attn_post_norm = norm_named(m, e->names.attn_post_norm);
    layer->ffn_post_norm = norm_named(m, e->names.ffn_post_norm);
    layer->attn_join = join_behind(&layer->attn_post_norm);
    layer->ffn_join = join_behind(&layer->ffn_post_norm);
    layer->mlp =
        (msgl_mlp){.activation = e->activation, .plain = !e->gated, .pointwise = e->pointwise};
    layer->attn_out.row_parallel = layer->mlp.down.row_parallel = true;
}

static int build(msgl_model *m, msgl_err *err)
{
    const msgl_encoder_names *names = &m->cfg.encoder.names;
    msgl_encoder *e = m->layers = msgl__calloc(1, sizeof *e);
    if (e != NULL) e->layers = msgl__calloc((size_t)m->cfg.num_layers, sizeof *e->layers);
    if (e == NULL || e->layers == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "model: out of memory");
    }
    e->embed_norm = norm_named(m, names->embed_norm);
    e->final_norm = norm_named(m, names->final_norm);
    e->head_norm = norm_named(m, names->head_norm);
    for (int32_t l = 0; l < m->cfg.num_layers; l++) build_layer(m, l, &e->layers[l]);
    float scale;
    msgl__store_f32(&scale, m->target.weights.dtype, 0, m->cfg.encoder.embed_scale);
    m->cfg.encoder.embed_scale = msgl__load_f32(&scale, m->target.weights.dtype, 0);
    return 0;
}

static void free_layers(msgl_model *m)
{
    msgl_encoder *e = m->layers;
    if (e == NULL) return;
    msgl__free(e->layers);
    msgl__free(e);
    m->layers = NULL;
}

// --- forward -----------------------------------------------------------------------------------

// Activations of one step.
typedef struct buffers {
    float *cos_sin[MSGL_MAX_ROPES]; // [tokens, 2 half] each
    void *stream;                   // [tokens, hidden]
    void *mixed;  // [tokens, num_heads * head_dim] what attention makes; [tokens, hidden] rows of
                  // tables
    void *normed; // [tokens, hidden] with pre_norm
} buffers;

// Columns of what attention makes, and of the stream.
static size_t mixed_width(const msgl_model_config *c)
{
    const int32_t heads = c->num_heads * c->head_dim;
    return (size_t)(heads > c->hidden_size ? heads : c->hidden_size);
}

static size_t workspace(const msgl_model *m, int32_t max_tokens, int32_t max_rows)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_dtype act = m->target.act;
    const msgl_encoder *e = m->layers;
    const size_t t = (size_t)max_tokens, r = (size_t)max_rows, h = (size_t)c->hidden_size;
    const size_t mixer = msgl__attention_workspace(&e->layers[0].attn, act, max_tokens);
    const size_t ffn = msgl__mlp_workspace(&e->layers[0].mlp, m->target.kernels, act, max_tokens);
    size_t angles = 0;
    for (int32_t i = 0; i < c->num_ropes; i++) {
        angles += msgl__activation_bytes(t, (size_t)msgl__rope_width(&c->ropes[i]), MSGL_F32);
    }
    // The stream, its norm, and a block's result before it is added; and what attention makes.
    return angles + 3 * msgl__activation_bytes(t, h, act) +
           msgl__activation_bytes(t, mixed_width(c), act) + (mixer > ffn ? mixer : ffn) +
           2 * msgl__activation_bytes(r, h, act) +
           msgl__activation_bytes(r, (size_t)c->num_labels, act);
}

static bool take_buffers(const msgl_model *m, msgl_forward *f, buffers *b)
{
    const msgl_model_config *c = &m->cfg;
    const size_t t = (size_t)f->num_tokens, h = (size_t)c->hidden_size;
    for (int32_t i = 0; i < c->num_ropes; i++) {
        b->cos_sin[i] = msgl__take_rows(f, t, (size_t)msgl__rope_width(&c->ropes[i]), MSGL_F32);
    }
    b->stream = msgl__activation(f, t, h);
    b->mixed = msgl__activation(f, t, mixed_width(c));
    b->normed = c->encoder.pre_norm ? msgl__activation(f, t, h) : NULL;
    f->norm_stats = (msgl_norm_stats){0};
    return f->x->status == 0;
}

// Adds to each token its row of a table.
static void add_rows(msgl_forward *f, const msgl_weight *table, const int32_t *rows,
                     const buffers *b)
{
    table->format->gather(f->x, table, rows, f->num_tokens, b->mixed);
    f->k->norm.add(f->x, b->stream, b->mixed, NULL, 0, 1, f->num_tokens, table->k);
}

static void embed(const msgl_model *m, msgl_forward *f, const buffers *b)
{
    const msgl_encoder_config *c = &m->cfg.encoder;
    const msgl_encoder *e = m->layers;
    msgl__embed(f, &m->embed, c->embed_scale, false, b->stream, b->cos_sin);
    if (c->num_positions > 0) add_rows(f, &e->positions, f->positions, b);
    if (c->num_types > 0) add_rows(f, &e->types, f->token_types, b);
    if (e->embed_norm.dim > 0) msgl__norm(f, &e->embed_norm, b->stream, b->stream, f->num_tokens);
}

// What a block reads: the stream, or with pre_norm that behind the block's norm.
static const void *input_of(const msgl_model *m, msgl_forward *f, const msgl_norm *norm,
                            const buffers *b)
{
    if (!m->cfg.encoder.pre_norm || norm->dim == 0) return b->stream;
    msgl__norm(f, norm, b->stream, b->normed, f->num_tokens);
    return b->normed;
}

static void run_layer(const msgl_model *m, msgl_forward *f, const msgl_encoder_layer *l,
                      const buffers *b)
{
    const bool post = !m->cfg.encoder.pre_norm;
    const int32_t rows = f->num_tokens;
    msgl__attention(f, &l->attn, NULL, input_of(m, f, &l->attn_norm, b), b->cos_sin[l->attn.rope],
                    b->mixed);
    msgl__linear_add(f, &l->attn_out, b->mixed, b->stream, &l->attn_join, rows, NULL);
    if (post) msgl__norm(f, &l->attn_norm, b->stream, b->stream, rows);
    msgl__mlp(f, &l->mlp, NULL, &l->ffn_join, input_of(m, f, &l->ffn_norm, b), b->stream, rows);
    if (post) msgl__norm(f, &l->ffn_norm, b->stream, b->stream, rows);
}

// The texts' rows of the stream, as the mode says: [num_rows, hidden]. rows: their last tokens.
static void *pool(const msgl_model *m, msgl_forward *f, const void *stream, const int32_t *rows,
                  int32_t num_rows)
{
    const int32_t hidden = m->cfg.hidden_size;
    void *out = msgl__activation(f, (size_t)num_rows, (size_t)hidden);
    if (out == NULL) return NULL;
    switch (m->cfg.encoder.pool) {
    case MSGL_POOL_LAST: f->k->moe.gather(f->x, stream, rows, num_rows, 1, hidden, out); break;
    case MSGL_POOL_FIRST:
        f->k->moe.gather(f->x, stream, f->pool_from, num_rows, 1, hidden, out);
        break;
    case MSGL_POOL_MEAN:
        f->k->act.mean_rows(f->x, stream, f->pool_from, rows, num_rows, hidden, out);
        break;
    }
    return out;
}

// A logit for each label: [rows, labels].
static void *classify(const msgl_model *m, msgl_forward *f, const void *pooled, int32_t rows)
{
    const msgl_encoder *e = m->layers;
    const size_t hidden = (size_t)m->cfg.hidden_size, labels = (size_t)m->cfg.num_labels;
    void *inner = msgl__activation(f, (size_t)rows, hidden);
    void *out = msgl__activation(f, (size_t)rows, labels);
    if (inner == NULL || out == NULL) return NULL;
    msgl__linear(f, &e->head_dense, NULL, pooled, inner, rows);
    const msgl_pointwise act = m->cfg.encoder.head_gelu ? MSGL_POINTWISE_GELU : MSGL_POINTWISE_TANH;
    f->k->act.apply(f->x, act, NULL, inner, (size_t)rows * hidden);
    if (e->head_norm.dim > 0) msgl__norm(f, &e->head_norm, inner, inner, rows);
    msgl__linear(f, &e->head_out, NULL, inner, out, rows);
    return out;
}

static void *forward(const msgl_model *m, msgl_forward *f, const int32_t *rows, int32_t num_rows)
{
    const msgl_encoder *e = m->layers;
    buffers b;
    if (!take_buffers(m, f, &b)) return NULL;
    embed(m, f, &b);
    for (int32_t l = 0; l < m->cfg.num_layers; l++) run_layer(m, f, &e->layers[l], &b);
    if (num_rows == 0) return NULL;
    if (e->final_norm.dim > 0) msgl__norm(f, &e->final_norm, b.stream, b.stream, f->num_tokens);
    f->stream = b.stream;
    if (f->lora != NULL) f->lora->of_logits = true; // the head's rows are texts
    void *out = pool(m, f, b.stream, rows, num_rows);
    if (out != NULL && m->cfg.num_labels > 0) out = classify(m, f, out, num_rows);
    return f->x->status == 0 ? out : NULL;
}

const msgl_family msgl__encoder_family = {
    .configure = configure,
    .caches = caches,
    .check_ranks = check_ranks,
    .variants = variants,
    .build = build,
    .free = free_layers,
    .declare = msgl__encoder_declare,
    .workspace = workspace,
    .forward = forward,
    .encodes = true,
};
