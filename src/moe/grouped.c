// SPDX-License-Identifier: Apache-2.0
//
// Sorted grouped experts: assignments (token, expert) are sorted by expert, so that each expert
// that has any token multiplies them all at once and no other expert is touched. The combination
// adds a token's experts in the order of the router's choice, whatever else is in the batch.
#include "moe/backends.h"

#include "core/err.h"

static size_t bytes(size_t n, size_t size)
{
    return (n * size + 63) & ~(size_t)63;
}

static size_t grouped_workspace(const msgl_moe_experts *e, msgl_dtype act, int32_t rows)
{
    const size_t n = (size_t)rows * (size_t)e->top_k, size = msgl__dtype_size(act);
    const size_t hidden = (size_t)e->down[0].n, inter = (size_t)e->down[0].k;
    return 3 * bytes(n, 4) + bytes((size_t)e->num_experts + 1, 4) + 2 * bytes(n * hidden, size) +
           bytes(n * inter, size);
}

static void grouped_forward(msgl_exec *x, const msgl_kernels *k, msgl_arena *arena,
                            const msgl_moe_experts *e, const void *in, const float *logits,
                            int32_t rows, bool accumulate, void *out)
{
    const size_t n = (size_t)rows * (size_t)e->top_k, size = msgl__dtype_size(x->act);
    const int32_t hidden = e->down[0].n, inter = e->down[0].k;
    int32_t *ids = msgl__arena_alloc(arena, n * sizeof *ids);
    float *weights = msgl__arena_alloc(arena, n * sizeof *weights);
    int32_t *source = msgl__arena_alloc(arena, n * sizeof *source);
    int32_t *offsets = msgl__arena_alloc(arena, ((size_t)e->num_experts + 1) * sizeof *offsets);
    void *sorted = msgl__arena_alloc(arena, n * (size_t)hidden * size);
    void *act = msgl__arena_alloc(arena, n * (size_t)inter * size);
    void *result = msgl__arena_alloc(arena, n * (size_t)hidden * size);
    if (ids == NULL || weights == NULL || source == NULL || offsets == NULL || sorted == NULL ||
        act == NULL || result == NULL) {
        x->status = MSGL_EINTERNAL;
        return;
    }
    const msgl_grouped_call up = {.experts = e->gate_up,
                                  .num_experts = e->num_experts,
                                  .offsets = offsets,
                                  .rows = (int32_t)n,
                                  .in = sorted,
                                  .ld_in = (size_t)hidden,
                                  .gated = true,
                                  .out = act,
                                  .ld_out = (size_t)inter};
    const msgl_grouped_call down = {.experts = e->down,
                                    .num_experts = e->num_experts,
                                    .offsets = offsets,
                                    .rows = (int32_t)n,
                                    .in = act,
                                    .ld_in = (size_t)inter,
                                    .out = result,
                                    .ld_out = (size_t)hidden};
    k->moe.route(x, logits, rows, e->num_experts, e->top_k, e->norm_topk, ids, weights);
    k->moe.sort(x, ids, rows, e->top_k, e->num_experts, offsets, source);
    k->moe.gather(x, in, source, rows, e->top_k, hidden, sorted);
    k->gemm.grouped(x, &up);
    msgl__arena_reset(x->scratch);
    k->gemm.grouped(x, &down);
    msgl__arena_reset(x->scratch);
    k->moe.combine(x, result, source, weights, rows, e->top_k, hidden, accumulate, out);
    msgl__arena_reset(x->scratch);
}

const msgl_moe_desc msgl__moe_grouped = {
    .name = "grouped",
    .summary = "tokens sorted by expert, one grouped product per projection",
    .workspace = grouped_workspace,
    .forward = grouped_forward,
};
