// SPDX-License-Identifier: Apache-2.0
//
// The mixer that is Kimi Delta Attention.
#include "models/declare.h"

static int32_t heads_of(const msgl_decoder_config *d, int32_t ranks)
{
    return msgl__shard_size(d->kda.heads, ranks);
}

static msgl_kda layer_of(const msgl_decoder_config *d, int32_t ranks)
{
    return (msgl_kda){
        .eps = d->rms_eps, .heads = heads_of(d, ranks), .dim = d->kda.dim, .rank = d->kda.dim};
}

static int caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out)
{
    (void)layer, (void)dtype;
    const msgl_kda l = layer_of(&c->decoder, ranks);
    const msgl_delta_call call = msgl__kda_call_of(&l);
    *out = msgl__states_spec(msgl__delta_state_bytes(&call, act));
    return 1;
}

static int check(const msgl_model *m, int32_t index, msgl_err *err)
{
    (void)index;
    const msgl_kda l = layer_of(&m->cfg.decoder, m->target.ranks);
    const msgl_delta_call call = msgl__kda_call_of(&l);
    const bool takes =
        m->target.kernels->delta.supports(m->target.capability, m->target.act, &call);
    return msgl__check_heads(m, takes, "Kimi Delta Attention", err);
}

static void build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer)
{
    (void)index;
    layer->kda = layer_of(&m->cfg.decoder, m->target.ranks);
    layer->kda.group = at->group;
    layer->kda.layer = at->layer;
}

static void declare_low_rank(const msgl_declaring *d, msgl_linear *l, const msgl_range *own,
                             int32_t all, int32_t rank, const char *name)
{
    const msgl_linear_use use = {0};
    msgl__declare_shared_rows(d, l, own, 1, rank, false, &use);
    msgl__declare_rows(d, l, 0, all, false, name);
}

// Elements [at, at + n) of a vector from a tensor of the layer; taps: as msgl__plan_taps, or 0.
static void declare_part(const msgl_declaring *d, float **v, int32_t at, int32_t n, float dummy,
                         int32_t taps, const char *name)
{
    msgl__plan_elements(d->p, v, at, n, dummy, "%slayers.%d.self_attn.%s",
                        d->m->cfg.decoder.names.prefix, d->layer, name);
    if (taps > 0) msgl__plan_taps(d->p, taps);
}

static void declare_vectors(const msgl_declaring *d, msgl_kda *l, const msgl_range rows[3])
{
    const msgl_kda_config *c = &d->m->cfg.decoder.kda;
    const int32_t all = c->heads * c->dim;
    const msgl_range heads = msgl__shard(d->target, c->heads);
    msgl_range taps[3];
    for (int i = 0; i < 3; i++) taps[i] = msgl__rows_of(rows[i], MSGL_DELTA_TAPS, 0);
    msgl__keep_rows(d, &l->conv, taps, 3);
    msgl__plan_vector(d->p, &l->conv, msgl__ranges_count(taps, 3));
    static const char *const CONV[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
    for (int i = 0; i < 3; i++) {
        declare_part(d, &l->conv, i * all * MSGL_DELTA_TAPS, all * MSGL_DELTA_TAPS, 0.5f,
                     MSGL_DELTA_TAPS, CONV[i]);
    }
    msgl__keep_rows(d, &l->a_log, &heads, 1);
    msgl__plan_vector(d->p, &l->a_log, heads.count);
    declare_part(d, &l->a_log, 0, c->heads, 0, 0, "A_log");
    if (c->a_is_minus_exp) msgl__plan_log_of_minus(d->p);
    msgl__keep_rows(d, &l->dt_bias, rows, 1);
    msgl__plan_vector(d->p, &l->dt_bias, rows[0].count);
    declare_part(d, &l->dt_bias, 0, all, 1, 0, "dt_bias");
    msgl__plan_vector(d->p, &l->norm, c->dim);
    declare_part(d, &l->norm, 0, c->dim, 1, 0, "o_norm.weight");
}

static void declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_kda_config *c = &d->m->cfg.decoder.kda;
    msgl_kda *l = &layer->kda;
    const msgl_linear_use use = {.norm = msgl__norm_or_null(&layer->attn_norm)};
    const int32_t all = c->heads * c->dim, rank = l->rank, low = 3 * all;
    const msgl_range heads = msgl__shard(d->target, c->heads);
    const msgl_range rows[] = {msgl__rows_of(heads, c->dim, 0),
                               msgl__rows_of(heads, c->dim, all),
                               msgl__rows_of(heads, c->dim, 2 * all),
                               {low, 2 * rank},
                               msgl__rows_of(heads, 1, low + 2 * rank)};
    msgl__declare_shared_rows(d, &l->in, rows, 5, d->m->cfg.hidden_size, false, &use);
    msgl__declare_rows(d, &l->in, 0, all, false, "self_attn.q_proj");
    msgl__declare_rows(d, &l->in, all, all, false, "self_attn.k_proj");
    msgl__declare_rows(d, &l->in, 2 * all, all, false, "self_attn.v_proj");
    msgl__declare_rows(d, &l->in, low, rank, false, "self_attn.f_a_proj");
    msgl__declare_rows(d, &l->in, low + rank, rank, false, "self_attn.g_a_proj");
    msgl__declare_rows(d, &l->in, low + 2 * rank, c->heads, false, "self_attn.b_proj");
    declare_low_rank(d, &l->decays, rows, all, rank, "self_attn.f_b_proj");
    declare_low_rank(d, &l->gates, rows, all, rank, "self_attn.g_b_proj");
    declare_vectors(d, l, rows);
    msgl__declare_out(d, layer, rows[0].count, false, "self_attn.o_proj");
}

static size_t workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    return msgl__kda_workspace(&layer->kda, act, max_tokens);
}

static void run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out)
{
    (void)cos_sin;
    msgl__kda(f, &layer->kda, norm, in, out);
}

const msgl_mixer msgl__mixer_kda = {.caches = caches,
                                    .check = check,
                                    .build = build,
                                    .declare = declare,
                                    .workspace = workspace,
                                    .run = run};
