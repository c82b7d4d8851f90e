// SPDX-License-Identifier: Apache-2.0
//
// The mixer that is attention to a window's keys and to compressed ones. Tensors have the names
// that DeepSeek-V4's files give them.
#include <stdio.h>

#include "models/declare.h"

int32_t msgl__compressed_list(const msgl_decoder_config *d, int32_t window, int32_t max_seq_len)
{
    const msgl_compressed_config *z = &d->compressed;
    const int32_t near = d->sliding_window < max_seq_len ? d->sliding_window : max_seq_len;
    if (window >= 0) return near;
    const int32_t closed = max_seq_len / z->rate;
    return near + (closed > z->index.top_k ? closed : z->index.top_k);
}

static bool compresses(const msgl_decoder_config *d, int32_t layer)
{
    return msgl__layer_has(d, layer, MSGL_LAYER_COMPRESSES);
}

static bool chooses(const msgl_decoder_config *d, int32_t layer)
{
    return msgl__layer_has(d, layer, MSGL_LAYER_CHOOSES_WINDOWS);
}

static int32_t rate_of(const msgl_decoder_config *d, int32_t layer)
{
    return chooses(d, layer) ? d->compressed.chosen_rate : d->compressed.rate;
}

// All layers that choose have the same rate. Those that attend to a window alone have a group of
// their own; those that attend to all compressed keys may be in the group of those that choose.
int32_t msgl__compressed_every(const msgl_model_config *c, int32_t window)
{
    if (window >= 0) return 0;
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (chooses(&c->decoder, l)) return rate_of(&c->decoder, l);
    }
    return 0;
}

// Of the raw row of a layer.
static int32_t raw_width(const msgl_model_config *c, int32_t layer)
{
    const bool two = chooses(&c->decoder, layer);
    return msgl__raw_width(c->head_dim, two) +
           (two ? msgl__raw_width(c->decoder.compressed.index.dim, true) : 0);
}

// K of the window, compressed keys as one more layer of the same group, raw rows, index keys. All
// ranks have all of it.
static int caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out)
{
    const msgl_decoder_config *d = &c->decoder;
    const bool all = compresses(d, layer);
    const msgl_dtype exact =
        dtype == MSGL_E4M3 ? MSGL_BF16 : dtype; // keys and choices depend on it
    (void)ranks, (void)act;
    out[0] = (msgl_cache_spec){.kind = MSGL_CACHE_LATENT,
                               .window = all ? -1 : d->sliding_window - 1,
                               .num_heads = 1,
                               .k_dim = c->head_dim,
                               .v_dim = c->head_dim,
                               .dtype = dtype};
    if (!all) return 1;
    out[1] = out[0];
    out[2] = (msgl_cache_spec){.kind = MSGL_CACHE_INDEX,
                               .window = msgl__raw_window(rate_of(d, layer), chooses(d, layer)),
                               .num_heads = 1,
                               .k_dim = raw_width(c, layer),
                               .dtype = exact};
    if (!chooses(d, layer)) return 3;
    out[3] = (msgl_cache_spec){.kind = MSGL_CACHE_INDEX,
                               .window = -1,
                               .num_heads = 1,
                               .k_dim = d->compressed.index.dim,
                               .dtype = exact};
    return 4;
}

static int check(const msgl_model *m, int32_t index, msgl_err *err)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    return chooses(d, index) ? msgl__check_index_dim(m, d->compressed.index.dim, err) : 0;
}

// Keys of dim elements, whose raw rows lie behind `at` others.
static msgl_compressed_keys keys_of(const msgl_model_config *c, int32_t layer, int32_t dim,
                                    int32_t at, const msgl_layer_place *place)
{
    return (msgl_compressed_keys){.rate = rate_of(&c->decoder, layer),
                                  .dim = dim,
                                  .half = c->ropes[0].dim / 2,
                                  .two_series = chooses(&c->decoder, layer),
                                  .at = at,
                                  .eps = c->decoder.rms_eps,
                                  .group = place->group,
                                  .layer = place->layer};
}

static void build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer)
{
    const msgl_decoder *decoder = m->layers;
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder_config *d = &c->decoder;
    const msgl_compressed_config *z = &d->compressed;
    msgl_compressed_attention *a = &layer->compressed;
    *a = (msgl_compressed_attention){
        .num_heads = msgl__shard_size(c->num_heads, m->target.ranks),
        .dim = c->head_dim,
        .q_rank = z->q_rank,
        .window = d->sliding_window,
        .rope = msgl__layer_has(d, index, MSGL_LAYER_SECOND_ROPE) ? 1 : 0,
        .eps = d->rms_eps,
        .group = at->group,
        .geometry =
            {.layer = at->layer, .scale = d->attn_scale, .window = -1, .k_scale = 1, .v_scale = 1},
        .out = {.w = decoder->heads + (size_t)index * (size_t)z->groups,
                .groups = msgl__shard_size(z->groups, m->target.ranks)},
    };
    a->half = c->ropes[a->rope].dim / 2;
    if (!compresses(d, index)) return;
    a->rows =
        (msgl_raw_rows){.width = raw_width(c, index), .group = at[2].group, .layer = at[2].layer};
    a->keys = keys_of(c, index, c->head_dim, 0, &at[1]);
    if (!chooses(d, index)) return;
    a->index.top_k = z->index.top_k;
    a->index.heads = z->index.heads;
    a->index.keys = keys_of(c, index, z->index.dim, msgl__raw_width(c->head_dim, true), &at[3]);
}

// The tensors `name`.wkv, .wgate, .ape and .norm, the first two as rows of the product down.
static void declare_keys(const msgl_declaring *d, msgl_compressed_attention *a,
                         msgl_compressed_keys *k, const char *name)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    const int32_t width = msgl__raw_width(k->dim, k->two_series) / 2;
    const int32_t at = a->q_rank + a->dim + k->at;
    char tensor[64];
    snprintf(tensor, sizeof tensor, "%s.wkv", name);
    msgl__declare_rows(d, &a->down, at, width, false, tensor);
    snprintf(tensor, sizeof tensor, "%s.wgate", name);
    msgl__declare_rows(d, &a->down, at + width, width, false, tensor);
    msgl__plan_vector(d->p, &k->bias, k->rate * width);
    msgl__plan_elements(d->p, &k->bias, 0, k->rate * width, 0, "%slayers.%d.%s.ape", prefix,
                        d->layer, name);
    msgl__plan_expert(d->p, k->rate, 0, false); // [rate, width]
    snprintf(tensor, sizeof tensor, "%s.norm", name);
    msgl__declare_norm(d, &k->norm, k->dim, tensor);
}

// Every rank has all of it, so that all choose alike.
static void declare_index(const msgl_declaring *d, const msgl_norm *norm,
                          msgl_compressed_attention *a)
{
    msgl_window_index *i = &a->index;
    const int32_t q = i->heads * i->keys.dim, hidden = d->m->cfg.hidden_size;
    const msgl_linear_use plain = {0}, weights = {.norm = norm, .f32_out = true};
    declare_keys(d, a, &i->keys, "attn.indexer.compressor");
    msgl__declare_linear(d, &i->q, q, a->q_rank, false, &plain);
    msgl__declare_rows(d, &i->q, 0, q, false, "attn.indexer.wq_b");
    msgl__plan_exact_weight(d->p, &i->weights.w, i->heads, hidden);
    msgl__declare_rows(d, &i->weights, 0, i->heads, false, "attn.indexer.weights_proj");
    msgl__products_add(&d->m->products, &i->weights, &weights);
}

// Groups of heads' results: slices of one tensor.
static void declare_groups(const msgl_declaring *d, msgl_compressed_attention *a)
{
    const msgl_model_config *c = &d->m->cfg;
    const msgl_compressed_config *z = &c->decoder.compressed;
    const int32_t width = c->num_heads / z->groups * c->head_dim;
    const msgl_range own = msgl__shard(d->target, z->groups);
    for (int32_t g = 0; g < own.count; g++) {
        msgl__plan_exact_weight(d->p, &a->out.w[g], z->out_rank, width);
        msgl__plan_rows(d->p, &a->out.w[g], 0, z->out_rank, "%slayers.%d.attn.wo_a.weight",
                        c->decoder.names.prefix, d->layer);
        msgl__plan_slice(d->p, z->groups * z->out_rank, (own.from + g) * z->out_rank, false);
    }
    msgl__products_add_heads(&d->m->products, a->out.w, own.count);
}

static void declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_model_config *c = &d->m->cfg;
    const msgl_compressed_config *z = &c->decoder.compressed;
    msgl_compressed_attention *a = &layer->compressed;
    const msgl_norm *norm = msgl__norm_or_null(&layer->attn_norm);
    const msgl_linear_use down = {.norm = norm}, plain = {0};
    const msgl_range heads = msgl__shard(d->target, c->num_heads);
    const msgl_range q_rows = msgl__rows_of(heads, a->dim, 0);
    float **sinks = (float **)&a->geometry.sinks; // backends only read them
    msgl__declare_linear(d, &a->down, a->q_rank + a->dim + a->rows.width, c->hidden_size, false,
                         &down);
    msgl__declare_rows(d, &a->down, 0, a->q_rank, false, "attn.wq_a");
    msgl__declare_rows(d, &a->down, a->q_rank, a->dim, false, "attn.wkv");
    if (a->keys.rate > 0) declare_keys(d, a, &a->keys, "attn.compressor");
    if (a->index.heads > 0) declare_index(d, norm, a);
    msgl__declare_norm(d, &a->q_norm, a->q_rank, "attn.q_norm");
    msgl__declare_norm(d, &a->k_norm, a->dim, "attn.kv_norm");
    msgl__declare_shared_rows(d, &a->q_up, &q_rows, 1, a->q_rank, false, &plain);
    msgl__declare_rows(d, &a->q_up, 0, c->num_heads * a->dim, false, "attn.wq_b");
    msgl__keep_rows(d, sinks, &heads, 1);
    msgl__plan_vector(d->p, sinks, heads.count);
    msgl__plan_elements(d->p, sinks, 0, c->num_heads, 0, "%slayers.%d.attn.attn_sink",
                        c->decoder.names.prefix, d->layer);
    declare_groups(d, a);
    msgl__declare_out(d, layer, a->out.groups * z->out_rank, false, "attn.wo_b");
}

static size_t workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    return msgl__compressed_workspace(&layer->compressed, act, max_tokens);
}

static void run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out)
{
    const msgl_compressed_attention *a = &layer->compressed;
    msgl__compressed_attention(f, a, norm, in, cos_sin[a->rope], out);
}

const msgl_mixer msgl__mixer_compressed = {.caches = caches,
                                           .check = check,
                                           .build = build,
                                           .declare = declare,
                                           .workspace = workspace,
                                           .run = run};
