// SPDX-License-Identifier: Apache-2.0
//
// Gated residual streams of the decoder family (layers/gated_streams.h): how they are built, which
// tensors they have, and the forward pass over them. Behind the last layer a token's streams become
// one vector, which has been normed: there is no final norm.
#include <stdio.h>

#include "layers/embedding.h"
#include "layers/lora.h"
#include "models/declare.h"

static msgl_gated_streams streams_of(const msgl_model_config *c, bool injects)
{
    return (msgl_gated_streams){.num = c->decoder.streams.num,
                                .hidden = c->hidden_size,
                                .rank = c->decoder.streams.rank,
                                .injects = injects,
                                .eps = c->decoder.rms_eps};
}

int msgl__streams_check(const msgl_model *m, msgl_err *err)
{
    if (m->cfg.decoder.streams.num == 0 || m->target.kernels->streams.mix != NULL) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "%s: gated residual streams (hc_count) have kernels for CPUs alone; "
                         "allowed: --device cpu",
                         m->cfg.arch->name);
}

void msgl__streams_build(const msgl_model *m, msgl_decoder *decoder)
{
    if (m->cfg.decoder.streams.num == 0) return;
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        decoder->layers[l].attn_streams = decoder->layers[l].ffn_streams =
            streams_of(&m->cfg, true);
    }
    decoder->last_streams = streams_of(&m->cfg, false);
}

// at: what the names begin with, behind the prefix.
static void declare(msgl_model *m, msgl_weight_plan *p, msgl_gated_streams *s, const char *at)
{
    const char *const prefix = m->cfg.decoder.names.prefix;
    const msgl_linear_use plain = {0};
    const int32_t width = s->num * s->hidden;
    msgl__plan_vector(p, &s->norm, width);
    msgl__plan_elements(p, &s->norm, 0, width, 1, "%s%s.hc_norm.weight", prefix, at);
    if (m->cfg.decoder.norm_plus_one) msgl__plan_add_one(p);
    msgl__plan_weight(p, &s->down.w, (int32_t)msgl__streams_gates(s), width);
    msgl__plan_rows(p, &s->down.w, 0, s->rank, "%s%s.input_mix_weight_down.weight", prefix, at);
    if (s->injects) {
        msgl__plan_rows(p, &s->down.w, s->rank, s->num, "%s%s.block_inject_weight.weight", prefix,
                        at);
    }
    msgl__products_add(&m->products, &s->down, &plain);
    msgl__plan_weight(p, &s->up.w, width, s->rank);
    msgl__plan_rows(p, &s->up.w, 0, width, "%s%s.input_mix_weight_up.weight", prefix, at);
    msgl__products_add(&m->products, &s->up, &plain);
}

void msgl__streams_declare(msgl_model *m, msgl_weight_plan *p)
{
    msgl_decoder *decoder = m->layers;
    if (m->cfg.decoder.streams.num == 0) return;
    for (int32_t l = 0; l < m->cfg.num_layers && p->status == 0; l++) {
        char at[64];
        snprintf(at, sizeof at, "layers.%d.attn_hyper_connection", (int)l);
        declare(m, p, &decoder->layers[l].attn_streams, at);
        snprintf(at, sizeof at, "layers.%d.mlp_hyper_connection", (int)l);
        declare(m, p, &decoder->layers[l].ffn_streams, at);
    }
    declare(m, p, &decoder->last_streams, "hyper_connection_mixer");
}

// Activations of one step.
typedef struct buffers {
    float *cos_sin[MSGL_MAX_ROPES];
    void *streams, *rows_streams; // [tokens or rows that get logits, num * hidden]
    void *mixed, *rows_mixed;     // [tokens or rows, width of the layer's mixer's result]
    void *gates, *rows_gates;     // [tokens or rows, msgl__streams_gates]
    void *read, *block;           // [tokens, hidden] what a block reads, and what it leaves
} buffers;

size_t msgl__streams_bytes(const msgl_model *m, int32_t max_tokens, int32_t max_rows)
{
    const msgl_gated_streams *s = &((const msgl_decoder *)m->layers)->layers[0].attn_streams;
    const msgl_dtype act = m->target.act;
    const size_t t = (size_t)max_tokens, r = (size_t)max_rows, h = (size_t)m->cfg.hidden_size;
    const size_t width = (size_t)s->num * h, gates = msgl__streams_gates(s);
    if (s->num == 0) return 0;
    return msgl__activation_bytes(t, width, act) + msgl__activation_bytes(r, width, act) +
           msgl__activation_bytes(t, gates, act) + msgl__activation_bytes(r, gates, act) +
           msgl__activation_bytes(t, h, act) + msgl__streams_workspace(s, act, max_tokens);
}

static bool take_buffers(const msgl_model *m, msgl_forward *f, int32_t num_rows, buffers *b)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_gated_streams *s = &((const msgl_decoder *)m->layers)->layers[0].attn_streams;
    const size_t t = (size_t)f->num_tokens, r = (size_t)num_rows, h = (size_t)s->hidden;
    const size_t width = (size_t)s->num * h, gates = msgl__streams_gates(s);
    const size_t mixed = msgl__decoder_mixed_width(m);
    for (int32_t i = 0; i < c->num_ropes; i++) {
        b->cos_sin[i] = msgl__take_rows(f, t, (size_t)msgl__rope_width(&c->ropes[i]), MSGL_F32);
    }
    b->streams = msgl__activation(f, t, width);
    b->rows_streams = msgl__activation(f, r, width);
    b->mixed = msgl__activation(f, t, mixed);
    b->rows_mixed = msgl__activation(f, r, mixed);
    b->gates = msgl__activation(f, t, gates);
    b->rows_gates = msgl__activation(f, r, gates);
    b->read = msgl__activation(f, t, h);
    b->block = msgl__activation(f, t, h);
    f->norm_stats = (msgl_norm_stats){0};
    return f->x->status == 0;
}

// The layer up to its mixer's result.
static void mix(msgl_forward *f, const msgl_decoder_layer *layer, const buffers *b)
{
    if (layer->ngrams.num > 0) msgl__ngrams(f, &layer->ngrams, b->streams);
    msgl__streams_read(f, &layer->attn_streams, b->streams, f->num_tokens, b->gates, b->read);
    layer->mixer->run(f, layer, NULL, b->read, b->cos_sin, b->mixed);
}

// The layer behind that, of rows whose gates are overwritten. Products add to what a block leaves,
// which is 0 before them.
static void finish(msgl_forward *f, const msgl_decoder_layer *layer, const buffers *b,
                   const void *mixed, void *gates, void *streams, int32_t rows)
{
    const msgl_gated_streams *s = &layer->ffn_streams;
    f->k->streams.clear(f->x, b->block, rows, s->hidden);
    msgl__linear_add(f, &layer->out, mixed, b->block, &layer->attn_join, rows, NULL);
    msgl__streams_write(f, &layer->attn_streams, gates, b->block, rows, streams);
    msgl__streams_read(f, s, streams, rows, gates, b->read);
    f->k->streams.clear(f->x, b->block, rows, s->hidden);
    msgl__ffn_run(f, layer, b->read, b->block, rows);
    msgl__streams_write(f, s, gates, b->block, rows, streams);
}

void *msgl__streams_forward(const msgl_model *m, msgl_forward *f, const int32_t *rows,
                            int32_t num_rows)
{
    const msgl_decoder *decoder = m->layers;
    const msgl_gated_streams *s = &decoder->last_streams;
    const msgl_decoder_layer *last = &decoder->layers[m->cfg.num_layers - 1];
    const int32_t width = s->num * s->hidden;
    const int32_t gates = (int32_t)msgl__streams_gates(&last->attn_streams);
    buffers b;
    if (!take_buffers(m, f, num_rows, &b)) return NULL;
    msgl__embed(f, &m->embed, m->cfg.decoder.embed_scale, false, b.read, b.cos_sin);
    f->k->streams.spread(f->x, b.read, f->num_tokens, s->num, s->hidden, b.streams);
    for (const msgl_decoder_layer *layer = decoder->layers; layer < last; layer++) {
        mix(f, layer, &b);
        finish(f, layer, &b, b.mixed, b.gates, b.streams, f->num_tokens);
    }
    mix(f, last, &b);
    if (num_rows == 0 || f->x->status != 0) return NULL;
    // Of the last layer only rows that get logits are still of use.
    const bool all = num_rows == f->num_tokens;
    if (!all) {
        const msgl_moe_kernels *k = &f->k->moe;
        k->gather(f->x, b.mixed, rows, num_rows, 1, last->out.w.k, b.rows_mixed);
        k->gather(f->x, b.streams, rows, num_rows, 1, width, b.rows_streams);
        k->gather(f->x, b.gates, rows, num_rows, 1, gates, b.rows_gates);
    }
    if (f->lora != NULL) f->lora->of_logits = !all;
    void *streams = all ? b.streams : b.rows_streams;
    finish(f, last, &b, all ? b.mixed : b.rows_mixed, all ? b.gates : b.rows_gates, streams,
           num_rows);
    msgl__streams_read(f, s, streams, num_rows, b.gates, b.read);
    return f->x->status == 0 ? b.read : NULL;
}
