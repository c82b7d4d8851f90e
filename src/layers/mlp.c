// SPDX-License-Identifier: Apache-2.0
#include "layers/mlp.h"

#include "layers/lora.h"

size_t msgl__mlp_workspace(const msgl_mlp *m, const msgl_kernels *k, msgl_dtype act,
                           int32_t max_rows)
{
    return msgl__activation_bytes((size_t)msgl__ffn_rows(k, max_rows), (size_t)m->down.w.k, act);
}

void msgl__mlp_up(msgl_forward *f, const msgl_mlp *m, const msgl_norm *norm, const void *in,
                  void *out, int32_t rows, msgl_handover *handover)
{
    if (!m->plain) {
        msgl__linear_gated(f, &m->gate_up, norm, m->activation, in, out, rows, handover);
        return;
    }
    msgl__linear(f, &m->gate_up, norm, in, out, rows);
    f->k->act.apply(f->x, m->pointwise, m->params, out, (size_t)rows * (size_t)m->gate_up.w.n);
}

void msgl__mlp(msgl_forward *f, const msgl_mlp *m, const msgl_norm *norm, const msgl_join *join,
               const void *in, void *residual, int32_t rows)
{
    const size_t hidden = (size_t)m->gate_up.w.k;
    const size_t mark = f->arena->used;
    const int32_t block = msgl__ffn_rows(f->k, rows);
    void *act = msgl__activation(f, (size_t)block, (size_t)m->down.w.k);
    if (act == NULL) return;
    for (int32_t r = 0; r < rows; r += block) {
        const int32_t n = rows - r < block ? rows - r : block;
        const void *x = msgl__row(f, in, r, hidden);
        if (f->lora != NULL) f->lora->first = r;
        msgl_handover between = {.reader = &m->down.w};
        // An adapter of the second product reads values.
        msgl_handover *hands = msgl__lora_changes(f, &m->down) ? NULL : &between;
        msgl__mlp_up(f, m, norm, x, act, n, hands);
        msgl__linear_add(f, &m->down, act, msgl__row(f, residual, r, hidden), join, n, hands);
    }
    if (f->lora != NULL) f->lora->first = 0;
    f->arena->used = mark;
}

void msgl__mlp_apart(msgl_forward *f, const msgl_mlp *m, const msgl_norm *norm,
                     const msgl_norm *after, const void *in, void *out, int32_t rows)
{
    const size_t hidden = (size_t)m->gate_up.w.k, mark = f->arena->used;
    const int32_t block = msgl__ffn_rows(f->k, rows);
    void *act = msgl__activation(f, (size_t)block, (size_t)m->down.w.k);
    if (act == NULL) return;
    for (int32_t r = 0; r < rows; r += block) {
        const int32_t n = rows - r < block ? rows - r : block;
        if (f->lora != NULL) f->lora->first = r;
        msgl__linear_gated(f, &m->gate_up, norm, m->activation, msgl__row(f, in, r, hidden), act, n,
                           NULL);
        msgl__linear(f, &m->down, NULL, act, msgl__row(f, out, r, hidden), n);
    }
    if (f->lora != NULL) f->lora->first = 0;
    if (m->down.row_parallel && f->comm->size > 1) {
        f->comm->ops->all_reduce(f->comm, f->x, f->x->act, out, (size_t)rows * hidden);
    }
    if (after != NULL) msgl__norm(f, after, out, out, rows);
    f->arena->used = mark;
}
