// SPDX-License-Identifier: Apache-2.0
//
// What the decoder family's layers keep of a request, by groups of layers that keep alike.
#include "models/decoder.h"

const msgl_mixer *msgl__mixer_of(const msgl_decoder_config *d, int32_t layer)
{
    if (msgl__layer_has(d, layer, MSGL_LAYER_NO_MIXER)) return &msgl__mixer_none;
    if (msgl__layer_has(d, layer, MSGL_LAYER_RECURRENT)) {
        if (d->conv.channels > 0) return &msgl__mixer_short_conv;
        if (d->kda.heads > 0) return &msgl__mixer_kda;
        if (d->mamba.heads == 0) return &msgl__mixer_delta;
        return d->mamba.beside_attention ? &msgl__mixer_beside : &msgl__mixer_mamba;
    }
    if (d->shared_blocks.num > 0) return &msgl__mixer_shared;
    if (d->compressed.groups > 0) return &msgl__mixer_compressed;
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

static int caches_of(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                     msgl_dtype act, msgl_cache_spec *out)
{
    const int n = msgl__mixer_of(&c->decoder, layer)->caches(c, layer, ranks, dtype, act, out);
    if (!msgl__layer_has(&c->decoder, layer, MSGL_LAYER_NGRAMS)) return n;
    out[MSGL_NGRAMS_CACHE] = msgl__ngrams_cache(c, act);
    return MSGL_NGRAMS_CACHE + 1;
}

// Layers that keep alike, and of one of them which of its caches it is.
typedef struct cache_group {
    msgl_cache_spec spec;
    int32_t layer, cache;
} cache_group;

// The group that `spec` is of, a new one behind the others of `groups` where there is none yet.
static int32_t group_of(const msgl_cache_spec *spec, cache_group *groups, int32_t *num)
{
    for (int32_t g = 0; g < *num; g++) {
        if (alike(&groups[g].spec, spec)) return g;
    }
    groups[*num].spec = *spec;
    groups[*num].spec.num_layers = 0;
    return (*num)++;
}

// Returns the number of groups. Layers are grouped by what one rank would keep: on several they are
// grouped alike. places: NULL, or as msgl__decoder_places.
static int32_t group(const msgl_model_config *c, cache_group groups[MSGL_MAX_GROUPS],
                     msgl_layer_place *places)
{
    int32_t num = 0;
    for (int order = 0; order < 3; order++) {
        for (int32_t l = 0; l < c->num_layers; l++) {
            msgl_cache_spec specs[MSGL_LAYER_CACHES];
            const int n = caches_of(c, l, 1, c->dtype, c->dtype, specs);
            for (int i = 0; i < n; i++) {
                if (order_of(&specs[i]) != order) continue;
                const int32_t g = group_of(&specs[i], groups, &num);
                const int32_t at = groups[g].spec.num_layers++;
                if (at == 0) groups[g].layer = l, groups[g].cache = i;
                if (places == NULL) continue;
                places[l * MSGL_LAYER_CACHES + i] = (msgl_layer_place){.group = g, .layer = at};
            }
        }
    }
    return num;
}

void msgl__decoder_places(const msgl_model_config *c, msgl_layer_place *places)
{
    cache_group groups[MSGL_MAX_GROUPS];
    (void)group(c, groups, places);
}

void msgl__decoder_caches(const msgl_model_config *c, int32_t ranks, msgl_dtype dtype,
                          msgl_dtype act, msgl_cache_specs *out)
{
    cache_group groups[MSGL_MAX_GROUPS];
    *out = (msgl_cache_specs){.count = group(c, groups, NULL)};
    for (int32_t g = 0; g < out->count; g++) {
        msgl_cache_spec specs[MSGL_LAYER_CACHES];
        (void)caches_of(c, groups[g].layer, ranks, dtype, act, specs);
        out->all[g] = specs[groups[g].cache];
        out->all[g].num_layers = groups[g].spec.num_layers;
    }
}
