// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include "layers/lora.h"

static msgl_linear_call make_call(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm,
                                  const void *in, void *out, int32_t rows)
{
    return (msgl_linear_call){
        .w = &l->w,
        // Every rank of a row-parallel layer would add the bias, so only the first does.
        .bias = l->row_parallel && f->comm->rank != 0 ? NULL : l->bias,
        .in = in,
        .ld_in = (size_t)l->w.k,
        .m = rows,
        .norm = norm != NULL ? norm->weight : NULL,
        .norm_eps = norm != NULL ? norm->eps : 0,
        .out = out,
        .ld_out = (size_t)l->w.n,
        .norm_stats = norm != NULL && f->norm_stats.scaled != NULL ? &f->norm_stats : NULL,
    };
}

static void run(msgl_forward *f, const msgl_linear_call *c)
{
    if (c->m == 0) return;
    f->k->gemm.linear(f->x, c);
    msgl__arena_reset(f->x->scratch);
}

// To what c, the call of l's product, has left in c->out.
static void add_low_rank(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm,
                         const msgl_linear_call *c)
{
    const msgl_low_rank *r = l->low_rank;
    if (r == NULL || c->m == 0) return;
    const size_t mark = f->arena->used, elem = msgl__dtype_size(f->x->act);
    char *down = msgl__activation(f, (size_t)c->m, (size_t)r->a.w.n);
    if (down == NULL) return;
    msgl__linear(f, &r->a, norm, c->in, down, c->m);
    size_t at = 0;
    for (int32_t i = 0; i < r->num; i++) {
        const msgl_linear *b = &r->b[i];
        const size_t from = (size_t)i * (size_t)r->rank;
        msgl_linear_call up = make_call(f, b, NULL, down + from * elem, NULL, c->m);
        up.ld_in = (size_t)r->a.w.n;
        up.out = (char *)c->out + at * elem;
        up.ld_out = c->ld_out;
        up.accumulate = true;
        run(f, &up);
        msgl__lora_add(f, b, &up);
        at += (size_t)b->w.n;
    }
    f->arena->used = mark;
}

void msgl__linear(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm, const void *in,
                  void *out, int32_t rows)
{
    const msgl_linear_call c = make_call(f, l, norm, in, out, rows);
    run(f, &c);
    msgl__lora_add(f, l, &c);
    add_low_rank(f, l, norm, &c);
}

void msgl__linear_rope(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm, const void *in,
                       const msgl_rope_call *rope)
{
    const msgl_linear_call c = make_call(f, l, norm, in, rope->qkv, rope->tokens);
    if (c.m == 0) return;
    const bool alone =
        !msgl__lora_changes(f, l) && l->low_rank == NULL && f->k->gemm.linear_rope != NULL;
    if (alone && f->k->gemm.linear_rope(f->x, &c, rope)) return;
    run(f, &c);
    msgl__lora_add(f, l, &c);
    add_low_rank(f, l, norm, &c);
    f->k->rope.qk_norm_rope_store(f->x, rope);
}

void msgl__linear_of_columns(msgl_forward *f, const msgl_linear *l, const void *in, size_t ld_in,
                             void *out, int32_t rows)
{
    msgl_linear_call c = make_call(f, l, NULL, in, out, rows);
    c.ld_in = ld_in;
    run(f, &c);
    msgl__lora_add(f, l, &c);
}

void msgl__linear_f32(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm, const void *in,
                      float *out, int32_t rows)
{
    msgl_linear_call c = make_call(f, l, norm, in, out, rows);
    c.f32_out = true;
    run(f, &c);
    msgl__lora_add(f, l, &c);
}

// An adapter's part comes between product and gate.
static void gate_apart(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm,
                       msgl_activation activation, const void *in, void *out, int32_t rows)
{
    const size_t mark = f->arena->used;
    void *both = msgl__activation(f, (size_t)rows, (size_t)l->w.n);
    if (both == NULL) return;
    msgl__linear(f, l, norm, in, both, rows);
    f->k->act.gate(f->x, activation, both, out, rows, l->w.n / 2);
    f->arena->used = mark;
}

void msgl__linear_gated(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm,
                        msgl_activation activation, const void *in, void *out, int32_t rows,
                        msgl_handover *handover)
{
    if (rows > 0 && (l->low_rank != NULL || msgl__lora_changes(f, l))) {
        gate_apart(f, l, norm, activation, in, out, rows);
        return;
    }
    msgl_linear_call c = make_call(f, l, norm, in, out, rows);
    c.gated = true;
    c.handover = handover;
    c.activation = activation;
    c.ld_out = (size_t)l->w.n / 2;
    run(f, &c);
}

// In one go, where the communicator can.
static bool sum_and_add(msgl_forward *f, const msgl_join *j, const void *partial, void *residual,
                        int32_t rows, int32_t dim)
{
    const msgl_comm_ops *ops = f->comm->ops;
    if (ops->all_reduce_add == NULL || j->norm != NULL) return false;
    const bool leaves = j->next != NULL && f->norm_stats.scaled != NULL;
    const msgl_reduce_add a = {.in = partial,
                               .residual = residual,
                               .scale = j->scale,
                               .rows = rows,
                               .dim = dim,
                               .next_norm = leaves ? j->next->weight : NULL,
                               .norm_stats = leaves ? &f->norm_stats : NULL};
    return ops->all_reduce_add(f->comm, f->x, &a);
}

void msgl__join(msgl_forward *f, const msgl_join *j, bool shared, void *result, void *residual,
                int32_t rows, int32_t dim)
{
    const msgl_norm *n = j->norm;
    if (shared && f->comm->size > 1) {
        if (sum_and_add(f, j, result, residual, rows, dim)) return;
        f->comm->ops->all_reduce(f->comm, f->x, f->x->act, result, (size_t)rows * (size_t)dim);
    }
    f->k->norm.add(f->x, residual, result, n != NULL ? n->weight : NULL, n != NULL ? n->eps : 0,
                   j->scale, rows, dim);
}

static void leave_norm_stats(msgl_forward *f, const msgl_join *join, msgl_linear_call *c)
{
    if (join->next == NULL || f->norm_stats.scaled == NULL) return;
    c->norm_stats = &f->norm_stats;
    c->next_norm = join->next->weight;
}

// By the product's own kernel, where one can.
static bool sum_in_product(msgl_forward *f, const msgl_join *join, msgl_linear_call c)
{
    const msgl_comm_ops *ops = f->comm->ops;
    if (ops->meeting == NULL || f->k->gemm.linear_sum == NULL) return false;
    c.sum = ops->meeting(f->comm, (size_t)c.m * (size_t)c.w->n);
    if (c.sum == NULL) return false;
    c.accumulate = true;
    leave_norm_stats(f, join, &c);
    const bool done = f->k->gemm.linear_sum(f->x, &c);
    msgl__arena_reset(f->x->scratch);
    return done;
}

void msgl__linear_add(msgl_forward *f, const msgl_linear *l, const void *in, void *residual,
                      const msgl_join *join, int32_t rows, msgl_handover *handover)
{
    msgl_linear_call c = make_call(f, l, NULL, in, residual, rows);
    const int ranks = l->row_parallel ? f->comm->size : 1;
    c.handover = handover;
    f->norm_stats.num_tiles = 0;
    if (rows == 0) return;
    if (msgl__joins_directly(join, ranks)) {
        c.accumulate = true;
        // Adapters come first, so that their part is in the statistics that the product leaves.
        msgl__lora_add(f, l, &c);
        leave_norm_stats(f, join, &c);
        run(f, &c);
        return;
    }
    const bool sums = l->row_parallel && msgl__joins_directly(join, 1);
    if (sums && !msgl__lora_changes(f, l) && sum_in_product(f, join, c)) return;
    const size_t mark = f->arena->used;
    c.out = msgl__activation(f, (size_t)rows, (size_t)l->w.n);
    if (c.out == NULL) return;
    run(f, &c);
    msgl__lora_add(f, l, &c);
    msgl__join(f, join, l->row_parallel, c.out, residual, rows, l->w.n);
    f->arena->used = mark;
}
