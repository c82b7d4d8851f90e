// SPDX-License-Identifier: Apache-2.0
//
// The mixer that is Mamba-2 behind a block of attention and feed-forward whose weights several
// layers share (layers/shared_block.h).
#include <stdio.h>

#include "models/declare.h"

// Attention's place comes first.
static int caches(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out)
{
    const int n = msgl__mixer_attention.caches(c, layer, ranks, dtype, act, out);
    return n + msgl__mamba_caches(c, ranks, act, out + n);
}

static int check(const msgl_model *m, int32_t index, msgl_err *err)
{
    return msgl__mixer_mamba.check(m, index, err);
}

static void build(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    msgl_shared_block *b = &layer->shared;
    msgl__mixer_attention.build(m, index, at, layer); // layer->attn, which is b->attn
    msgl__mamba_build(m, at + 1, layer);
    b->norm = (msgl_norm){.eps = d->rms_eps, .dim = 2 * m->cfg.hidden_size};
    b->ffn_norm = (msgl_norm){.eps = d->rms_eps, .dim = m->cfg.hidden_size};
    b->attn_out.row_parallel = b->mlp.down.row_parallel = true;
    b->mlp.activation = d->activation;
    if (d->shared_blocks.qkv_rank > 0) b->attn.qkv.low_rank = &b->qkv_low_rank;
    b->mlp.gate_up.low_rank = &b->mlp_low_rank;
}

// Of the layers that have a block: how many there are before this one, and the layer with the
// block's tensors. Example: two blocks, had by layers 2, 5, 7 and 9: 7 is number 2 and has that of
// layer 2.
static int32_t place_of(const msgl_decoder_config *d, int32_t layer, int32_t *owner)
{
    int32_t number = 0;
    for (int32_t l = 0; l < layer; l++) number += !msgl__layer_has(d, l, MSGL_LAYER_RECURRENT);
    int32_t left = number % d->shared_blocks.num;
    for (*owner = 0;; ++*owner) {
        if (!msgl__layer_has(d, *owner, MSGL_LAYER_RECURRENT) && left-- == 0) return number;
    }
}

// Rows of a product that come from one tensor: how many there are, and those of this rank.
typedef struct part {
    int32_t all, num;
    msgl_range rows[2]; // [num]
    const char *name;
    const char *adapters; // of the low-rank parts of all layers with the block
} part;

// A layer's product with the weights of `of`, or with its own (NULL).
typedef struct shared_product {
    msgl_linear *l;
    const msgl_linear *of;
    bool bias;
    msgl_linear_use use;
} shared_product;

static void bias_of(const msgl_declaring *d, const shared_product *s, int32_t at, int32_t n,
                    const char *name)
{
    msgl__plan_elements(d->p, &s->l->bias, at, n, 0, "%slayers.%d.%s.bias",
                        d->m->cfg.decoder.names.prefix, d->layer, name);
}

// Rows of the whole product that this rank has; returns how many ranges.
static int32_t rows_of(const part *parts, int32_t num, msgl_range rows[MSGL_MAX_LOW_RANK])
{
    int32_t n = 0, at = 0;
    for (int32_t i = 0; i < num; at += parts[i++].all) {
        for (int32_t r = 0; r < parts[i].num; r++) {
            rows[n++] = msgl__rows_of(parts[i].rows[r], 1, at);
        }
    }
    return n;
}

static void declare_up(const msgl_declaring *d, const shared_product *s, int32_t k,
                       const part *parts, int32_t num)
{
    msgl_range rows[MSGL_MAX_LOW_RANK];
    const int32_t n = rows_of(parts, num, rows);
    if (s->of == NULL) {
        msgl__declare_shared_rows(d, s->l, rows, n, k, s->bias, &s->use);
    } else {
        msgl__plan_same_weight(d->p, &s->l->w, &s->of->w);
        msgl__products_add(&d->m->products, s->l, &s->use);
        msgl__keep_rows(d, &s->l->bias, rows, n);
        if (s->bias) msgl__plan_vector(d->p, &s->l->bias, msgl__ranges_count(rows, n));
    }
    int32_t at = 0;
    for (int32_t i = 0; i < num; at += parts[i++].all) {
        if (s->of == NULL) {
            msgl__declare_rows(d, s->l, at, parts[i].all, s->bias, parts[i].name);
        } else if (s->bias) {
            bias_of(d, s, at, parts[i].all, parts[i].name);
        }
    }
}

// Of the columns that a rank has of the product in front.
static void declare_down(const msgl_declaring *d, const shared_product *s, msgl_range columns,
                         int32_t all, const char *name)
{
    const int32_t hidden = d->m->cfg.hidden_size;
    if (s->of == NULL) {
        msgl__keep_columns(d, &s->l->w, columns, all);
        msgl__declare_linear(d, s->l, hidden, columns.count, s->bias, &s->use);
        msgl__declare_rows(d, s->l, 0, hidden, s->bias, name);
        return;
    }
    msgl__plan_same_weight(d->p, &s->l->w, &s->of->w);
    msgl__products_add(&d->m->products, s->l, &s->use);
    if (!s->bias) return;
    msgl__plan_vector(d->p, &s->l->bias, hidden);
    bias_of(d, s, 0, hidden, name);
}

// number: of the layer among those that have blocks.
static void declare_low_rank(const msgl_declaring *d, msgl_low_rank *l, int32_t rank, int32_t k,
                             const part *parts, int32_t num, const msgl_linear_use *use,
                             int32_t number)
{
    const msgl_linear_use added = {.rows = use->rows, .adds = true};
    char name[96];
    l->rank = rank;
    l->num = num;
    msgl__declare_linear(d, &l->a, num * rank, k, false, use);
    for (int32_t i = 0; i < num; i++) {
        snprintf(name, sizeof name, "%s.%d.0", parts[i].adapters, (int)number);
        msgl__declare_rows(d, &l->a, i * rank, rank, false, name);
    }
    for (int32_t i = 0; i < num; i++) {
        snprintf(name, sizeof name, "%s.%d.1", parts[i].adapters, (int)number);
        msgl__declare_shared_rows(d, &l->b[i], parts[i].rows, parts[i].num, rank, false, &added);
        msgl__declare_rows(d, &l->b[i], 0, parts[i].all, false, name);
    }
}

static void declare_attention(const msgl_declaring *d, msgl_shared_block *b,
                              const msgl_shared_block *of, int32_t number)
{
    const msgl_model_config *c = &d->m->cfg;
    const int32_t head = b->attn.head_dim, rank = c->decoder.shared_blocks.qkv_rank;
    const int32_t q = c->num_heads * head, kv = c->num_kv_heads * head;
    const msgl_range q_rows = msgl__rows_of(msgl__shard(d->target, c->num_heads), head, 0);
    const msgl_range kv_rows = msgl__rows_of(msgl__shard(d->target, c->num_kv_heads), head, 0);
    const part parts[] = {{q,
                           1,
                           {q_rows},
                           "shared_transformer.self_attn.q_proj",
                           "shared_transformer.self_attn.linear_q_adapter_list"},
                          {kv,
                           1,
                           {kv_rows},
                           "shared_transformer.self_attn.k_proj",
                           "shared_transformer.self_attn.linear_k_adapter_list"},
                          {kv,
                           1,
                           {kv_rows},
                           "shared_transformer.self_attn.v_proj",
                           "shared_transformer.self_attn.linear_v_adapter_list"}};
    const shared_product qkv = {.l = &b->attn.qkv, .of = of != NULL ? &of->attn.qkv : NULL};
    const shared_product out = {.l = &b->attn_out, .of = of != NULL ? &of->attn_out : NULL};
    declare_up(d, &qkv, 2 * c->hidden_size, parts, 3);
    declare_down(d, &out, q_rows, q, "shared_transformer.self_attn.o_proj");
    if (rank == 0) return;
    declare_low_rank(d, &b->qkv_low_rank, rank, 2 * c->hidden_size, parts, 3, &qkv.use, number);
}

static void declare_mlp(const msgl_declaring *d, msgl_shared_block *b, const msgl_shared_block *of,
                        int32_t number)
{
    const msgl_model_config *c = &d->m->cfg;
    const int32_t inter = c->decoder.intermediate_size, rank = c->decoder.shared_blocks.mlp_rank;
    const msgl_range columns = msgl__shard(d->target, inter);
    const part parts[] = {{2 * inter,
                           2,
                           {columns, msgl__rows_of(columns, 1, inter)},
                           "shared_transformer.feed_forward.gate_up_proj",
                           "shared_transformer.feed_forward.gate_up_proj_adapter_list"}};
    const shared_product up = {.l = &b->mlp.gate_up,
                               .of = of != NULL ? &of->mlp.gate_up : NULL,
                               .bias = c->decoder.mlp_bias,
                               .use = {.rows = MSGL_ROWS_BLOCK, .norm = &b->ffn_norm}};
    const shared_product down = {.l = &b->mlp.down,
                                 .of = of != NULL ? &of->mlp.down : NULL,
                                 .bias = c->decoder.mlp_bias,
                                 .use = {.rows = MSGL_ROWS_BLOCK}};
    declare_up(d, &up, c->hidden_size, parts, 1);
    declare_down(d, &down, columns, inter, "shared_transformer.feed_forward.down_proj");
    declare_low_rank(d, &b->mlp_low_rank, rank, c->hidden_size, parts, 1, &up.use, number);
}

static void declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    msgl_shared_block *b = &layer->shared;
    const msgl_decoder *decoder = d->m->layers;
    const msgl_linear_use plain = {0};
    int32_t owner;
    const int32_t number = place_of(&d->m->cfg.decoder, d->layer, &owner);
    const msgl_shared_block *of = owner == d->layer ? NULL : &decoder->layers[owner].shared;
    msgl_declaring own = *d, block = *d;
    own.within = block.within = "";
    block.layer = owner;
    declare_attention(&block, b, of, number);
    declare_mlp(&block, b, of, number);
    msgl__declare_norm(&block, &b->norm.weight, b->norm.dim, "shared_transformer.input_layernorm");
    msgl__declare_norm(&block, &b->ffn_norm.weight, b->ffn_norm.dim,
                       "shared_transformer.pre_ff_layernorm");
    msgl__declare_linear(&own, &b->out, d->m->cfg.hidden_size, d->m->cfg.hidden_size, false,
                         &plain);
    msgl__declare_rows(&own, &b->out, 0, d->m->cfg.hidden_size, false, "linear");
    msgl__mamba_declare(d, layer);
    msgl__declare_out(d, layer, layer->mamba.heads * layer->mamba.head_dim,
                      d->m->cfg.decoder.mamba.out_bias, "mamba.out_proj");
}

static size_t workspace(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens)
{
    const size_t sum = msgl__activation_bytes((size_t)max_tokens, (size_t)layer->out.w.n, act);
    const size_t block = msgl__shared_block_workspace(&layer->shared, act, max_tokens);
    const size_t mamba = msgl__mamba_workspace(&layer->mamba, act, max_tokens);
    return sum + (block > mamba ? block : mamba);
}

static void run(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out)
{
    const size_t mark = f->arena->used;
    void *sum = msgl__activation(f, (size_t)f->num_tokens, (size_t)layer->out.w.n);
    if (sum == NULL) return;
    msgl__shared_block(f, &layer->shared, in, cos_sin[layer->shared.attn.rope], sum);
    if (f->x->status == 0) msgl__mamba(f, &layer->mamba, norm, sum, out);
    f->arena->used = mark;
}

const msgl_mixer msgl__mixer_shared = {.caches = caches,
                                       .check = check,
                                       .build = build,
                                       .declare = declare,
                                       .workspace = workspace,
                                       .run = run};
