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

// The expert of all tokens, until it is added to the stream.
typedef struct shared_part {
    void *act;    // [rows, intermediate]; NULL: there is none
    void *result; // [rows, hidden]; NULL: the product of act adds to the stream itself
    float *gate;  // [rows]; NULL: the result is added as it is
} shared_part;

static shared_part begin_shared(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm,
                                const void *in, bool direct, int32_t rows)
{
    const size_t n = (size_t)rows, hidden = (size_t)m->router.w.k;
    shared_part s = {0};
    if (!m->has_shared) return s;
    s.act = msgl__activation(f, n, (size_t)m->shared.down.w.k);
    if (m->gates_shared || !direct) s.result = msgl__activation(f, n, hidden);
    if (m->gates_shared) s.gate = msgl__take_rows(f, n, 1, MSGL_F32);
    if (f->x->status != 0) return s;
    msgl__linear_gated(f, &m->shared.gate_up, norm, m->shared.activation, in, s.act, rows);
    if (s.result != NULL) msgl__linear(f, &m->shared.down, NULL, s.act, s.result, rows);
    if (m->gates_shared) msgl__linear_f32(f, &m->shared_gate, norm, in, s.gate, rows);
    return s;
}

// To out, which has what the other experts say.
static void add_shared(msgl_forward *f, const msgl_moe *m, const shared_part *s,
                       const msgl_join *join, void *out, int32_t rows)
{
    if (s->result != NULL) {
        f->k->moe.add_shared(f->x, s->result, s->gate, rows, m->router.w.k, out);
    } else if (s->act != NULL) {
        msgl__linear_add(f, &m->shared.down, s->act, out, join, rows);
    }
}

static void run_block(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm,
                      const msgl_join *join, void *residual, int32_t rows)
{
    const size_t n = (size_t)rows, hidden = (size_t)m->router.w.k;
    const bool direct = msgl__joins_directly(join, f->comm->size);
    const shared_part shared = begin_shared(f, m, norm, residual, direct, rows);
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
                                .out = out,
                                .watch = f->watch};
    m->backend->forward(f->x, f->k, f->arena, &call);
    add_shared(f, m, &shared, join, out, rows);
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
