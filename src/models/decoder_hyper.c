// SPDX-License-Identifier: Apache-2.0
//
// Hyper-connections of the decoder family: how they are built and which tensors they have, and what
// a step keeps of its streams. Names are those of DeepSeek-V4's files.
#include <stdio.h>

#include "models/declare.h"

msgl_hyper_connection msgl__hyper_build(const msgl_model_config *c)
{
    const msgl_hyper_config *h = &c->decoder.hyper;
    return (msgl_hyper_connection){.streams = h->streams,
                                   .dim = c->hidden_size,
                                   .iterations = h->iterations,
                                   .eps = h->eps,
                                   .norm_eps = c->decoder.rms_eps};
}

// The tensors `name`_fn [rows, streams * dim], _base [rows] and _scale [scales].
static void declare_at(msgl_weight_plan *p, msgl_hyper_connection *h, int32_t rows, int32_t scales,
                       const char *name)
{
    const int32_t width = h->streams * h->dim;
    msgl__plan_vector(p, &h->fn, rows * width);
    msgl__plan_elements(p, &h->fn, 0, rows * width, 0, "%s_fn", name);
    msgl__plan_expert(p, rows, 0, false);
    msgl__plan_vector(p, &h->base, rows);
    msgl__plan_elements(p, &h->base, 0, rows, 0, "%s_base", name);
    msgl__plan_vector(p, &h->scale, scales);
    msgl__plan_elements(p, &h->scale, 0, scales, 1, "%s_scale", name);
}

void msgl__hyper_declare(const msgl_declaring *d, msgl_hyper_connection *h, const char *block)
{
    char name[64];
    if (h->streams == 0) return;
    snprintf(name, sizeof name, "%slayers.%d.hc_%s", d->m->cfg.decoder.names.prefix, d->layer,
             block);
    declare_at(d->p, h, h->streams + msgl__hyper_mix(h->streams), 3, name);
}

void msgl__hyper_declare_head(msgl_model *m, msgl_weight_plan *p)
{
    msgl_hyper_connection *h = &((msgl_decoder *)m->layers)->hyper_head;
    char name[64];
    if (h->streams == 0) return;
    snprintf(name, sizeof name, "%shc_head", m->cfg.decoder.names.prefix);
    declare_at(p, h, h->streams, 1, name);
}

static size_t mix_width(const msgl_decoder_config *d)
{
    return (size_t)msgl__hyper_mix(d->hyper.streams);
}

size_t msgl__hyper_workspace(const msgl_model_config *c, msgl_dtype act, size_t tokens, size_t rows)
{
    const size_t h = (size_t)c->hidden_size, all = h * (size_t)c->decoder.hyper.streams;
    if (all == 0) return 0;
    return msgl__activation_bytes(tokens, all, act) + msgl__activation_bytes(rows, all, act) +
           2 * msgl__activation_bytes(tokens, h, act) +
           msgl__activation_bytes(tokens, mix_width(&c->decoder), MSGL_F32) +
           msgl__activation_bytes(rows, mix_width(&c->decoder), MSGL_F32);
}

msgl_step_streams msgl__hyper_take(const msgl_model_config *c, msgl_forward *f, int32_t num_rows)
{
    const size_t t = (size_t)f->num_tokens, r = (size_t)num_rows, h = (size_t)c->hidden_size;
    const size_t all = h * (size_t)c->decoder.hyper.streams, mix = mix_width(&c->decoder);
    if (all == 0) return (msgl_step_streams){0};
    return (msgl_step_streams){.all = msgl__activation(f, t, all),
                               .rows_all = msgl__activation(f, r, all),
                               .read = msgl__activation(f, t, h),
                               .result = msgl__activation(f, t, h),
                               .mix = msgl__take_rows(f, t, mix, MSGL_F32),
                               .rows_mix = msgl__take_rows(f, r, mix, MSGL_F32)};
}
