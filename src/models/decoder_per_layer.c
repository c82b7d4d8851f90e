// SPDX-License-Identifier: Apache-2.0
//
// Per-layer embeddings of the decoder family (layers/per_layer_input.h): how they are built and
// which tensors they have.
#include <math.h>
#include <stdio.h>

#include "models/declare.h"

// What the weights' dtype makes of a number.
static float rounded(const msgl_model *m, float value)
{
    float cell;
    msgl__store_f32(&cell, m->target.weights.dtype, 0, value);
    return msgl__load_f32(&cell, m->target.weights.dtype, 0);
}

void msgl__per_layer_build(const msgl_model *m, msgl_decoder *decoder)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    const int32_t dim = d->per_layer_dim, layers = m->cfg.num_layers;
    if (dim == 0) return;
    // The norm is of the product times hidden^-0.5, which changes what its epsilon means alone.
    decoder->per_layer = (msgl_per_layer_table){
        .norm = {.eps = d->rms_eps * (float)m->cfg.hidden_size, .dim = dim},
        .layers = layers,
        .dim = dim,
        .scale = rounded(m, sqrtf((float)dim)),
    };
    for (int32_t l = 0; l < layers; l++) {
        msgl_per_layer_input *p = &decoder->layers[l].per_layer;
        p->norm = (msgl_norm){.eps = d->rms_eps, .dim = m->cfg.hidden_size};
        p->join = (msgl_join){.norm = &p->norm, .scale = 1};
        p->activation = d->activation;
        p->at = l * dim;
    }
}

void msgl__per_layer_declare(msgl_model *m, msgl_weight_plan *p)
{
    const msgl_decoder_config *c = &m->cfg.decoder;
    const msgl_decoder_names *n = &c->names;
    msgl_per_layer_table *t = &((msgl_decoder *)m->layers)->per_layer;
    const int32_t width = t->layers * t->dim, hidden = m->cfg.hidden_size;
    const msgl_linear_use plain = {0};
    if (t->dim == 0) return;
    const msgl_range vocab = msgl__model_vocab_rows(m, c->per_layer_vocab);
    const msgl_kept kept = {.rows = {vocab}, .num_rows = 1};
    if (m->target.ranks > 1) msgl__plan_keep(p, &t->embed, &kept);
    msgl__plan_weight(p, &t->embed, vocab.count, width);
    t->embed.first = vocab.from;
    msgl__plan_rows(p, &t->embed, 0, c->per_layer_vocab, "%s%s.weight", n->prefix, n->layer_embed);
    msgl__plan_weight(p, &t->projection.w, width, hidden);
    msgl__plan_rows(p, &t->projection.w, 0, width, "%s%s.weight", n->prefix, n->layer_projection);
    msgl__products_add(&m->products, &t->projection, &plain);
    msgl__plan_vector(p, &t->norm.weight, t->dim);
    msgl__plan_elements(p, &t->norm.weight, 0, t->dim, 1, "%s%s.weight", n->prefix,
                        n->layer_projection_norm);
}

void msgl__per_layer_declare_block(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    msgl_per_layer_input *p = &layer->per_layer;
    const int32_t dim = c->per_layer_dim, hidden = d->m->cfg.hidden_size;
    const msgl_linear_use plain = {0};
    if (dim == 0) return;
    msgl__declare_linear(d, &p->gate, dim, hidden, false, &plain);
    msgl__declare_rows(d, &p->gate, 0, dim, false, c->names.layer_gate);
    msgl__declare_linear(d, &p->projection, hidden, dim, false, &plain);
    msgl__declare_rows(d, &p->projection, 0, hidden, false, c->names.layer_out);
    msgl__declare_norm_of_stream(d, &p->norm, c->names.layer_out_norm);
}
