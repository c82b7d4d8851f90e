// SPDX-License-Identifier: Apache-2.0
#include "layers/moe.h"

#include "layers/mlp.h"

static int32_t block_rows(int32_t rows)
{
    return rows < MSGL_FFN_ROWS ? rows : MSGL_FFN_ROWS;
}

size_t msgl__moe_workspace(const msgl_moe *m, int32_t max_rows)
{
    const int32_t rows = block_rows(max_rows);
    return msgl__activation_bytes((size_t)rows, (size_t)m->router.w.n) +
           m->backend->workspace(&m->experts, rows);
}

void msgl__moe(msgl_forward *f, const msgl_moe *m, const float *in, float *out, int32_t rows)
{
    const size_t hidden = (size_t)m->router.w.k;
    const int32_t block = block_rows(rows);
    for (int32_t r = 0; r < rows; r += block) {
        const int32_t n = rows - r < block ? rows - r : block;
        const size_t mark = f->arena->used;
        const float *block_in = in + (size_t)r * hidden;
        float *logits = msgl__activation(f, (size_t)n, (size_t)m->router.w.n);
        if (logits == NULL) return;
        msgl__linear(f, &m->router, block_in, hidden, logits, n);
        m->backend->forward(f->x, f->k, f->arena, &m->experts, block_in, logits, n,
                            out + (size_t)r * hidden);
        f->arena->used = mark;
    }
}
