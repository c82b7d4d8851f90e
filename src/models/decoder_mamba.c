// SPDX-License-Identifier: Apache-2.0
//
// The mixer that is Mamba-2, and the one that is Mamba-2 and attention side by side: both read the
// stream, and what each of them makes is added to it.
#include <stdio.h>

#include "models/declare.h"

// On each of so many ranks.
static msgl_mamba layer_of(const msgl_decoder_config *d, int32_t ranks)
{
    const msgl_mamba_config *c = &d->mamba;
    return (msgl_mamba){.heads = msgl__shard_size(c->heads, ranks),
                        .groups = msgl__shard_size(c->groups, ranks),
                        .head_dim = c->head_dim,
                        .state_dim = c->state_dim,
                        .taps = c->taps,
                        .dt_min = c->dt_min,
                        .dt_max = c->dt_max,
                        .dt_scale = c->dt_scale,
                        .z_scale = c->z_scale,
                        .norm = c->norm,
                        .norm_groups = msgl__shard_size(c->norm_groups, ranks),
                        .eps = c->norm_eps > 0 ? c->norm_eps : d->rms_eps};
}

int msgl__mamba_caches(const msgl_model_config *c, int32_t ranks, msgl_dtype act,
                       msgl_cache_spec *out)
{
    const msgl_mamba m = layer_of(&c->decoder, ranks);
    *out = msgl__states_spec(msgl__mamba_state_bytes(&m, act));
    return 1;
}

static int caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out)
{
    (void)layer, (void)dtype;
    return msgl__mamba_caches(c, ranks, act, out);
}

static int check(const msgl_model *m, int32_t index, msgl_err *err)
{
    (void)index;
    const int32_t dim = m->cfg.decoder.mamba.state_dim;
    const int32_t most = m->target.kernels->ssm.max_state_dim;
    if (most == 0 || dim <= most) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "Mamba-2: states of %d; allowed on this device: up to %d", (int)dim,
                         (int)most);
}

void msgl__mamba_build(msgl_model *m, const msgl_layer_place *at, msgl_decoder_layer *layer)
{
    layer->mamba = layer_of(&m->cfg.decoder, m->target.ranks);
    layer->mamba.group = at->group;
    layer->mamba.layer = at->layer;
}

static void build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer)
{
    (void)index;
    msgl__mamba_build(m, at, layer);
}

// A vector of the layer, of which this rank has the ranges own [num].
static void declare_vector(const msgl_declaring *d, float **v, int32_t all, const msgl_range *own,
                           int32_t num, float dummy, const char *name)
{
    const msgl_decoder_names *n = &d->m->cfg.decoder.names;
    msgl__keep_rows(d, v, own, num);
    msgl__plan_vector(d->p, v, msgl__ranges_count(own, num));
    msgl__plan_elements(d->p, v, 0, all, dummy, "%slayers.%d.%s%s.%s", n->prefix, d->layer,
                        d->within, n->mamba, name);
}

// The convolution, its weights times what the product in is to be multiplied by: rows [3] of it are
// those of x, b and c.
static void declare_conv(const msgl_declaring *d, msgl_mamba *l, const msgl_range rows[3])
{
    const msgl_mamba_config *c = &d->m->cfg.decoder.mamba;
    const msgl_decoder_names *n = &d->m->cfg.decoder.names;
    const int32_t x = c->heads * c->head_dim, b = c->groups * c->state_dim, all = x + 2 * b;
    const struct {
        int32_t at, channels;
        float scale;
    } parts[] = {{0, x, c->x_scale}, {x, b, c->b_scale}, {x + b, b, c->c_scale}};
    msgl_range taps[3];
    for (int i = 0; i < 3; i++) taps[i] = msgl__rows_of(rows[i], c->taps, 0);
    msgl__keep_rows(d, &l->conv, taps, 3);
    msgl__plan_vector(d->p, &l->conv, msgl__ranges_count(taps, 3));
    for (int i = 0; i < 3; i++) {
        msgl__plan_elements(d->p, &l->conv, parts[i].at * c->taps, parts[i].channels * c->taps,
                            0.5f, "%slayers.%d.%s%s.conv1d.weight", n->prefix, d->layer, d->within,
                            n->mamba);
        msgl__plan_slice(d->p, all * c->taps, parts[i].at * c->taps, false);
        msgl__plan_taps(d->p, c->taps);
        msgl__plan_times(d->p, parts[i].scale);
    }
    if (c->conv_bias) declare_vector(d, &l->conv_bias, all, rows, 3, 0, "conv1d.bias");
}

// All but the output projection.
void msgl__mamba_declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_mamba_config *c = &d->m->cfg.decoder.mamba;
    msgl_mamba *l = &layer->mamba;
    const msgl_linear_use use = {.norm = msgl__norm_or_null(&layer->attn_norm)};
    const int32_t wide = c->heads * c->head_dim, b = c->groups * c->state_dim;
    const int32_t dt = 2 * wide + 2 * b;
    const msgl_range heads = msgl__shard(d->target, c->heads);
    const msgl_range groups = msgl__shard(d->target, c->groups);
    const msgl_range channels[] = {msgl__rows_of(heads, c->head_dim, 0),
                                   msgl__rows_of(groups, c->state_dim, wide),
                                   msgl__rows_of(groups, c->state_dim, wide + b)};
    const msgl_range rows[] = {channels[0], msgl__rows_of(channels[0], 1, wide),
                               msgl__rows_of(channels[1], 1, wide),
                               msgl__rows_of(channels[2], 1, wide), msgl__rows_of(heads, 1, dt)};
    char name[48];
    snprintf(name, sizeof name, "%s.in_proj", d->m->cfg.decoder.names.mamba);
    msgl__declare_shared_rows(d, &l->in, rows, 5, d->m->cfg.hidden_size, c->proj_bias, &use);
    msgl__declare_rows(d, &l->in, 0, dt + c->heads, c->proj_bias, name);
    declare_conv(d, l, channels);
    declare_vector(d, &l->a_log, c->heads, &heads, 1, 0, "A_log");
    if (c->a_is_minus_exp) msgl__plan_log_of_minus(d->p);
    declare_vector(d, &l->d, c->heads, &heads, 1, 1, "D");
    declare_vector(d, &l->dt_bias, c->heads, &heads, 1, 1, "dt_bias");
    if (c->norm == MSGL_SSM_NORM_NONE) return;
    declare_vector(d, &l->norm_weight, wide, channels, 1, 1, "norm.weight");
}

static void declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_mamba *l = &layer->mamba;
    char name[48];
    snprintf(name, sizeof name, "%s.out_proj", d->m->cfg.decoder.names.mamba);
    msgl__mamba_declare(d, layer);
    msgl__declare_out(d, layer, l->heads * l->head_dim, d->m->cfg.decoder.mamba.out_bias, name);
}

static size_t workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    return msgl__mamba_workspace(&layer->mamba, act, max_tokens);
}

static void run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out)
{
    (void)cos_sin;
    msgl__mamba(f, &layer->mamba, norm, in, out);
}

const msgl_mixer msgl__mixer_mamba = {.caches = caches,
                                      .check = check,
                                      .build = build,
                                      .declare = declare,
                                      .workspace = workspace,
                                      .run = run};

// --- beside attention --------------------------------------------------------------------------

// Attention's place comes first.
static int beside_caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                         msgl_dtype act, msgl_cache_spec *out)
{
    const int n = msgl__mixer_attention.caches(c, layer, ranks, dtype, act, out);
    return n + caches(c, layer, ranks, dtype, act, out + n);
}

static void beside_build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                         msgl_decoder_layer *layer)
{
    msgl__mixer_attention.build(m, index, at, layer);
    msgl__mamba_build(m, at + 1, layer);
}

static void beside_declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_mamba *l = &layer->mamba;
    const int32_t width = l->heads * l->head_dim;
    char name[48];
    snprintf(name, sizeof name, "%s.out_proj", d->m->cfg.decoder.names.mamba);
    msgl__mamba_declare(d, layer);
    msgl__declare_out_to(d, &layer->mamba_out, &layer->mamba_join, width,
                         d->m->cfg.decoder.mamba.out_bias, name);
    msgl__mixer_attention.declare(d, layer);
}

static size_t beside_workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    const size_t attention = msgl__mixer_attention.workspace(layer, act, max_tokens);
    const size_t t = (size_t)max_tokens, own = workspace(layer, act, max_tokens);
    const size_t result = msgl__activation_bytes(t, (size_t)layer->mamba_out.w.k, act);
    const size_t added = msgl__activation_bytes(t, (size_t)layer->mamba_out.w.n, act);
    return result + (own > added ? own : added) + attention;
}

static void beside_run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm,
                       void *in, float *const *cos_sin, void *out)
{
    const size_t mark = f->arena->used;
    void *result = msgl__activation(f, (size_t)f->num_tokens, (size_t)layer->mamba_out.w.k);
    if (result == NULL) return;
    msgl__mixer_attention.run(f, layer, norm, in, cos_sin, out);
    msgl__mamba(f, &layer->mamba, norm, in, result);
    msgl__linear_add(f, &layer->mamba_out, result, in, &layer->mamba_join, f->num_tokens, NULL);
    f->arena->used = mark;
}

const msgl_mixer msgl__mixer_beside = {.caches = beside_caches,
                                       .check = check,
                                       .build = beside_build,
                                       .declare = beside_declare,
                                       .workspace = beside_workspace,
                                       .run = beside_run};
