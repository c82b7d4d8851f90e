// SPDX-License-Identifier: Apache-2.0
//
// The feed-forward blocks: how they are built and which tensors they have.
#include <math.h>
#include <stdio.h>

#include "kernel/pointwise.h"
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
                                      .plain = m->cfg.arch->plain_mlp,
                                      .pointwise = d->pointwise,
                                      .weighs_input = d->weighs_input};
    moe->latent_out.row_parallel = true; // of the ranks' parts of the sum
    moe->has_shared = d->shared_intermediate_size > 0;
    moe->gates_shared = d->names.shared_gate != NULL;
    moe->shared.activation = d->activation;
    moe->shared.plain = moe->experts.plain;
    moe->shared.pointwise = d->pointwise;
    moe->shared.down.row_parallel = true;
}

void msgl__ffn_build(const msgl_model *m, int32_t index, msgl_weight *experts,
                     msgl_decoder_layer *layer)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    layer->mlp.activation = d->activation;
    layer->mlp.plain = m->cfg.arch->plain_mlp;
    layer->mlp.pointwise = d->pointwise;
    layer->mlp.down.row_parallel = true;
    layer->sparse = msgl__layer_has(d, index, MSGL_LAYER_SPARSE);
    if (!layer->sparse) return;
    build_moe(m, experts, &layer->moe);
    if (msgl__layer_has(d, index, MSGL_LAYER_TABLE)) {
        layer->moe.experts.router.table_ids = m->cfg.vocab_size;
    }
    layer->beside = d->names.moe_norm != NULL;
    if (!layer->beside) return;
    const msgl_norm norm = {.eps = d->rms_eps, .dim = m->cfg.hidden_size};
    layer->mlp_post_norm = layer->moe_norm = layer->moe_post_norm = norm;
    layer->moe_join = (msgl_join){.norm = &layer->moe_post_norm, .scale = 1};
}

// Of what experts read and make.
static int32_t experts_width(const msgl_model_config *c)
{
    return c->decoder.moe_latent_size > 0 ? c->decoder.moe_latent_size : c->hidden_size;
}

static const msgl_range NOTHING[] = {{0, 0}};

// What xIELU has in every layer, in the order of kernel/pointwise.h.
static void declare_params(const msgl_declaring *d, msgl_mlp *m, const char *name)
{
    static const struct {
        const char *name;
        float dummy;
    } PARAMS[MSGL_XIELU_PARAMS] = {
        {"alpha_p", 0.5F}, {"alpha_n", 0}, {"beta", 0.5F}, {"eps", -1e-6F}};
    if (m->pointwise != MSGL_POINTWISE_XIELU) return;
    msgl__plan_vector(d->p, &m->params, MSGL_XIELU_PARAMS);
    for (int32_t i = 0; i < MSGL_XIELU_PARAMS; i++) {
        msgl__plan_elements(d->p, &m->params, i, 1, PARAMS[i].dummy, "%slayers.%d.%s.act_fn.%s",
                            d->m->cfg.decoder.names.prefix, d->layer, name, PARAMS[i].name);
    }
}

static void declare_plain_up(const msgl_declaring *d, msgl_mlp *m, int32_t inter,
                             const msgl_norm *norm, const char *name)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const msgl_linear_use use = {.rows = MSGL_ROWS_BLOCK, .norm = norm};
    const msgl_range shard = msgl__shard(d->target, inter);
    char tensor[64];
    msgl__declare_shared_rows(d, &m->gate_up, &shard, 1, d->m->cfg.hidden_size, c->mlp_bias, &use);
    snprintf(tensor, sizeof tensor, "%s.%s", name, c->names.mlp_up);
    msgl__declare_rows(d, &m->gate_up, 0, inter, c->mlp_bias, tensor);
    declare_params(d, m, name);
}

static void declare_gate_up(const msgl_declaring *d, msgl_mlp *m, int32_t inter,
                            const msgl_norm *norm, const char *name)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const msgl_linear_use use = {
        .rows = MSGL_ROWS_BLOCK, .norm = norm, .gated = true, .activation = m->activation};
    const msgl_range shard = msgl__shard(d->target, inter);
    const msgl_range rows[] = {shard, msgl__rows_of(shard, 1, inter)};
    char tensor[64];
    msgl__declare_shared_rows(d, &m->gate_up, rows, 2, d->m->cfg.hidden_size, c->mlp_bias, &use);
    if (c->names.gate_up != NULL) {
        msgl__declare_rows(d, &m->gate_up, 0, 2 * inter, c->mlp_bias, c->names.gate_up);
        return;
    }
    if (c->names.mlp_gate_up != NULL) {
        snprintf(tensor, sizeof tensor, "%s.%s", name, c->names.mlp_gate_up);
        msgl__declare_rows(d, &m->gate_up, 0, 2 * inter, c->mlp_bias, tensor);
        return;
    }
    snprintf(tensor, sizeof tensor, "%s.%s", name, c->names.mlp_gate);
    msgl__declare_rows(d, &m->gate_up, 0, inter, c->mlp_bias, tensor);
    snprintf(tensor, sizeof tensor, "%s.%s", name, c->names.mlp_up);
    msgl__declare_rows(d, &m->gate_up, inter, inter, c->mlp_bias, tensor);
}

// A feed-forward block whose tensors begin with `name`.
static void declare_mlp(const msgl_declaring *d, msgl_mlp *m, int32_t inter, const msgl_norm *norm,
                        const msgl_join *join, const char *name)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const msgl_range shard = msgl__shard(d->target, inter);
    char tensor[64];
    if (m->plain) {
        declare_plain_up(d, m, inter, norm, name);
    } else {
        declare_gate_up(d, m, inter, norm, name);
    }
    msgl__keep_columns(d, &m->down.w, shard, inter);
    msgl__declare_joined(d, &m->down, shard.count, c->mlp_bias, join, MSGL_ROWS_BLOCK);
    snprintf(tensor, sizeof tensor, "%s.%s", name, c->names.mlp_down);
    msgl__declare_rows(d, &m->down, 0, d->m->cfg.hidden_size, c->mlp_bias, tensor);
}

// Expert e's part of the tensors that stack gates, ups and downs by themselves. parts: up, or gate
// and up.
static void declare_expert_of_each(const msgl_declaring *d, msgl_weight *gate_up, msgl_weight *down,
                                   int32_t e, int32_t parts)
{
    const msgl_decoder_names *n = &d->m->cfg.decoder.names;
    const int32_t inter = d->m->cfg.decoder.moe_intermediate_size;
    const int32_t hidden = experts_width(&d->m->cfg), all = d->m->cfg.decoder.num_experts;
    const char *const fmt = "%slayers.%d.%s.weight";
    if (n->each_gate_up != NULL && parts == 2) {
        msgl__plan_rows(d->p, gate_up, 0, 2 * inter, fmt, n->prefix, d->layer, n->each_gate_up);
        msgl__plan_expert(d->p, all, e, false);
    } else {
        if (parts == 2) {
            msgl__plan_rows(d->p, gate_up, 0, inter, fmt, n->prefix, d->layer, n->each_gate);
            msgl__plan_expert(d->p, all, e, false);
        }
        msgl__plan_rows(d->p, gate_up, (parts - 1) * inter, inter, fmt, n->prefix, d->layer,
                        n->each_up);
        msgl__plan_expert(d->p, all, e, false);
    }
    msgl__plan_rows(d->p, down, 0, hidden, fmt, n->prefix, d->layer, n->each_down);
    msgl__plan_expert(d->p, all, e, false);
}

// Expert e's tensors: its own, and those that it has a part in. parts: up, or gate and up.
static void declare_expert_tensors(const msgl_declaring *d, msgl_weight *gate_up, msgl_weight *down,
                                   int32_t e, int32_t parts)
{
    const msgl_decoder_names *n = &d->m->cfg.decoder.names;
    const int32_t inter = d->m->cfg.decoder.moe_intermediate_size;
    const int32_t hidden = experts_width(&d->m->cfg);
    const int32_t all = d->m->cfg.decoder.num_experts;
    const char *const own = "%slayers.%d.%s.%d.%s.weight", *const shared = "%slayers.%d.%s";
    if (n->experts != NULL) {
        msgl__plan_form(d->p, MSGL_FORM_APART);
        if (parts == 2) {
            msgl__plan_rows(d->p, gate_up, 0, inter, own, n->prefix, d->layer, n->experts, e,
                            n->gate);
        }
        msgl__plan_rows(d->p, gate_up, (parts - 1) * inter, inter, own, n->prefix, d->layer,
                        n->experts, e, n->up);
        msgl__plan_rows(d->p, down, 0, hidden, own, n->prefix, d->layer, n->experts, e, n->down);
    }
    msgl__plan_form(d->p, MSGL_FORM_STACKED);
    msgl__plan_rows(d->p, gate_up, 0, parts * inter, shared, n->prefix, d->layer, n->all_gate_up);
    if (n->all_alternate) msgl__plan_pairs(d->p, 2 * inter, 0, inter);
    msgl__plan_expert(d->p, all, e, n->all_by_columns);
    msgl__plan_rows(d->p, down, 0, hidden, shared, n->prefix, d->layer, n->all_down);
    msgl__plan_expert(d->p, all, e, n->all_by_columns);
    msgl__plan_form(d->p, MSGL_FORM_ANY);
}

static void declare_expert(const msgl_declaring *d, msgl_moe *m, int32_t e)
{
    const int32_t inter = d->m->cfg.decoder.moe_intermediate_size;
    const int32_t hidden = experts_width(&d->m->cfg);
    // The experts' arrays belong to the model; only reading them is everyone's.
    const int32_t at = e - m->experts.first, parts = m->experts.plain ? 1 : 2;
    msgl_weight *gate_up = (msgl_weight *)m->experts.gate_up + at;
    msgl_weight *down = (msgl_weight *)m->experts.down + at;
    const msgl_range shard = msgl__own_columns(d->target, inter);
    const msgl_range rows[] = {shard, msgl__rows_of(shard, 1, inter)};
    const bool own = at >= 0 && at < m->experts.own;
    msgl__keep_rows(d, gate_up, own ? rows : NOTHING, own ? parts : 1);
    const msgl_kept kept_down = {.cols = shard, .all_cols = inter, .num_rows = own ? 0 : 1};
    if (d->target->ranks > 1) msgl__plan_keep(d->p, down, &kept_down);
    msgl__plan_weight(d->p, gate_up, own ? parts * shard.count : 0, hidden);
    msgl__plan_weight(d->p, down, own ? hidden : 0, shard.count);
    if (d->m->cfg.decoder.names.each_down != NULL) {
        declare_expert_of_each(d, gate_up, down, e, parts);
    } else {
        declare_expert_tensors(d, gate_up, down, e, parts);
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

static void declare_correction_named(const msgl_declaring *d, float **v, const char *name)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    msgl__plan_elements(d->p, v, 0, c->num_experts, 0, "%slayers.%d.%s", c->names.prefix, d->layer,
                        name);
    if (c->names.correction_row) msgl__plan_expert(d->p, 1, 0, false); // [1, experts]
}

static void declare_correction(const msgl_declaring *d, msgl_moe *m)
{
    const msgl_decoder_names *n = &d->m->cfg.decoder.names;
    float **v = &m->experts.router.correction;
    const bool two = n->all_correction != NULL;
    msgl__plan_vector(d->p, v, d->m->cfg.decoder.num_experts);
    if (two) msgl__plan_form(d->p, MSGL_FORM_APART);
    declare_correction_named(d, v, n->correction);
    if (!two) return;
    msgl__plan_form(d->p, MSGL_FORM_STACKED);
    declare_correction_named(d, v, n->all_correction);
    msgl__plan_form(d->p, MSGL_FORM_ANY);
}

// Experts by token ids, [ids, top_k].
static void declare_table(const msgl_declaring *d, msgl_moe *m)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    msgl_router *r = &m->experts.router;
    const int32_t n = r->table_ids * r->top_k;
    msgl__plan_vector(d->p, &r->table, n);
    msgl__plan_elements(d->p, &r->table, 0, n, 0, "%slayers.%d.%s", c->names.prefix, d->layer,
                        c->names.table);
    msgl__plan_expert(d->p, r->table_ids, 0, false);
    msgl__plan_integers(d->p, c->num_experts);
}

static void declare_latent(const msgl_declaring *d, msgl_moe *m, const msgl_join *join)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const int32_t latent = c->moe_latent_size, hidden = d->m->cfg.hidden_size;
    const msgl_linear_use in = {.rows = MSGL_ROWS_BLOCK};
    const msgl_linear_use out = {.rows = MSGL_ROWS_BLOCK,
                                 .adds = msgl__joins_directly(join, d->target->ranks)};
    msgl__declare_linear(d, &m->latent_in, latent, hidden, c->mlp_bias, &in);
    msgl__declare_rows(d, &m->latent_in, 0, latent, c->mlp_bias, c->names.latent_in);
    msgl__declare_linear(d, &m->latent_out, hidden, latent, c->mlp_bias, &out);
    msgl__declare_rows(d, &m->latent_out, 0, hidden, c->mlp_bias, c->names.latent_out);
}

static void declare_moe(const msgl_declaring *d, msgl_moe *m, const msgl_norm *norm,
                        const msgl_join *join)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    const int32_t hidden = d->m->cfg.hidden_size;
    msgl__plan_exact_weight(d->p, &m->router.w, c->num_experts, hidden);
    if (c->router_bias) msgl__plan_vector(d->p, &m->router.bias, c->num_experts);
    declare_router(d, m);
    if (c->names.router_norm != NULL) {
        msgl__plan_vector(d->p, &m->router_norm, hidden);
        msgl__plan_elements(d->p, &m->router_norm, 0, hidden, 1, "%slayers.%d.%s", c->names.prefix,
                            d->layer, c->names.router_norm);
        msgl__plan_times(d->p, 1 / sqrtf((float)hidden));
    }
    if (c->names.choice_scale != NULL) {
        float **scale = &m->experts.choice_scale;
        msgl__plan_vector(d->p, scale, c->num_experts);
        msgl__plan_elements(d->p, scale, 0, c->num_experts, 1, "%slayers.%d.%s", c->names.prefix,
                            d->layer, c->names.choice_scale);
    }
    if (m->experts.router.table_ids > 0) {
        declare_table(d, m);
    } else if (c->names.correction != NULL) {
        declare_correction(d, m);
    }
    if (c->moe_latent_size > 0) declare_latent(d, m, join);
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
    const msgl_decoder_names *n = &c->names;
    const int32_t width = msgl__mlp_width(&d->m->cfg, d->layer - c->head.first_layer);
    if (layer->beside) {
        declare_mlp(d, &layer->mlp, width, norm, NULL, n->mlp);
        msgl__declare_norm_of_stream(d, &layer->mlp_post_norm, n->mlp_post_norm);
        msgl__declare_norm_of_stream(d, &layer->moe_norm, n->moe_norm);
        msgl__declare_norm_of_stream(d, &layer->moe_post_norm, n->moe_post_norm);
        declare_moe(d, &layer->moe, &layer->moe_norm, &layer->moe_join);
    } else if (layer->sparse) {
        declare_moe(d, &layer->moe, norm, &layer->ffn_join);
    } else {
        declare_mlp(d, &layer->mlp, width, norm, &layer->ffn_join, n->mlp);
    }
}

// The dense block and the experts, as one block's result.
static void run_beside(msgl_forward *f, const msgl_decoder_layer *layer, void *residual,
                       int32_t rows)
{
    const size_t mark = f->arena->used;
    const int32_t hidden = layer->moe_norm.dim;
    void *sum = msgl__activation(f, (size_t)rows, (size_t)hidden);
    if (sum == NULL) return;
    msgl__mlp_apart(f, &layer->mlp, msgl__norm_or_null(&layer->ffn_norm), &layer->mlp_post_norm,
                    residual, sum, rows);
    msgl__moe(f, &layer->moe, &layer->moe_norm, &layer->moe_join, residual, sum, rows);
    msgl__join(f, &layer->ffn_join, false, sum, residual, rows, hidden);
    f->arena->used = mark;
}

void msgl__ffn_run(msgl_forward *f, const msgl_decoder_layer *layer, void *in, void *residual,
                   int32_t rows)
{
    const msgl_norm *norm = msgl__norm_or_null(&layer->ffn_norm);
    if (layer->beside) {
        run_beside(f, layer, residual, rows);
    } else if (layer->sparse) {
        msgl__moe(f, &layer->moe, norm, &layer->ffn_join, in, residual, rows);
    } else {
        msgl__mlp(f, &layer->mlp, norm, &layer->ffn_join, in, residual, rows);
    }
}

size_t msgl__ffn_workspace(const msgl_model *m, const msgl_decoder_layer *layer, int32_t max_rows)
{
    const msgl_kernels *k = m->target.kernels;
    const msgl_dtype act = m->target.act;
    const size_t mlp = msgl__mlp_workspace(&layer->mlp, k, act, max_rows);
    if (!layer->sparse) return mlp;
    const size_t moe = msgl__moe_workspace(&layer->moe, k, act, max_rows);
    if (!layer->beside) return moe;
    const size_t sum = msgl__activation_bytes((size_t)max_rows, (size_t)m->cfg.hidden_size, act);
    return sum + (mlp > moe ? mlp : moe);
}
