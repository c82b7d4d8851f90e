// SPDX-License-Identifier: Apache-2.0
#include "layers/per_layer_input.h"

#include <math.h>

void *msgl__per_layer_inputs(msgl_forward *f, const msgl_per_layer_table *t, const void *embedded)
{
    const float half = (float)M_SQRT1_2;
    const size_t tokens = (size_t)f->num_tokens, width = msgl__per_layer_width(t);
    void *rows = msgl__activation(f, tokens, width);
    const size_t mark = f->arena->used;
    void *projected = msgl__activation(f, tokens, width);
    if (rows == NULL || projected == NULL) return NULL;
    t->embed.format->gather(f->x, &t->embed, f->ids, f->num_tokens, rows);
    if (f->comm->size > 1) {
        f->comm->ops->all_reduce(f->comm, f->x, f->x->act, rows, tokens * width);
    }
    f->k->norm.scale(f->x, rows, t->scale * half, tokens * width);
    msgl__linear(f, &t->projection, NULL, embedded, projected, f->num_tokens);
    f->k->norm.add(f->x, rows, projected, t->norm.weight, t->norm.eps, half,
                   f->num_tokens * t->layers, t->dim);
    f->arena->used = mark;
    return f->x->status == 0 ? rows : NULL;
}

void msgl__per_layer_add(msgl_forward *f, const msgl_per_layer_input *p, const void *inputs,
                         size_t ld, void *residual, int32_t rows)
{
    const size_t mark = f->arena->used;
    const int32_t dim = p->gate.w.n;
    void *gated = msgl__activation(f, (size_t)rows, (size_t)dim);
    if (gated == NULL || rows == 0) return;
    const char *by = (const char *)inputs + (size_t)p->at * msgl__dtype_size(f->x->act);
    msgl__linear(f, &p->gate, NULL, residual, gated, rows);
    f->k->act.gate_by(f->x, p->activation, by, ld, gated, rows, dim);
    msgl__linear_add(f, &p->projection, gated, residual, &p->join, rows, NULL);
    f->arena->used = mark;
}
