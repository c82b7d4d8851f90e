// SPDX-License-Identifier: Apache-2.0
#include "layers/grouped_linear.h"

#include "layers/mlp.h"

void msgl__grouped_linear(msgl_forward *f, const msgl_grouped_linear *g, const void *in, void *out,
                          int32_t rows)
{
    const size_t k = (size_t)g->w[0].k, n = (size_t)g->w[0].n, groups = (size_t)g->groups;
    const int32_t block = msgl__ffn_rows(f->k, rows); // scratch is for so many
    for (int32_t r = 0; r < rows; r += block) {
        const msgl_heads_call c = {.w = g->w,
                                   .heads = g->groups,
                                   .m = rows - r < block ? rows - r : block,
                                   .in = msgl__row(f, in, r, groups * k),
                                   .ld_in = groups * k,
                                   .head_in = k,
                                   .out = msgl__row(f, out, r, groups * n),
                                   .ld_out = groups * n,
                                   .head_out = n};
        f->k->gemm.heads(f->x, &c);
        msgl__arena_reset(f->x->scratch);
    }
}
