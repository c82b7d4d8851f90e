// SPDX-License-Identifier: Apache-2.0
//
// The feed-forward blocks: how they are built and which tensors they have.
#include <stdio.h>

#include "models/declare.h"

// experts: 2 * num_experts of them, gate_up and down, those of other ranks without a place.
static void build_moe(const msgl_model *m, msgl_weight *experts, msgl_moe *moe)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    moe->backend = m->target.moe;
    const msgl_range own = msgl__own_experts(&m->target, d->num_experts);
    moe->experts = (msgl_moe_experts){.num_experts = d->num_experts,
                                      .first = own.from,
                                      .own = own.count,
                                      .router = d->router,
                                      .gate_up = experts + own.from,
                                      .down = experts + d->num_experts + own.from,
                                      .activation = d->activation,
                                      .weighs_input = d->weighs_input};
    moe->has_shared = d->shared_intermediate_size > 0;
    moe->gates_shared = d->names.shared_gate != NULL;
}

void msgl__ffn_build(const msgl_model *m, int32_t index, msgl_weight *experts,
                     msgl_decoder_layer *layer)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    layer->mlp.activation = d->activation;
    layer->mlp.down.row_parallel = true;
    layer->sparse = msgl__layer_has(d, index, MSGL_LAYER_SPARSE);
    if (layer->sparse) build_moe(m, experts, &layer->moe);
}

static const msgl_range NOTHING[] = {{0, 0}};

// A feed-forward block whose tensors begin with `name`.
static void declare_mlp(const msgl_declaring *d, msgl_mlp *m, int32_t inter, const msgl_norm *norm,
                        const msgl_join *join, const char *name)
{
    const int32_t hidden = d->m->cfg.hidden_size;
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const msgl_linear_use up_use = {
        .rows = MSGL_ROWS_BLOCK, .norm = norm, .gated = true, .activation = m->activation};
    char tensor[64];
    const msgl_range shard = msgl__shard(d->target, inter);
    const msgl_range rows[] = {shard, msgl__rows_of(shard, 1, inter)};
    msgl__declare_shared_rows(d, &m->gate_up, rows, 2, hidden, c->mlp_bias, &up_use);
    if (c->names.gate_up != NULL) {
        msgl__declare_rows(d, &m->gate_up, 0, 2 * inter, c->mlp_bias, c->names.gate_up);
    } else {
        snprintf(tensor, sizeof tensor, "%s.%s", name, c->names.mlp_gate);
        msgl__declare_rows(d, &m->gate_up, 0, inter, c->mlp_bias, tensor);
        snprintf(tensor, sizeof tensor, "%s.%s", name, c->names.mlp_up);
        msgl__declare_rows(d, &m->gate_up, inter, inter, c->mlp_bias, tensor);
    }
    msgl__keep_columns(d, &m->down.w, shard, inter);
    msgl__declare_joined(d, &m->down, shard.count, c->mlp_bias, join, MSGL_ROWS_BLOCK);
    snprintf(tensor, sizeof tensor, "%s.%s", name, c->names.mlp_down);
    msgl__declare_rows(d, &m->down, 0, hidden, c->mlp_bias, tensor);
}

// Expert e's part of the tensors that stack gates, ups and downs by themselves.
static void declare_expert_of_each(const msgl_declaring *d, msgl_weight *gate_up, msgl_weight *down,
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
static void declare_expert_tensors(const msgl_declaring *d, msgl_weight *gate_up, msgl_weight *down,
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

static void declare_expert(const msgl_declaring *d, msgl_moe *m, int32_t e)
{
    const int32_t inter = d->m->cfg.decoder.moe_intermediate_size, hidden = d->m->cfg.hidden_size;
    // The experts' arrays belong to the model; only reading them is everyone's.
    const int32_t at = e - m->experts.first;
    msgl_weight *gate_up = (msgl_weight *)m->experts.gate_up + at;
    msgl_weight *down = (msgl_weight *)m->experts.down + at;
    const msgl_range shard = msgl__own_columns(d->target, inter);
    const msgl_range rows[] = {shard, msgl__rows_of(shard, 1, inter)};
    const bool own = at >= 0 && at < m->experts.own;
    msgl__keep_rows(d, gate_up, own ? rows : NOTHING, own ? 2 : 1);
    const msgl_kept kept_down = {.cols = shard, .all_cols = inter, .num_rows = own ? 0 : 1};
    if (d->target->ranks > 1) msgl__plan_keep(d->p, down, &kept_down);
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
static void declare_experts_bias(const msgl_declaring *d, float **v, const msgl_moe_experts *e,
                                 int32_t n, const msgl_range *kept, int32_t num, int32_t room,
                                 int32_t pairs, const char *name)
{
    msgl_kept of_each = {.num_rows = num, .period = n, .periods = {e->first, e->own}};
    for (int32_t i = 0; i < num; i++) of_each.rows[i] = kept[i];
    if (d->target->ranks > 1) msgl__plan_keep(d->p, v, &of_each);
    msgl__plan_vector(d->p, v, e->own * room);
    if (name == NULL) return;
    msgl__plan_elements(d->p, v, 0, e->num_experts * n, 0, "%slayers.%d.%s_bias",
                        d->m->cfg.decoder.names.prefix, d->layer, name);
    msgl__plan_pairs(d->p, n, 0, pairs);
    msgl__plan_expert(d->p, e->num_experts, 0, false);
}

// Elements [at, at + n) of the `of` that each expert has in vector v, from a tensor [experts, n].
static void declare_bias_of_each(const msgl_declaring *d, float **v, const msgl_moe_experts *e,
                                 int32_t of, int32_t at, int32_t n, const char *name)
{
    for (int32_t i = 0; i < e->num_experts; i++) {
        msgl__plan_elements(d->p, v, i * of + at, n, 0, "%slayers.%d.%s.bias",
                            d->m->cfg.decoder.names.prefix, d->layer, name);
        msgl__plan_slice(d->p, e->num_experts * n, i * n, false);
        msgl__plan_expert(d->p, e->num_experts, 0, false);
    }
}

static void declare_experts_biases(const msgl_declaring *d, msgl_moe_experts *e)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const msgl_decoder_names *n = &c->names;
    const int32_t inter = c->moe_intermediate_size, hidden = d->m->cfg.hidden_size;
    const bool each = n->each_down != NULL;
    const msgl_range shard = msgl__own_columns(d->target, inter);
    const msgl_range up[] = {shard, msgl__rows_of(shard, 1, inter)};
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

static void declare_router(const msgl_declaring *d, msgl_moe *m)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const bool two = c->names.all_router != NULL;
    if (two) msgl__plan_form(d->p, MSGL_FORM_APART);
    msgl__declare_rows(d, &m->router, 0, c->num_experts, c->router_bias, c->names.router);
    msgl__plan_router(d->p);
    if (!two) return;
    msgl__plan_form(d->p, MSGL_FORM_STACKED);
    msgl__declare_rows(d, &m->router, 0, c->num_experts, c->router_bias, c->names.all_router);
    msgl__plan_router(d->p);
    msgl__plan_form(d->p, MSGL_FORM_ANY);
}

static void declare_moe(const msgl_declaring *d, msgl_moe *m, const msgl_norm *norm,
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
    msgl__declare_rows(d, &m->shared_gate, 0, 1, false, c->names.shared_gate);
}

void msgl__ffn_declare(const msgl_declaring *d, msgl_decoder_layer *layer)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const msgl_norm *norm = msgl__norm_or_null(&layer->ffn_norm);
    if (layer->sparse) {
        declare_moe(d, &layer->moe, norm, &layer->ffn_join);
    } else {
        declare_mlp(d, &layer->mlp, c->intermediate_size, norm, &layer->ffn_join, c->names.mlp);
    }
}
