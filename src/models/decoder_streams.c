// SPDX-License-Identifier: Apache-2.0
//
// Several residual streams of the decoder family (layers/stream_block.h): how they are built, which
// tensors they have, and what a step has of them. Gated ones leave one vector behind the last layer
// which has been normed: there is no final norm.
#include <stdio.h>

#include "models/declare.h"

static msgl_gated_streams streams_of(const msgl_model_config *c, bool injects)
{
    return (msgl_gated_streams){.num = c->decoder.streams.num,
                                .hidden = c->hidden_size,
                                .rank = c->decoder.streams.rank,
                                .injects = injects,
                                .eps = c->decoder.rms_eps};
}

static msgl_stream_block block_of(const msgl_model_config *c, bool injects)
{
    return (msgl_stream_block){.gated = streams_of(c, injects), .hyper = msgl__hyper_build(c)};
}

void msgl__streams_build(const msgl_model *m, msgl_decoder *decoder)
{
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        decoder->layers[l].attn_streams = decoder->layers[l].ffn_streams = block_of(&m->cfg, true);
    }
    decoder->last_streams = block_of(&m->cfg, false);
}

// at: what the names begin with, behind the prefix.
static void declare_gated(msgl_model *m, msgl_weight_plan *p, msgl_gated_streams *s, const char *at)
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
    if (msgl__stream_count(&decoder->last_streams) == 0) return;
    const bool gated = decoder->last_streams.gated.num > 0;
    for (int32_t l = 0; l < m->cfg.num_layers && p->status == 0; l++) {
        msgl_decoder_layer *layer = &decoder->layers[l];
        char at[64];
        if (!gated) {
            msgl__hyper_declare(m, p, &layer->attn_streams.hyper, l, "attn");
            msgl__hyper_declare(m, p, &layer->ffn_streams.hyper, l, "ffn");
            continue;
        }
        snprintf(at, sizeof at, "layers.%d.attn_hyper_connection", (int)l);
        declare_gated(m, p, &layer->attn_streams.gated, at);
        snprintf(at, sizeof at, "layers.%d.mlp_hyper_connection", (int)l);
        declare_gated(m, p, &layer->ffn_streams.gated, at);
    }
    if (gated) {
        declare_gated(m, p, &decoder->last_streams.gated, "hyper_connection_mixer");
    } else {
        msgl__hyper_declare(m, p, &decoder->last_streams.hyper, 0, NULL);
    }
}

size_t msgl__streams_bytes(const msgl_model *m, int32_t max_tokens, int32_t max_rows)
{
    const msgl_stream_block *b = &((const msgl_decoder *)m->layers)->layers[0].attn_streams;
    const msgl_dtype act = m->target.act, of_mix = msgl__stream_mix_dtype(b, act);
    const size_t t = (size_t)max_tokens, r = (size_t)max_rows, h = (size_t)m->cfg.hidden_size;
    const size_t all = (size_t)msgl__stream_count(b) * h, mix = (size_t)msgl__stream_mix(b);
    if (all == 0) return 0;
    return msgl__activation_bytes(t, all, act) + msgl__activation_bytes(r, all, act) +
           2 * msgl__activation_bytes(t, h, act) + msgl__activation_bytes(t, mix, of_mix) +
           msgl__activation_bytes(r, mix, of_mix) + msgl__stream_workspace(b, act, max_tokens);
}

msgl_step_streams msgl__streams_take(const msgl_model *m, msgl_forward *f, int32_t num_rows)
{
    const msgl_stream_block *b = &((const msgl_decoder *)m->layers)->layers[0].attn_streams;
    const msgl_dtype of_mix = msgl__stream_mix_dtype(b, f->x->act);
    const size_t t = (size_t)f->num_tokens, r = (size_t)num_rows, h = (size_t)m->cfg.hidden_size;
    const size_t all = (size_t)msgl__stream_count(b) * h, mix = (size_t)msgl__stream_mix(b);
    if (all == 0) return (msgl_step_streams){0};
    return (msgl_step_streams){.all = msgl__activation(f, t, all),
                               .rows_all = msgl__activation(f, r, all),
                               .read = msgl__activation(f, t, h),
                               .result = msgl__activation(f, t, h),
                               .mix = msgl__take_rows(f, t, mix, of_mix),
                               .rows_mix = msgl__take_rows(f, r, mix, of_mix)};
}
