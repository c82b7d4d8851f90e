// SPDX-License-Identifier: Apache-2.0
//
// Hyper-connections of the decoder family: how they are built and which tensors they have. Names
// are those of DeepSeek-V4's files.
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

void msgl__hyper_declare(msgl_model *m, msgl_weight_plan *p, msgl_hyper_connection *h,
                         int32_t layer, const char *block)
{
    const char *const prefix = m->cfg.decoder.names.prefix;
    char name[64];
    if (block == NULL) {
        snprintf(name, sizeof name, "%shc_head", prefix);
        declare_at(p, h, h->streams, 1, name);
        return;
    }
    snprintf(name, sizeof name, "%slayers.%d.hc_%s", prefix, (int)layer, block);
    declare_at(p, h, h->streams + msgl__hyper_mix(h->streams), 3, name);
}
