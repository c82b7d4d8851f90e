// SPDX-License-Identifier: Apache-2.0
#include "layers/moe.h"

size_t msgl__moe_workspace(const msgl_moe *m, const msgl_kernels *k, msgl_dtype act,
                           int32_t max_rows)
{
    const int32_t rows = msgl__ffn_rows(k, max_rows);
    const size_t n = (size_t)rows, hidden = (size_t)m->router.w.k;
    size_t shared = 0;
    if (m->has_shared) {
        shared = msgl__activation_bytes(n, hidden, act) +
                 (m->gates_shared ? msgl__activation_bytes(n, 1, MSGL_F32) : 0) +
                 msgl__mlp_workspace(&m->shared, k, act, max_rows);
    }
    return msgl__activation_bytes(n, hidden, act) + shared +
           m->backend->workspace(&m->experts, act, rows);
}

// The expert of all tokens, before anything is added to the stream.
typedef struct shared_part {
    void *result; // [rows, hidden]; NULL: there is none
    float *gate;  // [rows]; NULL: it is added as it is
} shared_part;

static shared_part run_shared(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm,
                              const void *in, int32_t rows)
{
    const size_t n = (size_t)rows, hidden = (size_t)m->router.w.k;
    shared_part s = {0};
    if (!m->has_shared) return s;
    s.result = msgl__activation(f, n, hidden);
    if (m->gates_shared) s.gate = msgl__take_rows(f, n, 1, MSGL_F32);
    const size_t mark = f->arena->used;
    void *act = msgl__activation(f, n, (size_t)m->shared.down.w.k);
    if (f->x->status != 0) return s;
    msgl__linear_gated(f, &m->shared.gate_up, norm, m->shared.activation, in, act, rows);
    msgl__linear(f, &m->shared.down, NULL, act, s.result, rows);
    if (m->gates_shared) msgl__linear_f32(f, &m->shared_gate, norm, in, s.gate, rows);
    f->arena->used = mark;
    return s;
}

static void run_block(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm,
                      const msgl_join *join, void *residual, int32_t rows)
{
    const size_t n = (size_t)rows, hidden = (size_t)m->router.w.k;
    const bool direct = msgl__joins_directly(join, f->comm->size);
    const shared_part shared = run_shared(f, m, norm, residual, rows);
    void *out = direct ? residual : msgl__activation(f, n, hidden);
    if (f->x->status != 0) return;
    const msgl_moe_call call = {.experts = &m->experts,
                                .norm = norm->weight,
                                .norm_eps = norm->eps,
                                .router = &m->router.w,
                                .router_bias = m->router.bias,
                                .in = residual,
                                .rows = rows,
                                .accumulate = direct,
                                .out = out};
    m->backend->forward(f->x, f->k, f->arena, &call);
    if (shared.result != NULL) {
        f->k->moe.add_shared(f->x, shared.result, shared.gate, rows, (int32_t)hidden, out);
    }
    if (direct) return;
    if (f->comm->size > 1) f->comm->ops->all_reduce(f->comm, f->x, out, n * hidden);
    msgl__join(f, join, out, residual, rows, (int32_t)hidden);
}

void msgl__moe(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm, const msgl_join *join,
               void *residual, int32_t rows)
{
    const int32_t block = msgl__ffn_rows(f->k, rows);
    for (int32_t r = 0; r < rows; r += block) {
        const size_t mark = f->arena->used;
        run_block(f, m, norm, join, msgl__row(f, residual, r, (size_t)m->router.w.k),
                  rows - r < block ? rows - r : block);
        f->arena->used = mark;
    }
}
