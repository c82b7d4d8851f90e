// SPDX-License-Identifier: Apache-2.0
//
// The mixer of layers that are a feed-forward block alone.
#include "models/decoder.h"

static int caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out)
{
    (void)c, (void)layer, (void)ranks, (void)dtype, (void)act, (void)out;
    return 0;
}

static void build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer)
{
    (void)m, (void)index, (void)at, (void)layer;
}

static void declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    (void)d, (void)layer;
}

static size_t workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    (void)layer, (void)act, (void)max_tokens;
    return 0;
}

static void run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out)
{
    (void)f, (void)layer, (void)norm, (void)in, (void)cos_sin, (void)out;
}

const msgl_mixer msgl__mixer_none = {
    .caches = caches, .build = build, .declare = declare, .workspace = workspace, .run = run};
