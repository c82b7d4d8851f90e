// SPDX-License-Identifier: Apache-2.0
#include "layers/moe.h"

#include "layers/mlp.h"

size_t msgl__moe_workspace(const msgl_moe *m, const msgl_kernels *k, msgl_dtype act,
                           int32_t max_rows)
{
    const int32_t rows = msgl__ffn_rows(k, max_rows);
    const size_t n = (size_t)rows, hidden = (size_t)m->router.w.k;
    return msgl__activation_bytes(n, hidden, act) + m->backend->workspace(&m->experts, act, rows);
}

static void run_block(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm, void *residual,
                      int32_t rows)
{
    const size_t n = (size_t)rows, hidden = (size_t)m->router.w.k;
    const bool alone = f->comm->size == 1;
    void *out = alone ? residual : msgl__activation(f, n, hidden);
    if (out == NULL) return;
    const msgl_moe_call call = {.experts = &m->experts,
                                .norm = norm->weight,
                                .norm_eps = norm->eps,
                                .router = &m->router.w,
                                .router_bias = m->router.bias,
                                .in = residual,
                                .rows = rows,
                                .accumulate = alone,
                                .out = out};
    m->backend->forward(f->x, f->k, f->arena, &call);
    if (alone) return;
    f->comm->ops->all_reduce(f->comm, f->x, out, n * hidden);
    f->k->norm.add(f->x, residual, out, n * hidden);
}

void msgl__moe(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm, void *residual,
               int32_t rows)
{
    const int32_t block = msgl__ffn_rows(f->k, rows);
    for (int32_t r = 0; r < rows; r += block) {
        const size_t mark = f->arena->used;
        run_block(f, m, norm, msgl__row(f, residual, r, (size_t)m->router.w.k),
                  rows - r < block ? rows - r : block);
        f->arena->used = mark;
    }
}
