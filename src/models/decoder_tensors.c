// SPDX-License-Identifier: Apache-2.0
//
// The decoder family's tensors: their names, their shapes and where they go, and the products of a
// step.
#include <stdio.h>

#include "models/decoder.h"

// Where declarations of one layer go.
typedef struct declaring {
    msgl_model *m;
    msgl_weight_plan *p;
    int32_t layer;
} declaring;

static const msgl_model_target *target(const declaring *d)
{
    return &d->m->target;
}

static int32_t count(const msgl_range *ranges, int32_t num)
{
    int32_t n = 0;
    for (int32_t i = 0; i < num; i++) n += ranges[i].count;
    return n;
}

// A range of `unit` rows each, behind `at` others.
static msgl_range rows_of(msgl_range r, int32_t unit, int32_t at)
{
    return (msgl_range){.from = at + r.from * unit, .count = r.count * unit};
}

// A weight that every rank has whole.
static void declare_linear(const declaring *d, msgl_linear *l, int32_t n, int32_t k, bool bias,
                           const msgl_linear_use *use)
{
    msgl__plan_weight(d->p, &l->w, n, k);
    if (bias) msgl__plan_vector(d->p, &l->bias, n);
    msgl__products_add(&d->m->products, l, use);
}

// The last product of a block. With `join` its result is added to the residual stream, without it
// the result is stored. Where several ranks have a part of the product each, a kernel that can add
// the parts up does so; both uses are declared then.
static void declare_joined(const declaring *d, msgl_linear *l, int32_t k, bool bias,
                           const msgl_join *join, msgl_use_rows rows)
{
    const int32_t ranks = target(d)->ranks;
    const bool could = join != NULL && msgl__joins_directly(join, 1), adds = could && ranks == 1;
    msgl_linear_use use = {.rows = rows, .adds = adds, .next = adds ? join->next : NULL};
    declare_linear(d, l, d->m->cfg.hidden_size, k, bias, &use);
    if (!could || adds) return;
    use.adds = use.sums = true;
    use.next = join->next;
    msgl__products_add(&d->m->products, l, &use);
}

static const msgl_range NOTHING[] = {{0, 0}};

// This rank keeps the ranges rows [num] of a weight's rows, or of a vector's elements.
static void keep_rows(const declaring *d, const void *what, const msgl_range *rows, int32_t num)
{
    msgl_kept kept = {.num_rows = num};
    for (int32_t i = 0; i < num; i++) kept.rows[i] = rows[i];
    if (target(d)->ranks > 1) msgl__plan_keep(d->p, what, &kept);
}

// A product of which each rank has some rows and computes those results (column-parallel): here the
// ranges rows [num].
static void declare_shared_rows(const declaring *d, msgl_linear *l, const msgl_range *rows,
                                int32_t num, int32_t k, bool bias, const msgl_linear_use *use)
{
    keep_rows(d, &l->w, rows, num);
    keep_rows(d, &l->bias, rows, num);
    declare_linear(d, l, count(rows, num), k, bias, use);
}

// A product of which each rank has some columns, here `cols` of `all`, and whose results the ranks
// add up (row-parallel).
static void keep_columns(const declaring *d, const msgl_weight *w, msgl_range cols, int32_t all)
{
    const msgl_kept kept = {.cols = cols, .all_cols = all};
    if (target(d)->ranks > 1) msgl__plan_keep(d->p, w, &kept);
}

// Rows of a projection that come from one tensor, with its bias. pairs: of neighbours behind
// `unpaired` ones in every head of `head` rows that rotate together.
static void declare_heads(const declaring *d, msgl_linear *l, int32_t row, int32_t rows, bool bias,
                          int32_t head, int32_t unpaired, int32_t pairs, const char *name)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    msgl__plan_rows(d->p, &l->w, row, rows, "%slayers.%d.%s.weight", prefix, d->layer, name);
    msgl__plan_pairs(d->p, head, unpaired, pairs);
    if (!bias) return;
    msgl__plan_elements(d->p, &l->bias, row, rows, 0, "%slayers.%d.%s.bias", prefix, d->layer,
                        name);
    msgl__plan_pairs(d->p, head, unpaired, pairs);
}

static void declare_rows(const declaring *d, msgl_linear *l, int32_t row, int32_t rows, bool bias,
                         const char *name)
{
    declare_heads(d, l, row, rows, bias, 0, 0, 0, name);
}

// A norm of `all` elements of which this rank keeps the range `kept`.
static void declare_norm_slice(const declaring *d, float **v, msgl_range kept, int32_t all,
                               const char *name)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    keep_rows(d, v, &kept, 1);
    msgl__plan_vector(d->p, v, kept.count);
    msgl__plan_elements(d->p, v, 0, all, 1, "%slayers.%d.%s.weight", c->names.prefix, d->layer,
                        name);
    if (c->norm_plus_one) msgl__plan_add_one(d->p);
}

static void declare_norm(const declaring *d, float **v, int32_t dim, const char *name)
{
    declare_norm_slice(d, v, (msgl_range){0, dim}, dim, name);
}

static void declare_norm_of_stream(const declaring *d, msgl_norm *n, const char *name)
{
    if (name != NULL) declare_norm(d, &n->weight, n->dim, name);
}

// Rows [at, at + rows) of a tensor of `all` as rows of a projection, with its bias.
static void declare_slice(const declaring *d, msgl_linear *l, int32_t row, int32_t rows, bool bias,
                          int32_t all, int32_t at, const char *name)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    msgl__plan_rows(d->p, &l->w, row, rows, "%slayers.%d.%s.weight", prefix, d->layer, name);
    msgl__plan_slice(d->p, all, at, false);
    if (!bias) return;
    msgl__plan_elements(d->p, &l->bias, row, rows, 0, "%slayers.%d.%s.bias", prefix, d->layer,
                        name);
    msgl__plan_slice(d->p, all, at, false);
}

// q_proj with the gate of every head behind its q: all q in front, all gates behind K and V.
static void declare_gated_q(const declaring *d, msgl_attention *a, int32_t q, int32_t kv)
{
    const bool bias = d->m->cfg.decoder.qkv_bias;
    const int32_t head = a->head_dim;
    for (int32_t h = 0; h < d->m->cfg.num_heads; h++) {
        const int32_t row = h * head, at = 2 * row;
        declare_slice(d, &a->qkv, row, head, bias, 2 * q, at, "self_attn.q_proj");
        declare_slice(d, &a->qkv, q + 2 * kv + row, head, bias, 2 * q, at + head,
                      "self_attn.q_proj");
    }
}

static void declare_qkv(const declaring *d, msgl_attention *a, int32_t q, int32_t kv)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const bool bias = c->qkv_bias;
    if (c->names.qkv != NULL) {
        declare_rows(d, &a->qkv, 0, q + 2 * kv, bias, c->names.qkv);
        return;
    }
    const int32_t head = a->head_dim, pairs = c->interleaved ? a->half : 0;
    if (a->gated) {
        declare_gated_q(d, a, q, kv);
    } else {
        declare_heads(d, &a->qkv, 0, q, bias, head, 0, pairs, "self_attn.q_proj");
    }
    declare_heads(d, &a->qkv, q, kv, bias, head, 0, pairs, "self_attn.k_proj");
    declare_rows(d, &a->qkv, q + kv, kv, bias, "self_attn.v_proj");
}

// width: of the mixer's result on one rank.
static void declare_out(const declaring *d, msgl_decoder_layer *layer, int32_t width, bool bias,
                        const char *name)
{
    const msgl_range cols = {.from = target(d)->rank * width, .count = width};
    keep_columns(d, &layer->out.w, cols, target(d)->ranks * width);
    declare_joined(d, &layer->out, width, bias, &layer->attn_join, MSGL_ROWS_STEP);
    declare_rows(d, &layer->out, 0, d->m->cfg.hidden_size, bias, name);
}

static const char OUT[] = "self_attn.o_proj";

// By the names under which vLLM and SGLang find it: llm-compressor's, modelopt's, and those of
// older compressed-tensors files.
static void declare_scale(const declaring *d, float *scale, char k_or_v)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    const char *const fmt = "%slayers.%d.self_attn.%c_%s";
    static const char *const NAMES[] = {"scale", "proj.output_scale", "proj.k_scale",
                                        "proj.v_scale"};
    for (int i = 0; i < 3; i++) {
        const char *name = NAMES[i == 2 && k_or_v == 'v' ? 3 : i];
        msgl__plan_scale(d->p, scale, fmt, prefix, d->layer, k_or_v, name);
    }
}

// Of a head, or over all `n` elements of the heads of q or k, of which this rank has `own`; they
// are counted behind `before` others.
static void declare_head_norm(const declaring *d, float **v, const msgl_range *own, int32_t before,
                              int32_t n, const char *name)
{
    if (own == NULL) {
        declare_norm(d, v, d->m->cfg.head_dim, name);
        return;
    }
    declare_norm_slice(d, v, (msgl_range){own->from - before, own->count}, n, name);
}

static void declare_attention(const declaring *d, msgl_decoder_layer *layer)
{
    const msgl_model_config *c = &d->m->cfg;
    const msgl_decoder_config *dc = &d->m->cfg.decoder;
    msgl_attention *a = &layer->attn;
    const int32_t q = c->num_heads * c->head_dim, kv = c->num_kv_heads * c->head_dim;
    const msgl_linear_use qkv_use = {.norm = msgl__norm_or_null(&layer->attn_norm),
                                     .rotates = msgl__rotates_apart(a) ? NULL : a};
    const msgl_range heads = msgl__shard(target(d), c->num_heads);
    const msgl_range kv_heads = msgl__shard(target(d), c->num_kv_heads);
    const msgl_range rows[] = {rows_of(heads, c->head_dim, 0), rows_of(kv_heads, c->head_dim, q),
                               rows_of(kv_heads, c->head_dim, q + kv),
                               rows_of(heads, c->head_dim, q + 2 * kv)};
    // An EAGLE-3 head's reads embedding and state side by side.
    const bool pairs = dc->head.kind == MSGL_HEAD_EAGLE3 && d->layer == dc->head.first_layer;
    declare_shared_rows(d, &a->qkv, rows, a->gated ? 4 : 3, (pairs ? 2 : 1) * c->hidden_size,
                        dc->qkv_bias, &qkv_use);
    declare_qkv(d, a, q, kv);
    declare_scale(d, &a->geometry.k_scale, 'k');
    declare_scale(d, &a->geometry.v_scale, 'v');
    declare_out(d, layer, heads.count * c->head_dim, dc->o_bias, OUT);
    if (dc->sinks) {
        float **sinks = (float **)&a->geometry.sinks; // backends only read them
        keep_rows(d, sinks, &heads, 1);
        msgl__plan_vector(d->p, sinks, heads.count);
        msgl__plan_elements(d->p, sinks, 0, c->num_heads, 0, "%slayers.%d.self_attn.sinks",
                            dc->names.prefix, d->layer);
    }
    if (dc->qk_norm == MSGL_QK_NORM_UNIT) {
        if (c->ropes[a->rope].type == MSGL_ROPE_NONE) return;
        msgl__plan_ones(d->p, &a->q_norm, c->head_dim);
        msgl__plan_ones(d->p, &a->k_norm, c->head_dim);
    } else if (dc->qk_norm != MSGL_QK_NORM_NONE) {
        declare_head_norm(d, &a->q_norm, a->norms_all ? &rows[0] : NULL, 0, q, "self_attn.q_norm");
        declare_head_norm(d, &a->k_norm, a->norms_all ? &rows[1] : NULL, q, kv, "self_attn.k_norm");
    }
}

// Head h's parts of kv_b_proj, which has for each head nope rows for K, then v_dim for V.
static void declare_latent_head(const declaring *d, msgl_latent_attention *a, int32_t h,
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
static void declare_latent_head_apart(const declaring *d, msgl_latent_attention *a, int32_t h,
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
static void declare_kv_up_apart(const declaring *d, msgl_latent_attention *a)
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

static void declare_latent_heads(const declaring *d, msgl_latent_attention *a)
{
    const bool apart = d->m->cfg.decoder.latent.apart;
    const msgl_range heads = msgl__shard(target(d), d->m->cfg.num_heads);
    const int32_t head = a->nope + a->v_dim, all = d->m->cfg.num_heads * head;
    const msgl_range rows = rows_of(heads, head, 0);
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
    keep_rows(d, &a->kv_up.w, &rows, 1);
    msgl__plan_exact_weight(d->p, &a->kv_up.w, rows.count, a->rank);
    if (apart) {
        declare_kv_up_apart(d, a);
    } else {
        declare_rows(d, &a->kv_up, 0, all, false, "self_attn.kv_b_proj");
    }
    msgl__products_add(&d->m->products, &a->kv_up, &plain);
}

static void declare_latent(const declaring *d, msgl_decoder_layer *layer)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    msgl_latent_attention *a = &layer->latent_attn;
    const msgl_linear_use down_use = {.norm = msgl__norm_or_null(&layer->attn_norm)};
    const msgl_linear_use plain = {0};
    const int32_t head = a->nope + a->rotary, q = d->m->cfg.num_heads * head;
    const msgl_range heads = msgl__shard(target(d), d->m->cfg.num_heads);
    const msgl_range q_rows = rows_of(heads, head, 0);
    const int32_t pairs = c->interleaved ? a->rotary / 2 : 0;
    const int32_t first = a->q_rank > 0 ? a->q_rank : q, kv = a->rank + a->rotary;
    const bool bias = c->qkv_bias;
    const msgl_range down[] = {a->q_rank > 0 ? (msgl_range){0, first} : q_rows, {first, kv}};
    declare_shared_rows(d, &a->down, down, 2, d->m->cfg.hidden_size, bias, &down_use);
    if (a->q_rank > 0) {
        declare_rows(d, &a->down, 0, first, bias, "self_attn.q_a_proj");
    } else {
        declare_heads(d, &a->down, 0, q, false, head, a->nope, pairs, "self_attn.q_proj");
    }
    declare_heads(d, &a->down, first, kv, bias, kv, a->rank, pairs, "self_attn.kv_a_proj_with_mqa");
    if (a->q_rank > 0) {
        declare_norm(d, &a->q_norm, a->q_rank, "self_attn.q_a_layernorm");
        declare_shared_rows(d, &a->q_up, &q_rows, 1, a->q_rank, false, &plain);
        declare_heads(d, &a->q_up, 0, q, false, head, a->nope, pairs, "self_attn.q_b_proj");
    }
    declare_norm(d, &a->latent_norm, a->rank, "self_attn.kv_a_layernorm");
    declare_latent_heads(d, a);
    declare_scale(d, &a->geometry.k_scale, 'k');
    declare_out(d, layer, a->num_heads * a->v_dim, c->o_bias, OUT);
}

// The product in, from files that have what belongs to a k head side by side: of each its q, k, v
// and z in one tensor, its b and a in another.
static void declare_delta_by_k_head(const declaring *d, const msgl_delta_config *c, msgl_delta *l)
{
    const char *const qkvz = "linear_attn.in_proj_qkvz", *const ba = "linear_attn.in_proj_ba";
    const int32_t group = c->v_heads / c->k_heads, k = c->k_dim, v = group * c->v_dim;
    const int32_t keys = c->k_heads * k, values = c->k_heads * v, z = 2 * keys + values;
    const int32_t b = z + values, a = b + c->v_heads, all = 2 * (keys + values);
    for (int32_t h = 0; h < c->k_heads; h++) {
        const int32_t at = h * 2 * (k + v), at_ba = h * 2 * group;
        declare_slice(d, &l->in, h * k, k, false, all, at, qkvz);
        declare_slice(d, &l->in, keys + h * k, k, false, all, at + k, qkvz);
        declare_slice(d, &l->in, 2 * keys + h * v, v, false, all, at + 2 * k, qkvz);
        declare_slice(d, &l->in, z + h * v, v, false, all, at + 2 * k + v, qkvz);
        declare_slice(d, &l->in, b + h * group, group, false, 2 * c->v_heads, at_ba, ba);
        declare_slice(d, &l->in, a + h * group, group, false, 2 * c->v_heads, at_ba + group, ba);
    }
}

static void declare_delta_by_tensor(const declaring *d, const msgl_delta_config *c, msgl_delta *l)
{
    const int32_t values = c->v_heads * c->v_dim, channels = 2 * c->k_heads * c->k_dim + values;
    const int32_t b = channels + values, per_k_head = c->v_heads / c->k_heads;
    declare_rows(d, &l->in, 0, channels, false, "linear_attn.in_proj_qkv");
    declare_rows(d, &l->in, channels, values, false, "linear_attn.in_proj_z");
    for (int32_t h = 0; h < c->k_heads && c->only_ba_by_k_head; h++) {
        const char *const ba = "linear_attn.in_proj_ba";
        const int32_t row = b + h * per_k_head, at = h * 2 * per_k_head;
        declare_slice(d, &l->in, row, per_k_head, false, 2 * c->v_heads, at, ba);
        declare_slice(d, &l->in, row + c->v_heads, per_k_head, false, 2 * c->v_heads,
                      at + per_k_head, ba);
    }
    if (c->only_ba_by_k_head) return;
    declare_rows(d, &l->in, b, c->v_heads, false, "linear_attn.in_proj_b");
    declare_rows(d, &l->in, b + c->v_heads, c->v_heads, false, "linear_attn.in_proj_a");
}

// Where a file that has the v heads of a k head apart has our v head h.
static int32_t apart(const msgl_delta_config *c, int32_t h)
{
    const int32_t each = c->v_heads / c->k_heads;
    return h % each * c->k_heads + h / each;
}

static void declare_delta_by_v_head(const declaring *d, const msgl_delta_config *c, msgl_delta *l)
{
    const int32_t keys = 2 * c->k_heads * c->k_dim, v = c->v_dim, values = c->v_heads * v;
    const int32_t channels = keys + values, b = channels + values, all = c->v_heads;
    declare_slice(d, &l->in, 0, keys, false, channels, 0, "linear_attn.in_proj_qkv");
    for (int32_t h = 0; h < all; h++) {
        const int32_t at = apart(c, h);
        declare_slice(d, &l->in, keys + h * v, v, false, channels, keys + at * v,
                      "linear_attn.in_proj_qkv");
        declare_slice(d, &l->in, channels + h * v, v, false, values, at * v,
                      "linear_attn.in_proj_z");
        declare_slice(d, &l->in, b + h, 1, false, all, at, "linear_attn.in_proj_b");
        declare_slice(d, &l->in, b + all + h, 1, false, all, at, "linear_attn.in_proj_a");
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

static void declare_elements(const declaring *d, float **v, const delta_vector *e, int32_t all,
                             int32_t to, int32_t count, int32_t from)
{
    msgl__plan_elements(d->p, v, to, count, e->dummy, "%slayers.%d.linear_attn.%s",
                        d->m->cfg.decoder.names.prefix, d->layer, e->name);
    if (count < all) msgl__plan_slice(d->p, all, from, false);
    if (e->taps > 0) msgl__plan_taps(d->p, e->taps);
    if (e->log_of_minus) msgl__plan_log_of_minus(d->p);
}

// Of its elements a rank has the ranges kept [num].
static void declare_vector(const declaring *d, float **v, const delta_vector *e,
                           const msgl_range *kept, int32_t num)
{
    const msgl_delta_config *c = &d->m->cfg.decoder.delta;
    const int32_t all = e->before + c->v_heads * e->each;
    keep_rows(d, v, kept, num);
    msgl__plan_vector(d->p, v, count(kept, num));
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

static void declare_delta(const declaring *d, msgl_decoder_layer *layer)
{
    const msgl_delta_config *c = &d->m->cfg.decoder.delta;
    msgl_delta *l = &layer->delta;
    const msgl_linear_use use = {.norm = msgl__norm_or_null(&layer->attn_norm)};
    const int32_t keys = c->k_heads * c->k_dim, values = c->v_heads * c->v_dim;
    const int32_t channels = 2 * keys + values, b = channels + values;
    const msgl_range k_heads = msgl__shard(target(d), c->k_heads);
    const msgl_range v_heads = msgl__shard(target(d), c->v_heads);
    // q, k, v, z, b, a, and behind them rows without use.
    const msgl_range rows[] = {rows_of(k_heads, c->k_dim, 0),
                               rows_of(k_heads, c->k_dim, keys),
                               rows_of(v_heads, c->v_dim, 2 * keys),
                               rows_of(v_heads, c->v_dim, channels),
                               rows_of(v_heads, 1, b),
                               rows_of(v_heads, 1, b + c->v_heads)};
    msgl_range taps[3];
    for (int i = 0; i < 3; i++) taps[i] = rows_of(rows[i], MSGL_DELTA_TAPS, 0);
    keep_rows(d, &l->in.w, rows, 6);
    declare_linear(d, &l->in, msgl__delta_rows(l), d->m->cfg.hidden_size, false, &use);
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
    declare_out(d, layer, v_heads.count * c->v_dim, false, "linear_attn.out_proj");
    if (!c->v_heads_apart) return;
    msgl__plan_column_heads(d->p, c->k_heads, c->v_heads / c->k_heads, c->v_dim);
}

// A feed-forward block whose tensors begin with `name`.
static void declare_mlp(const declaring *d, msgl_mlp *m, int32_t inter, const msgl_norm *norm,
                        const msgl_join *join, const char *name)
{
    const int32_t hidden = d->m->cfg.hidden_size;
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const msgl_linear_use up_use = {
        .rows = MSGL_ROWS_BLOCK, .norm = norm, .gated = true, .activation = m->activation};
    char tensor[64];
    const msgl_range shard = msgl__shard(target(d), inter);
    const msgl_range rows[] = {shard, rows_of(shard, 1, inter)};
    declare_shared_rows(d, &m->gate_up, rows, 2, hidden, c->mlp_bias, &up_use);
    if (c->names.gate_up != NULL) {
        declare_rows(d, &m->gate_up, 0, 2 * inter, c->mlp_bias, c->names.gate_up);
    } else {
        snprintf(tensor, sizeof tensor, "%s.gate_proj", name);
        declare_rows(d, &m->gate_up, 0, inter, c->mlp_bias, tensor);
        snprintf(tensor, sizeof tensor, "%s.up_proj", name);
        declare_rows(d, &m->gate_up, inter, inter, c->mlp_bias, tensor);
    }
    keep_columns(d, &m->down.w, shard, inter);
    declare_joined(d, &m->down, shard.count, c->mlp_bias, join, MSGL_ROWS_BLOCK);
    snprintf(tensor, sizeof tensor, "%s.down_proj", name);
    declare_rows(d, &m->down, 0, hidden, c->mlp_bias, tensor);
}

// Expert e's part of the tensors that stack gates, ups and downs by themselves.
static void declare_expert_of_each(const declaring *d, msgl_weight *gate_up, msgl_weight *down,
                                   int32_t e)
{
    const msgl_decoder_names *n = &d->m->cfg.decoder.names;
    const int32_t inter = d->m->cfg.decoder.moe_intermediate_size, hidden = d->m->cfg.hidden_size;
    const int32_t all = d->m->cfg.decoder.num_experts;
    const char *const fmt = "%slayers.%d.%s.weight";
    if (n->each_gate_up != NULL) {
        msgl__plan_rows(d->p, gate_up, 0, 2 * inter, fmt, n->prefix, d->layer, n->each_gate_up);
        msgl__plan_expert(d->p, all, e, false);
    } else {
        msgl__plan_rows(d->p, gate_up, 0, inter, fmt, n->prefix, d->layer, n->each_gate);
        msgl__plan_expert(d->p, all, e, false);
        msgl__plan_rows(d->p, gate_up, inter, inter, fmt, n->prefix, d->layer, n->each_up);
        msgl__plan_expert(d->p, all, e, false);
    }
    msgl__plan_rows(d->p, down, 0, hidden, fmt, n->prefix, d->layer, n->each_down);
    msgl__plan_expert(d->p, all, e, false);
}

// Expert e's tensors: its own, and those that it has a part in.
static void declare_expert_tensors(const declaring *d, msgl_weight *gate_up, msgl_weight *down,
                                   int32_t e)
{
    const msgl_decoder_names *n = &d->m->cfg.decoder.names;
    const int32_t inter = d->m->cfg.decoder.moe_intermediate_size, hidden = d->m->cfg.hidden_size;
    const int32_t all = d->m->cfg.decoder.num_experts;
    const char *const own = "%slayers.%d.%s.%d.%s.weight", *const shared = "%slayers.%d.%s";
    if (n->experts != NULL) {
        msgl__plan_form(d->p, MSGL_FORM_APART);
        msgl__plan_rows(d->p, gate_up, 0, inter, own, n->prefix, d->layer, n->experts, e, n->gate);
        msgl__plan_rows(d->p, gate_up, inter, inter, own, n->prefix, d->layer, n->experts, e,
                        n->up);
        msgl__plan_rows(d->p, down, 0, hidden, own, n->prefix, d->layer, n->experts, e, n->down);
    }
    msgl__plan_form(d->p, MSGL_FORM_STACKED);
    msgl__plan_rows(d->p, gate_up, 0, 2 * inter, shared, n->prefix, d->layer, n->all_gate_up);
    if (n->all_alternate) msgl__plan_pairs(d->p, 2 * inter, 0, inter);
    msgl__plan_expert(d->p, all, e, n->all_by_columns);
    msgl__plan_rows(d->p, down, 0, hidden, shared, n->prefix, d->layer, n->all_down);
    msgl__plan_expert(d->p, all, e, n->all_by_columns);
    msgl__plan_form(d->p, MSGL_FORM_ANY);
}

static void declare_expert(const declaring *d, msgl_moe *m, int32_t e)
{
    const int32_t inter = d->m->cfg.decoder.moe_intermediate_size, hidden = d->m->cfg.hidden_size;
    // The experts' arrays belong to the model; only reading them is everyone's.
    const int32_t at = e - m->experts.first;
    msgl_weight *gate_up = (msgl_weight *)m->experts.gate_up + at;
    msgl_weight *down = (msgl_weight *)m->experts.down + at;
    const msgl_range shard = msgl__own_columns(target(d), inter);
    const msgl_range rows[] = {shard, rows_of(shard, 1, inter)};
    const bool own = at >= 0 && at < m->experts.own;
    keep_rows(d, gate_up, own ? rows : NOTHING, own ? 2 : 1);
    const msgl_kept kept_down = {.cols = shard, .all_cols = inter, .num_rows = own ? 0 : 1};
    if (target(d)->ranks > 1) msgl__plan_keep(d->p, down, &kept_down);
    msgl__plan_weight(d->p, gate_up, own ? 2 * shard.count : 0, hidden);
    msgl__plan_weight(d->p, down, own ? hidden : 0, shard.count);
    if (d->m->cfg.decoder.names.each_down != NULL) {
        declare_expert_of_each(d, gate_up, down, e);
    } else {
        declare_expert_tensors(d, gate_up, down, e);
    }
}

// [experts, n], of which each expert's are pairs of neighbours if `pairs` is not 0. Of each of its
// experts' a rank has the ranges kept [num], in room for `room` elements. name NULL: the tensors
// are declared behind it.
static void declare_experts_bias(const declaring *d, float **v, const msgl_moe_experts *e,
                                 int32_t n, const msgl_range *kept, int32_t num, int32_t room,
                                 int32_t pairs, const char *name)
{
    msgl_kept of_each = {.num_rows = num, .period = n, .periods = {e->first, e->own}};
    for (int32_t i = 0; i < num; i++) of_each.rows[i] = kept[i];
    if (target(d)->ranks > 1) msgl__plan_keep(d->p, v, &of_each);
    msgl__plan_vector(d->p, v, e->own * room);
    if (name == NULL) return;
    msgl__plan_elements(d->p, v, 0, e->num_experts * n, 0, "%slayers.%d.%s_bias",
                        d->m->cfg.decoder.names.prefix, d->layer, name);
    msgl__plan_pairs(d->p, n, 0, pairs);
    msgl__plan_expert(d->p, e->num_experts, 0, false);
}

// Elements [at, at + n) of the `of` that each expert has in vector v, from a tensor [experts, n].
static void declare_bias_of_each(const declaring *d, float **v, const msgl_moe_experts *e,
                                 int32_t of, int32_t at, int32_t n, const char *name)
{
    for (int32_t i = 0; i < e->num_experts; i++) {
        msgl__plan_elements(d->p, v, i * of + at, n, 0, "%slayers.%d.%s.bias",
                            d->m->cfg.decoder.names.prefix, d->layer, name);
        msgl__plan_slice(d->p, e->num_experts * n, i * n, false);
        msgl__plan_expert(d->p, e->num_experts, 0, false);
    }
}

static void declare_experts_biases(const declaring *d, msgl_moe_experts *e)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const msgl_decoder_names *n = &c->names;
    const int32_t inter = c->moe_intermediate_size, hidden = d->m->cfg.hidden_size;
    const bool each = n->each_down != NULL;
    const msgl_range shard = msgl__own_columns(target(d), inter);
    const msgl_range up[] = {shard, rows_of(shard, 1, inter)};
    // What several ranks add up has one bias: the others have zeros in its place.
    const msgl_range down = {0, shard.from == 0 ? hidden : 0};
    declare_experts_bias(d, &e->gate_up_bias, e, 2 * inter, up, 2, 2 * shard.count,
                         n->all_alternate ? inter : 0, each ? NULL : n->all_gate_up);
    if (each && n->each_gate_up != NULL) {
        declare_bias_of_each(d, &e->gate_up_bias, e, 2 * inter, 0, 2 * inter, n->each_gate_up);
    } else if (each) {
        declare_bias_of_each(d, &e->gate_up_bias, e, 2 * inter, 0, inter, n->each_gate);
        declare_bias_of_each(d, &e->gate_up_bias, e, 2 * inter, inter, inter, n->each_up);
    }
    declare_experts_bias(d, &e->down_bias, e, hidden, &down, 1, hidden, 0,
                         each ? NULL : n->all_down);
    if (each) declare_bias_of_each(d, &e->down_bias, e, hidden, 0, hidden, n->each_down);
}

static void declare_router(const declaring *d, msgl_moe *m)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const bool two = c->names.all_router != NULL;
    if (two) msgl__plan_form(d->p, MSGL_FORM_APART);
    declare_rows(d, &m->router, 0, c->num_experts, c->router_bias, c->names.router);
    msgl__plan_router(d->p);
    if (!two) return;
    msgl__plan_form(d->p, MSGL_FORM_STACKED);
    declare_rows(d, &m->router, 0, c->num_experts, c->router_bias, c->names.all_router);
    msgl__plan_router(d->p);
    msgl__plan_form(d->p, MSGL_FORM_ANY);
}

static void declare_moe(const declaring *d, msgl_moe *m, const msgl_norm *norm,
                        const msgl_join *join)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const int32_t hidden = d->m->cfg.hidden_size;
    msgl__plan_exact_weight(d->p, &m->router.w, c->num_experts, hidden);
    if (c->router_bias) msgl__plan_vector(d->p, &m->router.bias, c->num_experts);
    declare_router(d, m);
    if (c->names.correction != NULL) {
        float **correction = &m->experts.router.correction;
        msgl__plan_vector(d->p, correction, c->num_experts);
        msgl__plan_elements(d->p, correction, 0, c->num_experts, 0, "%slayers.%d.%s",
                            c->names.prefix, d->layer, c->names.correction);
    }
    for (int32_t e = 0; e < c->num_experts; e++) declare_expert(d, m, e);
    if (c->experts_bias) declare_experts_biases(d, &m->experts);
    msgl__products_add_experts(&d->m->products, m);
    if (!m->has_shared) return;
    const msgl_linear_use gate_use = {.rows = MSGL_ROWS_BLOCK, .norm = norm, .f32_out = true};
    declare_mlp(d, &m->shared, c->shared_intermediate_size, norm, m->gates_shared ? NULL : join,
                c->names.shared);
    if (!m->gates_shared) return;
    msgl__plan_exact_weight(d->p, &m->shared_gate.w, 1, hidden);
    msgl__products_add(&d->m->products, &m->shared_gate, &gate_use);
    declare_rows(d, &m->shared_gate, 0, 1, false, c->names.shared_gate);
}

void msgl__decoder_declare(msgl_model *m, msgl_weight_plan *p)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder_names *n = &c->decoder.names;
    const msgl_decoder *decoder = m->layers;
    const msgl_head_config *h = &c->decoder.head;
    char embed[48], norm[64], head[48];
    snprintf(embed, sizeof embed, "%sembed_tokens.weight", n->prefix);
    snprintf(norm, sizeof norm, "%s%s.weight", h->kind != MSGL_HEAD_NONE ? "" : n->prefix,
             h->kind != MSGL_HEAD_NONE ? h->final_norm : "norm");
    snprintf(head, sizeof head, "%s.weight", n->head);
    msgl__model_declare_ends(m, p, embed, norm, head, c->decoder.norm_plus_one);
    if (h->kind != MSGL_HEAD_NONE) msgl__head_declare(m, p);
    for (int32_t l = 0; l < c->num_layers && p->status == 0; l++) {
        msgl_decoder_layer *layer = &decoder->layers[l];
        const declaring d = {.m = m, .p = p, .layer = h->first_layer + l};
        const msgl_norm *ffn_norm = msgl__norm_or_null(&layer->ffn_norm);
        declare_norm_of_stream(&d, &layer->attn_norm, n->attn_norm);
        if (layer->mixer == MSGL_MIX_LATENT) {
            declare_latent(&d, layer);
        } else if (layer->mixer == MSGL_MIX_DELTA) {
            declare_delta(&d, layer);
        } else {
            declare_attention(&d, layer);
        }
        declare_norm_of_stream(&d, &layer->attn_post_norm, n->attn_post_norm);
        declare_norm_of_stream(&d, &layer->ffn_norm, n->ffn_norm);
        if (layer->sparse) {
            declare_moe(&d, &layer->moe, ffn_norm, &layer->ffn_join);
        } else {
            declare_mlp(&d, &layer->mlp, c->decoder.intermediate_size, ffn_norm, &layer->ffn_join,
                        n->mlp);
        }
        declare_norm_of_stream(&d, &layer->ffn_post_norm, n->ffn_post_norm);
    }
}
