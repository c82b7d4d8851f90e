// SPDX-License-Identifier: Apache-2.0
#include "layers/moe.h"

#include "layers/expert_sum.h"
#include "layers/lora.h"

// Ranks have parts of the expert of all tokens: then all have something of every row. Who has what
// is counted on the host, so not on GPUs.
static bool exchanges(const msgl_moe *m, const msgl_kernels *k)
{
    return k->moe.ids_on_host && !m->has_shared && msgl__experts_exchange(&m->experts);
}

// Of msgl_moe.latent_in: what it reads, what it makes and what latent_out reads.
static size_t latent_bytes(const msgl_moe *m, msgl_dtype act, size_t rows)
{
    const size_t width = (size_t)m->latent_in.w.n;
    if (width == 0) return 0;
    return msgl__activation_bytes(rows, (size_t)m->latent_in.w.k, act) +
           2 * msgl__activation_bytes(rows, width, act);
}

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
    size_t sum = 0;
    if (exchanges(m, k)) {
        sum = msgl__round_up(n * (size_t)m->experts.router.top_k * sizeof(int32_t), 64) +
              msgl__expert_sum_bytes(&m->experts, rows);
    }
    return msgl__activation_bytes(n, hidden, act) + shared + sum + latent_bytes(m, act, n) +
           m->backend->workspace(&m->experts, act, rows);
}

// The expert of all tokens, until it is added to the stream.
typedef struct shared_expert {
    msgl_forward *f;
    const msgl_moe *m;
    const msgl_norm *norm;
    const void *in;
    int32_t rows;
    void *act;    // [rows, intermediate]; NULL: there is none
    void *result; // [rows, hidden]; NULL: the product of act adds to the stream itself
    float *gate;  // [rows]; NULL: the result is added as it is
} shared_expert;

static void take_shared(shared_expert *s, bool direct)
{
    msgl_forward *f = s->f;
    const size_t n = (size_t)s->rows, hidden = (size_t)s->m->router.w.k;
    if (!s->m->has_shared) return;
    s->act = msgl__activation(f, n, (size_t)s->m->shared.down.w.k);
    if (s->m->gates_shared || !direct) s->result = msgl__activation(f, n, hidden);
    if (s->m->gates_shared) s->gate = msgl__take_rows(f, n, 1, MSGL_F32);
}

static void begin_shared(void *ctx)
{
    const shared_expert *s = ctx;
    const msgl_mlp *mlp = &s->m->shared;
    msgl__mlp_up(s->f, mlp, s->norm, s->in, s->act, s->rows, NULL);
    if (s->result != NULL) msgl__linear(s->f, &mlp->down, NULL, s->act, s->result, s->rows);
    if (s->gate != NULL) {
        msgl__linear_f32(s->f, &s->m->shared_gate, s->norm, s->in, s->gate, s->rows);
    }
}

// To out, which has what the other experts say.
static void add_shared(msgl_forward *f, const msgl_moe *m, const shared_expert *s,
                       const msgl_join *join, void *out, int32_t rows)
{
    if (s->result != NULL) {
        f->k->moe.add_shared(f->x, s->result, s->gate, rows, m->router.w.k, out);
    } else if (s->act != NULL) {
        msgl__linear_add(f, &m->shared.down, s->act, out, join, rows, NULL);
    }
}

// Makes of a call on the stream one on latent vectors, whose sum is apart.
static void begin_latent(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm,
                         msgl_moe_call *call)
{
    const size_t rows = (size_t)call->rows, width = (size_t)m->latent_in.w.n;
    void *normed = msgl__activation(f, rows, (size_t)m->latent_in.w.k);
    void *in = msgl__activation(f, rows, width), *out = msgl__activation(f, rows, width);
    if (out == NULL) return;
    if (norm != NULL) msgl__norm(f, norm, call->in, normed, call->rows);
    call->router_in = norm != NULL ? normed : call->in;
    msgl__linear(f, &m->latent_in, NULL, call->router_in, in, call->rows);
    call->norm = NULL;
    call->in = in;
    call->out = out;
    call->accumulate = false;
}

// To out, which is the residual where `direct`, from the latent sum.
static void end_latent(msgl_forward *f, const msgl_moe *m, const void *sum, bool direct, void *out,
                       int32_t rows)
{
    if (direct) {
        msgl__linear_add(f, &m->latent_out, sum, out, &(msgl_join){.scale = 1}, rows, NULL);
    } else {
        msgl__linear(f, &m->latent_out, NULL, sum, out, rows);
    }
}

static void run_block(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm,
                      const msgl_join *join, const void *in, void *residual, int32_t rows)
{
    const size_t n = (size_t)rows, hidden = (size_t)m->router.w.k;
    const bool direct = msgl__joins_directly(join, f->comm->size);
    shared_expert own = {.f = f, .m = m, .norm = norm, .in = in, .rows = rows};
    take_shared(&own, direct);
    void *out = direct ? residual : msgl__activation(f, n, hidden);
    int32_t *ids = NULL;
    if (exchanges(m, f->k)) {
        ids = msgl__arena_alloc(f->arena, n * (size_t)m->experts.router.top_k * sizeof *ids);
        if (ids == NULL) f->x->status = MSGL_EINTERNAL;
    }
    if (f->x->status != 0) return;
    const msgl_moe_shared shared = {.gate_up = &m->shared.gate_up.w,
                                    .down = &m->shared.down.w,
                                    .act = own.act,
                                    .begin = begin_shared,
                                    .ctx = &own};
    // Not the backend's matter: with a gate, or with an adapter that changes it.
    const bool apart = m->gates_shared || msgl__lora_changes(f, &m->shared.gate_up) ||
                       msgl__lora_changes(f, &m->shared.down);
    if (m->has_shared && apart) begin_shared(&own);
    msgl_lora_moe adapted;
    msgl_moe_call call = {.experts = &m->experts,
                          .norm = norm != NULL ? norm->weight : NULL,
                          .router_norm = m->router_norm,
                          .norm_eps = norm != NULL ? norm->eps : 0,
                          .router = &m->router.w,
                          .router_bias = m->router.bias,
                          .in = in,
                          .tokens = f->row_ids,
                          .rows = rows,
                          .accumulate = direct,
                          .out = out,
                          .ids = ids,
                          .shared = m->has_shared && !apart ? &shared : NULL,
                          .watch = f->watch,
                          .adapters = msgl__lora_moe(f, &m->experts, rows, &adapted)};
    const bool latent = m->latent_in.w.n > 0;
    if (latent) begin_latent(f, m, norm, &call);
    if (f->x->status != 0) return;
    const bool added = m->backend->forward(f->x, f->k, f->arena, &call);
    if (latent) end_latent(f, m, call.out, direct, out, rows);
    if (!added) add_shared(f, m, &own, join, out, rows);
    if (direct) return;
    void *sum = ids != NULL ? msgl__expert_sum(f, &m->experts, ids, out, rows) : NULL;
    msgl__join(f, join, sum == NULL, sum != NULL ? sum : out, residual, rows, (int32_t)hidden);
}

void msgl__moe(msgl_forward *f, const msgl_moe *m, const msgl_norm *norm, const msgl_join *join,
               const void *in, void *residual, int32_t rows)
{
    const size_t hidden = (size_t)m->router.w.k;
    const int32_t block = msgl__ffn_rows(f->k, rows);
    const int32_t *const ids = f->row_ids;
    for (int32_t r = 0; r < rows; r += block) {
        const size_t mark = f->arena->used;
        if (f->lora != NULL) f->lora->first = r;
        f->row_ids = ids != NULL ? ids + r : NULL;
        run_block(f, m, norm, join, msgl__row(f, in, r, hidden), msgl__row(f, residual, r, hidden),
                  rows - r < block ? rows - r : block);
        f->arena->used = mark;
    }
    f->row_ids = ids;
    if (f->lora != NULL) f->lora->first = 0;
}
