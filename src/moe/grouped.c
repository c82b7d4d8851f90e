// SPDX-License-Identifier: Apache-2.0
//
// Sorted grouped experts: assignments (token, expert) are sorted by expert, so that each expert
// that has any token multiplies them all at once and no other expert is touched. The combination
// adds a token's experts in the order of the router's choice, whatever else is in the batch.
#include "moe/backends.h"

#include "core/err.h"

static size_t bytes(size_t n)
{
    return (n * 4 + 63) & ~(size_t)63;
}

static size_t grouped_workspace(const msgl_moe_experts *e, int32_t rows)
{
    const size_t n = (size_t)rows * (size_t)e->top_k;
    const size_t hidden = (size_t)e->down[0].n, inter = (size_t)e->down[0].k;
    return 3 * bytes(n) + bytes((size_t)e->num_experts + 1) + 2 * bytes(n * hidden) +
           bytes(n * 2 * inter) + bytes(n * inter);
}

static void grouped_forward(msgl_exec *x, const msgl_kernels *k, msgl_arena *arena,
                            const msgl_moe_experts *e, const float *in, const float *logits,
                            int32_t rows, float *out)
{
    const size_t n = (size_t)rows * (size_t)e->top_k;
    const int32_t hidden = e->down[0].n, inter = e->down[0].k;
    const size_t ld_hidden = (size_t)hidden, ld_inter = (size_t)inter;
    int32_t *ids = msgl__arena_alloc(arena, n * sizeof *ids);
    float *weights = msgl__arena_alloc(arena, n * sizeof *weights);
    int32_t *source = msgl__arena_alloc(arena, n * sizeof *source);
    int32_t *offsets = msgl__arena_alloc(arena, ((size_t)e->num_experts + 1) * sizeof *offsets);
    float *sorted = msgl__arena_alloc(arena, n * ld_hidden * sizeof *sorted);
    float *gate_up = msgl__arena_alloc(arena, n * 2 * ld_inter * sizeof *gate_up);
    float *act = msgl__arena_alloc(arena, n * ld_inter * sizeof *act);
    float *result = msgl__arena_alloc(arena, n * ld_hidden * sizeof *result);
    if (ids == NULL || weights == NULL || source == NULL || offsets == NULL || sorted == NULL ||
        gate_up == NULL || act == NULL || result == NULL) {
        x->status = MSGL_EINTERNAL;
        return;
    }
    k->moe.route(x, logits, rows, e->num_experts, e->top_k, e->norm_topk, ids, weights);
    k->moe.sort(x, ids, rows, e->top_k, e->num_experts, offsets, source);
    k->moe.gather(x, in, source, rows, e->top_k, hidden, sorted);
    k->gemm.grouped(x, e->gate_up, e->num_experts, offsets, sorted, ld_hidden, gate_up,
                    2 * ld_inter);
    msgl__arena_reset(x->scratch);
    k->act.silu_mul(x, gate_up, act, (int)n, inter);
    k->gemm.grouped(x, e->down, e->num_experts, offsets, act, ld_inter, result, ld_hidden);
    msgl__arena_reset(x->scratch);
    k->moe.combine(x, result, source, weights, rows, e->top_k, hidden, out);
}

const msgl_moe_desc msgl__moe_grouped = {
    .name = "grouped",
    .summary = "tokens sorted by expert, one grouped product per projection",
    .workspace = grouped_workspace,
    .forward = grouped_forward,
};
