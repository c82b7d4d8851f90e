// SPDX-License-Identifier: Apache-2.0
//
// The mixer that is attention over K and V.
#include <stdio.h>

#include "models/declare.h"

// A window of W keys includes the query's own; the contract counts those before it. What a query
// sees of its chunk is never more than a window of the chunk's length.
static int32_t window_of(const msgl_decoder_config *d, int32_t layer)
{
    return msgl__layer_has(d, layer, MSGL_LAYER_SLIDING) ? d->sliding_window - 1 : -1;
}

static int caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out)
{
    (void)act;
    const msgl_attn_shape shape = msgl__attn_shape_of(c, layer);
    if (msgl__shares_kv(c, layer)) return 0;
    *out = (msgl_cache_spec){.kind = MSGL_CACHE_KV,
                             .window = window_of(&c->decoder, layer),
                             .num_heads = msgl__shard_size(shape.num_kv_heads, ranks),
                             .k_dim = shape.head_dim,
                             .v_dim = shape.v_dim,
                             .dtype = dtype};
    if (!msgl__layer_has(&c->decoder, layer, MSGL_LAYER_CHOOSES_BLOCKS)) return 1;
    // Choices depend on them, and they are few.
    out[1] = (msgl_cache_spec){.kind = MSGL_CACHE_INDEX,
                               .window = -1,
                               .num_heads = 1,
                               .k_dim = c->decoder.blocks.dim,
                               .dtype = dtype == MSGL_E4M3 ? MSGL_BF16 : dtype};
    return 2;
}

static void build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer)
{
    msgl_attention *a = &layer->attn;
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder_config *d = &c->decoder;
    a->eps = d->rms_eps;
    a->norms_all = d->qk_norm == MSGL_QK_NORM_ALL;
    a->norms_behind = d->norms_behind;
    a->clip = d->clip_qkv;
    a->norms_layer = d->qk_norm == MSGL_QK_NORM_LAYER || d->qk_norm == MSGL_QK_NORM_LAYER_APART;
    a->gated = d->gated_attn;
    a->num_heads = msgl__shard_size(c->num_heads, m->target.ranks);
    const msgl_attn_shape shape = msgl__attn_shape_of(c, index);
    const int32_t owner = msgl__kv_owner(c, index);
    a->num_kv_heads = owner == index ? msgl__shard_size(shape.num_kv_heads, m->target.ranks) : 0;
    a->head_dim = shape.head_dim;
    a->v_dim = shape.v_dim;
    a->value_scale = d->value_scale;
    a->stores_apart = d->v_norm || owner != index || shape.v_dim != shape.head_dim;
    a->rope = msgl__layer_has(d, index, MSGL_LAYER_SECOND_ROPE) ? 1 : 0;
    a->half = c->ropes[a->rope].dim / 2;
    a->dual = c->ropes[a->rope].dual.len > 0;
    if (d->tempers_all || c->ropes[a->rope].type == MSGL_ROPE_NONE) a->temper = d->temper;
    const int32_t window = window_of(d, index);
    const bool chunked = window >= 0 && d->chunked;
    a->group = at->group;
    a->geometry = (msgl_attn_layer){
        .layer = at->layer,
        .scale = d->attn_scale,
        .softcap = d->attn_softcap,
        .window = chunked ? -1 : window,
        .chunk = chunked ? d->sliding_window : 0,
        .k_scale = 1,
        .v_scale = 1,
    };
    const bool chooses = msgl__layer_has(d, index, MSGL_LAYER_CHOOSES_BLOCKS);
    if (chooses && d->blocks.mean_queries > 0) {
        a->means = (msgl_mean_index){.heads = d->blocks.mean_queries,
                                     .dim = d->blocks.dim,
                                     .size = d->blocks.size,
                                     .half = a->half,
                                     .rope = a->rope,
                                     .eps = d->rms_eps,
                                     .group = at[1].group,
                                     .layer = at[1].layer};
    } else if (chooses) {
        a->blocks = (msgl_block_index){.heads = a->num_kv_heads,
                                       .dim = d->blocks.dim,
                                       .half = a->half,
                                       .eps = d->rms_eps,
                                       .group = at[1].group,
                                       .layer = at[1].layer};
    }
    if (owner == index) return;
    const msgl_attention *of = &((const msgl_decoder *)m->layers)->layers[owner].attn;
    a->group = of->group;
    a->geometry.layer = of->geometry.layer;
}

// q_proj with the gate of every head behind its q: all q in front, all gates behind K and V.
static void declare_gated_q(const msgl_declaring *d, msgl_attention *a, int32_t q, int32_t kv,
                            const char *name)
{
    const bool bias = d->m->cfg.decoder.qkv_bias;
    const int32_t head = a->head_dim;
    for (int32_t h = 0; h < d->m->cfg.num_heads; h++) {
        const int32_t row = h * head, at = 2 * row;
        msgl__declare_slice(d, &a->qkv, row, head, bias, 2 * q, at, name);
        msgl__declare_slice(d, &a->qkv, q + 2 * kv + row, head, bias, 2 * q, at + head, name);
    }
}

static void declare_qkv(const msgl_declaring *d, msgl_attention *a, int32_t q, int32_t kv,
                        int32_t values, bool k_is_v)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const bool bias = c->qkv_bias;
    if (c->names.qkv != NULL) {
        msgl__declare_rows(d, &a->qkv, 0, q + kv + values, bias, c->names.qkv);
        return;
    }
    const int32_t head = a->head_dim, turned = c->interleaved_all ? head / 2 : a->half;
    const int32_t pairs = c->interleaved ? turned : 0;
    char q_proj[48], k_proj[48], v_proj[48];
    snprintf(q_proj, sizeof q_proj, "%s.q_proj", c->names.attn);
    snprintf(k_proj, sizeof k_proj, "%s.k_proj", c->names.attn);
    snprintf(v_proj, sizeof v_proj, "%s.v_proj", c->names.attn);
    if (a->gated) {
        declare_gated_q(d, a, q, kv, q_proj);
    } else {
        msgl__declare_heads(d, &a->qkv, 0, q, bias, head, 0, pairs, q_proj);
    }
    if (kv == 0) return;
    msgl__declare_heads(d, &a->qkv, q, kv, bias, head, 0, pairs, k_proj);
    msgl__declare_rows(d, &a->qkv, q + kv, values, bias, k_is_v ? k_proj : v_proj);
}

// Of a head, or over all `n` elements of the heads of q or k, of which this rank has `own`; they
// are counted behind `before` others.
static void declare_head_norm(const msgl_declaring *d, const msgl_attention *a, float **v,
                              const msgl_range *own, int32_t before, int32_t n, const char *name)
{
    if (own == NULL) {
        msgl__declare_norm(d, v, a->head_dim, name);
        return;
    }
    msgl__declare_norm_slice(d, v, (msgl_range){own->from - before, own->count}, n, name);
}

// The weights of LayerNorms of `all` heads, [all, head_dim], of which this rank has `own`.
// pairs: of neighbours in every head that rotate together.
static void declare_layer_norms(const msgl_declaring *d, float **v, msgl_range own, int32_t all,
                                int32_t pairs, char q_or_k)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const int32_t dim = d->m->cfg.head_dim;
    const msgl_range kept = msgl__rows_of(own, dim, 0);
    msgl__keep_rows(d, v, &kept, 1);
    msgl__plan_vector(d->p, v, kept.count);
    if (c->qk_norm == MSGL_QK_NORM_LAYER) {
        msgl__plan_elements(d->p, v, 0, all * dim, 1, "%slayers.%d.self_attn.%c_norm.weight",
                            c->names.prefix, d->layer, q_or_k);
        msgl__plan_pairs(d->p, dim, 0, pairs);
        msgl__plan_expert(d->p, all, 0, false); // [all, head_dim], as vectors of experts
        return;
    }
    for (int32_t h = 0; h < all; h++) {
        msgl__plan_elements(d->p, v, h * dim, dim, 1,
                            "%slayers.%d.self_attn.%c_layernorm.norms.%d.weight", c->names.prefix,
                            d->layer, q_or_k, h);
        msgl__plan_pairs(d->p, dim, 0, pairs);
    }
}

// Sinks, and the norms of heads. rows: of q and K, counted in the product.
static void declare_vectors(const msgl_declaring *d, msgl_attention *a,
                            const msgl_attn_shape *shape, const msgl_range *rows, int32_t q,
                            int32_t kv)
{
    const msgl_model_config *c = &d->m->cfg;
    const msgl_decoder_config *dc = &c->decoder;
    if (shape->sinks) {
        const msgl_range heads = msgl__shard(d->target, c->num_heads);
        float **sinks = (float **)&a->geometry.sinks; // backends only read them
        msgl__keep_rows(d, sinks, &heads, 1);
        msgl__plan_vector(d->p, sinks, heads.count);
        msgl__plan_elements(d->p, sinks, 0, c->num_heads, 0, "%slayers.%d.%s", dc->names.prefix,
                            d->layer, dc->names.sinks);
    }
    if (dc->v_norm && kv > 0) msgl__plan_ones(d->p, &a->v_norm, a->v_dim);
    if (dc->qk_norm == MSGL_QK_NORM_UNIT) {
        if (c->ropes[a->rope].type == MSGL_ROPE_NONE) return;
        msgl__plan_ones(d->p, &a->q_norm, a->head_dim);
        msgl__plan_ones(d->p, &a->k_norm, a->head_dim);
    } else if (a->norms_layer) {
        const int32_t turned = dc->interleaved ? a->half : 0;
        declare_layer_norms(d, &a->q_norm, msgl__shard(d->target, c->num_heads), c->num_heads,
                            turned, 'q');
        declare_layer_norms(d, &a->k_norm, msgl__shard(d->target, c->num_kv_heads), c->num_kv_heads,
                            turned, 'k');
    } else if (dc->qk_norm != MSGL_QK_NORM_NONE) {
        const bool all = a->norms_all;
        declare_head_norm(d, a, &a->q_norm, all ? &rows[0] : NULL, 0, q, dc->names.q_norm);
        if (kv == 0) return;
        declare_head_norm(d, a, &a->k_norm, all ? &rows[1] : NULL, q, kv, dc->names.k_norm);
    }
}

// A rank has the queries of its KV heads, and the key.
static void declare_blocks(const msgl_declaring *d, const msgl_norm *norm, msgl_range kv_heads,
                           int32_t all_kv_heads, msgl_block_index *i)
{
    const msgl_block_index_config *c = &d->m->cfg.decoder.blocks;
    const int32_t q = all_kv_heads * i->dim;
    const msgl_linear_use use = {.norm = norm};
    const msgl_range rows[] = {msgl__rows_of(kv_heads, i->dim, 0), {q, i->dim}};
    msgl__declare_shared_rows(d, &i->qk, rows, 2, d->m->cfg.hidden_size, false, &use);
    msgl__declare_rows(d, &i->qk, 0, q, false, c->q);
    msgl__declare_rows(d, &i->qk, q, i->dim, false, c->k);
    msgl__declare_norm(d, &i->q_norm, i->dim, c->q_norm);
    msgl__declare_norm(d, &i->k_norm, i->dim, c->k_norm);
}

static void declare_means(const msgl_declaring *d, const msgl_norm *norm, msgl_mean_index *i)
{
    const msgl_block_index_config *c = &d->m->cfg.decoder.blocks;
    const int32_t rows = (i->heads + 1) * i->dim;
    const msgl_linear_use use = {.norm = norm};
    msgl__declare_linear(d, &i->qk, rows, d->m->cfg.hidden_size, false, &use);
    msgl__declare_rows(d, &i->qk, 0, rows, false, c->qk);
    msgl__declare_norm(d, &i->q_norm, i->dim, c->q_norm);
    msgl__declare_norm(d, &i->k_norm, i->dim, c->k_norm);
}

static void declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_model_config *c = &d->m->cfg;
    const msgl_decoder_config *dc = &d->m->cfg.decoder;
    msgl_attention *a = &layer->attn;
    const int32_t index = d->layer - dc->head.first_layer, owner = msgl__kv_owner(c, index);
    const msgl_attn_shape shape = msgl__attn_shape_of(c, index);
    const int32_t all_kv_heads = owner == index ? shape.num_kv_heads : 0;
    const int32_t q = c->num_heads * a->head_dim, kv = all_kv_heads * a->head_dim;
    const int32_t values = all_kv_heads * a->v_dim;
    const msgl_linear_use qkv_use = {.norm = msgl__norm_or_null(&layer->attn_norm),
                                     .rotates = msgl__rotates_apart(a) ? NULL : a};
    const msgl_range heads = msgl__shard(d->target, c->num_heads);
    const msgl_range kv_heads = msgl__shard(d->target, all_kv_heads);
    const msgl_range rows[] = {msgl__rows_of(heads, a->head_dim, 0),
                               msgl__rows_of(kv_heads, a->head_dim, q),
                               msgl__rows_of(kv_heads, a->v_dim, q + kv),
                               msgl__rows_of(heads, a->head_dim, q + kv + values)};
    // An EAGLE-3 head's reads embedding and state side by side.
    const bool pairs = dc->head.kind == MSGL_HEAD_EAGLE3 && d->layer == dc->head.first_layer;
    msgl__declare_shared_rows(d, &a->qkv, rows, a->gated ? 4 : 3, (pairs ? 2 : 1) * c->hidden_size,
                              dc->qkv_bias, &qkv_use);
    declare_qkv(d, a, q, kv, values, shape.k_is_v);
    if (a->blocks.heads > 0) {
        declare_blocks(d, msgl__norm_or_null(&layer->attn_norm), kv_heads, all_kv_heads,
                       &a->blocks);
    }
    if (a->means.heads > 0) declare_means(d, msgl__norm_or_null(&layer->attn_norm), &a->means);
    msgl_declaring of_owner = *d;
    of_owner.layer += owner - index;
    msgl__declare_cache_scale(&of_owner, &a->geometry.k_scale, 'k');
    msgl__declare_cache_scale(&of_owner, &a->geometry.v_scale, 'v');
    msgl__declare_out(d, layer, heads.count * a->v_dim, dc->o_bias, dc->names.out);
    declare_vectors(d, a, &shape, rows, q, kv);
}

static size_t workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    return msgl__attention_workspace(&layer->attn, act, max_tokens);
}

static void run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out)
{
    msgl__attention(f, &layer->attn, norm, in, cos_sin[layer->attn.rope], out);
}

const msgl_mixer msgl__mixer_attention = {
    .caches = caches, .build = build, .declare = declare, .workspace = workspace, .run = run};
