// SPDX-License-Identifier: Apache-2.0
//
// The mixer that is attention over latent vectors.
#include "models/declare.h"

static int caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out)
{
    const msgl_latent_config *l = &c->decoder.latent;
    (void)ranks, (void)act; // all ranks have all of it
    *out = (msgl_cache_spec){.kind = MSGL_CACHE_LATENT,
                             .window = -1,
                             .num_heads = 1,
                             .k_dim = l->rank + l->rotary,
                             .v_dim = l->rank,
                             .dtype = dtype};
    if (l->index.top_k == 0 || msgl__layer_has(&c->decoder, layer, MSGL_LAYER_SHARES_INDEX))
        return 1;
    // Choices depend on them, and they are few.
    out[1] = (msgl_cache_spec){.kind = MSGL_CACHE_INDEX,
                               .window = -1,
                               .num_heads = 1,
                               .k_dim = l->index.dim,
                               .dtype = dtype == MSGL_E4M3 ? MSGL_BF16 : dtype};
    return 2;
}

// Whether the device has kernels that choose keys.
static int check(const msgl_model *m, int32_t index, msgl_err *err)
{
    const msgl_latent_config *l = &m->cfg.decoder.latent;
    (void)index;
    return l->index.top_k > 0 ? msgl__check_index_dim(m, l->index.dim, err) : 0;
}

// Norms of latent vectors have this epsilon whatever rms_norm_eps says, in DeepSeek's own code and
// in transformers.
static const float LATENT_EPS = 1e-6f;

static void build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer)
{
    const msgl_decoder *decoder = m->layers;
    msgl_weight *heads = decoder->heads + 2 * (size_t)index * (size_t)m->cfg.num_heads;
    const msgl_decoder_config *d = &m->cfg.decoder;
    layer->latent_attn = (msgl_latent_attention){
        .k_up = heads,
        .v_up = heads + m->cfg.num_heads,
        .eps = LATENT_EPS,
        .num_heads = msgl__shard_size(m->cfg.num_heads, m->target.ranks),
        .q_rank = d->latent.q_rank,
        .rank = d->latent.rank,
        .nope = d->latent.nope,
        .rotary = d->latent.rotary,
        .v_dim = d->latent.v_dim,
        .group = at->group,
        .geometry =
            {.layer = at->layer, .scale = d->attn_scale, .window = -1, .k_scale = 1, .v_scale = 1},
        .expanded = {.prompts = m->target.prompts,
                     .nope = d->latent.nope,
                     .v_dim = d->latent.v_dim},
        .index = {.top_k = d->latent.index.top_k,
                  .own = d->latent.index.top_k > 0 &&
                         !msgl__layer_has(d, index, MSGL_LAYER_SHARES_INDEX),
                  .heads = d->latent.index.heads,
                  .dim = d->latent.index.dim,
                  .group = at[1].group,
                  .layer = at[1].layer},
    };
}

// Head h's parts of kv_b_proj, which has for each head nope rows for K, then v_dim for V.
static void declare_latent_head(const msgl_declaring *d, msgl_latent_attention *a, int32_t h,
                                msgl_weight *k_up, msgl_weight *v_up)
{
    const char *const fmt = "%slayers.%d.self_attn.kv_b_proj.weight";
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    const int32_t head = a->nope + a->v_dim, all = d->m->cfg.num_heads * head;
    msgl__plan_rows(d->p, k_up, 0, a->rank, fmt, prefix, d->layer);
    msgl__plan_slice(d->p, all, h * head, true);
    msgl__plan_rows(d->p, v_up, 0, a->v_dim, fmt, prefix, d->layer);
    msgl__plan_slice(d->p, all, h * head + a->nope, false);
}

static const char K_B[] = "%slayers.%d.self_attn.k_b_proj.weight";
static const char V_B[] = "%slayers.%d.self_attn.v_b_proj.weight";

// The same from two tensors.
static void declare_latent_head_apart(const msgl_declaring *d, msgl_latent_attention *a, int32_t h,
                                      msgl_weight *k_up, msgl_weight *v_up)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    const int32_t heads = d->m->cfg.num_heads;
    msgl__plan_rows(d->p, k_up, 0, a->rank, K_B, prefix, d->layer);
    msgl__plan_slice(d->p, heads * a->rank, h * a->rank, false);
    msgl__plan_rows(d->p, v_up, 0, a->v_dim, V_B, prefix, d->layer);
    msgl__plan_slice(d->p, heads * a->v_dim, h * a->v_dim, false);
}

// All of kv_b_proj from two tensors: rows of K are columns of the first.
static void declare_kv_up_apart(const msgl_declaring *d, msgl_latent_attention *a)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    const int32_t heads = d->m->cfg.num_heads, head = a->nope + a->v_dim;
    for (int32_t h = 0; h < heads; h++) {
        msgl__plan_rows(d->p, &a->kv_up.w, h * head, a->nope, K_B, prefix, d->layer);
        msgl__plan_slice(d->p, heads * a->rank, h * a->rank, true);
        msgl__plan_rows(d->p, &a->kv_up.w, h * head + a->nope, a->v_dim, V_B, prefix, d->layer);
        msgl__plan_slice(d->p, heads * a->v_dim, h * a->v_dim, false);
    }
}

static void declare_latent_heads(const msgl_declaring *d, msgl_latent_attention *a)
{
    const bool apart = d->m->cfg.decoder.latent.apart;
    const msgl_range heads = msgl__shard(d->target, d->m->cfg.num_heads);
    const int32_t head = a->nope + a->v_dim, all = d->m->cfg.num_heads * head;
    const msgl_range rows = msgl__rows_of(heads, head, 0);
    for (int32_t h = 0; h < a->num_heads; h++) {
        msgl_weight *k_up = &a->k_up[h], *v_up = &a->v_up[h];
        msgl__plan_exact_weight(d->p, k_up, a->rank, a->nope);
        msgl__plan_exact_weight(d->p, v_up, a->v_dim, a->rank);
        if (apart) {
            declare_latent_head_apart(d, a, heads.from + h, k_up, v_up);
        } else {
            declare_latent_head(d, a, heads.from + h, k_up, v_up);
        }
    }
    msgl__products_add_heads(&d->m->products, a->k_up, a->num_heads);
    msgl__products_add_heads(&d->m->products, a->v_up, a->num_heads);
    if (a->expanded.prompts == MSGL_PROMPTS_ABSORBED) return;
    const msgl_linear_use plain = {0};
    msgl__keep_rows(d, &a->kv_up.w, &rows, 1);
    msgl__plan_exact_weight(d->p, &a->kv_up.w, rows.count, a->rank);
    if (apart) {
        declare_kv_up_apart(d, a);
    } else {
        msgl__declare_rows(d, &a->kv_up, 0, all, false, "self_attn.kv_b_proj");
    }
    msgl__products_add(&d->m->products, &a->kv_up, &plain);
}

// Every rank has all of it, so that all choose alike.
static void declare_index(const msgl_declaring *d, const msgl_norm *norm, int32_t q_rank,
                          msgl_latent_index *i)
{
    const msgl_latent_config *c = &d->m->cfg.decoder.latent;
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    const int32_t hidden = d->m->cfg.hidden_size, pairs = c->index.interleaved ? c->rotary / 2 : 0;
    const msgl_linear_use plain = {0}, behind = {.norm = norm};
    const msgl_linear_use weights = {.norm = norm, .f32_out = true};
    msgl__declare_linear(d, &i->q, i->heads * i->dim, q_rank, false, &plain);
    msgl__declare_heads(d, &i->q, 0, i->heads * i->dim, false, i->dim, 0, pairs,
                        "self_attn.indexer.wq_b");
    msgl__declare_linear(d, &i->k, i->dim, hidden, false, &behind);
    msgl__declare_heads(d, &i->k, 0, i->dim, false, i->dim, 0, pairs, "self_attn.indexer.wk");
    msgl__plan_exact_weight(d->p, &i->weights.w, i->heads, hidden);
    msgl__declare_rows(d, &i->weights, 0, i->heads, false, "self_attn.indexer.weights_proj");
    msgl__products_add(&d->m->products, &i->weights, &weights);
    const struct {
        float **v;
        const char *name;
        float dummy;
    } norms[] = {{&i->k_norm, "weight", 1}, {&i->k_norm_bias, "bias", 0}};
    for (int n = 0; n < 2; n++) {
        msgl__plan_vector(d->p, norms[n].v, i->dim);
        msgl__plan_elements(d->p, norms[n].v, 0, i->dim, norms[n].dummy,
                            "%slayers.%d.self_attn.indexer.k_norm.%s", prefix, d->layer,
                            norms[n].name);
        msgl__plan_pairs(d->p, i->dim, 0, pairs);
    }
}

static void declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    msgl_latent_attention *a = &layer->latent_attn;
    const msgl_linear_use down_use = {.norm = msgl__norm_or_null(&layer->attn_norm)};
    const msgl_linear_use plain = {0};
    const int32_t head = a->nope + a->rotary, q = d->m->cfg.num_heads * head;
    const msgl_range heads = msgl__shard(d->target, d->m->cfg.num_heads);
    const msgl_range q_rows = msgl__rows_of(heads, head, 0);
    const int32_t pairs = c->interleaved ? a->rotary / 2 : 0;
    const int32_t first = a->q_rank > 0 ? a->q_rank : q, kv = a->rank + a->rotary;
    const bool bias = c->qkv_bias;
    const msgl_range down[] = {a->q_rank > 0 ? (msgl_range){0, first} : q_rows, {first, kv}};
    msgl__declare_shared_rows(d, &a->down, down, 2, d->m->cfg.hidden_size, bias, &down_use);
    if (a->q_rank > 0) {
        msgl__declare_rows(d, &a->down, 0, first, bias, "self_attn.q_a_proj");
    } else {
        msgl__declare_heads(d, &a->down, 0, q, false, head, a->nope, pairs, "self_attn.q_proj");
    }
    msgl__declare_heads(d, &a->down, first, kv, bias, kv, a->rank, pairs,
                        "self_attn.kv_a_proj_with_mqa");
    if (a->q_rank > 0) {
        msgl__declare_norm(d, &a->q_norm, a->q_rank, "self_attn.q_a_layernorm");
        msgl__declare_shared_rows(d, &a->q_up, &q_rows, 1, a->q_rank, false, &plain);
        msgl__declare_heads(d, &a->q_up, 0, q, false, head, a->nope, pairs, "self_attn.q_b_proj");
    }
    if (a->index.own) {
        declare_index(d, msgl__norm_or_null(&layer->attn_norm), a->q_rank, &a->index);
    }
    msgl__declare_norm(d, &a->latent_norm, a->rank, "self_attn.kv_a_layernorm");
    declare_latent_heads(d, a);
    msgl__declare_cache_scale(d, &a->geometry.k_scale, 'k');
    msgl__declare_out(d, layer, a->num_heads * a->v_dim, c->o_bias, "self_attn.o_proj");
}

static size_t workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    return msgl__latent_workspace(&layer->latent_attn, act, max_tokens);
}

static void run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out)
{
    msgl__latent_attention(f, &layer->latent_attn, norm, in, cos_sin[layer->latent_attn.rope], out);
}

const msgl_mixer msgl__mixer_latent = {.caches = caches,
                                       .check = check,
                                       .build = build,
                                       .declare = declare,
                                       .workspace = workspace,
                                       .run = run};
