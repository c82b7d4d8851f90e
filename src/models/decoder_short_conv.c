// SPDX-License-Identifier: Apache-2.0
//
// The mixer that is a short convolution between two gates.
#include "models/declare.h"

static int caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out)
{
    (void)layer, (void)dtype;
    const msgl_conv_config *v = &c->decoder.conv;
    const size_t bytes = msgl__conv_state_bytes(v->channels / ranks, v->taps, act);
    *out = msgl__states_spec(bytes);
    return 1;
}

static void build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer)
{
    (void)index;
    const msgl_conv_config *v = &m->cfg.decoder.conv;
    layer->short_conv = (msgl_short_conv){.channels = v->channels / m->target.ranks,
                                          .taps = v->taps,
                                          .group = at->group,
                                          .layer = at->layer};
}

static void declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_conv_config *v = &d->m->cfg.decoder.conv;
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    msgl_short_conv *l = &layer->short_conv;
    const int32_t all = v->channels, taps = v->taps;
    const msgl_linear_use use = {.norm = msgl__norm_or_null(&layer->attn_norm)};
    const msgl_range own = msgl__shard(d->target, all);
    const msgl_range own_taps = msgl__rows_of(own, taps, 0);
    const msgl_range rows[] = {own, msgl__rows_of(own, 1, all), msgl__rows_of(own, 1, 2 * all)};
    msgl__declare_shared_rows(d, &l->in, rows, 3, d->m->cfg.hidden_size, v->bias, &use);
    msgl__declare_rows(d, &l->in, 0, 3 * all, v->bias, "conv.in_proj");
    msgl__keep_rows(d, &l->weight, &own_taps, 1);
    msgl__plan_vector(d->p, &l->weight, own.count * taps);
    msgl__plan_elements(d->p, &l->weight, 0, all * taps, 0.5f, "%slayers.%d.conv.conv.weight",
                        prefix, d->layer);
    msgl__plan_taps(d->p, taps);
    if (v->bias) {
        msgl__keep_rows(d, &l->bias, &own, 1);
        msgl__plan_vector(d->p, &l->bias, own.count);
        msgl__plan_elements(d->p, &l->bias, 0, all, 0, "%slayers.%d.conv.conv.bias", prefix,
                            d->layer);
    }
    msgl__declare_out(d, layer, own.count, v->bias, "conv.out_proj");
}

static size_t workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    return msgl__short_conv_workspace(&layer->short_conv, act, max_tokens);
}

static void run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out)
{
    (void)cos_sin;
    msgl__short_conv(f, &layer->short_conv, norm, in, out);
}

const msgl_mixer msgl__mixer_short_conv = {
    .caches = caches, .build = build, .declare = declare, .workspace = workspace, .run = run};
