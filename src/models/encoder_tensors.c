// SPDX-License-Identifier: Apache-2.0
//
// The encoder family's tensors: their names, their shapes and where they go, and the products of a
// step.
#include <stdio.h>

#include "models/declare.h"
#include "models/encoder.h"

// Layer -1 is what is around the layers.
typedef msgl_declaring declaring;

enum { NAME = 160 };

static const msgl_encoder_config *config(const declaring *d)
{
    return &d->m->cfg.encoder;
}

// "encoder.layer.3.output.dense" of "output.dense".
static const char *full_name(const declaring *d, const char *name, char out[NAME])
{
    if (d->layer < 0) return name;
    (void)snprintf(out, NAME, "%s.%d.%s", config(d)->names.layer, (int)d->layer, name);
    return out;
}

// `rows` rows of a table, which every rank has whole; those before `first` are left out.
static void declare_table(const declaring *d, msgl_weight *w, int32_t rows, int32_t first,
                          const char *name)
{
    msgl__plan_weight(d->p, w, rows - first, d->m->cfg.hidden_size);
    msgl__plan_rows(d->p, w, 0, rows - first, "%s.weight", name);
    if (first > 0) msgl__plan_slice(d->p, rows, first, false);
}

static void declare_norm(const declaring *d, msgl_norm *n, const char *name)
{
    char full[NAME];
    if (n->dim == 0) return;
    const char *at = full_name(d, name, full);
    msgl__plan_vector(d->p, &n->weight, n->dim);
    msgl__plan_elements(d->p, &n->weight, 0, n->dim, 1, "%s.weight", at);
    if (config(d)->norm_plus_one) msgl__plan_add_one(d->p);
    if (!config(d)->norm_bias) return;
    msgl__plan_vector(d->p, &n->bias, n->dim);
    msgl__plan_elements(d->p, &n->bias, 0, n->dim, 0, "%s.bias", at);
}

// Rows of a product that come from one tensor, with its bias.
static void declare_rows(const declaring *d, msgl_linear *l, int32_t row, int32_t rows, bool bias,
                         const char *name)
{
    char full[NAME];
    const char *at = full_name(d, name, full);
    msgl__plan_rows(d->p, &l->w, row, rows, "%s.weight", at);
    if (bias) msgl__plan_elements(d->p, &l->bias, row, rows, 0, "%s.bias", at);
}

// Of each head of q or K, or none.
static void declare_head_norm(const declaring *d, float **v, const char *name)
{
    char full[NAME];
    const int32_t dim = d->m->cfg.head_dim;
    if (name == NULL) return;
    msgl__plan_vector(d->p, v, dim);
    msgl__plan_elements(d->p, v, 0, dim, 1, "%s.weight", full_name(d, name, full));
    if (config(d)->norm_plus_one) msgl__plan_add_one(d->p);
}

static void declare_attention(const declaring *d, msgl_encoder_layer *layer)
{
    const msgl_encoder_names *names = &config(d)->names;
    const msgl_model_config *c = &d->m->cfg;
    const int32_t hidden = c->hidden_size, head = c->head_dim;
    const int32_t q = c->num_heads * head, kv = c->num_kv_heads * head;
    const msgl_range heads = msgl__shard(d->target, c->num_heads);
    const msgl_range kv_heads = msgl__shard(d->target, c->num_kv_heads);
    const msgl_range rows[] = {msgl__rows_of(heads, head, 0), msgl__rows_of(kv_heads, head, q),
                               msgl__rows_of(kv_heads, head, q + kv)};
    const bool bias = config(d)->attn_bias;
    msgl_linear *qkv = &layer->attn.qkv;
    const msgl_linear_use rotates = {.rotates = &layer->attn};
    msgl__declare_shared_rows(d, qkv, rows, 3, hidden, bias, &rotates);
    if (names->qkv != NULL) {
        declare_rows(d, qkv, 0, q + 2 * kv, bias, names->qkv);
    } else {
        declare_rows(d, qkv, 0, q, bias, names->q);
        declare_rows(d, qkv, q, kv, bias, names->k);
        declare_rows(d, qkv, q + kv, kv, bias, names->v);
    }
    declare_head_norm(d, &layer->attn.q_norm, names->q_norm);
    declare_head_norm(d, &layer->attn.k_norm, names->k_norm);
    msgl__keep_columns(d, &layer->attn_out.w, rows[0], q);
    msgl__declare_joined(d, &layer->attn_out, rows[0].count, bias, &layer->attn_join,
                         MSGL_ROWS_STEP);
    declare_rows(d, &layer->attn_out, 0, hidden, bias, names->attn_out);
    declare_norm(d, &layer->attn_norm, names->attn_norm);
    declare_norm(d, &layer->attn_post_norm, names->attn_post_norm);
}

static void declare_ffn(const declaring *d, msgl_encoder_layer *layer)
{
    const msgl_encoder_config *c = config(d);
    const int32_t hidden = d->m->cfg.hidden_size, inner = c->intermediate_size;
    const int32_t parts = c->gated ? 2 : 1;
    const msgl_range shard = msgl__shard(d->target, inner);
    const msgl_range rows[] = {shard, msgl__rows_of(shard, 1, inner)};
    const bool bias = c->ffn_bias;
    const msgl_linear_use up = {
        .rows = MSGL_ROWS_BLOCK, .gated = c->gated, .activation = c->activation};
    msgl__declare_shared_rows(d, &layer->mlp.gate_up, rows, parts, hidden, bias, &up);
    if (c->names.gate != NULL) {
        declare_rows(d, &layer->mlp.gate_up, 0, inner, bias, c->names.gate);
        declare_rows(d, &layer->mlp.gate_up, inner, inner, bias, c->names.up);
    } else {
        declare_rows(d, &layer->mlp.gate_up, 0, parts * inner, bias, c->names.up);
    }
    msgl__keep_columns(d, &layer->mlp.down.w, shard, inner);
    msgl__declare_joined(d, &layer->mlp.down, shard.count, bias, &layer->ffn_join, MSGL_ROWS_BLOCK);
    declare_rows(d, &layer->mlp.down, 0, hidden, bias, c->names.down);
    declare_norm(d, &layer->ffn_norm, c->names.ffn_norm);
    declare_norm(d, &layer->ffn_post_norm, c->names.ffn_post_norm);
}

static void declare_head(const declaring *d, msgl_encoder *e)
{
    const msgl_encoder_config *c = config(d);
    const int32_t hidden = d->m->cfg.hidden_size, labels = d->m->cfg.num_labels;
    const msgl_linear_use use = {.rows = MSGL_ROWS_STEP}; // a text has a token or more
    if (labels == 0) return;
    msgl__declare_linear(d, &e->head_dense, hidden, hidden, c->head_bias, &use);
    declare_rows(d, &e->head_dense, 0, hidden, c->head_bias, c->names.head_dense);
    declare_norm(d, &e->head_norm, c->names.head_norm);
    msgl__declare_linear(d, &e->head_out, labels, hidden, true, &use);
    declare_rows(d, &e->head_out, 0, labels, true, c->names.head_out);
}

void msgl__encoder_declare(msgl_model *m, msgl_weight_plan *p)
{
    const msgl_encoder_config *c = &m->cfg.encoder;
    msgl_encoder *e = m->layers;
    declaring d = {.m = m, .target = &m->target, .p = p, .layer = -1, .within = ""};
    char words[NAME];
    (void)snprintf(words, sizeof words, "%s.weight", c->names.words);
    msgl__model_declare_embed(m, p, words);
    if (c->num_positions > 0) {
        declare_table(&d, &e->positions, c->num_positions, c->first_position, c->names.positions);
    }
    if (c->num_types > 0) declare_table(&d, &e->types, c->num_types, 0, c->names.types);
    declare_norm(&d, &e->embed_norm, c->names.embed_norm);
    for (d.layer = 0; d.layer < m->cfg.num_layers; d.layer++) {
        declare_attention(&d, &e->layers[d.layer]);
        declare_ffn(&d, &e->layers[d.layer]);
    }
    d.layer = -1;
    declare_norm(&d, &e->final_norm, c->names.final_norm);
    declare_head(&d, e);
}
