// SPDX-License-Identifier: Apache-2.0
//
// What the decoder family's layers keep of a request, by groups of layers that keep alike.
#include "models/decoder.h"

const msgl_mixer *msgl__mixer_of(const msgl_decoder_config *d, int32_t layer)
{
    if (msgl__layer_has(d, layer, MSGL_LAYER_DELTA)) return &msgl__mixer_delta;
    return d->latent.rank > 0 ? &msgl__mixer_latent : &msgl__mixer_attention;
}

static bool alike(const msgl_cache_spec *a, const msgl_cache_spec *b)
{
    return a->kind == b->kind && a->window == b->window && a->num_heads == b->num_heads &&
           a->k_dim == b->k_dim && a->v_dim == b->v_dim && a->state_bytes == b->state_bytes;
}

// Groups of layers that see all tokens come first, then those with a window, then those of states.
static int order_of(const msgl_cache_spec *s)
{
    if (s->kind == MSGL_CACHE_STATE) return 2;
    return s->window >= 0 ? 1 : 0;
}

// Of one rank: how layers are grouped is the same on several.
static msgl_cache_spec cache_of(const msgl_model_config *c, int32_t layer)
{
    return msgl__mixer_of(&c->decoder, layer)->cache(c, layer, 1, c->dtype, c->dtype);
}

// Returns the number of groups; first: a layer of each. places: NULL, or as msgl__decoder_places.
static int32_t group(const msgl_model_config *c, int32_t first[MSGL_MAX_GROUPS],
                     int32_t sizes[MSGL_MAX_GROUPS], msgl_layer_place *places)
{
    int32_t num = 0;
    msgl_cache_spec specs[MSGL_MAX_GROUPS];
    for (int order = 0; order < 3; order++) {
        for (int32_t l = 0; l < c->num_layers; l++) {
            const msgl_cache_spec s = cache_of(c, l);
            if (order_of(&s) != order) continue;
            int32_t g = 0;
            while (g < num && !alike(&specs[g], &s)) g++;
            if (g == num) specs[num] = s, first[num] = l, sizes[num++] = 0;
            if (places != NULL) places[l] = (msgl_layer_place){.group = g, .layer = sizes[g]};
            sizes[g]++;
        }
    }
    return num;
}

void msgl__decoder_places(const msgl_model_config *c, msgl_layer_place *places)
{
    int32_t first[MSGL_MAX_GROUPS], sizes[MSGL_MAX_GROUPS];
    (void)group(c, first, sizes, places);
}

void msgl__decoder_caches(const msgl_model_config *c, int32_t ranks, msgl_dtype dtype,
                          msgl_dtype act, msgl_cache_specs *out)
{
    int32_t first[MSGL_MAX_GROUPS], sizes[MSGL_MAX_GROUPS];
    *out = (msgl_cache_specs){.count = group(c, first, sizes, NULL)};
    for (int32_t g = 0; g < out->count; g++) {
        const msgl_mixer *mixer = msgl__mixer_of(&c->decoder, first[g]);
        out->all[g] = mixer->cache(c, first[g], ranks, dtype, act);
        out->all[g].num_layers = sizes[g];
    }
}
