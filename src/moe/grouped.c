// SPDX-License-Identifier: Apache-2.0
//
// Sorted grouped experts: assignments (token, expert) are sorted by expert, so that each expert
// that has any token multiplies them all at once and no other expert is touched. The combination
// adds a token's experts in the order of the router's choice, whatever else is in the batch. Where
// other ranks have some of the experts, it adds what this one has, and they are added up elsewhere.
#include "moe/backends.h"

#include "core/err.h"
#include "core/round.h"

static size_t bytes(size_t n, size_t size)
{
    return msgl__round_up(n * size, 64);
}

static size_t grouped_workspace(const msgl_moe_experts *e, msgl_dtype act, int32_t rows)
{
    const size_t r = (size_t)rows, n = r * (size_t)e->router.top_k, size = msgl__dtype_size(act);
    const size_t hidden = (size_t)e->down[0].n, inter = (size_t)e->down[0].k;
    return bytes(r * hidden, size) + bytes(r * (size_t)e->num_experts, 4) + 3 * bytes(n, 4) +
           bytes((size_t)e->num_experts + 1, 4) + 2 * bytes(n * hidden, size) +
           bytes(n * inter, size);
}

typedef struct buffers {
    void *normed;                // [rows, hidden]
    float *logits;               // [rows, experts]
    int32_t *ids;                // [rows, top_k]
    float *weights;              // the same
    int32_t *source, *offsets;   // msgl_moe_kernels.sort
    void *sorted, *act, *result; // [rows * top_k, ...]
} buffers;

static bool take(buffers *b, const msgl_exec *x, msgl_arena *arena, const msgl_moe_call *c)
{
    const msgl_moe_experts *e = c->experts;
    const size_t rows = (size_t)c->rows, n = rows * (size_t)e->router.top_k;
    const size_t size = msgl__dtype_size(x->act);
    const size_t hidden = (size_t)e->down[0].n, inter = (size_t)e->down[0].k;
    b->normed = c->norm == NULL ? (void *)c->in : msgl__arena_alloc(arena, rows * hidden * size);
    b->logits = msgl__arena_alloc(arena, rows * (size_t)e->num_experts * sizeof *b->logits);
    b->ids = c->ids != NULL ? c->ids : msgl__arena_alloc(arena, n * sizeof *b->ids);
    b->weights = msgl__arena_alloc(arena, n * sizeof *b->weights);
    b->source = msgl__arena_alloc(arena, n * sizeof *b->source);
    b->offsets = msgl__arena_alloc(arena, ((size_t)e->num_experts + 1) * sizeof *b->offsets);
    b->sorted = msgl__arena_alloc(arena, n * hidden * size);
    b->act = msgl__arena_alloc(arena, n * inter * size);
    b->result = msgl__arena_alloc(arena, n * hidden * size);
    return b->normed != NULL && b->logits != NULL && b->ids != NULL && b->weights != NULL &&
           b->source != NULL && b->offsets != NULL && b->sorted != NULL && b->act != NULL &&
           b->result != NULL;
}

// Normed rows, and their experts in order.
static void choose(msgl_exec *x, const msgl_kernels *k, const msgl_moe_call *c, const buffers *b)
{
    const msgl_moe_experts *e = c->experts;
    const int32_t hidden = c->router->k;
    const msgl_choose_call call = {.in = c->in,
                                   .rows = c->rows,
                                   .norm = c->norm,
                                   .norm_eps = c->norm_eps,
                                   .router = c->router,
                                   .choice = &e->router,
                                   .normed = b->normed,
                                   .logits = b->logits,
                                   .ids = b->ids,
                                   .weights = b->weights,
                                   .offsets = b->offsets,
                                   .source = b->source};
    const bool apart = c->router_norm != NULL;
    const bool fused = c->router_bias == NULL && c->norm != NULL && !apart &&
                       e->router.table == NULL && k->moe.choose != NULL;
    if (fused && k->moe.choose(x, &call)) return;
    const msgl_linear_call router = {.w = c->router,
                                     .bias = c->router_bias,
                                     .in = c->router_in != NULL ? c->router_in : b->normed,
                                     .ld_in = (size_t)hidden,
                                     .m = c->rows,
                                     .f32_out = true,
                                     .out = b->logits,
                                     .ld_out = (size_t)e->num_experts};
    if (c->norm != NULL) {
        k->norm.rms_norm(x, c->in, (size_t)hidden, apart ? c->router_norm : c->norm, c->norm_eps,
                         b->normed, (size_t)hidden, c->rows, hidden);
    }
    k->gemm.linear(x, &router);
    msgl__arena_reset(x->scratch);
    if (e->router.table != NULL) {
        k->moe.look_up(x, &e->router, b->logits, c->tokens, c->rows, e->num_experts, b->ids,
                       b->weights);
    } else {
        k->moe.route(x, &e->router, b->logits, c->rows, e->num_experts, b->ids, b->weights);
    }
    k->moe.sort(x, b->ids, c->rows, e->router.top_k, e->num_experts, b->offsets, b->source);
    if (!apart) return;
    k->norm.rms_norm(x, c->in, (size_t)hidden, c->norm, c->norm_eps, b->normed, (size_t)hidden,
                     c->rows, hidden);
}

// The products of sorted rows with what adapters add between them and what follows them.
static void multiply_adapted(msgl_exec *x, const msgl_kernels *k, msgl_arena *arena,
                             const msgl_moe_call *c, const buffers *b, msgl_grouped_call up,
                             const msgl_grouped_call *down)
{
    const msgl_moe_experts *e = c->experts;
    const msgl_moe_adapters *a = c->adapters;
    const size_t n = (size_t)up.rows, width = (size_t)e->gate_up[0].n;
    const size_t mark = arena->used;
    void *both = e->plain ? b->act : msgl__arena_alloc(arena, n * width * msgl__dtype_size(x->act));
    if (both == NULL) {
        x->status = MSGL_EINTERNAL;
        return;
    }
    // Rows without adapters keep the bits that they have in steps without any.
    if (!e->plain && k->moe.gate_in_product) {
        k->gemm.grouped(x, &up);
        msgl__arena_reset(x->scratch);
    }
    up.gated = false;
    up.out = both;
    up.ld_out = width;
    k->gemm.grouped(x, &up);
    msgl__arena_reset(x->scratch);
    msgl_moe_product made = {.offsets = up.offsets,
                             .source = b->source,
                             .ids = b->ids,
                             .assignments = up.rows,
                             .in = up.in,
                             .by_token = up.from != NULL,
                             .out = both};
    a->add(a->ctx, &made);
    if (e->plain) {
        k->act.apply(x, e->pointwise, NULL, both, n * width);
    } else if (k->moe.gate_in_product) {
        a->gate(a->ctx, &made, b->act);
    } else {
        k->act.gate(x, e->activation, both, b->act, up.rows, e->down[0].k);
    }
    k->gemm.grouped(x, down);
    msgl__arena_reset(x->scratch);
    made.second = true;
    made.in = down->in;
    made.by_token = false;
    made.out = down->out;
    made.by_choice = down->to != NULL;
    a->add(a->ctx, &made);
    arena->used = mark;
}

// The same without: rows of other ranks' experts come to nothing in the end.
static void multiply(msgl_exec *x, const msgl_kernels *k, const msgl_moe_experts *e,
                     const msgl_grouped_call *up, const msgl_grouped_call *down)
{
    k->gemm.grouped(x, up);
    msgl__arena_reset(x->scratch);
    if (e->plain) k->act.apply(x, e->pointwise, NULL, up->out, (size_t)up->rows * up->ld_out);
    k->gemm.grouped(x, down);
    msgl__arena_reset(x->scratch);
}

// Where products take rows by index, none are moved: `up` takes those of the tokens, `down` leaves
// its results in the order of the choices.
static bool grouped_forward(msgl_exec *x, const msgl_kernels *k, msgl_arena *arena,
                            const msgl_moe_call *c)
{
    const msgl_moe_experts *e = c->experts;
    const size_t hidden = (size_t)e->down[0].n, inter = (size_t)e->down[0].k;
    const bool indexed = k->gemm.indexed;
    const msgl_moe_shared *shared = c->shared;
    // By the product of a few rows, which gives it the rows that the others get.
    const bool along = shared != NULL && !e->weighs_input;
    buffers b;
    if (!take(&b, x, arena, c)) {
        x->status = MSGL_EINTERNAL;
        return false;
    }
    const msgl_grouped_call up = {.experts = e->gate_up,
                                  .num_experts = e->own,
                                  .offsets = b.offsets + e->first,
                                  .rows = c->rows * e->router.top_k,
                                  .in = indexed ? b.normed : b.sorted,
                                  .ld_in = hidden,
                                  .gated = !e->plain,
                                  .activation = e->activation,
                                  .bias = e->gate_up_bias,
                                  .out = b.act,
                                  .ld_out = inter,
                                  .from = indexed ? b.source : NULL,
                                  .from_per = e->router.top_k,
                                  .gathered = b.sorted};
    const msgl_grouped_call down = {.experts = e->down,
                                    .num_experts = e->own,
                                    .offsets = b.offsets + e->first,
                                    .rows = c->rows * e->router.top_k,
                                    .in = b.act,
                                    .ld_in = inter,
                                    .bias = e->down_bias,
                                    .out = b.result,
                                    .ld_out = hidden,
                                    .to = indexed ? b.source : NULL,
                                    .inputs_ready = true};
    const msgl_experts_call few = {.gate_up = e->gate_up,
                                   .down = e->down,
                                   .activation = e->activation,
                                   .gate_up_bias = e->gate_up_bias,
                                   .down_bias = e->down_bias,
                                   .num_experts = e->num_experts,
                                   .top_k = e->router.top_k,
                                   .rows = c->rows,
                                   .in = b.normed,
                                   .ids = b.ids,
                                   .weights = b.weights,
                                   .source = b.source,
                                   .act = b.act,
                                   .accumulate = c->accumulate,
                                   .out = c->out,
                                   .shared_up = along ? shared->gate_up : NULL,
                                   .shared_down = along ? shared->down : NULL,
                                   .shared_act = along ? shared->act : NULL};
    const bool all = e->own == e->num_experts;
    choose(x, k, c, &b);
    if (e->choice_scale != NULL) {
        k->moe.scale_choices(x, b.ids, c->rows * e->router.top_k, e->choice_scale, b.weights);
    }
    if (shared != NULL && !along) shared->begin(shared->ctx);
    if (e->weighs_input) k->moe.weigh_input(x, b.normed, b.weights, c->rows, (int)hidden);
    if (!all) {
        k->moe.keep_own(x, b.ids, c->rows * e->router.top_k, e->first, e->own, b.weights);
    }
    if (c->watch != NULL) c->watch->chosen(c->watch->ctx, e, b.offsets);
    const bool takes_few =
        all && c->adapters == NULL && !e->plain && c->router_in == NULL && k->moe.experts != NULL;
    if (takes_few && k->moe.experts(x, &few)) return along;
    if (along) shared->begin(shared->ctx);
    if (!indexed) {
        k->moe.gather(x, b.normed, b.source, c->rows, e->router.top_k, (int)hidden, b.sorted);
    }
    if (c->adapters != NULL) {
        multiply_adapted(x, k, arena, c, &b, up, &down);
    } else {
        multiply(x, k, e, &up, &down);
    }
    k->moe.combine(x, b.result, indexed ? NULL : b.source, b.weights, c->rows, e->router.top_k,
                   (int)hidden, c->accumulate, c->out);
    msgl__arena_reset(x->scratch);
    return false;
}

const msgl_moe_desc msgl__moe_grouped = {
    .name = "grouped",
    .summary = "tokens sorted by expert, one grouped product per projection",
    .workspace = grouped_workspace,
    .forward = grouped_forward,
};
