// SPDX-License-Identifier: Apache-2.0
//
// The mixer that is linear attention by the gated delta rule.
#include "models/declare.h"

// On each of so many ranks.
static msgl_delta delta_of(const msgl_decoder_config *d, int32_t ranks)
{
    return (msgl_delta){.eps = d->rms_eps,
                        .k_heads = msgl__shard_size(d->delta.k_heads, ranks),
                        .v_heads = msgl__shard_size(d->delta.v_heads, ranks),
                        .k_dim = d->delta.k_dim,
                        .v_dim = d->delta.v_dim,
                        .sigmoid_gate = d->delta.sigmoid_gate};
}

static int caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out)
{
    (void)layer, (void)dtype;
    const msgl_delta l = delta_of(&c->decoder, ranks);
    const msgl_delta_call call = msgl__delta_call_of(&l);
    *out = msgl__states_spec(msgl__delta_state_bytes(&call, act));
    return 1;
}

static int check(const msgl_model *m, int32_t index, msgl_err *err)
{
    (void)index;
    const msgl_delta layer = delta_of(&m->cfg.decoder, m->target.ranks);
    const msgl_delta_call dims = msgl__delta_call_of(&layer);
    const bool takes =
        m->target.kernels->delta.supports(m->target.capability, m->target.act, &dims);
    return msgl__check_heads(m, takes, "linear attention by the gated delta rule", err);
}

static void build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer)
{
    (void)index;
    layer->delta = delta_of(&m->cfg.decoder, m->target.ranks);
    layer->delta.group = at->group;
    layer->delta.layer = at->layer;
}

// The product in, from files that have what belongs to a k head side by side: of each its q, k, v
// and z in one tensor, its b and a in another.
static void declare_delta_by_k_head(const msgl_declaring *d, const msgl_delta_config *c,
                                    msgl_delta *l)
{
    const char *const qkvz = "linear_attn.in_proj_qkvz", *const ba = "linear_attn.in_proj_ba";
    const int32_t group = c->v_heads / c->k_heads, k = c->k_dim, v = group * c->v_dim;
    const int32_t keys = c->k_heads * k, values = c->k_heads * v, z = 2 * keys + values;
    const int32_t b = z + values, a = b + c->v_heads, all = 2 * (keys + values);
    for (int32_t h = 0; h < c->k_heads; h++) {
        const int32_t at = h * 2 * (k + v), at_ba = h * 2 * group;
        msgl__declare_slice(d, &l->in, h * k, k, false, all, at, qkvz);
        msgl__declare_slice(d, &l->in, keys + h * k, k, false, all, at + k, qkvz);
        msgl__declare_slice(d, &l->in, 2 * keys + h * v, v, false, all, at + 2 * k, qkvz);
        msgl__declare_slice(d, &l->in, z + h * v, v, false, all, at + 2 * k + v, qkvz);
        msgl__declare_slice(d, &l->in, b + h * group, group, false, 2 * c->v_heads, at_ba, ba);
        msgl__declare_slice(d, &l->in, a + h * group, group, false, 2 * c->v_heads, at_ba + group,
                            ba);
    }
}

static void declare_delta_by_tensor(const msgl_declaring *d, const msgl_delta_config *c,
                                    msgl_delta *l)
{
    const int32_t values = c->v_heads * c->v_dim, channels = 2 * c->k_heads * c->k_dim + values;
    const int32_t b = channels + values, per_k_head = c->v_heads / c->k_heads;
    msgl__declare_rows(d, &l->in, 0, channels, false, "linear_attn.in_proj_qkv");
    msgl__declare_rows(d, &l->in, channels, values, false, "linear_attn.in_proj_z");
    for (int32_t h = 0; h < c->k_heads && c->only_ba_by_k_head; h++) {
        const char *const ba = "linear_attn.in_proj_ba";
        const int32_t row = b + h * per_k_head, at = h * 2 * per_k_head;
        msgl__declare_slice(d, &l->in, row, per_k_head, false, 2 * c->v_heads, at, ba);
        msgl__declare_slice(d, &l->in, row + c->v_heads, per_k_head, false, 2 * c->v_heads,
                            at + per_k_head, ba);
    }
    if (c->only_ba_by_k_head) return;
    msgl__declare_rows(d, &l->in, b, c->v_heads, false, "linear_attn.in_proj_b");
    msgl__declare_rows(d, &l->in, b + c->v_heads, c->v_heads, false, "linear_attn.in_proj_a");
}

// Where a file that has the v heads of a k head apart has our v head h.
static int32_t apart(const msgl_delta_config *c, int32_t h)
{
    const int32_t each = c->v_heads / c->k_heads;
    return h % each * c->k_heads + h / each;
}

static void declare_delta_by_v_head(const msgl_declaring *d, const msgl_delta_config *c,
                                    msgl_delta *l)
{
    const int32_t keys = 2 * c->k_heads * c->k_dim, v = c->v_dim, values = c->v_heads * v;
    const int32_t channels = keys + values, b = channels + values, all = c->v_heads;
    msgl__declare_slice(d, &l->in, 0, keys, false, channels, 0, "linear_attn.in_proj_qkv");
    for (int32_t h = 0; h < all; h++) {
        const int32_t at = apart(c, h);
        msgl__declare_slice(d, &l->in, keys + h * v, v, false, channels, keys + at * v,
                            "linear_attn.in_proj_qkv");
        msgl__declare_slice(d, &l->in, channels + h * v, v, false, values, at * v,
                            "linear_attn.in_proj_z");
        msgl__declare_slice(d, &l->in, b + h, 1, false, all, at, "linear_attn.in_proj_b");
        msgl__declare_slice(d, &l->in, b + all + h, 1, false, all, at, "linear_attn.in_proj_a");
    }
}

// A vector of a layer with linear attention: first `before` elements, then `each` of each v head,
// which the file has in its own order.
typedef struct delta_vector {
    const char *name;
    int32_t before, each;
    float dummy;
    int32_t taps;      // as msgl__plan_taps says
    bool log_of_minus; // as msgl__plan_log_of_minus says
} delta_vector;

static void declare_elements(const msgl_declaring *d, float **v, const delta_vector *e, int32_t all,
                             int32_t to, int32_t count, int32_t from)
{
    msgl__plan_elements(d->p, v, to, count, e->dummy, "%slayers.%d.linear_attn.%s",
                        d->m->cfg.decoder.names.prefix, d->layer, e->name);
    if (count < all) msgl__plan_slice(d->p, all, from, false);
    if (e->taps > 0) msgl__plan_taps(d->p, e->taps);
    if (e->log_of_minus) msgl__plan_log_of_minus(d->p);
}

// Of its elements a rank has the ranges kept [num].
static void declare_vector(const msgl_declaring *d, float **v, const delta_vector *e,
                           const msgl_range *kept, int32_t num)
{
    const msgl_delta_config *c = &d->m->cfg.decoder.delta;
    const int32_t all = e->before + c->v_heads * e->each;
    msgl__keep_rows(d, v, kept, num);
    msgl__plan_vector(d->p, v, msgl__ranges_count(kept, num));
    if (!c->v_heads_apart || e->each == 0) {
        declare_elements(d, v, e, all, 0, all, 0);
        return;
    }
    if (e->before > 0) declare_elements(d, v, e, all, 0, e->before, 0);
    for (int32_t h = 0; h < c->v_heads; h++) {
        const int32_t to = e->before + h * e->each, from = e->before + apart(c, h) * e->each;
        declare_elements(d, v, e, all, to, e->each, from);
    }
}

static void declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_delta_config *c = &d->m->cfg.decoder.delta;
    msgl_delta *l = &layer->delta;
    const msgl_linear_use use = {.norm = msgl__norm_or_null(&layer->attn_norm)};
    const int32_t keys = c->k_heads * c->k_dim, values = c->v_heads * c->v_dim;
    const int32_t channels = 2 * keys + values, b = channels + values;
    const msgl_range k_heads = msgl__shard(d->target, c->k_heads);
    const msgl_range v_heads = msgl__shard(d->target, c->v_heads);
    // q, k, v, z, b, a, and behind them rows without use.
    const msgl_range rows[] = {msgl__rows_of(k_heads, c->k_dim, 0),
                               msgl__rows_of(k_heads, c->k_dim, keys),
                               msgl__rows_of(v_heads, c->v_dim, 2 * keys),
                               msgl__rows_of(v_heads, c->v_dim, channels),
                               msgl__rows_of(v_heads, 1, b),
                               msgl__rows_of(v_heads, 1, b + c->v_heads)};
    msgl_range taps[3];
    for (int i = 0; i < 3; i++) taps[i] = msgl__rows_of(rows[i], MSGL_DELTA_TAPS, 0);
    msgl__keep_rows(d, &l->in.w, rows, 6);
    msgl__declare_linear(d, &l->in, msgl__delta_rows(l), d->m->cfg.hidden_size, false, &use);
    if (c->by_k_head) {
        declare_delta_by_k_head(d, c, l);
    } else if (c->v_heads_apart) {
        declare_delta_by_v_head(d, c, l);
    } else {
        declare_delta_by_tensor(d, c, l);
    }
    d->m->products.delta = l;
    const msgl_range all = {0, c->v_dim};
    const delta_vector conv = {"conv1d.weight",
                               2 * keys * MSGL_DELTA_TAPS,
                               c->v_dim * MSGL_DELTA_TAPS,
                               0.5f,
                               MSGL_DELTA_TAPS,
                               false};
    const delta_vector a_log = {"A_log", 0, 1, 0, 0, c->a_is_minus_exp};
    const delta_vector dt_bias = {"dt_bias", 0, 1, 1, 0, false};
    // Never as what is missing to 1.
    const delta_vector norm = {"norm.weight", c->v_dim, 0, 1, 0, false};
    declare_vector(d, &l->conv, &conv, taps, 3);
    declare_vector(d, &l->a_log, &a_log, &v_heads, 1);
    declare_vector(d, &l->dt_bias, &dt_bias, &v_heads, 1);
    declare_vector(d, &l->norm, &norm, &all, 1);
    msgl__declare_out(d, layer, v_heads.count * c->v_dim, false, "linear_attn.out_proj");
    if (!c->v_heads_apart) return;
    msgl__plan_column_heads(d->p, c->k_heads, c->v_heads / c->k_heads, c->v_dim);
}

static size_t workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    return msgl__delta_workspace(&layer->delta, act, max_tokens);
}

static void run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out)
{
    (void)cos_sin;
    msgl__delta(f, &layer->delta, norm, in, out);
}

const msgl_mixer msgl__mixer_delta = {.caches = caches,
                                      .check = check,
                                      .build = build,
                                      .declare = declare,
                                      .workspace = workspace,
                                      .run = run};
