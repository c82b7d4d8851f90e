// SPDX-License-Identifier: Apache-2.0
//
// How a layer's tensors become rows of its weights, on one rank or on several.
#include "models/declare.h"

#include <stdio.h>

int msgl__check_shared(const msgl_shared_dim *shared, size_t num, int32_t ranks, msgl_err *err)
{
    for (size_t i = 0; i < num; i++) {
        const int32_t n = shared[i].n;
        if (n % ranks == 0 || (shared[i].repeats && ranks % n == 0)) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "--tp-size %d: %s is %d%s", (int)ranks,
                             shared[i].name, (int)n,
                             shared[i].repeats ? "; allowed: a divisor or a multiple of it"
                                               : "; allowed: a divisor of it");
    }
    return 0;
}

// A weight that every rank has whole.
void msgl__declare_linear(const msgl_declaring *d, msgl_linear *l, int32_t n, int32_t k, bool bias,
                          const msgl_linear_use *use)
{
    msgl__plan_weight(d->p, &l->w, n, k);
    if (bias) msgl__plan_vector(d->p, &l->bias, n);
    msgl__products_add(&d->m->products, l, use);
}

// The last product of a block. With `join` its result is added to the residual stream, without it
// the result is stored. Where several ranks have a part of the product each, a kernel that can add
// the parts up does so; both uses are declared then.
void msgl__declare_joined(const msgl_declaring *d, msgl_linear *l, int32_t k, bool bias,
                          const msgl_join *join, msgl_use_rows rows)
{
    const int32_t ranks = d->target->ranks;
    const bool could = join != NULL && msgl__joins_directly(join, 1), adds = could && ranks == 1;
    msgl_linear_use use = {.rows = rows, .adds = adds, .next = adds ? join->next : NULL};
    msgl__declare_linear(d, l, d->m->cfg.hidden_size, k, bias, &use);
    if (!could || adds) return;
    use.adds = use.sums = true;
    use.next = join->next;
    msgl__products_add(&d->m->products, l, &use);
}

// This rank keeps the ranges rows [num] of a weight's rows, or of a vector's elements.
void msgl__keep_rows(const msgl_declaring *d, const void *what, const msgl_range *rows, int32_t num)
{
    msgl_kept kept = {.num_rows = num};
    for (int32_t i = 0; i < num; i++) kept.rows[i] = rows[i];
    if (d->target->ranks > 1) msgl__plan_keep(d->p, what, &kept);
}

// A product of which each rank has some rows and computes those results (column-parallel): here the
// ranges rows [num].
void msgl__declare_shared_rows(const msgl_declaring *d, msgl_linear *l, const msgl_range *rows,
                               int32_t num, int32_t k, bool bias, const msgl_linear_use *use)
{
    msgl__keep_rows(d, &l->w, rows, num);
    msgl__keep_rows(d, &l->bias, rows, num);
    msgl__declare_linear(d, l, msgl__ranges_count(rows, num), k, bias, use);
}

// A product of which each rank has some columns, here `cols` of `all`, and whose results the ranks
// add up (row-parallel).
void msgl__keep_columns(const msgl_declaring *d, const msgl_weight *w, msgl_range cols, int32_t all)
{
    const msgl_kept kept = {.cols = cols, .all_cols = all};
    if (d->target->ranks > 1) msgl__plan_keep(d->p, w, &kept);
}

// Rows of a projection that come from one tensor, with its bias. pairs: of neighbours behind
// `unpaired` ones in every head of `head` rows that rotate together.
void msgl__declare_heads(const msgl_declaring *d, msgl_linear *l, int32_t row, int32_t rows,
                         bool bias, int32_t head, int32_t unpaired, int32_t pairs, const char *name)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    msgl__plan_rows(d->p, &l->w, row, rows, "%slayers.%d.%s%s.weight", prefix, d->layer, d->within,
                    name);
    msgl__plan_pairs(d->p, head, unpaired, pairs);
    if (!bias) return;
    msgl__plan_elements(d->p, &l->bias, row, rows, 0, "%slayers.%d.%s%s.bias", prefix, d->layer,
                        d->within, name);
    msgl__plan_pairs(d->p, head, unpaired, pairs);
}

void msgl__declare_rows(const msgl_declaring *d, msgl_linear *l, int32_t row, int32_t rows,
                        bool bias, const char *name)
{
    msgl__declare_heads(d, l, row, rows, bias, 0, 0, 0, name);
}

// A norm of `all` elements of which this rank keeps the range `kept`.
void msgl__declare_norm_slice(const msgl_declaring *d, float **v, msgl_range kept, int32_t all,
                              const char *name)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    msgl__keep_rows(d, v, &kept, 1);
    msgl__plan_vector(d->p, v, kept.count);
    msgl__plan_elements(d->p, v, 0, all, 1, "%slayers.%d.%s%s.weight", c->names.prefix, d->layer,
                        d->within, name);
    if (c->norm_plus_one) msgl__plan_add_one(d->p);
}

void msgl__declare_norm(const msgl_declaring *d, float **v, int32_t dim, const char *name)
{
    msgl__declare_norm_slice(d, v, (msgl_range){0, dim}, dim, name);
}

void msgl__declare_norm_of_stream(const msgl_declaring *d, msgl_norm *n, const char *name)
{
    const msgl_decoder_config *c = &d->m->cfg.decoder;
    if (name == NULL || n->dim == 0) return; // in no layer, or not in this one
    msgl__declare_norm(d, &n->weight, n->dim, name);
    if (!c->norm_bias) return;
    msgl__plan_vector(d->p, &n->bias, n->dim);
    msgl__plan_elements(d->p, &n->bias, 0, n->dim, 0, "%slayers.%d.%s%s.bias", c->names.prefix,
                        d->layer, d->within, name);
}

// Rows [at, at + rows) of a tensor of `all` as rows of a projection, with its bias.
void msgl__declare_slice(const msgl_declaring *d, msgl_linear *l, int32_t row, int32_t rows,
                         bool bias, int32_t all, int32_t at, const char *name)
{
    const char *const prefix = d->m->cfg.decoder.names.prefix;
    msgl__plan_rows(d->p, &l->w, row, rows, "%slayers.%d.%s%s.weight", prefix, d->layer, d->within,
                    name);
    msgl__plan_slice(d->p, all, at, false);
    if (!bias) return;
    msgl__plan_elements(d->p, &l->bias, row, rows, 0, "%slayers.%d.%s%s.bias", prefix, d->layer,
                        d->within, name);
    msgl__plan_slice(d->p, all, at, false);
}

void msgl__declare_out_to(const msgl_declaring *d, msgl_linear *out, const msgl_join *join,
                          int32_t width, bool bias, const char *name)
{
    const msgl_range cols = {.from = d->target->rank * width, .count = width};
    msgl__keep_columns(d, &out->w, cols, d->target->ranks * width);
    msgl__declare_joined(d, out, width, bias, join, MSGL_ROWS_STEP);
    msgl__declare_rows(d, out, 0, d->m->cfg.hidden_size, bias, name);
}

void msgl__declare_out(const msgl_declaring *d, msgl_decoder_layer *layer, int32_t width, bool bias,
                       const char *name)
{
    msgl__declare_out_to(d, &layer->out, &layer->attn_join, width, bias, name);
}

// By the names under which vLLM and SGLang find it: llm-compressor's, modelopt's, and those of
// older compressed-tensors files.
void msgl__declare_cache_scale(const msgl_declaring *d, float *scale, char k_or_v)
{
    const msgl_decoder_names *n = &d->m->cfg.decoder.names;
    const char *const fmt = "%slayers.%d.%s.%c_%s";
    static const char *const NAMES[] = {"scale", "proj.output_scale", "proj.k_scale",
                                        "proj.v_scale"};
    for (int i = 0; i < 3; i++) {
        const char *name = NAMES[i == 2 && k_or_v == 'v' ? 3 : i];
        msgl__plan_scale(d->p, scale, fmt, n->prefix, d->layer, n->attn, k_or_v, name);
    }
}
